"""A live stream in this process: lines are taken and batches closed by hand, then a topology matches what is logged."""

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa

from gateway.live.admission import Admission
from gateway.live.in_flight import InFlight
from gateway.live.mapping import ColumnMapping
from gateway.live.open_batch import InputLine
from gateway.live.pipe import Pipe
from gateway.live.recording import record
from gateway.live.write_ahead_log import WriteAheadLog, settings_of
from gateway.serve.released import LineWriter
from gateway.serve.releasing import Releaser
from matching.window import Window
from spouts.history import LOG
from spouts.log import Record, encode_record
from spouts.parquet import read_columns
from spouts.subscriptions import load_vocabulary
from tests.support.beside import BOX
from topology import running
from topology.folder import FINISHED, INTERRUPTED
from topology.live import LiveRun
from topology.settings import RunConfig, live_config
from topology.wiring import space_of, subscription_refusal


class Stream:
    """One life of a live stream in a folder, which may have had others before.

    Parameters
    ----------
    etl, out : Path
    named : dict, optional
        Columns by role.
    **settings
        All but those of `topology.settings.NOT_LIVE`.

    Attributes
    ----------
    refused : list of dict
    told : list of dict    updates that were written out
    durable : list of int
    run : LiveRun    once it is matched
    """

    def __init__(
        self,
        etl: Path,
        out: Path,
        batch: int = 5_000,
        linger_s: float = 0.05,
        most: int = 10**9,
        named=None,
        now=time.time,
        **settings,
    ):
        out.mkdir(exist_ok=True)
        self.refused, self.told, self.durable = [], [], []
        self.config = live_config({"world": BOX, "executor": "local", **settings}, etl, out)
        self.in_flight = InFlight(most)
        self.gate = Admission(
            load_vocabulary(etl, self.config.most_terms),
            space_of(self.config),
            Window.parse(self.config.window),
            refuses=subscription_refusal(self.config, most_terms=self.config.most_terms),
            max_ahead_s=self.config.max_ahead,
            now=now,
            objects=self.config.objects,
        )
        keeping = settings_of(self.config, named), self.durable.append, self.gate.window
        self.journal = WriteAheadLog(out, *keeping, hands_over=self.config.executor == "local")
        self.before = self.journal.begin()
        self.journal.recover(self.gate)
        if self.before:
            self.in_flight.add(self.journal.next_seq - 1, [])
        keep = (self.gate, self.journal, self.refused.append, self.in_flight)
        self.pipe = Pipe(*keep, batch, linger_s, ColumnMapping(named))
        self._written: list[bytes] = []
        self._lines = self._written.append

    def take(self, row: dict | bytes, came_s: float = 0.0) -> None:
        """A line comes."""
        data = row if isinstance(row, bytes) else json.dumps(row).encode()
        self.pipe.take(InputLine(self.journal.line + len(self.pipe.batching.open) + 1, data, came_s))

    def match(self, stop=None, listening: Callable[["Stream", Callable[[], int]], Releaser] | None = None) -> dict:
        """Match what was logged, or end behind the message that `stop` names; what there is to tell of it.

        `listening` makes another releaser than that of `skyray live`, of the stream and what is durable.
        """

        def durable() -> int:
            return self.journal.durable_through

        with (listening or _writing)(self, durable) as listener:
            self.run = run = LiveRun(
                self.config,
                self.journal.run,
                str(self.journal.log),
                listener.address,
                {"live": self.journal.settings},
                self.before,
                lambda: self.journal.size_bytes,
            )
            listener.resume(run.resumes_after())
            self.journal.settle = listener.settle
            self.from_checkpoint = run.from_checkpoint

            def over() -> bool:
                if listener.failure is not None:
                    raise listener.failure
                done = listener.reached(run.incarnation)
                return done >= (self.journal.next_seq - 1 if stop is None else stop())

            report = run.run(over, lambda: self.journal.next_seq)
        self.told = [row for data in self._written for row in map(msgspec.json.decode, data.splitlines())]
        self.journal.close()
        return report

    def interrupt(self, report: dict) -> None:
        """Leave what the command leaves when it is interrupted."""
        record(self.journal, self.gate, INTERRUPTED, report)

    def finish(self, report: dict) -> str:
        """Leave what the command leaves; the digest."""
        record(self.journal, self.gate, FINISHED, report)
        return report["digest"]


def _writing(stream: Stream, durable: Callable[[], int]) -> Releaser:
    """As `skyray live` writes."""
    deliver = LineWriter(stream._lines, stream.journal.look_up).deliver
    return Releaser(stream.in_flight, stream.journal.ends, durable, deliver, stream.config.executor == "local", True)


def counted(told: list[dict]) -> Counter:
    """Updates as `tests.support.beside.Beside` has them."""
    names = ("change", "subscription_id", "message_id", "as_of", "score")
    return Counter(tuple(row[name] for name in names) for row in told)


def read_table(out: Path, *columns: str) -> pa.Table:
    """Columns of the messages of a stream's log, read where it is."""
    return pa.Table.from_batches(read_columns(out, columns))


def write_ends(folder: Path, ends: Sequence[int]) -> Path:
    """A stream's folder whose log has batches with these last seqs, and no messages."""
    (folder / LOG.parent).mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps({"live": {"vocabulary": None}}))
    records = [Record(last, 0, max(0, last - before)) for before, last in zip([-1, *ends], ends, strict=False)]
    (folder / LOG).write_bytes(b"".join(map(encode_record, records)))
    return folder


def digest_of_run(out: Path, scratch: Path, **settings) -> str:
    """What `skyray run` tells over the messages, changes and boundaries that a live stream has left."""
    config = RunConfig(
        messages=out,
        subscriptions=(out,),
        out=scratch,
        window=json.loads((out / "run.json").read_text())["window"],
        sink="count",
        **{"batch": f"log:{out}", "executor": "local", "checkpoint_every": 0.0, **settings},
    )
    return running.run(config)["digest"]
