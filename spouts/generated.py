"""Made-up messages without end, from a seed: for benchmarks and load tests.

Terms follow Zipf's law, points lie in clusters with some strays, and message n depends on the recipe alone, not on
batches.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from matching.attributes import number_keys
from matching.errors import ConfigError
from matching.model import NO_COUNTS, NO_KEYS, NO_TIMES, WEIGHT, Float64, Int32, Int64, MessageBatch, Names
from matching.space import Space
from matching.window import Window
from spouts.cutting import MessageSource, Rows

#: Messages made at a time: another number gives other messages.
_PIECE_ROWS = 16_384
_ID_DIGITS = 12
#: Values of the attribute that messages of a `numbered` recipe have.
NUMBERS = 1_000


@dataclass(frozen=True)
class MessageRecipe:
    """Distribution of the messages.

    Parameters
    ----------
    seed : int
    vocabulary : int
        Number of terms; id 0 is the rarest, as in the ETL.
    mean_terms : float
        Mean number of words drawn for a message (Poisson, at least one; repeats are counts).
    exponent : float
        Of Zipf's law: the r-th most frequent term has a share of r ** -exponent.
    clusters : int
        Number of clusters; some are much busier than others.
    spread : float
        Standard deviation of a cluster, as a share of the longer side of the world.
    strays : float
        Fraction of messages that lie anywhere.
    start_us, gap_us : int
        Event time of the first message, and the time between two, in microseconds.
    numbered : bool
        Messages have one attribute: a whole number below `NUMBERS`, uniformly. The rest does not depend on it.
    """

    seed: int = 0
    vocabulary: int = 100_000
    mean_terms: float = 10.0
    exponent: float = 1.0
    clusters: int = 200
    spread: float = 0.01
    strays: float = 0.1
    start_us: int = 1_577_836_800_000_000
    gap_us: int = 1_000
    numbered: bool = False

    def term_shares(self) -> Float64:
        """Chance of each term to be a drawn word, by ascending id: float64[vocabulary], sums to 1."""
        shares = np.arange(self.vocabulary, 0, -1, dtype=np.float64) ** -self.exponent
        return shares / shares.sum()

    def idf(self) -> Float64:
        """Expected idf of each term: ln(1 + 1 / share of the messages that have it), float64[vocabulary]."""
        # A term is missing from a message of Poisson many words with probability exp(-mean * share).
        return np.log1p(1.0 / -np.expm1(-self.mean_terms * self.term_shares()))


class GeneratedSource(MessageSource):
    """Messages of a recipe in a world box, without end; `kind_columns` as in `spouts.parquet.ParquetSource`."""

    def __init__(self, recipe: MessageRecipe, window: Window, space: Space, kind_columns: Collection[str] = ()):
        if recipe.vocabulary < 1 or recipe.clusters < 1 or not recipe.mean_terms > 0 or recipe.gap_us < 0:
            raise ConfigError(f"{recipe}: needs terms, clusters and words, and time that does not run backwards")
        if not 0 <= recipe.strays <= 1 or not recipe.spread >= 0:
            raise ConfigError(f"{recipe}: strays are a share from 0 to 1, the spread is not negative")
        self.recipe = recipe
        self.window = window
        self.space = space
        self.kind_columns = tuple(kind_columns)
        self._piece = 0
        self._cumulative = np.cumsum(recipe.term_shares())
        self._idf = recipe.idf()
        layout = np.random.default_rng([recipe.seed, 0])
        self._centre_lon = layout.uniform(space.west, space.east, recipe.clusters)
        self._centre_lat = layout.uniform(space.south, space.north, recipe.clusters)
        self._busy = np.cumsum(layout.pareto(1.0, recipe.clusters) + 0.1)
        self._busy /= self._busy[-1]

    def read(self) -> Rows:
        """The next piece; each has its own random numbers. About 4 us a message."""
        rng = np.random.default_rng([self.recipe.seed, 1, self._piece])
        seq = np.arange(self._piece * _PIECE_ROWS, (self._piece + 1) * _PIECE_ROWS, dtype=np.int64)
        self._piece += 1
        lon, lat = self._points(rng)
        x, y = self.space.project(lon, lat)
        offsets, terms, weights, counts = self._terms(rng)
        times = self.recipe.start_us + seq * self.recipe.gap_us
        messages = MessageBatch(
            seq, x, y, lon, lat, lon, lat, self.window.lives(seq, times), offsets, terms, weights,
            counts if "counts" in self.kind_columns else NO_COUNTS,
            times if "event_time_us" in self.kind_columns else NO_TIMES, keys=self._keys(seq),
            vector=self.space.vectors(lon, lat),
        )  # fmt: skip
        return Rows(messages, _number_names(seq), times if self.window.kind == "time" else None)

    def skip_to(self, seq: int) -> None:
        self._piece = seq // _PIECE_ROWS

    @property
    def ended(self) -> bool:
        return False

    def close(self) -> None:
        pass

    def _points(self, rng: np.random.Generator) -> tuple[Float64, Float64]:
        space, recipe = self.space, self.recipe
        cluster = np.searchsorted(self._busy, rng.random(_PIECE_ROWS))
        spread = recipe.spread * max(space.east - space.west, space.north - space.south)
        lon = self._centre_lon[cluster] + rng.normal(0.0, spread, _PIECE_ROWS)
        lat = self._centre_lat[cluster] + rng.normal(0.0, spread, _PIECE_ROWS)
        stray = rng.random(_PIECE_ROWS) < recipe.strays
        lon[stray] = rng.uniform(space.west, space.east, _PIECE_ROWS)[stray]
        lat[stray] = rng.uniform(space.south, space.north, _PIECE_ROWS)[stray]
        return np.clip(lon, space.west, space.east), np.clip(lat, space.south, space.north)

    def _keys(self, seq: Int64) -> Int64:
        if not self.recipe.numbered:
            return NO_KEYS
        return number_keys(numbers_of(self.recipe.seed, int(seq[0]) // _PIECE_ROWS).astype(np.float64))[:, None]

    def _terms(self, rng: np.random.Generator) -> tuple[Int64, np.ndarray, np.ndarray, Int32]:
        words = np.maximum(1, rng.poisson(self.recipe.mean_terms, _PIECE_ROWS))
        rows = np.repeat(np.arange(_PIECE_ROWS), words)
        drawn = np.searchsorted(self._cumulative, rng.random(rows.shape[0]), "right")
        drawn = np.minimum(drawn, self.recipe.vocabulary - 1)  # the sum of the shares may fall short of 1
        pairs, counts = np.unique(rows * self.recipe.vocabulary + drawn, return_counts=True)
        rows, terms = np.divmod(pairs, self.recipe.vocabulary)
        offsets = np.zeros(_PIECE_ROWS + 1, np.int64)
        np.cumsum(np.bincount(rows, minlength=_PIECE_ROWS), out=offsets[1:])
        raw = self._idf[terms] * counts
        norms = np.sqrt(np.bincount(rows, weights=raw * raw, minlength=_PIECE_ROWS))
        return offsets, terms.astype(np.int32), (raw / norms[rows]).astype(WEIGHT), counts.astype(np.int32)


def numbers_of(seed: int, piece: int) -> Int64:
    """The numbers of the messages of a piece: int64[rows of a piece], below `NUMBERS`."""
    return np.random.default_rng([seed, 3, piece]).integers(0, NUMBERS, _PIECE_ROWS)


def _number_names(seq: Int64) -> Names:
    """Ids like `g000000000042`, made digit by digit for all rows at once."""
    powers = 10 ** np.arange(_ID_DIGITS - 1, -1, -1, dtype=np.int64)
    text = np.empty((seq.shape[0], _ID_DIGITS + 1), np.uint8)
    text[:, 0] = ord("g")
    text[:, 1:] = seq[:, None] // powers % 10 + ord("0")
    return Names(np.arange(seq.shape[0] + 1, dtype=np.int64) * (_ID_DIGITS + 1), text.reshape(-1))
