"""State that the routes share: the stream, its writer and its hub."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gateway.live.admission import Admission
from gateway.live.write_ahead_log import WriteAheadLog
from gateway.serve.access import Access, Caller
from gateway.serve.disk_use import DiskUse
from gateway.serve.hub import Hub
from gateway.serve.problems import ApiError, later, overloaded
from gateway.serve.questions import Questions
from gateway.serve.registry import Registry
from gateway.serve.releasing import Releaser
from gateway.serve.starting import Starting
from gateway.serve.versions import VersionsAt
from gateway.serve.writer import LogWriter, Outcome, Row
from gateway.sources.feed import Feed
from matching.errors import EngineError
from topology.core.metrics import RunSnapshot

#: Seconds that a request waits for `wait=delivered`, and to be logged, at most.
PATIENCE_S = 30.0
#: Seconds after which a client whose stream ends, or whose request is refused, should come again.
RETRY_S = 2


class Door:
    """One stream, as the API sees it.

    Attributes
    ----------
    access : Access
        Who may do what.
    questions : Questions
        Whose question is answered when.
    ready : bool
        Whether the topology matches.
    starting : Starting
        What is done until it does.
    closing : bool
        Whether the server ends: nothing is taken any more.
    snapshot : RunSnapshot or None
        Figures of the topology.
    latency : LatencyHistogram
        From a row's arrival to the release of its updates.
    more_figures : list of callable
        Each yields figures of what stands on the stream (`gateway.sinks`), for Prometheus.
    disk : DiskUse
        Of the folder.
    versions : VersionsAt or None
        Of a stream of objects.
    feed : Feed or None
        What reads a source.
    sinks : callable
        Figures of what takes all updates (`gateway.serve.models.Sink`).
    webhooks : callable
        Figures of all webhooks together (`gateway.serve.models.Webhooks`), or None.
    """

    def __init__(
        self,
        admission: Admission,
        registry: Registry,
        wal: WriteAheadLog,
        writer: LogWriter,
        hub: Hub,
        releaser: Releaser,
        access: Access,
    ):
        self.access = access
        self.admission = admission
        self.registry = registry
        self.wal = wal
        self.writer = writer
        self.hub = hub
        self.ready = self.closing = False
        self.starting = Starting()
        self.snapshot: RunSnapshot | None = None
        self.more_figures: list[Callable[[], Iterator[Any]]] = []
        self.questions = Questions(self.is_busy)
        self.latency = releaser.in_flight.latency
        self.disk = DiskUse(wal.folder)
        self.versions = None if wal.living is None else VersionsAt(wal)
        self.feed: Feed | None = None
        self.sinks: Callable[[], list[dict[str, Any]]] = list
        self.webhooks: Callable[[], dict[str, Any] | None] = lambda: None
        self._releaser = releaser

    def submit(self, rows: Sequence[Row], size_bytes: int, caller: Caller) -> asyncio.Future[list[Outcome]]:
        """Hand rows of a caller to the writer; the future has their outcomes once all are durable.

        Raises
        ------
        ApiError
            If too many rows wait, of this caller or of all, or the server ends; the future's, if the log cannot be
            written.
        """
        self.refuse_if_closing()
        future: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()

        def settle(outcomes: list[Outcome]) -> None:
            if future.done():
                return
            if outcomes and outcomes[0]["status"] == "failed":
                future.set_exception(ApiError(503, "not_durable", outcomes[0]["detail"]))
            else:
                future.set_result(outcomes)

        def report(outcomes: list[Outcome]) -> None:
            self.hub.calls.call(settle, outcomes)

        if not self.writer.submit(rows, size_bytes, report, caller.name):
            if self.writer.failure is not None:
                raise not_durable(self.writer.failure)
            raise overloaded()
        return future

    async def submit_patiently(
        self, rows: Sequence[Row], size_bytes: int, caller: Caller
    ) -> asyncio.Future[list[Outcome]]:
        """As `submit`, but waits while too many rows wait: what a stream of rows needs."""
        while True:
            try:
                return self.submit(rows, size_bytes, caller)
            except ApiError as problem:
                if problem.status != 429:
                    raise
                await asyncio.sleep(0.02)

    async def delivered(self, outcomes: Sequence[Outcome]) -> bool:
        """Wait until the updates of these messages are released; False after `PATIENCE_S`."""
        last = max((one["seq"] for one in outcomes if "seq" in one), default=-1)
        try:
            await asyncio.wait_for(self.hub.reached(last), PATIENCE_S)
        except TimeoutError:
            return False
        return True

    def refuse_if_closing(self) -> None:
        """Raises ApiError if the server ends."""
        if self.closing:
            raise later(503, "shutting_down", "the server is shutting down", RETRY_S, "what was answered is durable")

    def updates(self) -> int:
        """How many updates were released since the start."""
        return self._releaser.updates

    def is_busy(self) -> bool:
        """Whether rows wait to be logged, or messages to be matched."""
        return self.writer.waiting > 0 or self.behind() > 0

    def behind(self) -> int:
        """How many logged messages have updates that are not released yet."""
        return self.wal.next_seq - 1 - self.hub.log.head.boundary

    def figures(self) -> dict[str, Any]:
        """Counts of the stream."""
        writer = self.writer
        return {
            "messages": self.wal.next_seq - self.wal.mark_count,
            "next_seq": self.wal.next_seq,
            "complete_through": self.hub.log.head.boundary,
            "subscriptions": len(self.registry),
            "broad": self.registry.broad,
            "refused": sum(writer.refused.values()),
            "duplicates": writer.duplicates,
            "clients": self.hub.clients,
            "waiting": writer.waiting,
            "source": None if self.feed is None else self.feed.figures(),
            "sinks": self.sinks(),
        }


def not_durable(error: BaseException) -> ApiError:
    detail = str(error) if isinstance(error, EngineError) else repr(error)
    return ApiError(503, "not_durable", f"the log cannot be written: {detail}")
