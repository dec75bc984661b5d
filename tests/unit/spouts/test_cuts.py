"""Where batches end by the time of the stream: the same places in whatever pieces it comes, and by `verify`."""

import numpy as np
import pytest

from gateway.runs.oracle_replay import _ends_by_time
from gateway.runs.verify import verify_run
from matching.errors import ConfigError
from matching.space import EARTH, Space
from matching.window import Window
from spouts.cuts import Cuts
from spouts.cutting import Cutter, read_all
from spouts.parquet import ParquetSource
from tests.support.etl_folder import random_rows, write_etl
from tests.support.faulty_runs import make_work
from topology.running import run
from topology.settings import RunConfig

HOUR = Window.parse("time:3600")


@pytest.mark.parametrize(
    ("text", "window", "cuts"),
    [
        ("40", HOUR, Cuts(40, 0)),
        ("time:60", Window.parse("count:5"), Cuts(0, 60_000_000)),
        ("time:0.5", HOUR, Cuts(0, 500_000)),
        ("time:2m", HOUR, Cuts(0, 120_000_000)),
        ("auto", HOUR, Cuts(5_000, 360_000_000)),
        ("auto", Window.parse("count:20"), Cuts(5_000, 0)),
    ],
)
def test_cuts_parse_says_what_ends_a_batch(text, window, cuts):
    assert Cuts.parse(text, window) == cuts


@pytest.mark.parametrize("text", ["0", "1000001", "-3", "time:", "time:0", "time:x", "time:1e11", "hours:2", ""])
def test_cuts_parse_refuses_the_rest_naming_it(text):
    with pytest.raises(ConfigError, match="messages"):
        Cuts.parse(text, HOUR)


@pytest.mark.parametrize("late_s", [0, 40])
@pytest.mark.parametrize("cuts", [Cuts(0, 7_000_000), Cuts(5, 7_000_000), Cuts(0, 400_000), Cuts(3, 90_000_000)])
def test_cutter_ends_batches_where_the_definition_does(tmp_path, cuts, late_s):
    """Out of order, across row groups, going on in the middle."""
    rows = random_rows(500, late_s=late_s)
    etl = write_etl(tmp_path / "etl", rows)
    expected = _ends_by_time(etl, 500, cuts.messages or 10**6, cuts.step_us, None)
    assert len(set(np.diff(expected).tolist())) > 1 or cuts.step_us < 1_000_000
    space, window = Space(*EARTH), Window.parse("count:50")

    def source():
        return ParquetSource(etl, window, space, timed=True)

    batches = list(read_all(source(), Cutter(window, cuts)))
    assert [batch.boundary.last_seq for batch in batches] == expected.tolist()
    assert [batch.boundary.number for batch in batches] == list(range(len(expected)))
    half = len(batches) // 2
    cutter, reading = Cutter(window, cuts), source()
    while cutter.number < half:
        while not cutter.full:
            cutter.feed(reading.read())
        cutter.cut()
    state = cutter.state()
    reading.close()
    second, again = Cutter(window, cuts), source()
    second.restore(half, state)
    again.skip_to(0)
    seen = 0
    while (piece := again.read()) is not None:
        first = max(0, second.next_seq - seen)
        seen += len(piece.messages)
        if first < len(piece.messages):
            from spouts.cutting import cut_rows

            second.feed(cut_rows(piece, first, len(piece.messages)))
    ends = []
    while (batch := second.cut()) is not None:
        ends.append(batch.boundary.last_seq)
    again.close()
    assert ends == expected[half:].tolist()


@pytest.mark.parametrize(("window", "batch"), [("time:60", "auto"), ("count:80", "time:13"), ("time:60", "25")])
def test_run_with_batches_by_time_is_exact(tmp_path, window, batch):
    """Of five kinds; the verifier finds the boundaries by itself."""
    work = make_work(tmp_path / "work", 600, 15, window=window, batch=batch)
    report = verify_run(tmp_path / "work" / "quiet")
    assert report.exact and sum(report.oracle_updates.values()) > 1_000, report.render()
    assert report.boundaries > 10
    given = {"messages": work.etl, "subscriptions": work.files, "out": tmp_path / "again", "executor": "local"}
    config = RunConfig(**given, window=window, batch=batch, seed=5, query_bolts=3, router="location")
    assert run(config)["digest"] == work.digest
