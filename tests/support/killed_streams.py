"""Live streams that die before an operation of their disk, are started again, perhaps die again, and are compared.

A history is a number of lives of one stream, each in this process over a mirrored disk (`tests.support.mirrored_disk`):
all but the last end before an operation. The producer sends lines behind the last one that the stream has; every batch
is logged while the one before is matched. After each death whatever has its name must be right, and nothing that was
acknowledged may be gone; at the end all must be as an undisturbed stream leaves it.
"""

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pyarrow.parquet as pq

from gateway.live.update_listener import MessageText
from gateway.live.vocabulary_files import empty_start
from gateway.runs.verify import verify_run
from gateway.serve.released import Released, ReleasedUpdate
from gateway.serve.releasing import Releaser
from gateway.serve.update_log import UpdateLog
from gateway.serve.update_parts import BEGINNING, END, Parts, Position
from gateway.subscriptions.generate import generate_subscriptions
from matching.kinds import KINDS
from matching.validate import ParsedMessage
from spouts.log import read_records
from tests.support.etl_folder import random_rows, write_etl
from tests.support.live_streams import Stream
from tests.support.logged import messages_in
from tests.support.mirrored_disk import MirroredDisk, Unlucky
from tests.support.releasing import updates_of
from tests.support.simulated_disk import Halted, Machine
from topology.core.checkpoint.store import CheckpointStore

MESSAGES, BATCH = 40, 10
SUBSCRIPTIONS = 16
#: A checkpoint is taken whenever one may be, and with a seed no other thread writes it.
SETTINGS = {"window": "count:15", "world": "earth", "checkpoint_every": 1e-6, "most_terms": 60, "seed": 1}
_NUMBER, _TASK = re.compile(r"\d+"), re.compile(r"(?<=#\.)[a-z_]+(?=-#)")
_FIELDS = ("as_of", "subscription_id", "message_id", "seq", "change", "score")


class Given(NamedTuple):
    """Lines of a stream, and the folder of its first words; without one it starts without any."""

    etl: Path | None
    lines: list[dict]


class Whole(NamedTuple):
    """What an undisturbed stream leaves.

    rows : Counter of tuple    its updates
    results : list of dict
    digest : str
    logged : (list of ParsedMessage, list of bytes)    messages and changes of the log, in order
    followed : list of ReleasedUpdate    what a client of the server reads from the parts, from the beginning on
    operations : list of str    what was done to the disk
    """

    rows: Counter
    results: list[dict]
    digest: str
    logged: tuple[list[ParsedMessage], list[bytes]]
    followed: list[ReleasedUpdate]
    operations: list[str]


class Lived(NamedTuple):
    """What became of a history: how many updates were compared, and before what its lives died."""

    rows: int
    deaths: list[str]


def given_lines(folder: Path, words: bool) -> Given:
    """Subscriptions of all kinds, then messages with more of them, ends of others, and new words in between."""
    rows = random_rows(MESSAGES)
    etl = write_etl(folder / "etl", rows)
    first, later = [], []
    for kind in KINDS.run:
        file = folder / f"{kind.name}.jsonl"
        generate_subscriptions(etl, kind.name, SUBSCRIPTIONS, 4, file, max_frequency=1.0)
        mine = [{"subscribe": json.loads(line)} for line in file.read_text().splitlines()]
        first, later = first + mine[::2], later + mine[1::2]
    lines = list(first)
    for row in rows:
        seq = row["seq"]
        text = f"{row['text']} late{seq // 7}" if seq % 3 else row["text"] or "no"
        place = {name: row[name] for name in ("lon", "lat")}
        lines.append({"id": row["message_id"], "text": text, "time": seq * 60, **place})
        if seq % 4 == 1 and later:
            change = later.pop()["subscribe"]
            if seq % 8 == 1:
                change = {**change, "keywords": f"{change['keywords']} new{seq}"}
            lines.append({"subscribe": change})
        if seq % 9 == 3 and first:
            lines.append({"unsubscribe": first.pop()["subscribe"]["subscription_id"]})
    return Given(etl if words else None, lines)


def batches(lines: Sequence[dict]) -> list[Sequence[dict]]:
    """The lines cut behind every so many messages."""
    ends = [place + 1 for place, line in enumerate(lines) if "id" in line and _seq(line) % BATCH == BATCH - 1]
    return [lines[begin:end] for begin, end in zip([0, *ends], [*ends, len(lines)], strict=True)]


class Streams:
    """The lives of one stream.

    Parameters
    ----------
    given : Given
    folder : Path
        Is made.
    sessions : int
        The stream ends so often, and goes on with more lines.
    delivery_bolts : sequence of int
        Of its lives, in turn.
    """

    def __init__(self, given: Given, folder: Path, sessions: int, delivery_bolts: Sequence[int], **settings: Any):
        folder.mkdir()
        self.given, self.settings = given, SETTINGS | settings
        self.machine = Machine(str(folder))
        self.disk = MirroredDisk(self.machine, folder / "disk")
        self.out = self.disk.root / "out"
        self.acknowledged = 0
        self._served: list[_Served] = []
        self._epoch = -1  # the newest checkpoint that is on disk
        self.digest = ""
        all_lines = batches(given.lines)
        sizes = [len(all_lines) * (session + 1) // sessions for session in range(sessions)]
        self._until = [sum(map(len, all_lines[:size])) for size in sizes]
        self._session = 0
        self._tasks = cycle(delivery_bolts)

    def live(self) -> None:
        """One life: to the end of the lines, in as many sessions as are left. Raises Halted if it dies."""
        with self.disk.watched():
            while self._session < len(self._until):
                self._live_once(self._until[self._session])
                self._session += 1

    def live_until(self, number: int) -> str:
        """A life that dies before its operation of that number; before what. "" if it ends before."""
        self.machine.halt_before(None, number)
        try:
            self.live()
        except BaseException:
            if not self.machine.halted:
                raise
        died = self.machine.halted
        self.disk.restart()
        self.disk.assert_alike()
        manifests = [path for path in self.machine.forced("out/checkpoints/epoch-") if path.endswith(".json")]
        self._epoch = max((int(path.rpartition("-")[2].split(".")[0]) for path in manifests), default=-1)
        return self.disk.done[-1] if died else ""

    def _live_once(self, until: int) -> None:
        start = self.given.etl or empty_start(self.out)
        stream = Stream(start, self.out, delivery_bolts=next(self._tasks), **self.settings)
        try:
            line = stream.journal.line
            assert line >= self.acknowledged, f"line {self.acknowledged} was acknowledged, and {line} is the last"
            waiting = iter(batches(self.given.lines[:until]))
            passed = 0
            while passed < line:
                passed += len(next(waiting))
            assert passed == line, "batches are logged whole"
            report = stream.match(self._feeding(stream, waiting), self._serving)
            self.digest = stream.finish(report)
        finally:
            self.acknowledged = max([self.acknowledged, *stream.durable])
            if self.machine.halted:
                stream.journal.close()

    def _serving(self, stream: Stream, durable: Callable[[], int]) -> "_Served":
        self._served.append(_Served(stream, durable, self.out / "updates"))
        return self._served[-1]

    def _feeding(self, stream: Stream, waiting: Iterator[Sequence[dict]]) -> Any:
        """Logs the next batch before one is published; says at which message the stream has ended."""

        def feed() -> int:
            if self.machine.halted:  # it died in another thread
                raise Halted("this process is dead")
            lines = next(waiting, None)
            if lines is None:
                return stream.journal.next_seq - 1
            for line in lines:
                stream.take(line)
            stream.pipe.close_batch()
            return 10**9

        return feed

    # -- what it leaves

    def rows(self) -> Counter:
        """Updates that have their name."""
        parts = sorted((self.out / "updates").glob("part-*")) if self.out.exists() else []
        return Counter(
            tuple(row[name] for name in _FIELDS) for part in parts for row in pq.read_table(part).to_pylist()
        )

    def compare(self, whole: Whole) -> None:
        """Fails if something that has its name is not of the stream, or is there twice, or a checkpoint is gone."""
        rows = self.rows()
        extra, twice = rows - whole.rows, [row for row, times in rows.items() if times > 1]
        assert not extra, f"{extra.total()} updates that are not of the stream, such as {next(iter(extra))}"
        assert not twice, f"{len(twice)} updates are there twice, such as {twice[0]}"
        store = CheckpointStore(str(self.out / "checkpoints"))
        manifest = store.newest()
        assert not store.refused, f"a checkpoint is damaged: {store.refused}"
        epoch = -1 if manifest is None else manifest.epoch
        assert epoch >= self._epoch, f"checkpoint {self._epoch} is lost, {epoch} is the newest"

    def assert_whole(self, whole: Whole) -> None:
        """Fails if it has ended otherwise than an undisturbed stream."""
        self.compare(whole)
        missing = whole.rows - self.rows()
        assert not missing, f"{missing.total()} updates are missing, such as {next(iter(missing))}"
        assert self.digest == whole.digest, "the digest differs"
        assert self.results() == whole.results, "the results differ"
        assert self.logged() == whole.logged, "the log differs"
        assert self.followed() == whole.followed, "a client that reads the parts gets other updates"
        self.assert_served(whole)
        hidden = [path for path in self.out.rglob(".*.tmp")]
        assert not hidden, f"temporary files are left: {hidden}"

    def results(self) -> list[dict]:
        return pq.read_table(self.out / "results.parquet").to_pylist()

    def logged(self) -> tuple[list[ParsedMessage], list[bytes]]:
        records = [record for record, *_ in read_records(self.out / "journal" / "log")]
        return messages_in(records), [line for record in records for line in record.lines]

    def followed(self) -> list[ReleasedUpdate]:
        """What a client of `skyray serve` reads from the parts when the stream has ended."""
        parts = self._parts()
        return _read_all(parts, Position(parts.ends[-1], END))

    def _parts(self) -> Parts:
        """Those of the stream that has ended."""
        records = [record for record, *_ in read_records(self.out / "journal" / "log")]
        texts = [MessageText(one.message_id, one.text, one.lon, one.lat) for one in messages_in(records)]
        ends = [record.last_seq for record in records if record.last_seq >= 0]
        return Parts(self.out / "updates", ends, lambda seqs: {seq: texts[seq] for seq in seqs})

    def assert_served(self, whole: Whole) -> None:
        """Fails if a server has released something else, or would not have released all."""
        known = {one.position: one for one in whole.followed}
        for served in self._served:
            other = [one.position for one in served.taken if known.get(one.position) != one]
            assert not other, f"the server has released another update as {other[0]}"
        history, parts = self._served[-1].history, self._parts()
        history.parts.look_up = parts.look_up  # the journal is closed
        found = _read_all(parts, Position(history.floor, END)) if history.floor >= 0 else []
        found += history.read_after(Position(history.floor, END), 10**6)[0]
        assert found == whole.followed, "a client that connects before the end gets other updates"
        assert history.updates == len(whole.followed), "the server counts otherwise"


class _Served(Releaser):
    """The updates of one life as a server has them.

    Attributes
    ----------
    taken : list of ReleasedUpdate    that were released
    history : UpdateLog
    """

    def __init__(self, stream: Stream, durable: Callable[[], int], updates: Path):
        journal = stream.journal
        super().__init__(stream.in_flight, journal.ends, durable, self._take, stream.config.executor == "local")
        self.taken: list[ReleasedUpdate] = []
        self.history = UpdateLog(Parts(updates, journal.ends, journal.look_up))
        self._stream = stream

    def resume(self, through: int) -> None:
        """As the server does."""
        super().resume(self.history.resume(self._stream.run.saved_delivery()))

    def _take(self, released: list[Released], through: int) -> None:
        self.history.append(released, through)
        self.taken += [one for each in released for one in updates_of(each, None, self._stream.journal.look_up, None)]


def _read_all(parts: Parts, until: Position) -> list[ReleasedUpdate]:
    """All updates of the parts up to a position."""
    found, behind = list[ReleasedUpdate](), BEGINNING
    while behind < until:
        some, behind = parts.read_after(behind, until.boundary)
        found += some
    return found


def undisturbed(
    given: Given, folder: Path, sessions: int = 1, delivery_bolts: Sequence[int] = (1,), **settings: Any
) -> Whole:
    """What a stream leaves that nothing disturbs."""
    streams = Streams(given, folder, sessions, delivery_bolts, **settings)
    streams.live()
    streams.disk.assert_alike()
    rows = streams.rows()
    assert max(rows.values()) == 1, "an update that is there twice could be lost once"
    return Whole(rows, streams.results(), streams.digest, streams.logged(), streams.followed(), streams.disk.done)


def lives(
    given: Given, whole: Whole, folder: Path, numbers: Sequence[int], *, sessions: int = 1,
    delivery_bolts: Sequence[int] = (1,), stops: Sequence[bool] = (), luck: int | None = None, verified: bool = False,
    **settings: Any,
) -> Lived:  # fmt: skip
    """A history: lives that die before these operations, each counted from its beginning, and one that does not.

    `stops` says of each death whether the machine stops; else the process is killed. `luck` is a seed, which says what
    the machine loses of what was not forced to disk; without it all of that. With `verified`, `skyray verify` has the
    last word.
    """
    streams = Streams(given, folder, sessions, delivery_bolts, **settings)
    deaths = []
    try:
        for life, number in enumerate(numbers):
            stopped = life < len(stops) and stops[life]
            streams.disk.tears = not stopped and number % 2 == 1
            died = streams.live_until(number)
            if not died:
                break
            deaths.append(died)
            if stopped:
                streams.disk.lose(Unlucky() if luck is None else random.Random(f"{luck} {numbers} {life}"))
            streams.compare(whole)
        streams.live()
        streams.assert_whole(whole)
        if verified:
            verdict = verify_run(streams.out)
            assert verdict.exact and sum(verdict.delivered_updates.values()) == whole.rows.total(), verdict
    finally:
        streams.machine.forget()
    return Lived(whole.rows.total(), deaths)


def spread(whole: Whole) -> list[int]:
    """Numbers of operations: one of each kind behind each kind, from the middle of those of the stream."""
    kinds = [_TASK.sub("task", _NUMBER.sub("#", operation)) for operation in whole.operations]
    found: dict[tuple[str, str], list[int]] = {}
    for number, pair in enumerate(zip(["", *kinds], kinds, strict=False)):
        found.setdefault(pair, []).append(number)
    return sorted(numbers[len(numbers) // 2] for numbers in found.values())


def number_of(whole: Whole, *operations: str, nth: int = 0) -> int:
    """The number of the last of some operations in a row, named by patterns: the nth such row."""
    rows = zip(*(whole.operations[place:] for place in range(len(operations))), strict=False)
    fit = [first for first, row in enumerate(rows) if all(map(re.search, operations, row))]
    return fit[nth] + len(operations) - 1


def parts_of(rows: int) -> Any:
    """Within this block a checkpoint ends a part that has so many updates; without, parts end with the stream."""
    return mock.patch("bolts.sinks.SMALL_ROWS", rows)


def _seq(line: dict) -> int:
    return int(line["id"].split()[1])
