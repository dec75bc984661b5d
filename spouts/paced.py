"""Made-up messages at a set rate, and subscriptions that take after them: what a load test puts into a topology.

The schedule is fixed before the first message: message n is due n / rate seconds after the start. A batch goes out once
all its messages are due and a credit is there, and says that it was published when its first message was due,
however long it then had to wait. So latencies count from the schedule, a stalled engine cannot make its own stall
invisible by slowing the source (coordinated omission), and every latency is that of the batch's oldest message.
Read on in `gateway.loadtest`.
"""

import threading
from typing import Any

import numpy as np

from bolts.payloads import StreamBatch
from matching.errors import ConfigError
from matching.model import BOOLEAN, KINDS, SKYLINE, TOPK, ChangeList, Names, Removals, SubscriptionTable, empty
from matching.space import Space
from matching.window import Window
from spouts.generated import GeneratedSource, GeneratedSpout, Recipe
from topology.core.component import Context, Saved, Spout, Tick

#: No wait is longer than this, so that the task goes on answering whoever asks how it is.
_LONGEST_WAIT_S = 0.2
_REGION_HALF_DEGREES = 0.25
#: Area of the rectangle of a skyline subscription, as a share of the world's.
_SKYLINE_AREA = 1e-4, 1e-2


class PacedSpout(GeneratedSpout):
    """Clock spout that publishes generated messages on a schedule.

    Parameters
    ----------
    recipe, window, space, batch, limit
        As in `GeneratedSpout`; `limit` is needed, since the stream must end.
    rate : float
        Messages a second.

    Raises
    ------
    ConfigError
        If the rate is not positive.
    """

    def __init__(self, recipe: Recipe, window: Window, space: Space, batch: int, limit: int, rate: float):
        if not rate > 0:
            raise ConfigError(f"rate {rate}: a paced stream needs a positive rate")
        super().__init__(recipe, window, space, batch, limit)
        self.rate = rate
        self._start_s: float | None = None
        self._latest_start_s = 0.0
        self._ended_s = 0.0

    def next_batch(self, number: int, tick: Tick | None) -> Tick | None:
        """Wait until the batch is due, then emit it; late batches go out at once."""
        batch = self._next()
        if batch is None:
            return None
        first, last = batch.boundary.first_seq, batch.boundary.last_seq
        if self._start_s is None:  # where a run goes on, its next message is due now, whenever it was interrupted
            self._start_s = self._context.now() - first / self.rate
        due_s = self._start_s + (last + 1) / self.rate
        while (wait_s := due_s - self._context.now()) > 0:
            threading.Event().wait(min(wait_s, _LONGEST_WAIT_S))
        self._ended_s = self._context.now()
        self._latest_start_s = max(self._latest_start_s, self._ended_s - due_s)
        published_s = self._start_s + first / self.rate
        payload = StreamBatch(batch.boundary, published_s, batch.messages, batch.names)
        self._context.emit("batches", payload, to=number % self._receivers)
        self._context.count("messages", len(batch.messages))
        return Tick(number, first, last)

    def state(self) -> dict[str, np.ndarray]:
        """Beside the position: how far behind the schedule it fell."""
        return super().state() | {"furthest_behind_s": np.array(self._latest_start_s)}

    def restore(self, saved: Saved) -> None:
        super().restore(saved)
        self._latest_start_s = float(saved.single(self._context.component)["furthest_behind_s"])

    def report(self) -> dict[str, Any]:
        """Beside the counts: the rate that was asked for and reached, and how far behind the schedule it fell."""
        took_s = self._ended_s - (self._start_s or 0.0)
        return super().report() | {
            "rate": self.rate,
            "reached_rate": self.cutter.next_seq / took_s if took_s > 0 else 0.0,
            "furthest_behind_s": self._latest_start_s,
            "behind_at_end_s": max(0.0, took_s - self.cutter.next_seq / self.rate),
        }


class GeneratedSubscriptions(Spout):
    """Following spout: subscriptions that take after messages of the recipe, all of them before the first message.

    Each takes 1 to 5 words of a message and its place: `boolean` a square of half a degree around it, `topk` k = 10 and
    any alpha, `skyline` a rectangle shaped like the world, of 0.01 % to 1 % of its area.

    Parameters
    ----------
    recipe, window, space
        Of the messages.
    boolean, topk, skyline : int
        How many of each kind.
    """

    def __init__(self, recipe: Recipe, window: Window, space: Space, boolean: int, topk: int, skyline: int = 0):
        self.recipe = recipe
        self.window = window
        self.space = space
        self.wanted = {BOOLEAN: boolean, TOPK: topk, SKYLINE: skyline}

    def open(self, context: Context) -> None:
        self._context = context

    def next_batch(self, number: int, tick: Tick | None) -> Tick | None:
        nobody = np.zeros(0, np.int64)
        nothing = Removals(nobody, nobody.astype(np.int8), nobody)
        added = self._make() if number == 0 else empty(SubscriptionTable)
        names = Names.of([f"{KINDS[kind]}-{n}" for n, kind in zip(added.number, added.kind.tolist(), strict=True)])
        self._context.emit("changes", ChangeList(number, added, names, nothing))
        return tick

    def report(self) -> dict[str, Any]:
        return {"accepted": sum(self.wanted.values()), "rejected": 0}

    def _make(self) -> SubscriptionTable:
        """All subscriptions as one table. O(count)."""
        rng = np.random.default_rng([self.recipe.seed, 2])
        # the messages of another seed: alike, but not the very ones that will be published
        source = GeneratedSource(Recipe(**{**vars(self.recipe), "seed": self.recipe.seed + 1}), self.window, self.space)
        messages = source.read().messages
        count = sum(self.wanted.values())
        like = rng.integers(0, len(messages), count)
        kind = np.repeat(np.array(list(self.wanted), np.int8), list(self.wanted.values()))
        offsets, terms = [0], []
        for row, most in zip(like, rng.integers(1, 6, count), strict=True):
            words = messages.terms[messages.term_offsets[row] : messages.term_offsets[row + 1]]
            terms.append(np.sort(rng.choice(words, min(most, words.size), replace=False)))
            offsets.append(offsets[-1] + terms[-1].size)
        flat = np.concatenate([np.zeros(0, np.int32), *terms]).astype(np.int32)
        row_of = np.repeat(np.arange(count), np.diff(offsets))
        raw = self.recipe.idf()[flat]
        weights = (raw / np.sqrt(np.bincount(row_of, raw * raw, count))[row_of]).astype(np.float32)
        topk = kind == TOPK
        lon, lat = messages.west[like], messages.south[like]
        world = self.space
        side = np.sqrt(rng.uniform(*_SKYLINE_AREA, count)) / 2.0
        half_width = np.where(kind == SKYLINE, side * (world.east - world.west), _REGION_HALF_DEGREES)
        half_height = np.where(kind == SKYLINE, side * (world.north - world.south), _REGION_HALF_DEGREES)
        region = np.stack(
            [
                np.maximum(lon - half_width, world.west),
                np.maximum(lat - half_height, world.south),
                np.minimum(lon + half_width, world.east),
                np.minimum(lat + half_height, world.north),
            ],
            1,
        )
        region[topk] = np.nan
        blank = np.where(topk, 1.0, np.nan)
        return SubscriptionTable(
            number=np.arange(count, dtype=np.int64),
            kind=kind,
            at=np.zeros(count, np.int64),
            x=messages.x[like] * blank,
            y=messages.y[like] * blank,
            region=region,
            k=np.where(topk, 10, 0).astype(np.int32),
            alpha=rng.random(count) * blank,
            term_offsets=np.array(offsets, np.int64),
            terms=flat,
            weights=weights,
        )
