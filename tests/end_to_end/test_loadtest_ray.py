"""A load test as people type it, on Ray, by a router that a load test used to leave out."""

import json

import pytest

import gateway.cli as cli

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]


@pytest.mark.long
def test_cli_loadtest_by_keyword_makes_the_load_that_was_asked_for(ray_session, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report = tmp_path / "report.json"
    code = cli.main(
        ["loadtest", "--rate", "500", "--seconds", "2", "--boolean", "60", "--topk", "40", "--router", "keyword"]
        + ["--query-bolts", "2", "--window", "count:500", "--out", str(report)]
    )
    assert code in (0, 1), "1 where this machine cannot keep the rate"
    assert "rate asked for   500 messages/s" in capsys.readouterr().out
    told = json.loads(report.read_text())
    asked = {name: told["settings"][name] for name in ("boolean", "topk", "skyline", "router", "query_bolts")}
    assert asked == {"boolean": 60, "topk": 40, "skyline": 0, "router": "keyword", "query_bolts": 2}
    assert told["messages"] == 1000 and told["updates"] > 0 and told["latency"]["count"] > 0
    held = [task["figures"]["held"] for task in told["topology"]["components"]["query"]["tasks"]]
    assert [sum(part[kind] for part in held) for kind in ("boolean", "topk", "skyline")] == [60, 40, 0]
