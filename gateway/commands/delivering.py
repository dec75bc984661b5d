"""Sinks of all updates for a command: what `--to` names, joined to the stream of a folder.

Neither the server nor a stream knows its sinks. A command makes them here, calls `Deliveries.check` while it runs, and
waits for them at its end.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from gateway.live.update_listener import MessageText
from gateway.live.write_ahead_log import LoggedValues
from gateway.runs.message_rows import Row
from gateway.runs.oracle_replay import boundary_ends
from gateway.runs.reader import RunReader
from gateway.runs.run_versions import RunVersions
from gateway.serve.included import Include, IncludedValues
from gateway.serve.released import LookUp
from gateway.serve.update_log import UpdateLog
from gateway.serve.update_parts import END, Parts
from gateway.sinks.committed import CommittedUpdates
from gateway.sinks.pump import Positions, Pump
from gateway.sinks.stream import SinkAway
from gateway.sinks.uris import sink_of
from matching.errors import ConfigError, EngineError
from topology.core.executors.logs import driver_log
from topology.core.metrics import report_stage, report_warmed

#: Seconds that a command waits at its end for a sink that delivers, at least; seconds between two checks of it.
_LEAST_S, _LOOK_S = 10.0, 0.05


class Deliveries:
    """The sinks of a command.

    Parameters
    ----------
    uris : sequence of str
        As `--to` has them.

    Raises
    ------
    ConfigError
        If a URI is wrong, or two are the same place.
    """

    def __init__(self, uris: Sequence[str]):
        self._sinks = [sink_of(uri) for uri in uris]
        self._pumps: list[Pump] = []
        self._finishing_s: float | None = None
        names = [sink.name for sink in self._sinks]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigError(f"--to: {twice[0]} is named twice; its position has one place")

    @property
    def names(self) -> str:
        """Names of all sinks, joined for people."""
        return ", ".join(sink.name for sink in self._sinks)

    def begin(self, folder: Path, stream: str, supply: Callable[[], UpdateLog], logged: Callable[[], int]) -> None:
        """Start to deliver.

        Parameters
        ----------
        folder : Path
            Of the stream; gets the file of positions.
        stream : str
            Identity of the stream.
        supply : callable
            Makes the log that one sink reads.
        logged : callable
            Seq of the next message.

        Raises
        ------
        InputError
            If the file of positions cannot be read.
        """
        if not self._sinks:
            return
        positions = Positions(folder, stream)
        self._pumps = [Pump(sink, stream, supply(), positions, logged) for sink in self._sinks]
        for pump in self._pumps:
            pump.begin()
        driver_log().info("delivers", to=self.names)

    def begin_parts(
        self,
        folder: Path,
        stream: str,
        ends: Sequence[int],
        look_up: LookUp,
        included: IncludedValues | None = None,
    ) -> None:
        """Start to deliver from the committed parts of a folder, as they come.

        Parameters
        ----------
        stream : str
            Identity of the stream or run.
        ends : sequence of int
            The last seq of each boundary; may grow.
        look_up : callable
            Seqs -> texts of messages, for any thread.
        included : IncludedValues, optional
            What updates of some subscriptions carry besides.
        """
        updates = folder / "updates"
        self.begin(
            folder,
            stream,
            lambda: CommittedUpdates(updates, Parts(updates, ends, look_up, included)),
            lambda: ends[-1] + 1 if len(ends) else 0,
        )

    def deliver_run(self, folder: Path, patience_s: float) -> None:
        """Deliver the updates of a run that has ended, and wait until all are there; `patience_s` as of `end`.

        Raises
        ------
        SinkAway
            If something is missing then.
        InputError
            If the folder is no run's, or damaged.
        """
        try:
            if not self._pumps:
                self.begin_run(folder)
            self.end(f"`skyray run --resume {folder}` with the same --to", patience_s)
        finally:
            self.close()

    def begin_run(self, folder: Path) -> None:
        """Start to deliver the parts of a run, which may not have ended, but whose messages are all there.

        Raises
        ------
        InputError
            If the folder is no run's, or damaged.
        """
        run = RunReader(folder)
        ends = boundary_ends(run, run.message_count()).tolist()
        lock = threading.Lock()

        def texts(seqs: Sequence[int]) -> dict[int, MessageText]:
            with lock:
                return run.texts(seqs)

        def rows(seqs: Iterable[int]) -> dict[int, Row]:
            with lock:
                return run.messages(seqs)

        self.begin_parts(folder, str(run.report.get("run")), ends, texts, _included(run, ends, rows))

    @contextmanager
    def at_checkpoints(self, folder: Path, show: Callable[[Any], None] | None) -> Iterator["AtCheckpoints"]:
        """Deliver during the block while a run writes to a folder; yields the callback for its snapshots.

        Parameters
        ----------
        show : callable, optional
            Takes the snapshots, too.
        """
        at_checkpoints = AtCheckpoints(show, partial(self.begin_run, folder))
        try:
            yield at_checkpoints
        except BaseException:
            at_checkpoints.join()
            self.close()
            raise
        at_checkpoints.join()

    def wake(self) -> None:
        """There may be updates; for any thread."""
        for pump in self._pumps:
            pump.wake()

    def check(self) -> None:
        """Raises why a sink was refused at its first attempt."""
        for pump in self._pumps:
            if isinstance(pump.failure, EngineError):
                raise pump.failure
            if pump.failure is not None:
                raise EngineError(f"{pump.name}: {pump.failure!r}") from pump.failure

    def figures(self) -> list[dict[str, Any]]:
        """Figures of each sink, as `Pump.figures`."""
        return [pump.figures() for pump in self._pumps]

    def reached(self) -> int:
        """The boundary that all receivers have reached; above all others without any."""
        return min((pump.position.boundary for pump in self._pumps), default=END)

    def has_ended(self, patience_s: float) -> bool:
        """Whether all sinks have delivered everything, or their time is over; the caller has released its last update.

        The first call starts the time: `patience_s` for a receiver that is away, at least `_LEAST_S` for one that
        takes updates.
        """
        now_s = time.monotonic()
        if self._finishing_s is None:
            self._finishing_s = now_s
            for pump in self._pumps:
                pump.finish()
        late = now_s > self._finishing_s + patience_s
        return all(pump.ended or (late and pump.state != "delivering") for pump in self._pumps) or (
            now_s > self._finishing_s + max(patience_s, _LEAST_S)
        )

    def end(self, again: str, patience_s: float) -> None:
        """Wait until all is delivered; no more updates come.

        Parameters
        ----------
        again : str
            The command that delivers the rest, for the error.
        patience_s : float
            How long it waits without progress.

        Raises
        ------
        SinkAway
            If something is missing then.
        """
        for pump in self._pumps:
            pump.finish()
        before, since_s = self._counts(), time.monotonic()
        while not all(pump.ended for pump in self._pumps) and time.monotonic() < since_s + patience_s:
            self.check()
            threading.Event().wait(_LOOK_S)
            if (now := self._counts()) != before:
                before, since_s = now, time.monotonic()
        self.check()
        self.close()
        if missing := self.missing():
            raise SinkAway(f"{'; '.join(missing)}; all is in the folder: {again} delivers the rest")

    def _counts(self) -> list[int]:
        return [one["delivered"] for one in self.figures()]

    def close(self) -> None:
        """Deliver no more."""
        for pump in self._pumps:
            pump.close()

    def missing(self) -> list[str]:
        """What is not delivered, or was lost, a line for each sink."""
        return [
            f"{one['name']}: {one['waiting']:,} updates wait, {one['lost']:,} were lost"
            + (f" ({one['error']})" if one["error"] else "")
            for one in self.figures()
            if one["waiting"] or one["lost"] or one["error"]
        ]


class AtCheckpoints:
    """The callback for the snapshots of a run: begins to deliver at the first of them.

    Only then does `run.json` say which run the folder has. Its messages are read in a thread of their own.

    Parameters
    ----------
    show : callable, optional
        Takes what this takes.
    begin : callable
        If that fails, all is delivered at the end.
    """

    def __init__(self, show: Callable[[Any], None] | None, begin: Callable[[], None]):
        self._show = show
        self._begin = begin
        self._thread: threading.Thread | None = None

    def __call__(self, snapshot: Any) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="begin to deliver", daemon=True)
            self._thread.start()
        if self._show is not None:
            self._show(snapshot)

    def starting(self, stage: str) -> None:
        """See `topology.core.metrics.report_stage`."""
        report_stage(self._show, stage)

    def warmed(self, warmed: Any) -> None:
        """See `topology.core.metrics.report_warmed`."""
        report_warmed(self._show, warmed)

    def join(self) -> None:
        """Wait until it has begun, if there was a snapshot."""
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            self._begin()
        except EngineError as error:
            driver_log().warning("delivers_at_the_end", why=str(error))


def _included(
    run: RunReader, ends: Sequence[int], read: Callable[[Iterable[int]], dict[int, Row]]
) -> IncludedValues | None:
    """What updates carry besides where subscriptions of a run ask for it; None if none does.

    `ends` and `read` as of `IncludedValues`: `read` gives the messages.
    """
    wanted, standing = dict[str, Include](), dict[str, bool]()
    known = {kind.name: kind.standing for kind in run.kinds}
    for row in run.subscription_rows():
        name, include = str(row.get("subscription_id")), row.get("include")
        wanted.pop(name, None)  # the last of an id decides, as in a live stream
        if row.get("kind") in known and (include is True or isinstance(include, list)):
            wanted[name], standing[name] = include, known[row["kind"]]
    if not wanted:
        return None
    schema, versions = run.vocabulary.attributes, RunVersions(run) if run.objects else None

    def values(seqs: Iterable[int]) -> dict[int, LoggedValues]:
        found = {}
        for seq, row in read(seqs).items():
            before = {} if versions is None else versions.at(seq - 1, [versions.names[seq]])
            attributes = tuple(row.attributes.get(one.name) for one in schema.attributes)
            found[seq] = LoggedValues(attributes, next(iter(before.values()), -1))
        return found

    return IncludedValues(wanted, standing.__getitem__, values, lambda: schema, ends)
