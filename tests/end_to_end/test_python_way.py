"""docs/python.md, run from top to bottom as a notebook would, on small data of our own."""

import json

import pyarrow as pa
import pytest

import skyray
from tests.support.documents import blocks

PAGE = "docs/python.md"

pytestmark = pytest.mark.spark


def write_data(folder):
    """A street of ramen, and a subscription that wants it; one more that a run rejects."""
    places = [(139 + place / 100, 35.5 + place % 10 / 20) for place in range(90)]
    rows = [
        {"id": f"m{number}", "text": "ramen open" if number % 3 else "udon", "lon": lon, "lat": lat}
        for number, (lon, lat) in enumerate(places)
    ]
    (folder / "tweets.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"text": "no place"}]))
    lines = ["subscription_id,kind,keywords,lon,lat,k,alpha,name", "s1,topk,ramen udon,139.5,35.5,5,0.7,Ana"]
    (folder / "mine.csv").write_text("\n".join([*lines, "s2,topk,ramen,139.5,35.5,many,0.7,Bo"]))


@pytest.mark.wide
def test_python_page_runs_from_top_to_bottom(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_data(tmp_path)
    names: dict = {}
    for block in blocks(PAGE):
        if block.language == "python" and block.not_run is None:
            exec(compile("\n".join(block.lines), PAGE, "exec"), names)
    assert names["manifest"]["kept"] == 90 and names["manifest"]["rejected_by_reason"] == {"missing_coordinate": 1}
    run = names["run"]
    assert run.state == "finished" and run.report["spouts"]["subscriptions"]["rejected_by_reason"] == {"bad_k": 1}
    assert isinstance(names["updates"], pa.Table) and names["updates"].num_rows == 5
    best = names["best"]
    assert best["rank"].tolist() == [1, 2, 3, 4, 5] and set(best["kind"]) == {"topk"}
    assert all(set(words) <= {"ramen", "udon"} and len(words) for words in best["words"])
    assert best["distance_km"].max() < 60
    assert names["answer"]["in_result"] and names["answer"]["rank"] == 1
    frame = names["frame"]
    assert len(frame) == names["updates"].num_rows and frame["text"].notna().all()
    assert [row["words"] for row in names["nearest"]] == [["ramen"]] and names["nearest"][0]["distance_km"] < 5
    engine = names["engine"]
    assert engine.rejected == {"missing_coordinate": 1} and engine.subscriptions == ["all"]
    printed = capsys.readouterr().out.splitlines()
    assert sorted(line.rsplit(" ", 1)[0] for line in printed) == ["enter near m1", "match all m1"]
    assert engine.results() == []


def test_python_errors_say_what_to_do(tmp_path):
    with pytest.raises(skyray.InputError, match=r"run\.json"):
        skyray.open(tmp_path)
    with pytest.raises(skyray.ConfigError, match="no_such"):
        skyray.run(messages=tmp_path, subscriptions=[], out=tmp_path / "out", no_such=1)
    assert {"Engine", "Run", "open", "run", "etl"} <= set(skyray.__all__)
