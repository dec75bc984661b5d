"""A load test over a folder: messages and subscriptions in files, and results full as after a long stream.

    FOLDER/workload.json          the settings: window, half-life, how many messages are history, subscriptions by kind
    FOLDER/etl/                   messages and vocabulary as `skyray etl` writes them
    FOLDER/subscriptions/*.jsonl  subscriptions as `skyray run` reads them
    FOLDER/state/                 checkpoints behind the history, made once by `fill`

`gateway.load.loadtest.load_test` resumes from the checkpoint, so that each step of a ramp begins with the same full
results, and publishes the messages behind the history on a schedule. The topology is that of `skyray run` but for its
clock spout. `benchmarks.workloads.alerts` makes such folders.
"""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bolts.delivery import DeliveryBolt
from bolts.names import Digest
from bolts.sinks import CountSink, UpdateSink
from gateway.load.pace import Pace
from matching.errors import ConfigError, InputError
from matching.half_life import DecayParameters
from matching.kind_table import Kinds
from matching.kinds import KINDS
from matching.model import Names, SubscriptionTable
from matching.space import Space
from matching.window import Window
from spouts.generated import MessageRecipe
from spouts.manifest import read_manifest
from spouts.paced import PacedSpout
from spouts.parquet import ParquetSource
from spouts.subscriptions import SubscriptionChanges, SubscriptionSpout, load_changes, load_vocabulary
from topology import wiring
from topology.core.api.component import Fragment, Saved
from topology.core.api.plan import Plan
from topology.core.checkpoint.coordinator import complete
from topology.core.checkpoint.fence import KEPT
from topology.core.checkpoint.store import CheckpointStore, Manifest
from topology.core.executors.local import save_local
from topology.settings import RunConfig

SETTINGS, STATE = "workload.json", "state"
#: Messages of a batch while the history passes.
FILLING = 5_000
_ALL_AT_ONCE = 1e9


class PacedFile(PacedSpout):
    """`PacedSpout` over an ETL folder: its messages, from where the run resumes, on a schedule.

    Parameters
    ----------
    directory : str
    window, space, kind_columns
        As in `spouts.parquet.ParquetSource`.
    **schedule
        `batch`, `limit`, `rate`, `linger_s` and `watched` of `PacedSpout`.
    """

    def __init__(
        self, directory: str, window: Window, space: Space, kind_columns: tuple[str, ...], **schedule: Any
    ):  # fmt: skip
        super().__init__(MessageRecipe(), window, space, kind_columns=kind_columns, **schedule)
        self.directory = directory
        self._resumed_at = 0

    def open_source(self) -> Any:
        return ParquetSource(self.directory, self.cutter.window, self.space, kind_columns=self.kind_columns)

    def restore(self, saved: Saved) -> None:
        super().restore(saved)
        self._resumed_at = self.cutter.next_seq

    def report(self) -> dict[str, Any]:
        """As of `PacedSpout`; the reached rate counts from where the run has resumed."""
        resumed_s = (self._start_s or 0.0) + self._resumed_at / self.rate
        took_s, published = self._ended_s - resumed_s, self.cutter.next_seq - self._resumed_at
        return super().report() | {"reached_rate": published / took_s if took_s > 0 else 0.0, "published": published}


class LoadedSubscriptions(SubscriptionSpout):
    """`SubscriptionSpout` that loads its files once in a process, whatever the number of topologies.

    It also says what `gateway.load.check` needs to know of generated subscriptions.
    """

    #: Of this process: files with their times, and what was loaded.
    _loaded: "dict[tuple[tuple[str, int], ...], SubscriptionChanges]" = {}  # noqa: RUF012 - shared on purpose

    def _load(self) -> SubscriptionChanges:
        key = tuple((path, os.stat(path).st_mtime_ns) for path in self.paths)
        if key not in self._loaded:
            assert self.vocabulary is not None
            self._loaded.clear()
            self._loaded[key] = load_changes(self.paths, self.vocabulary, self.space, kinds=self.kinds)
        self._loaded[key].resume_after(0, 0)
        return self._loaded[key]


class Subscribed(NamedTuple):
    """All subscriptions of a workload as `gateway.load.check` takes them."""

    kinds: Kinds
    wanted: Mapping[int, int]
    loaded: SubscriptionChanges
    changes: float = 0.0  # none is added or ends meanwhile

    def make(self) -> SubscriptionTable:
        """All subscriptions; numbers are rows."""
        return self.loaded.table

    def names(self, table: SubscriptionTable) -> Names:
        """The ids of `make()`."""
        assert len(table) == len(self.loaded.table)
        return self.loaded.names


class FillingFile(PacedFile):
    """`PacedFile` for the history, whose delays a load test does not report as its own."""

    def state(self) -> dict[str, np.ndarray]:
        return super().state() | {"furthest_behind_s": np.zeros(())}


class FillingDelivery(DeliveryBolt):
    """A delivery bolt for the history: keeps all names, writes no file, and saves no figures."""

    def _part_sink(self) -> UpdateSink:
        return CountSink()

    def snapshot(self, stored: Mapping[str, int]) -> Mapping[str, Fragment]:
        self.digest, self.counts = Digest(), np.zeros_like(self.counts)
        return super().snapshot(stored)


class Workload:
    """A folder with a workload.

    Parameters
    ----------
    folder : path

    Attributes
    ----------
    window : str
    history : int
        Messages before the first that counts.
    messages : int
        All of them.
    counts : dict of str to int
        Subscriptions by kind.

    Raises
    ------
    InputError
        If the folder has no workload, or a file of it cannot be read.
    """

    def __init__(self, folder: str | os.PathLike[str]):
        self.folder = Path(folder).absolute()
        path = self.folder / SETTINGS
        try:
            settings = json.loads(path.read_bytes())
            self.window, self.history = str(settings["window"]), int(settings["history"])
            self.counts = {KINDS.named(name).name: int(count) for name, count in settings["subscriptions"].items()}
            self.half_life_s = float(settings["decay_half_life"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(
                "broken_file",
                f"{path}: no workload ({error!r}); python -m benchmarks.workloads.alerts {folder} makes one",
            ) from error
        self.messages = int((read_manifest(self.folder / "etl") or {}).get("kept", 0))

    @property
    def files(self) -> tuple[Path, ...]:
        """The subscription files, in the order in which they are read."""
        return tuple(sorted((self.folder / "subscriptions").glob("*.jsonl")))

    def seconds_at(self, rate: float, seconds: float, warm_up: float) -> float:
        """How many seconds behind the warm-up there are messages for at a rate, `seconds` at most.

        Raises
        ------
        ConfigError
            If it is less than one.
        """
        lasts_s = (self.messages - self.history) / rate - warm_up
        if lasts_s < min(1.0, seconds):
            raise ConfigError(
                f"{self.folder}: its {self.messages - self.history:,} messages are over after {warm_up + lasts_s:.1f} "
                f"s at {rate:,.0f}/s; lower the rate, or make it with more --messages"
            )
        return min(seconds, lasts_s)

    def plan(
        self, pace: Pace, query_bolts: int = 1, router: str = "hashing", credits: int = 2, out: str | None = None,
        filling: bool = False, query_threads: int = 1,
    ) -> Plan:  # fmt: skip
        """The topology of `skyray run` over the folder, with a clock that keeps the pace.

        Parameters
        ----------
        pace : Pace
        query_bolts, router, credits
            As of `gateway.load.loadtest.load_test`.
        out : str, optional
            Folder for the files of updates; None: they are counted.
        filling : bool
            Of the history: names are kept, nothing is written.
        query_threads : int
            See `bolts.kind_threads`.
        """
        config = self._config(query_bolts, router, out)
        space, window = wiring.space_of(config), Window.parse(self.window)
        vocabulary = load_vocabulary(config.messages)
        used = tuple(name for name, count in self.counts.items() if count)
        columns = tuple(sorted({column for name in used for column in KINDS.named(name).columns}))
        messages = (FillingFile if filling else PacedFile)(
            str(config.messages), window, space, columns, batch=pace.batch, limit=pace.limit, rate=pace.rate,
            linger_s=pace.linger_s, watched=pace.watched(),
        )  # fmt: skip
        subscriptions = LoadedSubscriptions([str(path) for path in self.files], vocabulary, space)
        kind_of_delivery = FillingDelivery if filling else DeliveryBolt
        delivery = kind_of_delivery(
            out or os.devnull,
            window,
            credits,
            "count" if out is None and not filling else "parquet",
            file_rows=None,
            cumulative=tuple(kind.code for kind in KINDS if kind.cumulative),
            steady_from=pace.warming,
            timeline_s=pace.timeline_s,
        )
        return wiring.wire(
            messages, subscriptions, wiring.router_of(config, space, vocabulary=vocabulary), space, window, delivery,
            used_kinds=used, fading=wiring.fading_of(config, vocabulary), credits=credits,
            query_threads=query_threads,
        )  # fmt: skip

    def parts(self, pace: Pace) -> tuple[PacedFile, Any, DecayParameters]:
        """What `gateway.load.check.check` takes of a run; the subscriptions are read again."""
        config = self._config(1, "hashing", None)
        space, window, vocabulary = wiring.space_of(config), Window.parse(self.window), load_vocabulary(config.messages)
        columns = tuple(sorted({column for kind in KINDS.run for column in kind.columns}))
        source = PacedFile(
            str(config.messages),
            window,
            space,
            columns,
            batch=pace.batch,
            limit=pace.limit,
            rate=pace.rate,
        )
        spout = LoadedSubscriptions([str(path) for path in self.files], vocabulary, space)
        wanted = {KINDS.named(name).code: count for name, count in self.counts.items()}
        wanted = {kind.code: wanted.get(kind.code, 0) for kind in KINDS.run}
        return source, Subscribed(KINDS, wanted, spout._load()), wiring.fading_of(config, vocabulary)

    def fill(self, on_progress: Callable[[str], None] = lambda what: None) -> None:
        """Let the history pass, in this process, and save the state behind it; one of this release stays.

        Decaying and nearest results have taken all messages of the history, since these subscriptions begin with it;
        the others begin at its end, over a full window. Minutes for a million subscriptions.
        """
        if CheckpointStore(str(self.folder / STATE)).kept(1):
            return
        on_progress(f"{self.history:,} messages of history pass once, to fill results and window")
        pace = Pace(_ALL_AT_ONCE, self.history, FILLING, warming=self.history)  # no boundary of it is checked
        hidden = self.folder / f".{STATE}"
        shutil.rmtree(hidden, ignore_errors=True)
        hidden.mkdir()
        last = -(-self.history // FILLING) - 1
        store = CheckpointStore(str(hidden))
        for _ in range(KEPT):  # as many as a run keeps, so that none of it is copied while a test runs
            saved = store.newest()
            resume = None if saved is None else store.load(saved)
            save_local(self.plan(pace, filling=True), last, store, resume=resume)
        shutil.rmtree(self.folder / STATE, ignore_errors=True)
        hidden.rename(self.folder / STATE)

    def resume(self, folder: str) -> tuple[CheckpointStore, Manifest]:
        """The checkpoints of a run in `folder`, and the one to resume from: the run's own newest, else the state of the
        workload, whose files are linked there.

        Raises
        ------
        InputError
            If there is no state; `fill` makes it.
        """
        checkpoints = Path(folder) / "checkpoints"
        if not checkpoints.exists():
            checkpoints.mkdir(parents=True)
            for path in sorted((self.folder / STATE).glob("epoch-*")):
                (checkpoints / path.name).symlink_to(path)
        store = CheckpointStore(str(checkpoints))
        manifest = store.newest()
        if manifest is None:
            why = "; ".join(store.refused) or "there is none"
            raise InputError("missing_file", f"{self.folder / STATE}: no state to begin with ({why}); remove it")
        with suppress(FileNotFoundError):
            complete(folder, manifest)
        return store, manifest

    def _config(self, query_bolts: int, router: str, out: str | None) -> RunConfig:
        settings: dict[str, Any] = {
            "messages": self.folder / "etl", "subscriptions": self.files, "out": Path(out or os.devnull),
            "window": self.window, "world": "earth", "decay_half_life": self.half_life_s, "query_bolts": query_bolts,
            "router": router,
        }  # fmt: skip
        return RunConfig(**settings)
