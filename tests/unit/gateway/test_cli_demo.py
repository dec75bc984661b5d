"""The demo's own parts: real places as raw rows, distances for people, tables and summaries."""

import io
import json
import math

import numpy as np
import pytest
from rich.console import Console

from gateway.commands.demo import Demo
from gateway.runs.distance import distance_km
from gateway.shell.places import places, write_places
from gateway.shell.progress import component_table, headline, print_summary
from gateway.shell.terminal import Terminal, cell, plain, table
from matching.errors import ConfigError


def printed(renderable):
    out = Console(file=io.StringIO(), width=160)
    out.print(renderable)
    return out.file.getvalue()  # type: ignore[attr-defined]


def test_write_places_default_gives_more_than_30000_clean_rows(tmp_path):
    count = write_places(tmp_path / "places.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "places.jsonl").read_text(encoding="utf-8").splitlines()]
    assert count == len(rows) > 30_000
    assert len({row["id"] for row in rows}) == count
    assert all(
        row.keys() == {"id", "text", "lon", "lat", "time", "population", "country"} and row["text"] for row in rows
    )
    assert all(-180 <= row["lon"] <= 180 and -90 <= row["lat"] <= 90 for row in rows)
    assert [row["time"] for row in rows] == sorted({row["time"] for row in rows})
    tokyo = next(row for row in rows if row["text"].startswith("Tokyo, "))
    assert "Japan, Asia Tokyo" in tokyo["text"]
    assert "東京" in tokyo["text"]


def test_places_population_without_list_is_refused():
    with pytest.raises(ConfigError, match="choose one of 500"):
        next(places(42))


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ((0, 0), (0, 0), 0),
        ((0, 0), (90, 0), 6371.0 * math.pi / 2),
        ((0, 90), (123, -90), 6371.0 * math.pi),
        ((179.5, 0), (-179.5, 0), 6371.0 * math.pi / 180),
    ],
)
def test_distance_km_known_arcs(a, b, expected):
    assert distance_km(*a, *b) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, "-"), (True, "yes"), (1234567, "1,234,567"), (0.123456, "0.123"), (12345.6, "12,346"), ({"a": 1}, "a=1")],
)
def test_cell_values_as_people_read_them(value, expected):
    assert cell(value) == expected


def test_plain_numbers_of_arrays_and_nan_become_json():
    given = {"a": np.float64("nan"), "b": np.arange(2), "c": (float("inf"), 1.5), 4: np.int64(7)}
    assert plain(given) == {"a": None, "b": [0, 1], "c": [None, 1.5], "4": 7}
    assert json.dumps(plain(given), allow_nan=False)


def test_table_markup_in_a_message_is_shown_not_obeyed():
    assert "[red]ramen[/red]" in printed(table(("text",), [("[red]ramen[/red]",)]))


@pytest.mark.parametrize(
    "part",
    [
        {"tasks": 2, "received": 1234, "emitted": 7, "counters": {"matched": 5}, "queue_depth": 3, "busy_share": 0.5},
        {
            "tasks": [{}, {}],
            "incoming": {"parts": 1000, "changes": 234},
            "outgoing": {"updates": 7},
            "counters": {"matched": 5},
            "queue_depth_peak": 3,
            "busy_share": 0.5,
        },
    ],
    ids=["snapshot", "report"],
)
def test_component_table_snapshot_and_report_show_the_same(part):
    shown = printed(component_table({"query": part}))
    line = next(line for line in shown.splitlines() if "query" in line)
    assert line.split() == ["query", "2", "1.2k", "7", "-", "-", "5", "3", "50%"]


REPORT = {
    "digest": "abc",
    "spouts": {"messages": {"messages": 34006}, "subscriptions": {"accepted": 40, "rejected": 2}},
    "delivery": {"updates": {"match": 500, "enter": 0, "leave": 180}},
    "routing": {"replication_ratio": 1.0, "messages_sent_per_message": 2.0},
    "topology": {
        "elapsed_s": 2.0,
        "components": {"delivery": {"latency": {"p50_s": 0.012, "p99_s": 0.2, "max_s": 0.31}, "tasks": [{}]}},
    },
}


def test_headline_rates_are_over_the_stream_alone():
    figures = headline(REPORT)
    assert (figures["messages_per_s"], figures["updates_per_s"]) == (17003.0, 340.0)
    assert (figures["subscriptions"], figures["rejected_subscriptions"]) == (40, 2)


def test_headline_empty_report_knows_nothing():
    assert headline({})["messages_per_s"] is None


def summary(report):
    out = Console(file=io.StringIO(), width=160)
    print_summary(out, report)
    return out.file.getvalue()  # type: ignore[attr-defined]


def test_print_summary_of_a_backlog_says_throughput_and_no_latency():
    """Its messages are there from the start: how long one waits for those before it is nobody's latency."""
    shown = summary(REPORT)
    for expected in ("34,006", "match=500, leave=180", "throughput", "17,003 messages/s, 340 updates/s", "abc"):
        assert expected in shown
    assert "latency" not in shown and "200 ms" not in shown


def test_print_summary_of_messages_at_a_rate_says_latency_at_that_rate():
    shown = summary({**REPORT, "settings": {"rate": 17_500.0}})
    assert "17,003 messages/s" in shown
    (line,) = (line for line in shown.splitlines() if "latency" in line)
    assert line.split(maxsplit=4) == ["latency", "at", "17,500", "messages/s", "p50 12 ms, p99 200 ms, longest 310 ms"]


def test_component_table_says_what_its_figures_count():
    shown = " ".join(summary(REPORT).split())
    for column, unit in (("in, out, queue", "payloads"), ("scanned", "postings"), ("busy", "share of the time")):
        assert f"{column}: {unit}" in shown


def test_clear_folder_of_somebody_else_is_refused_and_kept(tmp_path):
    (tmp_path / "thesis.txt").write_text("all of it")
    with pytest.raises(ConfigError, match="no earlier demo"):
        Demo(Terminal(), tmp_path, "skyray demo").clear_folder()
    assert (tmp_path / "thesis.txt").read_text() == "all of it"


def test_clear_earlier_demo_finished_or_not_is_replaced(tmp_path):
    folder = tmp_path / "new" / "demo"
    Demo(Terminal(), folder, "skyray demo").clear_folder()
    (folder / "half.jsonl").write_text("")
    Demo(Terminal(), folder, "skyray demo").clear_folder()
    assert [path.name for path in folder.iterdir()] == [".skyray-demo"]


@pytest.mark.parametrize("in_lines", [None, True])
def test_terminal_piped_tells_steps_in_lines_where_asked(capsys, in_lines):
    with Terminal(as_json=True).steps("bench boolean", in_lines) as on_progress:
        on_progress("building lfilter")
        on_progress("turn", 2, rows=5_000)
    printed = capsys.readouterr()
    assert printed.out == ""
    told = [line.split(" s  ") for line in printed.err.splitlines()]
    assert [sentence for _, sentence in told] == ["bench boolean: building lfilter", "bench boolean: turn 2 rows 5,000"]
    assert all(float(seconds) >= 0.0 for seconds, _ in told)


def test_terminal_piped_in_lines_tells_notes_and_steps_by_one_clock(capsys):
    terminal = Terminal(in_lines=True)
    terminal.note("writing the world's towns ...")
    with terminal.steps("etl") as on_progress:
        on_progress("sort (2 of 7)")
    told = [line.split(" s  ") for line in capsys.readouterr().err.splitlines()]
    assert [sentence for _, sentence in told] == ["writing the world's towns ...", "etl: sort (2 of 7)"]
    assert 0.0 <= float(told[0][0]) <= float(told[1][0])


def test_terminal_piped_is_not_watched_and_draws_no_progress(capsys):
    terminal = Terminal()
    assert not terminal.watched
    terminal.note("something")
    with terminal.steps("etl") as on_progress:
        on_progress("reading", rows=5)
    printed_text = capsys.readouterr()
    assert (printed_text.out, printed_text.err) == ("", "")
