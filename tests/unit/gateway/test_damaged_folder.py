"""Whatever is damaged in the folder of a stream: it is resumed right, or refused or told by an error that names it."""

import json
import re
import shutil
from contextlib import ExitStack, suppress

import pytest

import skyray
from gateway.live.in_flight import InFlight
from gateway.live.opening import open_stream
from gateway.serve.registry import Registry
from gateway.serve.update_log import UpdateLog
from gateway.serve.update_parts import BEGINNING, END, PartDamaged, Parts, PartsMissing, Position
from gateway.serve.writer import LogWriter
from gateway.sinks.webhooks.store import FILE, Store
from matching.errors import EngineError
from tests.support.etl_folder import random_rows, write_etl
from tests.support.killed_streams import parts_of
from tests.support.live_streams import Stream
from topology.live import LiveRun

SETTINGS = {"window": "count:15", "world": "earth", "checkpoint_every": 1e-6, "most_terms": 60, "seed": 1}
MESSAGES, BATCH = 60, 10


@pytest.fixture(scope="module")
def stream(tmp_path_factory):
    """The words and the folder of a stream that was interrupted, and its updates."""
    folder = tmp_path_factory.mktemp("damaged")
    words, out = write_etl(folder / "words", random_rows(50)), folder / "out"
    one = Stream(words, out, **SETTINGS)
    for number in range(8):
        row = {
            "subscription_id": f"s{number}",
            "kind": "boolean",
            "keywords": f"w{number}",
            "region": [-180, -90, 180, 90],
        }
        one.take({"subscribe": row})

    def feed():
        number = one.journal.next_seq
        if number >= MESSAGES:
            return number - 1
        for place in range(number, number + BATCH):
            one.take({"id": f"m{place}", "text": f"w{place % 8} w{place % 5}", "lon": 1.0, "lat": 2.0})
        one.pipe.close_batch()
        return 10**9

    with parts_of(1):
        one.match(feed)
    Store(out / FILE).close()
    assert len(list((out / "updates").glob("part-*"))) >= 3
    found, whole = opened(words, out)
    assert whole and len(found) >= 60
    return words, out, found


def opened(words, out):
    """Updates that a server of the folder gives, and whether none is said to be lost. As `skyray serve` opens it."""
    with ExitStack() as stack:
        settings = {"executor": "local", **SETTINGS}
        given = stack, out, settings, {}, words, None, "", lambda line: None, Registry()
        config, admission, _, wal, earlier = open_stream(*given)
        parts = Parts(out / "updates", wal.ends, wal.look_up)
        history = UpdateLog(parts)
        run = LiveRun(config, wal.run, str(wal.log), "nowhere", {"live": wal.settings}, earlier, lambda: wal.size_bytes)
        saved = run.saved_delivery()
        history.resume(saved)
        LogWriter(admission, given[-1], wal, InFlight(3))
        hooks = Store(out / FILE)
        stack.callback(hooks.close)
        hooks.load()
        found, position, whole = [], BEGINNING, saved is not None
        while position < Position(history.floor, END):
            try:
                some, position = parts.read_after(position, history.floor)
                found += some
            except PartsMissing as missing:
                position, whole = Position(missing.boundary - 1, END), False
            except PartDamaged as damaged:
                position, whole = Position(damaged.boundary, END), False
        found += history.read_after(position, 10**6)[0] if history.has_after(position) else []
        return [one.data for one in found], whole


def flipped(data, place):
    return data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]


HARMS = {
    "emptied": lambda data: b"",
    "halved": lambda data: data[: len(data) // 2],
    "cut": lambda data: data[:-1],
    "first bit": lambda data: flipped(data, 0),
    "middle bit": lambda data: flipped(data, len(data) // 2),
    "late bit": lambda data: flipped(data, len(data) * 9 // 10),
    "garbage": lambda data: b"\xff\x00garbage" * 9,
    "removed": None,
}


#: Harms like another one.
MORE = ("emptied", "halved", "first bit", "middle bit", "late bit")


@pytest.mark.parametrize("harm", [pytest.param(one, marks=pytest.mark.long) if one in MORE else one for one in HARMS])
def test_damage_of_any_file_is_said_or_does_no_harm(stream, tmp_path, harm):
    words, out, whole = stream
    files = sorted(path.relative_to(out) for path in out.rglob("*") if path.is_file() and path.name != ".lock")
    assert len(files) >= 12
    said = 0
    for number, name in enumerate(files):
        copy = tmp_path / str(number)
        shutil.copytree(out, copy)
        data = (copy / name).read_bytes()
        if not data:
            continue
        (copy / name).unlink()
        if HARMS[harm] is not None:
            (copy / name).write_bytes(HARMS[harm](data))
        with suppress(EngineError):  # what reads the folder: verify, show, the API of Python
            run = skyray.open(copy)
            as_of = int(re.findall(r"as of message ([0-9]+)", run.checkpoint)[0])  # perhaps of the older checkpoint
            expected = sum(json.loads(one)["as_of"] <= as_of for one in whole)
            assert as_of >= MESSAGES // 2 and run.updates().num_rows == expected, f"{name} {harm}: nothing is said"
        try:
            found, is_whole = opened(words, copy)
        except EngineError as error:
            said += 1
            assert str(error), name
            continue
        except BaseException as error:
            error.add_note(f"{name} {harm}")
            raise
        assert set(found) <= set(whole), f"{name} {harm}: updates that are not of the stream"
        assert not is_whole or found == whole, f"{name} {harm}: {len(found)} updates, and nothing is said"
        said += not is_whole
        shutil.rmtree(copy)
    assert said >= 5, f"only {said} of {len(files)} files were missed"
