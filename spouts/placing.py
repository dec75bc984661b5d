"""Placement by cost: a spout that wraps the subscription spout and adds an owner to each subscription.

The cheapest task depends on all subscriptions placed before (`distribution.placed`), so one task decides: the one that
every change passes. `PlacingSpout` adds the owners to the change lists that the inner spout emits, and its snapshot has
the placement beside the inner spout's state.
"""

import os
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from bolts.saved import placement_of, router_of, subscriptions_of
from distribution.placed import PlacedRouter, Placer
from matching.kind_table import Kinds
from matching.kinds import KINDS
from matching.model import NO_MESSAGES, MessageBatch, concatenate
from matching.space import Space
from matching.window import Window
from spouts.cutting import Cutter, read_all
from spouts.parquet import ParquetSource
from topology.core.api.component import Context, Fragment, Saved, Spout, Tick


class PlacingSpout(Spout):
    """Follows the clock as `inner` does, and places what it adds.

    Parameters
    ----------
    inner : Spout    emits one `ChangeList` a batch on the stream "changes"
    """

    def __init__(self, inner: Spout, router: PlacedRouter, kinds: Kinds = KINDS):
        self.inner = inner
        self.router = router
        self.kinds = kinds
        self.placer: Placer | None = None

    def open(self, context: Context) -> None:
        self.placer = self.router.placer()
        placing: Any = _PlacingContext(context, self.placer)
        self.inner.open(placing)

    def next_batch(self, number: int, tick: Tick | None) -> Tick | None:
        return self.inner.next_batch(number, tick)

    def report(self) -> dict[str, Any]:
        """The inner spout's figures, the placement's parameters, and each query task's load."""
        return self.inner.report() | ({} if self.placer is None else {"placement": self.placer.describe()})

    def snapshot(self, stored: Mapping[str, int]) -> Mapping[str, Fragment]:
        """The fragments of the inner spout, and the placement."""
        assert self.placer is not None, "open() comes first"
        placed = self.placer.arrays()
        return {**self.inner.snapshot(stored), "placed": Fragment(lambda: placed)}

    def restore(self, saved: Saved) -> None:
        """Resume after a batch. Raises CheckpointError as the inner spout, or for a snapshot of other subscriptions.

        Places all subscriptions again if the snapshot is of another number of query tasks or another router, and some
        where the work of the query tasks was measured.
        """
        assert self.placer is not None, "open() comes first"
        self.inner.restore(saved)
        self.placer.router = router_of(saved, self.router)
        subscriptions = concatenate([state.table for state in subscriptions_of(saved, self.kinds).values()])
        self.placer.restore(placement_of(saved), subscriptions)

    def close(self) -> None:
        self.inner.close()


class _PlacingContext:
    """A context that places every change list before it is emitted; else the wrapped one."""

    def __init__(self, context: Context, placer: Placer):
        self._context = context
        self._placer = placer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def emit(self, stream: str, payload: Any, *, to: int | None = None, key: int | None = None) -> None:
        placed = self._placer.follow(payload) if stream == "changes" else payload
        self._context.emit(stream, placed, to=to, key=key)


def read_first(directory: str | os.PathLike[str], space: Space, count: int, follow: bool = False) -> MessageBatch:
    """The first `count` messages of an ETL directory, or all if there are fewer; with `follow`, of those there are.

    Raises
    ------
    InputError
        As `ParquetSource`.
    """
    window = Window("count", 1)
    source = ParquetSource(directory, window, space, follow)
    with closing(read_all(source, Cutter(window, count, count))) as batches:
        return next((batch.messages for batch in batches), NO_MESSAGES)
