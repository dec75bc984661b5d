"""The log of a server or stream: a line an event, in two forms, of many of a sort one a minute."""

import contextlib
import json
import re
from types import SimpleNamespace

import pytest
import structlog

from gateway.shell.interrupts import Interrupts
from gateway.shell.logs import SAMPLED_S, Noted, Sampling, logging_as
from tests.support.log_events import log_events
from tests.support.processes import Command
from topology.core.executors.logs import driver_log

VALUES = {"count": 3, "folder": "/a b", "why": 'no "x"\n\x1b[31mred', "nothing": None, "by": {"bad_k": 2}}


def test_text_has_time_level_event_and_values_on_one_line_that_a_terminal_does_not_obey(capsys):
    with logging_as("text"):
        driver_log().warning("rows_refused", **VALUES)
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(r"time=20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z level=warning event=rows_refused count=3 ", line)
    assert 'folder="/a b"' in line and "\\n\\x1b[31mred" in line and "\x1b" not in line and 'by="{' in line


def test_json_has_an_object_a_line_with_the_same_values(capsys):
    with logging_as("json"):
        driver_log().error("rows_refused", **VALUES)
        driver_log().bind(task="query-0").info("opened")
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert list(first)[:3] == ["time", "level", "event"] and first.items() >= (VALUES | {"level": "error"}).items()
    assert (second["event"], second["task"]) == ("opened", "query-0")
    assert not structlog.is_configured()


def test_sampled_events_pass_once_a_minute_by_sort_and_say_how_many_did_not():
    now = [0.0]
    sampling, passed = Sampling(lambda: now[0]), []

    def log(event, sort):
        with contextlib.suppress(structlog.DropEvent):
            passed.append(sampling(None, "warning", {"event": event, "sampled": sort}))

    for at in (0.0, 1.0, SAMPLED_S - 1, SAMPLED_S, SAMPLED_S + 1):
        now[0] = at
        log("request_refused", "no_key")
    log("request_refused", "bad_k")
    log("other", "no_key")
    assert passed == [
        {"event": "request_refused"}, {"event": "request_refused", "left_out": 2}, {"event": "request_refused"},
        {"event": "other"},
    ]  # fmt: skip
    assert sampling(None, "info", {"event": "ready"}) == {"event": "ready"}


def test_counts_are_logged_when_they_grow_at_once_and_then_each_minute():
    counts = {"rows_refused": {"bad_k": (0, "")}}
    noted = Noted(lambda: counts)

    def at(seconds, count):
        counts["rows_refused"]["bad_k"] = count, "k must be"
        with log_events() as logged:
            noted.look(seconds)
        return [(one["reason"], one["count"], one["in_all"], one["last"]) for one in logged]

    assert at(1000.0, 0) == []
    assert at(1001.0, 5) == [("bad_k", 5, 5, "k must be")]
    assert at(1002.0, 9) == [] and at(1001.0 + SAMPLED_S, 9) == [("bad_k", 4, 9, "k must be")]
    assert at(1100.0 + SAMPLED_S, 9) == []


def test_checkpoints_are_logged_once_each():
    noted = Noted()

    def snapshot(committed):
        saved = SimpleNamespace(committed=committed, size_bytes=10, write_s=0.25)
        return SimpleNamespace(checkpoints=saved, acknowledged=7)

    with log_events() as logged:
        for committed in (0, 1, 1, 2):
            noted.note(snapshot(committed))
        noted.note(SimpleNamespace(checkpoints=None))
    assert [(one["event"], one["number"], one["batches"]) for one in logged] == [("checkpoint", n, 7) for n in (1, 2)]


@pytest.mark.parametrize("command", ["serve", "live"])
def test_command_told_to_end_does_so_with_code_0_and_lines_of_json(tmp_path, command):
    options = ["--port", 0] if command == "serve" else []
    with Command([command, "--out", tmp_path / "out", "--log-format", "json", *options], source=-1) as running:
        awaited = '"ready"' if command == "serve" else '"reads"'
        running.await_(lambda: awaited in running.read()[1])
        running.process.terminate()
        code, _, said = running.finish(60)
    events = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert code == 0 and "terminated" not in said, said
    assert events[-1]["event"] == "ended" and events[-1]["messages"] == 0
    assert all(one.keys() >= {"time", "level", "event"} for one in events)


def test_interrupts_begin_without_an_end_in_order():
    with Interrupts() as interrupts:
        assert not interrupts.in_order
