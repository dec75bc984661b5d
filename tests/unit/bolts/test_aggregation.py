"""The aggregation bolt: window queries of several homes are sent as one, and each home gets the answer to its own."""

import itertools

import numpy as np
import pytest

from bolts.aggregation import AggregationBolt
from bolts.payloads import Addressed
from matching.kinds import KINDS
from matching.model import SKYLINE, TOPK
from matching.operator import WindowQuery
from matching.skyline.answers import Candidates, SkylineQueries
from matching.topk.window import WindowAnswers
from matching.window import Boundary
from topology.core.api.component import Delivery


class Recorder:
    component, task, tasks = "aggregation", 1, 2

    def __init__(self, homes: int, parts: int):
        self.sizes = {"query": homes, "tuples": parts}
        self.emitted = []

    def size_of(self, component):
        return self.sizes[component]

    def emit(self, stream, payload, *, to=None, key=None):
        self.emitted.append((stream, payload, to))

    def take(self, stream):
        found = [(payload, to) for name, payload, to in self.emitted if name == stream]
        self.emitted = [each for each in self.emitted if each[0] != stream]
        return found


def bolt_of(homes: int, parts: int) -> tuple[AggregationBolt, Recorder]:
    bolt, context = AggregationBolt(), Recorder(homes, parts)
    bolt.prepare(context)  # type: ignore[arg-type]
    return bolt, context


def query(home: int, request: int, batch: int, rows: int) -> Addressed:
    """Rows whose only keyword is 100 * home + row; every second one has a filter of two words."""
    region = np.arange(4.0 * rows).reshape(rows, 4) + home
    words = (NOTHING, NOTHING)
    if home % 2:
        words = np.arange(rows + 1) * 2, np.arange(2 * rows)
    rows_of = SkylineQueries(region, np.arange(rows + 1), 100 * home + np.arange(rows, dtype=np.int32), *words)
    return Addressed(SKYLINE, home, request, WindowQuery(Boundary(batch, batch, batch, 0), batch, rows_of))


NOTHING = np.zeros(0, np.int64)


def answer(query: WindowQuery, part: int) -> Candidates:
    """For a row with keyword t, t % 3 candidates, of which none dominates another of the row: seq says all."""
    terms = query.rows.terms.astype(np.int64)
    counts = terms % 3
    offsets = np.concatenate([[0], np.cumsum(counts)])
    rank = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
    seq = np.repeat(terms, counts) * 100 + 10 * rank + part
    return Candidates(offsets, seq, seq, seq / 1e6, -seq / 1e6)


def test_queries_of_a_boundary_are_sent_as_one_and_each_home_gets_its_answer():
    bolt, context = bolt_of(homes=4, parts=2)
    queries = [query(0, 7, 3, 5), query(1, 9, 3, 2), query(2, 7, 4, 4), query(3, 1, 3, 3)]
    for each in queries:
        bolt.execute(Delivery("window_query", "query", each.home, each))
    ((collected, to),) = context.take("collected")
    assert to == 1 and not context.emitted and not bolt.quiet()
    bolt.execute(Delivery("collected", "aggregation", 1, collected))
    joined = [payload for payload, _ in context.take("joined_query")]
    assert [each.body.as_of.number for each in joined] == [3, 4] and [each.home for each in joined] == [1, 1]
    wanted = np.concatenate([each.body.rows.terms for each in (queries[0], queries[1], queries[3])])
    assert np.array_equal(joined[0].body.rows.terms, wanted)
    # filters stay with their rows
    assert np.diff(joined[0].body.rows.filter_offsets).tolist() == [0] * 5 + [2] * 5
    for part, each in itertools.product((0, 1), joined):
        assert not context.emitted
        bolt.execute(Delivery("partial", "tuples", part, each._replace(body=answer(each.body, part))))
        if part == 0:
            continue
        for body, home in context.take("answer"):
            mine = queries[home]
            assert (body.home, body.request) == (home, mine.request)
            alone = KINDS[SKYLINE].window().merge([answer(mine.body, 0), answer(mine.body, 1)])
            assert all(np.array_equal(*columns) for columns in zip(body.body, alone, strict=True))
            assert alone.seq.shape[0] > 2
    assert bolt.quiet() and bolt.report() == {"requests": 4, "queries": 2}


def test_only_home_waits_for_nobody():
    bolt, context = bolt_of(homes=1, parts=1)
    bolt.execute(Delivery("window_query", "query", 0, query(0, 0, 0, 2)))
    ((joined, to),) = context.take("joined_query")
    assert to is None and not context.emitted
    bolt.execute(Delivery("partial", "tuples", 0, joined._replace(body=answer(joined.body, 0))))
    assert [to for _, to in context.take("answer")] == [0]


@pytest.mark.parametrize("rows", [[3], [0, 3], [1, 0, 2]])
def test_answers_with_columns_of_rows_are_split_by_row(rows):
    whole = WindowAnswers(
        np.array([4, 5, 6], np.int32), np.array([0, 2, 2, 5]), np.arange(5), np.arange(5) + 10, np.arange(5) / 8,
        np.zeros(5, np.int8), np.array([0.1, 0.2, 0.3]), np.array([7, 8, 9]), 11, 99,
    )  # fmt: skip
    first = 0
    for part, count in zip(KINDS[TOPK].window().split(whole, rows), rows, strict=True):
        assert part.rank.tolist() == whole.rank[first : first + count].tolist() and part.up_to == 11
        assert part.threshold.shape == part.read.shape == (count,) and part.offsets.shape[0] == count + 1
        got = [part.seq[a:b].tolist() for a, b in itertools.pairwise(part.offsets.tolist())]
        assert got == [[[0, 1], [], [2, 3, 4]][row] for row in range(first, first + count)]
        first += count
