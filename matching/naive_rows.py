"""Input and output of the oracle: messages, subscriptions, updates and results as Python values.

Columns of NumPy become rows of plain numbers here, and nothing is decided.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from matching.model import MessageBatch, SubscriptionTable, UpdateBatch
from matching.naive_filters import NaiveInstruction, instructions_of


class NaiveMessage(NamedTuple):
    """One message. `weights` maps each term to its weight, `keys` are of its attributes, `vector` is the point on the
    sphere, None in the plane; the other fields after `weights` matter to `decay` and `skyline`. Only a `visible` one
    meets subscriptions without keywords. `order` has its words in order of appearance, below 0 for one without a term;
    `beginnings` are terms that it has for matching alone: beginnings of its words, words that its hashtags name, and of
    a message that has a language its words as they are written.
    """

    seq: int
    x: float
    y: float
    west: float
    south: float
    east: float
    north: float
    life: int
    weights: Mapping[int, float]
    counts: Mapping[int, int]
    event_time_us: int
    object_id: object
    op: int
    keys: Sequence[int] = ()
    vector: tuple[float, float, float] | None = None
    visible: bool = False
    order: Sequence[int] = ()
    beginnings: Sequence[int] = ()

    @property
    def carried(self) -> Collection[int]:
        """All that it can be found by."""
        return {*self.weights, *self.beginnings} if self.beginnings else self.weights


class NaiveSubscription(NamedTuple):
    """One subscription. `region` is west, south, east, north; `weights` maps each keyword to its weight; a message must
    satisfy all of `filter`. `vector` is the point on the sphere, None in the plane; `radius_m` its own radius, None
    without. One that is `wordless` has no keywords, and asks for every visible message.
    """

    number: int
    kind: int
    at: int
    x: float
    y: float
    region: tuple[float, float, float, float]
    match: int
    k: int
    alpha: float
    weights: Mapping[int, float]
    filter: tuple[NaiveInstruction, ...] = ()
    vector: tuple[float, float, float] | None = None
    radius_m: float | None = None
    wordless: bool = False


class Extras(NamedTuple):
    """Columns of a batch that only `decay` and `skyline` need, row by row as in the `MessageBatch`.

    event_time_us : n integers     creation time of the message, `NO_FLOOR` if it has none
    counts : nnz integers          how often each term occurs in its message, in the order of `terms`
    object_id : n values           a new version of an object replaces the old one (`skyline`)
    op : n integers                0 publish, 1 delete the object (`skyline`)

    None stands for: no times or counts are needed, every message is an object of its own, nothing is deleted.
    """

    event_time_us: Sequence[int] | None = None
    counts: Sequence[int] | None = None
    object_id: Sequence[object] | None = None
    op: Sequence[int] | None = None


class DecayModel(NamedTuple):
    """What the `decay` score needs beside the two texts.

    log_base_per_s : float     ln D: by how much ln(score) falls in a second
    smoothing : float          lambda of Jelinek and Mercer, 0..1: share of the collection in a term's probability
    collection_count : mapping of term to its count in the whole collection
    total_tokens : int         sum of all collection counts; with 0 the collection's share is 0
    epoch_us : int             event time at which age counts as nothing; keeps digits of the log key
    """

    log_base_per_s: float
    smoothing: float
    collection_count: Mapping[int, int]
    total_tokens: int
    epoch_us: int = 0


class NaiveUpdate(NamedTuple):
    """One row of an `UpdateBatch` as Python values."""

    as_of: int
    number: int
    seq: int
    change: int
    score: float


class Result(NamedTuple):
    """One row of a standing result; `text_score` is NaN except for `skyline`."""

    number: int
    rank: int
    seq: int
    score: float
    text_score: float


# ---------------------------------------------------------------------------------------------- from columns to values


def messages_of(batch: MessageBatch, extras: Extras | None = None) -> Iterator[NaiveMessage]:
    """The rows of a batch, in order. O(terms)."""
    more = extras or Extras()
    offsets, terms, weights = batch.term_offsets.tolist(), batch.terms.tolist(), batch.weights.tolist()
    columns = (batch.seq, batch.x, batch.y, batch.west, batch.south, batch.east, batch.north, batch.life)
    keys, vectors = batch.keys.tolist(), batch.vector.tolist()
    cuts, order = batch.order_offsets.tolist(), batch.order.tolist()
    for row, values in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        cut = slice(offsets[row], offsets[row + 1])
        yield NaiveMessage(
            *values,
            weights=_words(terms[cut], weights[cut], weights[cut]),
            counts={} if more.counts is None else _words(terms[cut], list(map(int, more.counts[cut])), weights[cut]),
            event_time_us=0 if more.event_time_us is None else int(more.event_time_us[row]),
            object_id=values[0] if more.object_id is None else more.object_id[row],
            op=0 if more.op is None else int(more.op[row]),
            keys=keys[row] if keys else (),
            vector=tuple(vectors[row]) if vectors else None,
            visible=any(map(_is_reserved, weights[cut])),
            beginnings=[term for term, weight in zip(terms[cut], weights[cut], strict=True) if _is_reserved(weight)][
                :-1
            ],
            order=order[cuts[row] : cuts[row + 1]] if cuts else (),
        )


def _words(terms: Sequence[int], values: Sequence[Any], weights: Sequence[float]) -> dict[int, Any]:
    """The values of terms, without that of the reserved one (`matching.reserved`)."""
    rows = zip(terms, values, weights, strict=True)
    return {term: value for term, value, weight in rows if not _is_reserved(weight)}


def _is_reserved(weight: float) -> bool:
    """Whether a weight is minus zero, which only the reserved term has."""
    return math.copysign(1.0, weight) < 0.0


def subscriptions_of(table: SubscriptionTable) -> Iterator[NaiveSubscription]:
    """The rows of a table, in order. O(terms)."""
    offsets, terms, weights = table.term_offsets.tolist(), table.terms.tolist(), table.weights.tolist()
    cuts, words = table.filter_offsets.tolist(), table.filter_words.tolist()
    vectors, radii = table.vector.tolist(), table.radius_m.tolist()
    columns = (table.number, table.kind, table.at, table.x, table.y, table.region, table.match, table.k, table.alpha)
    for row, values in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        cut = slice(offsets[row], offsets[row + 1])
        number, kind, at, x, y, region, match, k, alpha = values
        keywords = _words(terms[cut], weights[cut], weights[cut])
        wordless = any(map(_is_reserved, weights[cut]))
        filters = instructions_of(words[cuts[row] : cuts[row + 1]]) if cuts else ()
        vector = tuple(vectors[row]) if vectors else None
        radius_m = None if not radii or math.isnan(radii[row]) else radii[row]
        yield NaiveSubscription(
            number, kind, at, x, y, tuple(region), match, k, alpha, keywords, filters, vector, radius_m, wordless
        )


def updates_of(batch: UpdateBatch) -> Iterator[NaiveUpdate]:
    """The rows of an engine's updates, in order. O(n)."""
    columns = (batch.as_of, batch.number, batch.seq, batch.change, batch.score)
    for values in zip(*(column.tolist() for column in columns), strict=True):
        yield NaiveUpdate(*values)


def tally(updates: Iterable[NaiveUpdate] | UpdateBatch) -> Counter:
    """Count updates as comparable tuples; the NaN score of a `match` becomes None, since NaN equals nothing.

    Two runs agree when their tallies are equal; `a - b` is what b misses. A repeated event counts twice, which a
    set would hide. O(n).
    """
    rows = updates_of(updates) if isinstance(updates, UpdateBatch) else updates
    return Counter((*row[:4], None if math.isnan(row.score) else row.score) for row in rows)
