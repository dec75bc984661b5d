"""Made-up messages at a set rate, and subscriptions that resemble them: the input of a load test.

The schedule is fixed before the first message: message n is due n / rate seconds after the start. A batch is emitted
once all its messages are due, or once its first has lingered for `linger_s`, with all messages due by then. Its publish
time is the due time of its first message, however long it waited for a credit. So latencies count from the schedule, a
stalled engine cannot hide the stall by slowing the source (coordinated omission), and every latency is that of the
batch's oldest message.
"""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from bolts.payloads import emit_batch
from matching.errors import ConfigError
from matching.kind_table import Kinds
from matching.kinds import KINDS
from matching.model import (
    KEYWORDS_BY_KIND,
    ChangeList,
    Float64,
    Names,
    Removals,
    SubscriptionTable,
    concatenate,
    empty,
)
from matching.space import Space
from matching.window import Window
from spouts.cutting import MessageSpout
from spouts.generated import GeneratedSource, MessageRecipe
from spouts.generated_filters import FilterRows, draw_filters, with_filters
from topology.core.api.component import Context, Saved, Spout, Tick

#: Longest wait, so that the task still answers heartbeats.
_LONGEST_WAIT_S = 0.2
#: Smallest side of a region as a fraction of the largest; smallest area, where areas are uniform.
_SMALLEST = 0.01
#: Changing subscriptions that are there at a time, at least.
CHANGING = 1_000


class PacedSpout(MessageSpout):
    """Clock spout that publishes generated messages on a schedule.

    Parameters
    ----------
    recipe, space, kind_columns
        As in `GeneratedSource`.
    window, batch, limit
        As in `MessageSpout`; `limit` is needed, since the stream must end.
    rate : float
        Messages a second.
    linger_s : float, optional
        Longest wait of a message for others of its batch; None: until the batch is full.
    watched : range of int
        The report says which of these messages was the last of a batch.

    Raises
    ------
    ConfigError
        If the rate is not positive, or the linger time is negative.
    """

    #: It waits for what is due, and other tasks of its process would wait, too.
    patient = True

    def __init__(
        self,
        recipe: MessageRecipe,
        window: Window,
        space: Space,
        batch: int,
        limit: int,
        rate: float,
        kind_columns: Collection[str] = (),
        linger_s: float | None = None,
        watched: range = range(0),
    ):
        if not rate > 0:
            raise ConfigError(f"rate {rate}: a paced stream needs a positive rate")
        if linger_s is not None and linger_s < 0:
            raise ConfigError(f"linger time {linger_s} s: cannot be negative")
        super().__init__(window, batch, limit)
        self.rate = rate
        self.recipe = recipe
        self.space = space
        self.kind_columns = tuple(kind_columns)
        self.linger_s = linger_s
        self.watched = watched
        self._ends: list[int] = []
        self._largest = batch
        self._start_s: float | None = None
        self._latest_start_s = 0.0
        self._ended_s = 0.0

    def open_source(self) -> GeneratedSource:
        return GeneratedSource(self.recipe, self.cutter.window, self.space, self.kind_columns)

    def next_batch(self, number: int, tick: Tick | None) -> Tick | None:
        """Wait until the batch is due, then emit it; a late batch at once."""
        first = self.cutter.next_seq
        if self._start_s is None:  # a resumed run's next message is due now
            self._start_s = self._context.now() - first / self.rate
        due_s = self._await_due(first)
        batch = self._next()
        if batch is None:
            return None
        last = batch.boundary.last_seq
        if last in self.watched:
            self._ends.append(last)
        self._ended_s = self._context.now()
        self._latest_start_s = max(self._latest_start_s, self._ended_s - due_s)
        payload = batch._replace(published_s=self._start_s + first / self.rate)
        self._context.count("messages", len(batch.messages))
        return emit_batch(self._context, payload)

    def ready(self) -> bool:
        """See `Spout.ready`: it is behind its schedule."""
        return self._start_s is not None and self._due_at(self.cutter.next_seq) <= self._context.now()

    def _due_at(self, first: int) -> float:
        start_s, rate = self._start_s or 0.0, self.rate
        size = min(self._largest, (self.cutter.limit or first) - first)
        due_s = start_s + (first + size) / rate
        if self.linger_s is None:
            return due_s
        # its first message is due 1 / rate before the second is, as the last of a full batch is
        return min(due_s, start_s + (first + 1) / rate + self.linger_s)

    def _await_due(self, first: int) -> float:
        """Wait for the batch from message `first` on, sized by what is due then; returns its due time."""
        start_s, rate = self._start_s or 0.0, self.rate
        due_s = self._due_at(first)
        while (wait_s := due_s - self._context.now()) > 0:
            self._context.wait(min(wait_s, _LONGEST_WAIT_S))
        if self.linger_s is not None:
            due = int((self._context.now() - start_s) * rate) - first
            self.cutter.batch = max(1, min(self._largest, due))
        return due_s

    def state(self) -> dict[str, np.ndarray]:
        """The position, the largest delay, and the watched ends of batches."""
        ends = np.array(self._ends, np.int64)
        return super().state() | {"furthest_behind_s": np.array(self._latest_start_s), "ends": ends}

    def restore(self, saved: Saved) -> None:
        super().restore(saved)
        state = saved.single(self._context.component)
        self._latest_start_s, self._ends = float(state["furthest_behind_s"]), state["ends"].tolist()

    def report(self) -> dict[str, Any]:
        """The counts, the required and the reached rate, delays behind the schedule, watched `ends`."""
        took_s = self._ended_s - (self._start_s or 0.0)
        return super().report() | {
            "rate": self.rate,
            "reached_rate": self.cutter.next_seq / took_s if took_s > 0 else 0.0,
            "furthest_behind_s": self._latest_start_s,
            "behind_at_end_s": max(0.0, took_s - self.cutter.next_seq / self.rate),
            "ends": self._ends,
        }


class GeneratedSubscriptions(Spout):
    """Following spout: subscriptions that resemble messages of the recipe, all before the first message, and changes.

    Each has some words of a message, any or the most frequent, and its place, by the recipe of its kind
    (`matching.kind_table.Recipe`): keywords, k, and a rectangle around the place, shaped like the world, or a square
    in degrees. Alpha is uniform.

    Parameters
    ----------
    recipe, window, space
        Of the messages.
    counts : mapping of kind to int
        Number of each kind.
    changes : float
        Subscriptions that are added for each message, copies of the others in turn. Each ends once `changing` more have
        been added. They depend on the seq alone, so that a resumed run continues with the right ones.
    changing : int
        More than are added in a batch.
    filters : float
        Share of subscriptions with a filter (`spouts.generated_filters`).

    Raises
    ------
    ConfigError
        For a kind that is unknown or does not run, and for a negative count.
    """

    def __init__(
        self,
        recipe: MessageRecipe,
        window: Window,
        space: Space,
        counts: Mapping[str, int],
        kinds: Kinds = KINDS,
        changes: float = 0.0,
        changing: int = CHANGING,
        filters: float = 0.0,
    ):
        self.filters = filters
        self.recipe = recipe
        self.window = window
        self.space = space
        self.kinds = kinds
        for name, count in counts.items():
            if not kinds.named(name).runs or count < 0:
                running = ", ".join(kind.name for kind in kinds.run)
                raise ConfigError(f"{count} {name} subscriptions: must be 0 or more of a kind that runs ({running})")
        self.wanted = {kind.code: counts.get(kind.name, 0) for kind in kinds.run}
        self.changes = changes if sum(self.wanted.values()) else 0.0
        self.changing = changing
        self._copied: SubscriptionTable | None = None

    def open(self, context: Context) -> None:
        self._context = context

    def next_batch(self, number: int, tick: Tick | None) -> Tick | None:
        added, removed = (self.make() if number == 0 else empty(SubscriptionTable)), self._none_removed()
        if self.changes and tick is not None:
            more, removed = self.changed(tick.first_seq, tick.last_seq)
            added = concatenate([added, more])
        self._context.emit("changes", ChangeList(number, added, self.names(added), removed))
        return tick

    def changed(self, first: int, last: int) -> tuple[SubscriptionTable, Removals]:
        """What is added and removed before messages `first` to `last`; O(messages + changes) once made."""
        if self._copied is None:
            self._copied = self.make()
        through = np.floor(np.arange(first - 1, last + 1) * self.changes).clip(0).astype(np.int64)
        nth = np.arange(through[0], through[-1])
        at = np.repeat(np.arange(first, last + 1), np.diff(through))
        count = len(self._copied)
        added = SubscriptionTable(**(self._copied.take(nth % count)._asdict() | {"number": count + nth, "at": at}))
        ending = nth - self.changing
        known = ending >= 0
        kind = self._copied.kind[ending[known] % count]
        return added, Removals(count + ending[known], kind, at[known])

    @staticmethod
    def _none_removed() -> Removals:
        none = np.zeros(0, np.int64)
        return Removals(none, none.astype(np.int8), none)

    def report(self) -> dict[str, Any]:
        return {"accepted": sum(self.wanted.values()), "rejected": 0}

    def names(self, table: SubscriptionTable) -> Names:
        """Ids of subscriptions: kind and number."""
        rows = zip(table.kind.tolist(), table.number.tolist(), strict=True)
        return Names.of([f"{self.kinds[kind].name}-{number}" for kind, number in rows])

    def make(self) -> SubscriptionTable:
        """All subscriptions as one table, numbers from 0. O(count)."""
        plain = self._plain()
        return plain if not self.filters else with_filters(plain, self.filters_of(plain))

    def filters_of(self, table: SubscriptionTable) -> FilterRows:
        """The filters of all subscriptions."""
        recipe = self.recipe
        return draw_filters(table, self.filters, recipe.seed, recipe.vocabulary, recipe.numbered)

    def _plain(self) -> SubscriptionTable:
        rng = np.random.default_rng([self.recipe.seed, 2])
        # messages of another seed: the same distribution, but not the messages that will be published
        source = GeneratedSource(
            MessageRecipe(**{**vars(self.recipe), "seed": self.recipe.seed + 1}), self.window, self.space
        )
        messages = source.read().messages
        count = sum(self.wanted.values())
        like = rng.integers(0, len(messages), count)
        fewest, most = self._each([kind.recipe.keywords for kind in self.kinds.run]).T
        offsets, terms = [0], []
        frequent = self._each([kind.recipe.frequent for kind in self.kinds.run])
        for row, wanted, common in zip(like, rng.integers(fewest, most + 1), frequent, strict=True):
            words = messages.terms[messages.term_offsets[row] : messages.term_offsets[row + 1]]
            # a later word is a more frequent one
            mine = words[-wanted:] if common else rng.choice(words, min(wanted, words.size), replace=False)
            terms.append(np.sort(mine))
            offsets.append(offsets[-1] + terms[-1].size)
        flat = np.concatenate([np.zeros(0, np.int32), *terms]).astype(np.int32)
        row_of = np.repeat(np.arange(count), np.diff(offsets))
        raw = self.recipe.idf()[flat]
        weights = (raw / np.sqrt(np.bincount(row_of, raw * raw, count))[row_of]).astype(np.float32)
        region = self._regions(rng, messages.west[like], messages.south[like])
        alpha = np.where(self._each(["alpha" in kind.fields for kind in self.kinds.run]), rng.random(count), np.nan)
        low, high = self._each([kind.recipe.k if "k" in kind.fields else (0, 0) for kind in self.kinds.run]).T
        is_point = np.isnan(region[:, 0])
        return SubscriptionTable(
            number=np.arange(count, dtype=np.int64),
            kind=self._each([kind.code for kind in self.kinds.run]).astype(np.int8),
            at=np.zeros(count, np.int64),
            x=np.where(is_point, messages.x[like], np.nan),
            y=np.where(is_point, messages.y[like], np.nan),
            region=region,
            match=np.full(count, KEYWORDS_BY_KIND, np.int8),
            k=rng.integers(low, high + 1).astype(np.int32),
            alpha=alpha,
            term_offsets=np.array(offsets, np.int64),
            terms=flat,
            weights=weights,
            vector=np.where(is_point[:, None], messages.vector[like], np.nan)
            if self.space.on_sphere
            else messages.vector,
        )

    def _each(self, values: list[Any]) -> Any:
        """Repeat a value of each kind for each of its subscriptions."""
        return np.repeat(np.array(values), list(self.wanted.values()), axis=0)

    def _regions(self, rng: np.random.Generator, lon: Float64, lat: Float64) -> Float64:
        """A rectangle around each place, within the world: float64[n, 4]; NaN for kinds with a point."""
        world = self.space
        recipes = [kind.recipe for kind in self.kinds.run]
        share = rng.uniform(_SMALLEST, 1.0, lon.shape[0])
        share = np.where(self._each([recipe.square for recipe in recipes]), np.sqrt(share), share)
        share *= self._each([recipe.side for recipe in recipes])
        degrees = self._each([recipe.degrees for recipe in recipes])
        half_width = np.where(degrees > 0, degrees, share * (world.east - world.west)) / 2
        half_height = np.where(degrees > 0, degrees, share * (world.north - world.south)) / 2
        sides = [
            np.maximum(lon - half_width, world.west),
            np.maximum(lat - half_height, world.south),
            np.minimum(lon + half_width, world.east),
            np.minimum(lat + half_height, world.north),
        ]
        has_region = self._each([kind.place == "region" for kind in self.kinds.run])
        return np.where(has_region[:, None], np.stack(sides, 1), np.nan)
