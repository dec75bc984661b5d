"""Streams of objects that move, change words, end and expire; and the plain Python that window indexes must equal."""

from dataclasses import dataclass, field

import numpy as np

from matching.kinds import KINDS
from matching.model import MessageBatch
from matching.naive import skyline_scores
from matching.naive_rows import NaiveMessage, NaiveSubscription, messages_of
from matching.skyline.window import SkylineQueries, SkylineWindow
from matching.space import Space
from matching.window import NO_FLOOR, Boundary
from papers.skyline.tree import TreeWindow

SPACE = Space(-10.0, -10.0, 10.0, 10.0)
WINDOWS: dict[str, type[SkylineWindow]] = dict(KINDS.named("skyline").windows)  # type: ignore[arg-type]
TREES: dict[str, type[TreeWindow]] = {name: each for name, each in WINDOWS.items() if issubclass(each, TreeWindow)}


@dataclass(frozen=True)
class Recipe:
    """How to make a stream; the defaults are gentle.

    grid: coordinates are multiples of 1 / grid, so that points coincide and lie on borders; none: anywhere.
    objects: how many speak; 0: every message is an object of its own. deletes: chance that a message is a deletion.
    late: by how much lives wander from the order of seq. drift: degrees that the stream moves a batch.
    """

    batches: int = 20
    batch: int = 30
    window: int = 150
    terms: int = 12
    most_terms: int = 4
    grid: int | None = 8
    objects: int = 40
    deletes: float = 0.1
    late: int = 0
    drift: float = 0.0
    spread: float = 4.0


@dataclass
class Step:
    """One batch: what a window index is given; and (seq, object) of the deletions in it, which no index is given."""

    boundary: Boundary
    messages: MessageBatch
    ended: np.ndarray
    objects: np.ndarray
    deletions: list[tuple[int, int]] = field(default_factory=list)


@dataclass
class Model:
    """The window in plain Python: all that ever came, the batch that ended it, and the last boundary."""

    messages: dict[int, NaiveMessage] = field(default_factory=dict)
    ended: dict[int, int] = field(default_factory=dict)
    boundary: Boundary = Boundary(-1, 0, 2**62, NO_FLOOR)

    @property
    def live(self) -> dict[int, NaiveMessage]:
        """What lives at the last boundary."""
        return self.alive(self.boundary)

    def alive(self, as_of: Boundary) -> dict[int, NaiveMessage]:
        """What lived at a boundary, in ascending seq."""
        return {
            seq: message
            for seq, message in self.messages.items()
            if seq <= as_of.last_seq and message.life > as_of.floor and self.ended.get(seq, 2**62) > as_of.number
        }

    @staticmethod
    def read(messages: MessageBatch) -> list[NaiveMessage]:
        """The messages of a batch."""
        return list(messages_of(messages))

    def store(self, step: Step) -> None:
        """Take a batch."""
        self.boundary = step.boundary
        self.messages |= {message.seq: message for message in messages_of(step.messages)}
        for seq in step.ended.tolist():
            if seq in self.messages:
                self.ended.setdefault(seq, step.boundary.number)

    def candidates(self, region: list[float], terms: list[int], as_of: Boundary | None = None) -> list[tuple]:
        """(seq, life, spatial, text) in ascending seq."""
        query = NaiveSubscription(0, 0, 0, 0.0, 0.0, tuple(region), 0, 0, 0.0, dict.fromkeys(terms, 1.0))
        found = []
        for seq, message in self.alive(as_of or self.boundary).items():
            if set(terms) & set(message.weights):
                scores = skyline_scores(query, message)
                if scores is not None:
                    found.append((seq, message.life, *scores))
        return found


def make_steps(recipe: Recipe, seed: int) -> list[Step]:
    """The batches of a recipe; the same seed gives the same ones."""
    rng = np.random.default_rng(seed)
    latest: dict[int, int] = {}
    steps, floor = [], NO_FLOOR
    for number in range(recipe.batches):
        first = number * recipe.batch
        seqs = np.arange(first, first + recipe.batch)
        speaker = rng.integers(0, recipe.objects, seqs.size) if recipe.objects else seqs
        ended, kept, deletions = [], [], []
        for seq, who in zip(seqs.tolist(), speaker.tolist(), strict=True):
            if who in latest:
                ended.append(latest.pop(who))
            if recipe.deletes and rng.random() < recipe.deletes:
                if not recipe.objects and latest:  # a deletion of something older
                    who = int(rng.choice(list(latest)))
                    ended.append(latest.pop(who))
                deletions.append((seq, who))
                continue
            latest[who] = seq
            kept.append(seq - first)
        rows = np.array(kept, np.int64)
        life = seqs[rows] - (rng.integers(0, recipe.late + 1, rows.size) if recipe.late else 0)
        floor = max(floor, int(seqs[-1]) - recipe.window)
        steps.append(
            Step(
                Boundary(number, first, int(seqs[-1]), floor),
                messages_at(rng, recipe, seqs[rows], life, number * recipe.drift),
                np.array(ended, np.int64),
                speaker[rows].astype(np.int64),
                deletions,
            )
        )
    return steps


def messages_at(rng, recipe: Recipe, seq: np.ndarray, life: np.ndarray, shift: float = 0.0) -> MessageBatch:
    """Messages with random places and terms, some without any."""
    count = seq.size
    place = rng.uniform(-recipe.spread, recipe.spread, (count, 2))
    if recipe.grid:
        place = np.round(place * recipe.grid) / recipe.grid
    lon, lat = place[:, 0] + shift, place[:, 1]
    # a few are rectangles: they stand at the centre
    side = np.where(rng.random(count) < 0.1, 0.5, 0.0)
    lengths = np.minimum(rng.integers(0, recipe.most_terms + 1, count), recipe.terms)
    rows = [np.sort(rng.choice(recipe.terms, length, replace=False)) for length in lengths]
    terms = np.concatenate([*rows, np.zeros(0, np.int64)]).astype(np.int32)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    weights = np.ones(terms.size, np.float32)
    return MessageBatch(
        seq, lon, lat, lon - side, lat - side, lon + side, lat + side, life.astype(np.int64), offsets, terms, weights
    )  # fmt: skip


def make_queries(recipe: Recipe, seed: int, count: int, shift: float = 0.0) -> SkylineQueries:
    """Rectangles of every size, down to points, with borders where messages lie."""
    rng = np.random.default_rng([seed, 1])
    corner = rng.uniform(-recipe.spread, recipe.spread, (count, 2))
    side = rng.choice([0.0, 0.5, 2.0, 8.0], (count, 2))
    if recipe.grid:
        corner = np.round(corner * recipe.grid) / recipe.grid
    corner[:, 0] += shift
    region = np.concatenate([corner, corner + side], axis=1)
    lengths = rng.integers(1, 4, count)
    rows = [np.sort(rng.choice(recipe.terms + 2, min(length, recipe.terms), replace=False)) for length in lengths]
    offsets = np.concatenate([[0], np.cumsum([row.size for row in rows])]).astype(np.int64)
    return SkylineQueries(region, offsets, np.concatenate(rows).astype(np.int32))


def differences(window, model: Model, queries: SkylineQueries, as_of: Boundary | None = None) -> tuple[list[str], int]:
    """What a window says otherwise than the model, in words; and how many candidates were compared."""
    got = window.candidates(queries) if as_of is None else window.candidates(queries, as_of)
    told, compared = [], 0
    columns = [column.tolist() for column in (got.seq, got.life, got.spatial, got.text)]
    for query, (a, b) in enumerate(zip(got.offsets.tolist(), got.offsets[1:].tolist(), strict=False)):
        first, last = queries.term_offsets[query : query + 2]
        wanted = model.candidates(queries.region[query].tolist(), queries.terms[first:last].tolist(), as_of)
        rows = list(zip(*(column[a:b] for column in columns), strict=True))
        compared += len(wanted)
        if rows != wanted:
            missing, extra = sorted(set(wanted) - set(rows))[:2], sorted(set(rows) - set(wanted))[:2]
            told.append(f"query {query}: missing {missing}, extra {extra} ({len(rows)} of {len(wanted)} rows)")
    return told, compared


#: Where quadtrees have many cells with few messages each.
MANY_COUNTRIES = Recipe(25, 60, 900, 6, 4, grid=4, objects=700, spread=45.0)


def run(variant, recipe: Recipe, seed: int, objects: bool = True, kept: int = 0):
    """Differences from the model after each batch, as of every boundary kept, candidates compared, and the window."""
    tree, options = variant
    window, model, told, compared = tree(SPACE, kept, **options), Model(), [], 0
    for step in make_steps(recipe, seed):
        number = step.boundary.number
        window.store(step.boundary, step.messages, step.ended, step.objects if objects else None)
        model.store(step)
        if number % 3 == 0 or recipe.batch < 100:
            queries = make_queries(recipe, seed + number, 4 if kept else 10, number * recipe.drift)
            for as_of in window.known:
                found, count = differences(window, model, queries, as_of)
                told += [f"batch {number} as of {as_of.number}: {difference}" for difference in found]
                compared += count
            assert len(window) == len(model.live)
    return told, compared, window
