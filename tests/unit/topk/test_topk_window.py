"""Window indexes, every one of them, against a reference in plain Python that keeps all messages in a list."""

import math
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matching.errors import ConfigError, EngineError
from matching.kinds import KINDS
from matching.model import MessageBatch, SubscriptionTable, join_messages
from matching.naive_shapes import metres
from matching.operator import WindowQuery
from matching.space import Space
from matching.topk.window import TopkWindowIndex, WindowAnswers, WindowQueries
from matching.topk.windows import generations as window_generations
from matching.topk.windows import postings as window_postings
from matching.topk.windows import search as window_search
from matching.topk.windows.search import take_window_rows
from matching.topk.windows.segments import Segments
from matching.window import NO_FLOOR, Boundary
from tests.support.topk_tables import in_space, near_to, on_sphere, table_of
from tests.support.worlds import SPHERE

WINDOW_INDEXES: dict[str, Any] = dict(KINDS.named("topk").windows)
SPACE = Space(0.0, 0.0, 10.0, 10.0)
FAR = SPACE.max_distance


def make_texts(rng, rows: int, terms: int, longest: int, grid: bool):
    """Ragged terms and weights; on a grid there are only two weights, so that scores coincide."""
    picked = [np.sort(rng.choice(terms, min(terms, rng.integers(0, longest + 1)), replace=False)) for _ in range(rows)]
    offsets = np.cumsum([0] + [len(part) for part in picked])
    flat = np.concatenate([np.zeros(0, np.int64), *picked]).astype(np.int32)
    weights = rng.choice([0.25, 0.5], flat.size) if grid else rng.random(flat.size)
    return offsets, flat, weights.astype(np.float32)


def at_sphere(rng, query: WindowQuery) -> WindowQuery:
    """The rows of a query elsewhere, on the sphere, and half of them with a radius of their own."""
    table = on_sphere(rng, table_of(rng, 0, query.rows.rank.size))
    own = np.where(np.isnan(table.radius_m), SPHERE.max_distance, table.radius_m)
    return query._replace(rows=query.rows._replace(x=table.x, y=table.y, vector=table.vector, max_distance=own))


def spatial(asked: WindowQueries, r: int, m: MessageBatch, i: int) -> float:
    if m.vector.shape[0]:
        apart = metres(tuple(asked.vector[r].tolist()), tuple(m.vector[i].tolist()))
    else:
        dx, dy = float(asked.x[r] - m.x[i]), float(asked.y[r] - m.y[i])
        apart = math.sqrt(dx * dx + dy * dy)
    return 1.0 - apart / float(asked.max_distance[r])


def make_places(rng, rows: int, grid: bool):
    return rng.integers(0, 3, (2, rows)) / 2.0 if grid else rng.random((2, rows))


def make_messages(rng, first: int, rows: int, terms: int = 9, longest: int = 6, grid=False, late=0) -> MessageBatch:
    """Messages with seq from `first`; life = seq, or up to `late` before or after it. Not every seq is there."""
    seq = first + np.flatnonzero(rng.random(rows) < 0.9)
    x, y = make_places(rng, seq.size, grid)
    life = seq + rng.integers(-late, late + 1, seq.size)
    return MessageBatch(seq, x, y, x, y, x, y, life, *make_texts(rng, seq.size, terms, longest, grid))


def make_question(
    rng, as_of: Boundary, up_to: int, rows: int, terms: int = 9, grid=False, largest_rank=5
) -> WindowQuery:
    """Rows anywhere, alpha 0 and 1 among them, a term that no message has in some."""
    x, y = make_places(rng, rows, grid)
    alpha = rng.choice([0.0, 1.0, 0.25, 0.75] if grid else [0.0, 1.0, *rng.random(6)], rows)
    rank = rng.integers(1, largest_rank + 1, rows).astype(np.int32)
    offsets, flat, weights = make_texts(rng, rows, terms + 2, 4, grid)
    return WindowQuery(
        as_of, up_to, WindowQueries(np.arange(rows), x, y, alpha, np.full(rows, FAR), rank, offsets, flat, weights)
    )


def expected(
    batches: list[tuple[Boundary, MessageBatch]], query: WindowQuery, bars: np.ndarray | None = None
) -> list[tuple[float, set]]:
    """For each row its threshold and the (seq, life, score, after) it should be told, looking at every message.

    The threshold is the score of the message at the row's rank, or that of `bars` (float64[rows]).
    """
    as_of, up_to, asked, onward, more = query
    known = {boundary.number: boundary for boundary, _ in batches}
    last_seq = known[max(max(known) if onward else up_to, as_of.number)].last_seq
    told = []
    for r in range(asked.rank.size):
        terms = slice(asked.term_offsets[r], asked.term_offsets[r + 1])
        wanted = dict(zip(asked.terms[terms].tolist(), asked.weights[terms].tolist(), strict=True))
        alive, after = [], []
        for own, m in batches:
            for i in range(len(m)):
                if m.life[i] <= own.floor:
                    continue  # its batch has outlived it: no boundary knows it
                mine = slice(m.term_offsets[i], m.term_offsets[i + 1])
                pairs = zip(m.terms[mine].tolist(), m.weights[mine].tolist(), strict=True)
                products = [wanted[term] * weight for term, weight in pairs if term in wanted]
                if not products:
                    continue
                alpha, text = float(asked.alpha[r]), 0.0
                for product in products:
                    text += product
                entry = (int(m.seq[i]), int(m.life[i]), alpha * spatial(asked, r, m, i) + (1.0 - alpha) * text)
                if m.seq[i] > as_of.last_seq:
                    after += [(*entry, 1)] if m.seq[i] <= last_seq and m.life[i] > as_of.floor else []
                elif m.life[i] > as_of.floor:
                    alive.append((*entry, 0))
        scores = sorted((entry[2] for entry in alive), reverse=True)
        bar = scores[asked.rank[r] - 1] if len(scores) >= asked.rank[r] else -math.inf
        if bars is not None:
            bar = float(bars[r])
        if more:
            bar, alive = float(asked.threshold[r]), []
        ties = [entry for entry in alive if entry[2] == bar]
        older = {entry for entry in ties if sum(other[0] > entry[0] for other in ties) >= asked.rank[r]}
        told.append((bar, {entry for entry in alive + after if entry[2] >= bar} - older))
    return told


def answered(index, query: WindowQuery) -> list[tuple[float, set]]:
    """What an index answers, in the form of `expected`; no message is told twice."""
    answers = index.answer(query)
    last = index.boundaries[-1].number if query.onward else max(query.up_to, query.as_of.number)
    assert (answers.up_to, answers.last_seq) == next(
        (boundary.number, boundary.last_seq) for boundary in index.boundaries if boundary.number == last
    )
    assert answers.rank.tolist() == query.rows.rank.tolist()
    told = []
    for r in range(answers.rank.size):
        mine = slice(answers.offsets[r], answers.offsets[r + 1])
        columns = (answers.seq[mine], answers.life[mine], answers.score[mine], answers.after[mine])
        rows = list(zip(*(column.tolist() for column in columns), strict=True))
        assert len(rows) == len(set(rows)), f"row {r} is told a message twice: {rows}"
        told.append((float(answers.threshold[r]), set(rows)))
    return told


def loaded(name, stored, kept=0, space=SPACE):
    """Another window, which has taken all that is alive at the last boundary at once."""
    index, boundary = WINDOW_INDEXES[name](space, kept), stored[-1][0]
    everything = join_messages([each for _, each in stored])
    index.load(boundary, everything.take(np.flatnonzero(everything.life > boundary.floor)))
    return index


def differences(
    name, seed, batches=8, size=40, window=60, grid=False, late=0, rows=6, restore=False, kept=2, space=SPACE, **texts
):
    """Store batch after batch, ask about each kept boundary; what is wrong, in words.

    With `restore` the window goes on as another now and then, loaded from the messages alive, which knows no boundary
    before.
    """
    rng = np.random.default_rng(seed)
    index = WINDOW_INDEXES[name](space, kept)
    stored: list[tuple[Boundary, MessageBatch]] = []
    newest, first_known = NO_FLOOR, 0
    for number in range(batches):
        first = number * size
        messages = make_messages(rng, first, size if rng.random() < 0.9 else 0, grid=grid, late=late, **texts)
        messages = in_space(space, rng, messages)
        newest = max(newest, int(messages.life.max(initial=NO_FLOOR)))
        floor = max(NO_FLOOR, newest - window) if late else first + size - 1 - window
        boundary = Boundary(number, first, first + size - 1, floor)
        stored.append((boundary, messages))
        index.store(boundary, messages)
        if restore and number % 3 == 1:
            index, first_known = loaded(name, stored, kept, space), number
        if rng.random() < 0.3:
            continue
        for as_of, _ in stored[-kept - 1 :]:
            asked = make_question(rng, as_of, int(rng.integers(as_of.number, number + 1)), rows, grid=grid)
            asked = at_sphere(rng, asked) if space.on_sphere else asked
            if as_of.number < first_known:
                continue
            if rng.random() < 0.5:
                asked = asked._replace(onward=True)
            elif rng.random() < 0.4:  # there was an answer, whose thresholds these are; minus infinity among them
                bars = index.answer(asked).threshold
                asked = asked._replace(rows=asked.rows._replace(threshold=bars), more=True)
            for r, (want, got) in enumerate(zip(expected(stored, asked), answered(index, asked), strict=True)):
                if want != got:
                    missing, extra = list(want[1] - got[1])[:3], list(got[1] - want[1])[:3]
                    return f"batch {number} as of {as_of}, row {r}: {want[0]} {got[0]} {missing=} {extra=}"
    return ""


@pytest.fixture(autouse=True, params=[3, 100], ids=["indexed_soon", "indexed_late"])
def indexing(request, monkeypatch):
    """Small worlds would be looked through message by message; make some of them be indexed and merged."""
    monkeypatch.setattr(window_generations, "_SCANS_AN_INDEXING", request.param)
    monkeypatch.setattr(window_generations, "_LEAST_MERGED", 70)


_FEW_TERMS = {"terms": 2, "longest": 1}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "ties": {"grid": True},
    "late": {"late": 25},
    "ties_late": {"grid": True, "late": 25, "window": 45},
    "nothing_expires": {"window": 10_000},
    "window_below_batch": {"window": 15},
    "empty_texts": {"longest": 1, "terms": 30},
    "restored": {"restore": True, "late": 9},
    "many_rows": {"rows": 45, "batches": 4},
    "one_message_batches": {"size": 1, "window": 6, "batches": 30},
    "lists_of_many_blocks": {
        "size": 1500,
        "window": 10_000,
        "batches": 2,
        "terms": 2,
        "longest": 1,
        "rows": 12,
        "grid": True,
    },
}


@pytest.mark.parametrize("name", WINDOW_INDEXES)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_window_index_over_batches_equals_plain_python(name, case):
    for seed in range(2):
        assert not differences(name, seed, **case), f"seed {seed}"


@pytest.mark.parametrize("name", WINDOW_INDEXES)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_window_index_on_the_sphere_equals_plain_python(name, case):
    for seed in range(3):
        assert not differences(name, seed, space=SPHERE, **case), f"seed {seed}"


@pytest.mark.parametrize("name", WINDOW_INDEXES)
def test_window_index_on_the_sphere_finds_what_lies_near_small_circles(name):
    """Messages where the queries are, metres apart, and radii as small: places are rounded, ranks decide."""
    rng, compared = np.random.default_rng(9), 0
    index, stored = WINDOW_INDEXES[name](SPHERE, 1), []
    table = on_sphere(rng, table_of(rng, 0, 60, terms=3))
    table = SubscriptionTable(**(table._asdict() | {"radius_m": 10 ** rng.uniform(0, 1.5, 60)}))
    for number in range(4):
        messages = near_to(rng, table, make_messages(rng, number * 300, 300, terms=3, longest=3))
        stored.append((Boundary(number, number * 300, number * 300 + 299, NO_FLOOR), messages))
        index.store(*stored[-1])
    for rank in (1, 2, 5, 40):
        rows = WindowQueries(
            table.number, table.x, table.y, np.full(60, 0.9), table.radius_m, np.full(60, rank, np.int32),
            table.term_offsets, table.terms, table.weights, vector=table.vector,
        )  # fmt: skip
        asked = WindowQuery(stored[-1][0], 3, rows)
        want = expected(stored, asked)
        assert answered(index, asked) == want
        compared += sum(len(found) for _, found in want)
    assert compared > 1_000


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(sorted(WINDOW_INDEXES)),
    space=st.sampled_from([SPACE, SPHERE]),
    seed=st.integers(0, 2**32 - 1),
    size=st.sampled_from([1, 7, 30]),
    window=st.sampled_from([1, 9, 50]),
    grid=st.booleans(),
    late=st.sampled_from([0, 3, 40]),
    restore=st.booleans(),
    kept=st.integers(0, 3),
    terms=st.sampled_from([1, 4, 40]),
)
def test_window_index_any_stream_equals_plain_python(name, space, seed, size, window, grid, late, restore, kept, terms):
    told = differences(
        name, seed, 6, size, window, grid, late, rows=3, restore=restore, kept=kept, space=space, terms=terms,
        longest=min(terms, 6),
    )  # fmt: skip
    assert not told


@pytest.mark.parametrize("late", [0, 40], ids=["in_order", "late"])
@pytest.mark.parametrize("name", WINDOW_INDEXES)
def test_window_index_where_all_scores_are_equal_tells_those_that_may_matter(name, late):
    rng = np.random.default_rng(3)
    size = 600
    texts = np.arange(size + 1, dtype=np.int64), np.zeros(size, np.int32), np.ones(size, np.float32)
    place = np.where(np.arange(size) % 300 == 7, 0.6, 0.5)  # a few score more for some rows, less for others
    index, stored = WINDOW_INDEXES[name](SPACE, 1), []
    for number in range(2):
        seq = np.arange(number * size, (number + 1) * size)
        life = (seq + rng.integers(-late, late + 1, size)) // 20 * 20 if late else seq
        messages = MessageBatch(seq, place, place, place, place, place, place, life, *texts)
        stored.append((Boundary(number, int(seq[0]), int(seq[-1]), NO_FLOOR), messages))
        index.store(*stored[-1])
    asked = make_question(rng, stored[-1][0], 1, 9, terms=1, largest_rank=9)
    one_term = np.arange(10, dtype=np.int64), np.zeros(9, np.int32), np.ones(9, np.float32)
    rows = asked.rows._replace(term_offsets=one_term[0], terms=one_term[1], weights=one_term[2])
    asked = asked._replace(rows=rows)
    told = answered(index, asked)
    assert told == expected(stored, asked)
    assert max(len(rows) for _, rows in told) < (14 if late == 0 else 60)


def big_window(name: str, messages: int = 3000, batches: int = 12, window: int = 2000, grid: bool = False):
    """A window that has seen merges, compaction and rows used again, and all it was given."""
    rng = np.random.default_rng(5)
    index = WINDOW_INDEXES[name](SPACE, 1)
    stored, size = [], messages // batches
    for number in range(batches):
        boundary = Boundary(number, number * size, (number + 1) * size - 1, (number + 1) * size - 1 - window)
        stored.append((boundary, make_messages(rng, number * size, size, terms=40, longest=8, grid=grid)))
        index.store(*stored[-1])
        index.answer(make_question(rng, boundary, number, 120, terms=40))
    return rng, index, stored


@pytest.mark.parametrize("name", WINDOW_INDEXES)
@pytest.mark.parametrize("grid", [False, True], ids=["anywhere", "ties"])
def test_window_index_of_many_messages_equals_plain_python(name, grid):
    rng, index, stored = big_window(name, grid=grid)
    asked = make_question(rng, stored[-2][0], len(stored) - 1, 40, terms=40, grid=grid, largest_rank=30)
    assert answered(index, asked) == expected(stored, asked)


@pytest.mark.parametrize("name", WINDOW_INDEXES)
def test_window_index_loaded_equals_stored(name):
    rng, index, stored = big_window(name)
    asked = make_question(rng, stored[-1][0], len(stored) - 1, 40, terms=40)
    assert answered(loaded(name, stored), asked) == answered(index, asked) == expected(stored, asked)


@pytest.mark.parametrize("name", WINDOW_INDEXES)
def test_window_index_keeps_not_much_more_than_the_window(name):
    _, index, _ = big_window(name)
    assert 1800 * 0.85 < len(index) < 4000 * 0.9
    assert index.size_bytes() > 100 * len(index)


@pytest.mark.parametrize("name", WINDOW_INDEXES)
def test_window_index_without_messages_answers_nothing(name):
    rng = np.random.default_rng(1)
    index = WINDOW_INDEXES[name](SPACE)
    index.store(Boundary(0, 0, 9, -5), make_messages(rng, 0, 0))
    asked = make_question(rng, Boundary(0, 0, 9, -5), 0, 5)
    assert answered(index, asked) == [(-math.inf, set())] * 5


class Shares:
    """Indexes among which messages are dealt out, as one; it speaks of what all of them have stored."""

    def __init__(self, parts: list[TopkWindowIndex]):
        self.parts, self.boundaries = parts, min(parts, key=lambda part: part.stored_through).boundaries

    def answer(self, query: WindowQuery) -> WindowAnswers:
        return TopkWindowIndex.merge([part.answer(query) for part in self.parts])

    def bars(self, query: WindowQuery) -> np.ndarray:
        """float64[rows]: the highest threshold of any share."""
        return np.max([part.answer(query).threshold for part in self.parts], axis=0)


@pytest.mark.parametrize("name", WINDOW_INDEXES)
def test_window_index_parts_merged_have_all_that_reach_the_highest_bar_and_no_fewer_than_asked(name):
    rng = np.random.default_rng(2)
    whole, parts = WINDOW_INDEXES[name](SPACE, 1), [WINDOW_INDEXES[name](SPACE, 1) for _ in range(3)]
    stored = []
    for number in range(4):
        boundary = Boundary(number, number * 50, number * 50 + 49, number * 50 + 49 - 120)
        stored.append((boundary, make_messages(rng, number * 50, 50, grid=True)))
        whole.store(*stored[-1])
        for task, part in enumerate(parts):
            part.store(boundary, stored[-1][1].take(np.flatnonzero(stored[-1][1].seq % 3 == task)))
    asked, shares = make_question(rng, stored[2][0], 3, 30, grid=True), Shares(parts)
    one, bars, told = whole.answer(asked), shares.bars(asked), answered(shares, asked)
    assert told == expected(stored, asked, bars)
    assert (bars <= one.threshold).all() and (bars < one.threshold).any() and np.isfinite(bars).sum() > 20
    for row, rank in enumerate(asked.rows.rank.tolist()):
        alive = [entry for entry in told[row][1] if not entry[3]]
        assert len(alive) >= min(rank, sum(one.after[one.offsets[row] : one.offsets[row + 1]] == 0))


@pytest.mark.parametrize("name", WINDOW_INDEXES)
def test_window_index_rows_shared_by_threads_are_answered_alike(name, monkeypatch):
    rng = np.random.default_rng(4)
    index, boundary = WINDOW_INDEXES[name](SPACE, 1), Boundary(0, 0, 399, 99)
    index.store(boundary, make_messages(rng, 0, 400, grid=True))
    asked = make_question(rng, boundary, 0, 90, grid=True)
    one = answered(index, asked)
    monkeypatch.setattr(window_generations, "cores", lambda: 4)
    monkeypatch.setattr(window_generations, "_ROWS_A_THREAD", 10)
    assert answered(index, asked) == one and sum(len(seqs) for _, seqs in one) > 200


@pytest.mark.parametrize("name", WINDOW_INDEXES)
def test_window_index_parts_that_have_stored_more_or_less_speak_of_what_all_have(name):
    rng = np.random.default_rng(3)
    whole, parts = WINDOW_INDEXES[name](SPACE, 4), [WINDOW_INDEXES[name](SPACE, 4) for _ in range(3)]
    stored = []
    for number in range(5):
        boundary = Boundary(number, number * 50, number * 50 + 49, number * 50 + 49 - 120)
        stored.append((boundary, make_messages(rng, number * 50, 50)))
        for task, part in enumerate(parts):
            if number <= (4, 3, 2)[task]:
                part.store(boundary, stored[-1][1].take(np.flatnonzero(stored[-1][1].seq % 3 == task)))
        if number <= 2:
            whole.store(*stored[-1])
    asked = make_question(rng, stored[1][0], 1, 30)._replace(onward=True)
    shares = Shares(parts)
    merged = shares.answer(asked)
    assert (merged.up_to, merged.last_seq) == (2, 149) and merged.after.sum() > 20
    assert answered(shares, asked) == expected(stored[:3], asked, shares.bars(asked))
    # what came since, from where all speak of: of all parts alike, whatever one of them has said before
    rows = asked.rows._replace(threshold=merged.threshold)
    for part, missing in ((parts[1], ()), (parts[2], (3,))):
        for number in missing:
            part.store(stored[number][0], stored[number][1].take(np.flatnonzero(stored[number][1].seq % 3 == 2)))
    more = asked._replace(as_of=stored[2][0], up_to=3, rows=rows, onward=False, more=True)
    merged = TopkWindowIndex.merge([part.answer(more) for part in parts])
    whole.store(*stored[3])
    assert (merged.up_to, merged.last_seq) == (3, 199) and merged.after.all()
    assert set(merged.seq.tolist()) == set(whole.answer(more).seq.tolist()) and merged.seq.shape[0] > 20


@pytest.mark.parametrize("name", WINDOW_INDEXES)
def test_window_index_asked_what_it_does_not_know_raises(name):
    rng, index, stored = big_window(name)
    for as_of, up_to in ((stored[2][0], 11), (stored[-1][0], 12)):
        with pytest.raises(EngineError, match="batches 10 to 11 are stored"):
            index.answer(make_question(rng, as_of, up_to, 2))
    with pytest.raises(EngineError, match="batch 13 cannot follow batch 11"):
        index.store(Boundary(13, 3250, 3299, 0), make_messages(rng, 3250, 50))


def test_window_index_by_name_unknown_is_refused():
    kind = KINDS.named("topk")
    assert kind.window().name == "segments" == next(iter(WINDOW_INDEXES))
    assert all(kind.window(name).name == name for name in WINDOW_INDEXES)
    with pytest.raises(ConfigError, match="window index 'b_tree' for topk: choose one of segments"):
        kind.window("b_tree")


def test_postings_of_far_apart_terms_are_those_of_near_ones():
    """Terms are numbered through a table or by sorting, whichever is smaller."""
    rng = np.random.default_rng(4)
    rows = window_search.rows_of(make_messages(rng, 0, 50))
    near = window_postings.build_postings(rows)
    spread = window_search.WindowRows(**(rows._asdict() | {"terms": rows.terms * 100_000}))
    far = window_postings.build_postings(spread)
    np.testing.assert_array_equal(far.term, near.term * 100_000)
    np.testing.assert_array_equal(far.start, near.start)
    np.testing.assert_array_equal(far.near, near.near)
    np.testing.assert_array_equal(far.link[:, 0], near.link[:, 0])


def test_take_rows_keeps_order_and_terms():
    rng = np.random.default_rng(5)
    rows = window_search.rows_of(make_messages(rng, 0, 30))
    picked = np.array([7, 2, 19])
    taken = take_window_rows(rows, picked)
    for at, row in enumerate(picked):
        assert taken.head[at, 0] == rows.head[row, 0]
        a, b, c, d = *taken.head[at, 2:], *rows.head[row, 2:]
        assert taken.terms[a:b].tolist() == rows.terms[c:d].tolist()


class ForgetsTies(Segments):
    """Broken: leaves out what equals the threshold, once there are enough."""

    def answer(self, query):
        answers = super().answer(query)
        tied = np.flatnonzero(answers.score == answers.threshold[np.repeat(np.arange(6), np.diff(answers.offsets))])
        answers.score[tied[1:]] -= 1e-9
        return answers


class ForgetsExpired(Segments):
    """Broken: drops by the newest boundary, not by the oldest that is kept."""

    def _drop(self, floor):
        super()._drop(self.boundaries[-1].floor)


@pytest.mark.parametrize("broken", [ForgetsTies, ForgetsExpired])
def test_window_index_broken_on_purpose_is_found_out(broken, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "WINDOW_INDEXES", {"broken": broken})
    assert any(differences("broken", seed, grid=True) for seed in range(4))
