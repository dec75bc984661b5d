"""Loads dealt out anew on Ray while a run goes on: where messages come from moves on, and nothing is told otherwise."""

from functools import partial

import pytest

from gateway.subscriptions.generate import generate_subscriptions
from matching.errors import ConfigError
from matching.kinds import KINDS
from tests.support.etl_folder import random_rows, write_etl
from tests.support.faulty_runs import NOTHING, Work, differences, told
from topology import recovering
from topology.core.executors.balancing import Balance
from topology.running import run
from topology.settings import RunConfig

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]

MESSAGES, MOST = 8_000, 1.01


def config_of(work, out, **more):
    return RunConfig(
        messages=work.etl, subscriptions=work.files, out=out, **{"executor": "ray", **work.options, **more}
    )


@pytest.fixture(scope="module")
def moving(tmp_path_factory):
    """The first half of the messages are in the west of the world, the others in the east."""
    folder = tmp_path_factory.mktemp("moving")
    rows = random_rows(MESSAGES)
    for row in rows:
        east = row["seq"] * 2 >= MESSAGES
        row["lon"] = row["west"] = row["east"] = abs(row["lon"]) if east else -abs(row["lon"])
        row["south"] = row["north"] = row["lat"]
    etl = write_etl(folder / "etl", rows)
    files = []
    for kind in KINDS.run:
        files.append(folder / f"{kind.name}.jsonl")
        generate_subscriptions(etl, kind.name, 200, 4, files[-1], until_share=0.2, max_frequency=1.0)
    work = Work(etl, tuple(files), {"window": "count:300", "batch": 40}, None, "")  # type: ignore[arg-type]
    out = folder / "quiet"
    report = run(config_of(work, out, executor="local", checkpoint_every=0.0))
    return work._replace(expected=told(out), digest=report["digest"])


@pytest.mark.parametrize("router", ["location", pytest.param("kop", marks=pytest.mark.wide)])
@pytest.mark.wide
def test_run_dealt_out_anew_while_it_goes_on_tells_the_same(moving, router, tmp_path, monkeypatch):
    # these tasks work unevenly by a tenth, which would be let be
    monkeypatch.setattr(recovering, "Balance", partial(Balance, most=MOST))
    options = {"router": router, "query_bolts": 3, "rebalance": True, "checkpoint_every": 0.5}
    report = run(config_of(moving, tmp_path / "out", **options))
    assert report["digest"] == moving.digest and moving.expected.total() > 10_000
    assert differences(tmp_path / "out", moving) == NOTHING
    if router == "location":  # by costs alone, nobody need be found to work unevenly
        dealt = report["topology"]["rebalances"]
        assert dealt and not report["topology"]["recoveries"]
        first = dealt[0]["work_ns"]["query"]
        assert len(first) == 3 and max(first) > MOST * sum(first) / 3
        assert all(0 <= each["number"] < MESSAGES // 40 and each["batches_again"] >= 0 for each in dealt)


@pytest.mark.parametrize(
    ("more", "remedy"),
    [
        ({"router": "hashing"}, "--router location or influence or kop"),
        ({"router": "location", "executor": "local"}, "--executor ray"),
        ({"router": "location", "query_bolts": 1}, "--query-bolts 2"),
        ({"router": "kop", "checkpoint_every": 0.0}, "--checkpoint-every 10"),
    ],
)
def test_run_that_cannot_be_dealt_out_anew_is_refused_with_what_to_do(moving, more, remedy, tmp_path):
    with pytest.raises(ConfigError, match=f"topology.rebalance: .*{remedy}"):
        run(config_of(moving, tmp_path / "out", rebalance=True, **more))
    assert not (tmp_path / "out").exists()
