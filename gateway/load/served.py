"""The generated load of a load test of a server: messages and subscriptions as JSON, and as arrays for the oracle.

Messages and subscriptions are those of `spouts.generated` and `spouts.paced`; term t is a word of its own, in the order
of the terms, so that a server gives words ids in the same order and the oracle's scores are the server's to the bit. A
run has words that no other has, and its first message (`primer`) has all of them: so they are admitted with one batch
and have one weight.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from matching.kinds import KINDS
from matching.model import Int64, MessageBatch, SubscriptionTable
from matching.space import Space
from matching.vocabulary import LATE_DOCUMENT_FREQUENCY, inverse_document_frequency, unit_weights
from matching.window import Window
from spouts.generated import GeneratedSource, MessageRecipe, numbers_of
from spouts.generated_filters import FilterRows
from spouts.paced import GeneratedSubscriptions

#: Words of a run: as many as fit into one text.
WORDS, _MEAN_WORDS = 4_000, 6.0
#: Windows are the server's; what is generated does not depend on one.
_ANY = Window("count", 1)
#: Kinds whose updates the oracle recounts; scores of the others depend on what a server does not say.
RECOUNTED = ("boolean", "topk", "knn", "skyline")


class ServedWorkload(NamedTuple):
    """The load of one run.

    Attributes
    ----------
    run : str                 letters and digits that no other run has; begins its words and ids
    seed : int
    counts : mapping          subscriptions by kind
    filters : float           share of the subscriptions with a filter
    number : str or None      attribute of the stream for a number, where it has one
    space : Space             of the server
    """

    run: str
    seed: int
    counts: Mapping[str, int]
    filters: float
    number: str | None
    space: Space

    @property
    def box(self) -> tuple[float, float, float, float]:
        """West, south, east, north of the world, in degrees."""
        return self.space.west, self.space.south, self.space.east, self.space.north

    @property
    def recipe(self) -> MessageRecipe:
        return MessageRecipe(seed=self.seed, vocabulary=WORDS, mean_terms=_MEAN_WORDS, numbered=self.number is not None)

    def word(self, term: int) -> str:
        """The word of a term. Words sort as the terms do, the other way round: later words get lower ids."""
        return f"{self.run}x{WORDS - term:04d}"

    def id_of(self, number: int) -> str:
        """The id of a message of the run."""
        return f"{self.run}-{number}"

    def subscription_id(self, number: int) -> str:
        """The id of a subscription of the run."""
        return f"{self.run}-s{number}"

    def pieces(self, first: int) -> Iterator[tuple[MessageBatch, Int64]]:
        """Messages in pieces, the first of which has message `first`; their `seq` is the number in the run, and each
        has its number below `spouts.generated.NUMBERS` (empty without)."""
        source = GeneratedSource(self.recipe, _ANY, Space(*self.box), ("counts",))
        source.skip_to(first)
        while True:
            messages = source.read().messages
            piece = int(messages.seq[0]) // len(messages)
            yield messages, numbers_of(self.seed, piece) if self.number else np.zeros(0, np.int64)

    def subscribers(self) -> GeneratedSubscriptions:
        return GeneratedSubscriptions(self.recipe, _ANY, Space(*self.box), self.counts, filters=self.filters)

    def primer(self) -> dict[str, Any]:
        """The first message: all words, each once, in the middle of the world."""
        west, south, east, north = self.box
        text = " ".join(self.word(term) for term in range(WORDS))
        return {"id": f"{self.run}-words", "text": text, "lon": (west + east) / 2, "lat": (south + north) / 2}


def message_lines(load: ServedWorkload, messages: MessageBatch, numbers: Int64, rows: Sequence[int]) -> list[bytes]:
    """Some messages of a piece as lines of JSON. About 5 us each."""
    words = [load.word(term) for term in range(WORDS)]
    offsets, terms, counts = messages.term_offsets.tolist(), messages.terms.tolist(), messages.counts.tolist()
    seq, lon, lat = messages.seq.tolist(), messages.west.tolist(), messages.south.tolist()
    number_of = numbers.tolist()
    lines = []
    for row in rows:
        cut = range(offsets[row], offsets[row + 1])
        text = " ".join([words[terms[at]] for at in cut for _ in range(counts[at])])
        more = f',"{load.number}":{number_of[row]}' if number_of else ""
        line = f'{{"id":"{load.id_of(seq[row])}","text":"{text}","lon":{lon[row]!r},"lat":{lat[row]!r}{more}}}\n'
        lines.append(line.encode())
    return lines


def subscription_rows(
    load: ServedWorkload, table: SubscriptionTable, filters: FilterRows | None
) -> Iterator[dict[str, Any]]:
    """The subscriptions as rows of a request; points are those of the messages they resemble, in degrees."""
    cuts, terms = table.term_offsets.tolist(), table.terms.tolist()
    lon, lat = places_of(load, table)
    for at in range(len(table)):
        kind = KINDS[int(table.kind[at])]
        row: dict[str, Any] = {"subscription_id": load.subscription_id(int(table.number[at])), "kind": kind.name}
        row["keywords"] = [load.word(term) for term in terms[cuts[at] : cuts[at + 1]]]
        if kind.place == "region":
            row["region"] = table.region[at].tolist()
        else:
            row |= {"lon": float(lon[at]), "lat": float(lat[at])}
        if "k" in kind.fields:
            row["k"] = int(table.k[at])
        if "alpha" in kind.fields:
            row["alpha"] = float(table.alpha[at])
        if filters is not None and filters.without[at] >= 0:
            row["not_keywords"] = [load.word(int(filters.without[at]))]
        if filters is not None and filters.low[at] >= 0:
            row["where"] = {load.number: {"gte": int(filters.low[at]), "lte": int(filters.high[at])}}
        yield row


def copies(table: SubscriptionTable, nth: Int64) -> SubscriptionTable:
    """The subscriptions that changes `nth` add to those of a table: copies of them in turn, with the numbers behind."""
    columns: dict[str, Any] = table.take(nth % len(table))._asdict() | {"number": len(table) + nth}
    return SubscriptionTable(**columns)


def places_of(load: ServedWorkload, table: SubscriptionTable) -> tuple[np.ndarray, np.ndarray]:
    """Longitude and latitude of each subscription's point: two float64[n], NaN for those with a region."""
    west, south, east, north = load.box
    side = max(east - west, north - south)
    return np.clip(west + table.x * side, west, east), np.clip(south + table.y * side, south, north)


def weighed(load: ServedWorkload, table: SubscriptionTable, registered_at: Int64, idf: float) -> SubscriptionTable:
    """The subscriptions as the server has them: registered before these messages, with its weights of words."""
    lon, lat = places_of(load, table)
    x, y = load.space.project(lon, lat)
    columns: dict[str, Any] = {
        **table._asdict(), "at": registered_at, "x": x, "y": y, "vector": load.space.vectors(lon, lat),
        "weights": unit_weights(np.full(table.terms.shape[0], idf), table.term_offsets),
    }  # fmt: skip
    return SubscriptionTable(**columns)


def reweighed(load: ServedWorkload, messages: MessageBatch, seq: Int64, idf: float) -> MessageBatch:
    """Messages as the server has them: at these places of its stream, with its weights of words."""
    x, y = load.space.project(messages.west, messages.south)
    columns: dict[str, Any] = {
        **messages._asdict(), "seq": seq, "life": seq, "x": x, "y": y,
        "weights": unit_weights(idf * messages.counts.astype(np.float64), messages.term_offsets),
        "vector": load.space.vectors(messages.west, messages.south),
    }  # fmt: skip
    return MessageBatch(**columns)


def idf_at(seq: int) -> float:
    """The weight of a word that a stream without a vocabulary admits with the batch that begins with message `seq`."""
    return inverse_document_frequency(max(1, seq), LATE_DOCUMENT_FREQUENCY)
