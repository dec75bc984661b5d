"""Random streams for any kinds, made by their traits alone: a new row of the table is under test without a word here.

Objects speak again, which only some kinds hear of; subscriptions come and go, at times within a batch; some can never
match. What is right is what `matching.naive` says, which knows all kinds.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from benchmarks.driving import FADING
from matching.filter_programs import USUAL, compile_filter, joined_programs
from matching.kind_table import Kind
from matching.model import (
    ANY_KEYWORD,
    CHANGE,
    KEYWORDS_BY_KIND,
    UNKNOWN_TERM,
    MessageBatch,
    Removals,
    SubscriptionTable,
    concatenate,
    join_messages,
)
from matching.naive import Oracle
from matching.naive_rows import DecayModel, Extras, Result, tally
from matching.window import LIVING, NO_FLOOR, Boundary, Floors, Window
from spouts.quarantine import without_terms
from tests.support.remembered import remembered
from tests.support.wordless import seen, without_words
from tests.support.worlds import SPACE

TERMS = 6
#: One above those that nobody ever says.
RESERVED = TERMS + 2
#: As of `FADING`: a message is a second, and the words are all as common.
_COUNTS = dict.fromkeys(range(TERMS + 1), 3)
_MODEL = DecayModel(FADING.log_base_per_s, FADING.smoothing, _COUNTS, sum(_COUNTS.values()), 0)


@dataclass(frozen=True)
class Recipe:
    """How to make a stream; the defaults are gentle.

    sizes: of batches, to choose from. late: by how much lives of a time window wander from the order of seq.
    objects: how many speak; 0: every message is an object of its own. arrivals: most new subscriptions of a kind in
    a batch, `first` of them in the first one. never: share of those that can never match. untimed: share of messages
    without a time, which a window that goes by time never has. wordless: share of those without keywords, of kinds that
    take them; then a tenth of the messages are not visible, and all others are, without words or with.
    deletes: of a stream of objects, how many of them are deletions; None: the stream is one of messages. asking: share
    of subscriptions that ask for changes.
    """

    window: str = "count:50"
    batches: int = 12
    sizes: tuple[int, ...] = (0, 1, 9, 30)
    late: int = 0
    objects: int = 25
    first: int = 16
    arrivals: int = 6
    departures: int = 5
    never: float = 0.1
    untimed: float = 0.0
    wordless: float = 0.0
    deletes: float | None = None
    asking: float = 0.0


class Turn(NamedTuple):
    """A batch; `ended` are messages, of it or earlier ones, that a later version of their object has ended."""

    boundary: Boundary
    messages: MessageBatch
    extras: Extras
    ended: MessageBatch
    added: SubscriptionTable
    removed: Removals


def make_turns(kinds: Kind | Sequence[Kind], seed: int, recipe: Recipe | None = None) -> list[Turn]:
    """The batches of a recipe; the same seed gives the same ones. Columns are read-only, as from another process."""
    kinds, recipe = (kinds,) if isinstance(kinds, Kind) else tuple(kinds), recipe or Recipe()
    rng, window = np.random.default_rng(seed), window_of(recipe)
    seq, newest, turns = 0, NO_FLOOR, []
    floors = Floors(window, recipe.deletes is not None)
    latest: dict[int, int] = {}
    live: list[tuple[int, int]] = []
    said, numbers = [], 0
    for number in range(recipe.batches):
        size = int(rng.choice(recipe.sizes))
        seqs = np.arange(seq, seq + size)
        lives = seqs - rng.integers(0, recipe.late + 1, size)
        untimed = rng.random(size) < recipe.untimed if recipe.untimed else np.zeros(size, np.bool_)
        if window.kind == "time":
            lives = np.where(untimed, NO_FLOOR, lives)
        newest = max(newest, int(lives.max(initial=NO_FLOOR)))
        messages = messages_of(rng, seq, size, lives)
        visible = rng.random(size) < 0.9 if recipe.wordless else np.ones(size, np.bool_)
        who = rng.integers(0, recipe.objects, size).tolist() if recipe.objects else seqs.tolist()
        ends = np.zeros(size, np.bool_)
        if recipe.deletes is not None:
            ends = rng.random(size) < recipe.deletes
            messages = without_terms(messages, [(each, each) for each in seqs[ends].tolist()])
        boundary = Boundary(number, seq, seq + size - 1, floors.at(seq + size - 1, newest, seqs[ends]))
        if recipe.wordless or recipe.deletes is not None:
            messages = seen(messages, RESERVED, visible & ~ends)
        times = np.where(untimed, NO_FLOOR, messages.event_time_us)
        said.append(MessageBatch(**(messages._asdict() | {"event_time_us": times})))
        ended, previous = [], np.full(size, -1)
        for row, (name, one) in enumerate(zip(who, seqs.tolist(), strict=True)):
            if recipe.deletes is not None and not visible[row] and not ends[row]:
                continue  # set aside: it changes nothing
            if name in latest:
                previous[row] = latest.pop(name)
                ended.append(int(previous[row]))
            if not ends[row]:
                latest[name] = one
        if recipe.deletes is not None:
            said[-1] = said[-1].having(previous_seq=previous)
        added = []
        for kind in kinds:
            coming = recipe.first if number == 0 else int(rng.integers(0, recipe.arrivals + 1))
            at = seq + int(rng.integers(0, size + 1)) if number else 0
            some = subscriptions_of(rng, kind, numbers + np.arange(coming), at, recipe.never)
            if recipe.wordless and kind.wordless:
                some = without_words(some, RESERVED, rng.random(coming) < recipe.wordless)
            if recipe.asking:
                changes = compile_filter(asked=USUAL | 1 << CHANGE)
                programs = [changes if asks else b"" for asks in rng.random(coming) < recipe.asking]
                offsets, programmed = joined_programs(programs)
                some = some.having(filter_offsets=offsets, filter_words=programmed)
            added.append(some)
            numbers += coming
        gone = [
            live.pop(int(rng.integers(len(live))))
            for _ in range(min(len(live), int(rng.integers(0, recipe.departures + 1))))
        ]
        came = concatenate(added)
        live += zip(came.number.tolist(), came.kind.tolist(), strict=True)
        if number and len(came) and rng.random() < 0.3:  # gone in the batch in which it came
            gone.append(live.pop())
        gone_at = seq + size if rng.random() < 0.5 else max(seq, int(came.at.max(initial=seq)))
        removed = Removals(
            np.array([each for each, _ in gone], np.int64),
            np.array([code for _, code in gone], np.int8),
            np.full(len(gone), gone_at),
        )
        everything = concatenate(said)
        gone_by = everything.take(np.sort(np.array(ended, np.int64)))
        extras = Extras(said[-1].event_time_us.tolist(), said[-1].counts.tolist(), who, ends.astype(np.int64).tolist())
        turns.append(Turn(boundary, read_only(said[-1]), extras, read_only(gone_by), read_only(came), removed))
        seq += size
    return turns


def window_of(recipe: Recipe) -> Window:
    """The window of a recipe; of time in the units of lives, which are seqs here."""
    kind, _, length = recipe.window.partition(":")
    return LIVING if kind == LIVING.kind else Window(kind, int(length))


@remembered
def expected(turns: list[Turn], window: Window, objects: bool = False) -> tuple[list[Counter], list[Result]]:
    """What the oracle says: updates of each batch, and standing results at the end, but for text scores."""
    oracle = oracle_of(window, objects)
    told = [
        tally(oracle.advance(turn.boundary, turn.messages, turn.added, turn.removed, turn.extras)) for turn in turns
    ]
    return told, without_text(oracle.results())


def oracle_of(window: Window, objects: bool = False) -> Oracle:
    """The oracle over a window, of whatever kind, in a stream of messages or of objects."""
    return Oracle(window, SPACE.max_distance, _MODEL, objects=objects)


def without_text(results: Sequence[Result]) -> list[Result]:
    """Results that are equal if all but their text scores are; by number and rank."""
    return sorted(row._replace(text_score=0.0) for row in results)


def messages_of(rng: np.random.Generator, first: int, count: int, life: np.ndarray | None = None) -> MessageBatch:
    """Messages on a lattice, every fourth a rectangle, some without words."""
    seq = first + np.arange(count)
    lon, lat = rng.integers(-8, 9, count) * 20.0, rng.integers(-8, 9, count) * 10.0
    x, y = SPACE.project(lon, lat)
    side = np.where(rng.random(count) < 0.25, 10.0, 0.0)
    lives = seq if life is None else life
    texts = words(rng, count, 0, 3)
    counts = (1 + (texts[1] + np.repeat(seq, np.diff(texts[0]))) % 3).astype(np.int32)
    times = seq * 1_000_000
    messages = MessageBatch(seq, x, y, lon, lat, lon + side, lat + side, lives, *texts, counts, times)
    return join_messages([messages, messages.take(np.zeros(0, np.int64))])


def subscriptions_of(
    rng: np.random.Generator, kind: Kind, numbers: Any, at: int = 0, never: float = 0.0
) -> SubscriptionTable:
    """Subscriptions that somebody will match, but for a share of them."""
    numbers = np.asarray(numbers, np.int64)
    rows, point = numbers.size, kind.place == "point"
    nowhere = np.full(rows, np.nan)
    corner = np.stack([rng.integers(-8, 1, rows) * 20.0, rng.integers(-8, 1, rows) * 10.0], axis=1)
    region = np.concatenate([corner, corner + rng.integers(1, 9, (rows, 2)) * [20.0, 10.0]], axis=1)
    if kind.wraps:
        across = rng.random(rows) < 0.2
        region[across] = region[across][:, [2, 1, 0, 3]]
    k = rng.integers(1, 5, rows) if "k" in kind.fields else np.zeros(rows)
    match = np.full(rows, KEYWORDS_BY_KIND, np.int8)
    if "match" in kind.fields:
        match[rng.random(rows) < 0.3] = ANY_KEYWORD
    offsets, terms, weights = words(rng, rows, 1, 2)
    hopeless = np.flatnonzero(rng.random(rows) < never)
    # an unknown word where the kind may be asked for one, else one that nobody ever says
    terms[offsets[hopeless + 1] - 1] = UNKNOWN_TERM if kind.all_keywords else TERMS + 1
    return SubscriptionTable(
        numbers,
        np.full(rows, kind.code, np.int8),
        np.full(rows, at),
        rng.random(rows) if point else nowhere,
        rng.random(rows) * 0.5 if point else nowhere,
        np.full((rows, 4), np.nan) if point else region,
        match,
        k.astype(np.int32),
        rng.random(rows) if "alpha" in kind.fields else nowhere,
        offsets,
        terms,
        weights,
    )


def words(rng: np.random.Generator, rows: int, fewest: int, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ascending terms of unit length: offsets, terms, weights."""
    lengths = rng.integers(fewest, most + 1, rows)
    terms = [np.sort(rng.choice(TERMS, length, replace=False)) for length in lengths]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    weights = np.repeat(1.0 / np.sqrt(np.maximum(lengths, 1)), lengths).astype(np.float32)
    return offsets, np.concatenate([*terms, np.zeros(0)]).astype(np.int32), weights


def removals_of(kind: Kind, *numbers: int, at: int = 0) -> Removals:
    """These go, at this seq."""
    return Removals(np.array(numbers, np.int64), np.full(len(numbers), kind.code, np.int8), np.full(len(numbers), at))


def read_only(table: Any) -> Any:
    """The same columns, as they come from another process; those that were one array stay one."""
    copies = {id(column): column.copy() for column in table}
    for column in copies.values():
        column.flags.writeable = False
    return type(table)(*(copies[id(column)] for column in table))
