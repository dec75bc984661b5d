"""Quadtrees keyword by keyword: arrays grow when they must, signatures that deny what is there are found out."""

from typing import Any

import numpy as np
import pytest

from baselines.skyline import keyword_pages as paged
from baselines.skyline import linear_quadtrees as linear
from baselines.skyline.cells import code_in, column_in, line_in, tuple_of
from baselines.skyline.i3 import I3
from baselines.skyline.il_quadtree import IlQuadtree
from matching.model import MessageBatch, empty
from matching.skyline.window import SkylineQueries
from matching.window import NO_FLOOR, Boundary
from tests.support.skyline_invariants import check, keywords, terms_of
from tests.support.skyline_streams import MANY_COUNTRIES, SPACE, TREES, run

CAPACITIES = {"il_quadtree": linear.CAPACITY, "i3": paged.PAGE}
#: The first of an index compiles it.
pytestmark = pytest.mark.wide


@pytest.mark.parametrize("name", ["i3", "il_quadtree"])
def test_quadtrees_that_merge_cells_without_slack_have_their_arrays_grow(name):
    """What is merged may need a larger block than any that its parts give back."""
    rng = np.random.default_rng(5)
    window: Any = TREES[name](SPACE)
    terms, each = 60, CAPACITIES[name] + 1
    count = terms * each
    seq, (lon, lat), nowhere = np.arange(count), rng.uniform(-10, 10, (2, count)), np.zeros(count)
    everything = MessageBatch(
        seq, nowhere, nowhere, lon, lat, lon, lat, seq, np.arange(count + 1), (seq % terms).astype(np.int32),
        np.ones(count, np.float32),
    )  # fmt: skip
    window.store(Boundary(0, 0, count - 1, NO_FLOOR), everything, seq[:0])
    left = each - CAPACITIES[name] // 2 - 1
    for number in range(left + 2):
        take_slack(window)
        ended = np.arange(number * terms, (number + 1) * terms)
        window.store(Boundary(1 + number, count, count - 1, NO_FLOOR), empty(MessageBatch), ended)
        assert_within(window)
    queries = SkylineQueries(
        np.array([[-180.0, -90.0, 180.0, 90.0]] * terms), np.arange(terms + 1), np.arange(terms, dtype=np.int32)
    )
    assert len(window) == count - (left + 2) * terms
    assert sorted(window.candidates(queries).seq) == list(range((left + 2) * terms, count))


def take_slack(window: Any) -> None:
    """Leave arrays no longer than what is in use, as if other blocks had taken whatever is free."""
    if isinstance(window, IlQuadtree):
        end = int(window.trees.meta[linear.POOL_END])
        window.trees = window.trees._replace(pool=window.trees.pool[:end].copy())
        window.trees.meta[linear.FREE_TREE + 1 :] = -1
    else:
        pages = window.pages
        cells, nodes, high = (int(pages.meta[at]) for at in (paged.CELLS, paged.NODES, paged.PAGES))
        window.pages = pages._replace(
            cell=pages.cell[:cells].copy(), child=pages.child[:nodes].copy(), below=pages.below[:nodes].copy(),
            signature=pages.signature[:nodes].copy(), page=pages.page[:high].copy(), word=pages.word[:high].copy(),
            source=pages.source[:high].copy(),
        )  # fmt: skip
        pages.meta[[paged.FREE_CELL, paged.FREE_NODE]] = -1


def assert_within(window: Any) -> None:
    """Nothing was written past an array."""
    if isinstance(window, IlQuadtree):
        assert window.trees.meta[linear.POOL_END] <= window.trees.pool.shape[0]
    else:
        pages = window.pages
        assert pages.meta[paged.CELLS] <= pages.cell.shape[0] and pages.meta[paged.NODES] <= pages.child.shape[0]
        assert pages.meta[paged.PAGES] <= pages.page.shape[0]


class ClearsTooMuch(IlQuadtree):
    """Broken: whichever message ends takes its bit out of the signatures, though others may stand in its cell."""

    def _end(self, slots):
        log = self.log.view
        gone = [(code_in(tuple_of(log, slot)), terms_of(self, slot)) for slot in slots.tolist()]
        super()._end(slots)
        values = keywords(self.trees.table)
        for code, terms in gone:
            for row in (-1 - values.get(term, 0) for term in terms):
                if row >= 0:
                    linear.clear(self.trees, row, code >> linear.SIGNED_SHIFT)


class DeniesPlaces(I3):
    """Broken: whichever message ends takes its bit out of the signature of its cell, though others may stand there."""

    def _end(self, slots):
        log = self.log.view
        gone = [(int(tuple_of(log, slot)), terms_of(self, slot)) for slot in slots.tolist()]
        super()._end(slots)
        references = keywords(self.pages.table)
        for word, terms in gone:
            for reference in (references.get(term, paged.NOTHING) for term in terms):
                level = 0
                while reference < paged.NOTHING:
                    node, quadrant = paged.node_of(reference), paged.quadrant_of(word, level)
                    reference, level = int(self.pages.child[node, quadrant]), level + 1
                    line, column = paged.eighth_of(line_in(word), level), paged.eighth_of(column_in(word), level)
                    self.pages.signature[node, quadrant, line] &= 255 - (1 << column)


@pytest.mark.parametrize("broken", [ClearsTooMuch, DeniesPlaces])
def test_quadtrees_that_deny_a_cell_with_messages_are_found_out(broken):
    assert not run((broken.__base__, {}), MANY_COUNTRIES, 11)[0]
    told, _, window = run((broken, {}), MANY_COUNTRIES, 11)
    assert told, f"{broken.__name__} went unnoticed"
    with pytest.raises(AssertionError, match="signature"):
        check(window)
