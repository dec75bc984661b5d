"""What must hold inside a window index at any boundary, looked up entry by entry in plain Python."""

from collections import Counter

import numpy as np

from baselines.skyline import keyword_pages as paged
from baselines.skyline import linear_quadtrees as linear
from baselines.skyline.cells import DEEPEST, code_in, column_in, column_of, line_in, line_of, slot_in
from baselines.skyline.i3 import I3
from baselines.skyline.il_quadtree import IlQuadtree
from baselines.skyline.inverted_kd import InvertedKd
from baselines.skyline.ir_tree import IrTree
from baselines.skyline.lists import COUNT, PlaceLists
from papers.skyline import filters as cuckoo
from papers.skyline.messages import NEVER
from papers.skyline.mf_nodes import mark_of
from papers.skyline.mf_rtree import MfRtree
from papers.skyline.rtree import FANOUT, HIGH, ROOT, USED
from papers.skyline.tree import TreeWindow


def check(window: TreeWindow) -> None:
    """Assert every invariant of the index."""
    check_held(window)
    if isinstance(window, MfRtree | IrTree):
        entries = check_rtree(window)
        if isinstance(window, MfRtree):
            check_mf(window, entries)
        else:
            check_ir(window, entries)
        return
    assert len(window.log) == held(window).size
    if isinstance(window, InvertedKd):
        check_kd(window)
    elif isinstance(window, IlQuadtree):
        check_linear(window)
    elif isinstance(window, I3):
        check_pages(window)


def held(window: TreeWindow) -> np.ndarray:
    """Slots of what somebody may still ask about."""
    return np.flatnonzero(window._place >= 0)


def check_held(window: TreeWindow) -> None:
    """What is held has lived at the oldest boundary known, or came after it; the heap knows all of it, by life."""
    slots, log, oldest = held(window), window.log.view, window.known[0]
    assert np.all(log.life[slots] > oldest.floor)
    if window.kept_boundaries:
        assert np.all(log.ended[slots] > oldest.number)
        untold = [slot for number, ended in window._late_ends for slot in ended.tolist() if log.ended[slot] == number]
        assert set(slots[log.ended[slots] != NEVER].tolist()) <= set(untold)
    else:
        assert log.ended.size == 0 and not window._late_ends and len(window) == slots.size
    heap = window._heap[: window._in_heap]
    assert sorted(heap.tolist()) == slots.tolist()
    assert window._place[heap].tolist() == list(range(heap.size))
    assert window.size_bytes() >= sum(window.bytes().values()) > 0
    lives = log.life[heap]
    assert np.all(lives[1:] >= lives[(np.arange(1, heap.size) - 1) // 2])


def terms_of(window: TreeWindow, slot: int) -> list[int]:
    """Terms of a message."""
    log = window.log.view
    return log.terms[log.term_start[slot] : log.term_start[slot] + log.term_count[slot]].tolist()


def check_rtree(window) -> dict[int, list[int]]:
    """Nodes, parents, boxes; returns the slots below each node."""
    tree = window.mf.tree if isinstance(window, MfRtree) else window.tree
    log, below, seen = window.log.view, {}, 0

    def visit(node: int, parent: int) -> list[int]:
        nonlocal seen
        seen += 1
        count = int(tree.count[node])
        assert tree.parent[node] == parent and count <= FANOUT
        assert count or node == tree.meta[ROOT]
        children = tree.child[node, :count].tolist()
        if tree.level[node] == 0:
            slots = children
            boxes = [(log.lon[s], log.lat[s], log.lon[s], log.lat[s]) for s in slots]
        else:
            assert all(tree.level[child] == tree.level[node] - 1 for child in children)
            slots = [slot for child in children for slot in visit(child, node)]
            boxes = [tree.box[child] for child in children]
        if boxes:
            sides = np.array(boxes)
            fitting = [*sides[:, :2].min(axis=0), *sides[:, 2:].max(axis=0)]
            assert tree.box[node].tolist() == fitting
        below[node] = slots
        return slots

    slots = visit(int(tree.meta[ROOT]), -1)
    assert seen == tree.meta[USED] == np.count_nonzero(tree.level[: tree.meta[HIGH]] >= 0)
    live = np.flatnonzero(log.seq[: window.log.slots.high_water] >= 0)
    assert sorted(slots) == live.tolist(), "every message of the log stands in the tree once"
    return below


def number_of(log, slot: int) -> int:
    """The object of a message; where none are told apart, every message is one of its own."""
    return int(log.object[slot] if log.object.shape[0] else log.seq[slot])


def check_mf(window: MfRtree, below: dict[int, list[int]]) -> None:
    """Filters never deny, lookup tables are in order, and the memo counts what is obsolete."""
    tree, nodes, filters, memo = window.mf
    log = window.log.view
    marks = nodes.mark.shape[1] > 0
    shape = cuckoo.SIX if marks else cuckoo.FOUR
    for node, slots in below.items():
        if not slots:
            continue
        assert nodes.below[node] == len(slots)
        if tree.level[node] == 0:
            check_leaf(window, node, slots)
            if marks:
                continue
        words = filters.words[nodes.start[node] : nodes.start[node] + (1 << nodes.bits[node])]
        places = [(int(word) >> (i * shape[1])) & 1023 for word in words for i in range(shape[0])]
        assert nodes.places[node] == sum(place > 0 for place in places)
        for term in {term for slot in slots for term in terms_of(window, slot)}:
            hashed = cuckoo.hash_term(term)
            assert cuckoo.may_contain(filters.words, nodes.start[node], nodes.bits[node], hashed, shape), (node, term)
    everything = below[int(tree.meta[ROOT])]
    latest = dict(zip(memo.object.tolist(), memo.latest.tolist(), strict=True))
    obsolete = [slot for slot in everything if log.seq[slot] < latest.get(number_of(log, slot), -1)]
    noted = {o: n for o, n in zip(memo.object.tolist(), memo.obsolete.tolist(), strict=True) if o != -(2**62)}
    assert Counter(number_of(log, slot) for slot in obsolete) == Counter(noted) and len(noted) == memo.meta[0]
    assert sorted(set(everything) - set(obsolete)) == held(window).tolist()
    assert nodes.state[0] == len(everything)


def check_leaf(window: MfRtree, node: int, slots: list[int]) -> None:
    """The lookup table of a leaf is in order, and every entry bears its mark if there are marks."""
    log, nodes = window.log.view, window.mf.nodes
    keys = [(number_of(log, slot), -int(log.seq[slot])) for slot in slots]
    tops = [i for i in range(len(keys)) if i == 0 or keys[i][0] != keys[i - 1][0]]
    stacks = Counter(key for key, _ in keys)
    assert len(tops) == len(stacks), "versions of an object stand together"
    assert all(keys[i] < keys[i + 1] for i in range(len(keys) - 1) if i + 1 not in tops), "the newest first"
    wanted = [stacks[keys[i][0]] if i in tops else 0 for i in range(len(keys))]
    if nodes.mark.shape[1]:
        assert nodes.mark[node, :, : len(slots)].T.tolist() == [[*map(int, mark_of(log, slot))] for slot in slots]
    assert nodes.stack[node, : len(slots)].tolist() == wanted


def postings(lists: PlaceLists) -> tuple[dict[tuple[int, int], list[int]], dict[tuple[int, int], int]]:
    """All lists and all counts, by (term, place)."""
    slots, counts = {}, {}
    for key, value, length in zip(lists.key.tolist(), lists.value.tolist(), lists.length.tolist(), strict=True):
        if key >= 0:
            where = (key >> 32, key & 0xFFFFFFFF)
            assert length > 0
            if value == COUNT:
                counts[where] = length
            else:
                slots[where] = [value] if length == 1 else lists.pool[value : value + length].tolist()
    assert len(slots) + len(counts) == lists.meta[0]
    return slots, counts


def check_ir(window: IrTree, below: dict[int, list[int]]) -> None:
    """Inverted files have what is below, no more and no less."""
    assert len(window.log) == held(window).size
    slots, counts = postings(window.lists)
    wanted_lists, wanted_counts = {}, Counter()
    for node, entries in below.items():
        for slot in entries:
            for term in terms_of(window, slot):
                if window.tree.level[node] == 0:
                    wanted_lists.setdefault((term, node), []).append(slot)
                else:
                    wanted_counts[term, node] += 1
    assert {key: sorted(value) for key, value in slots.items()} == {k: sorted(v) for k, v in wanted_lists.items()}
    assert counts == wanted_counts
    distinct = Counter(node for _, node in wanted_counts)
    assert all(window.tree.level[node] == 0 or window.distinct[node] == distinct[node] for node in below)


def check_kd(window: InvertedKd) -> None:
    """Every message stands in the leaf of its point, on all its lists."""
    tree, log = window.tree, window.log.view
    slots, counts = postings(window.lists)
    assert not counts
    wanted, sizes = {}, Counter()
    for slot in np.flatnonzero(log.seq[: window.log.slots.high_water] >= 0).tolist():
        node = int(tree.meta[0])
        while tree.axis[node] != 2:
            at = log.lon[slot] if tree.axis[node] == 0 else log.lat[slot]
            node = int(tree.left[node] if at < tree.cut[node] else tree.right[node])
        sizes[node] += 1
        for term in [*terms_of(window, slot), 2**31 - 1]:
            wanted.setdefault((term, node), []).append(slot)
    assert {key: sorted(value) for key, value in slots.items()} == {k: sorted(v) for k, v in wanted.items()}
    leaves = np.flatnonzero(tree.axis[: tree.meta[2]] == 2).tolist()
    assert {leaf: int(tree.count[leaf]) for leaf in leaves if tree.count[leaf]} == dict(sizes)
    assert len(leaves) == 1 or len(sizes) == len(leaves), "no empty leaf but the last"


def words_of(window: TreeWindow) -> Counter[tuple[int, int]]:
    """What a keyword-by-keyword index should have of the log: (term, slot)."""
    log = window.log.view
    slots = np.flatnonzero(log.seq[: window.log.slots.high_water] >= 0).tolist()
    return Counter((term, slot) for slot in slots for term in terms_of(window, slot))


def check_word(window: TreeWindow, word: int) -> None:
    """A word names the deepest cell of its message."""
    slot, log = slot_in(word), window.log.view
    assert (column_in(word), line_in(word)) == (column_of(log.lon[slot]), line_of(log.lat[slot]))


def keywords(table) -> dict[int, int]:
    """What a keyword table holds."""
    held = {t: v for t, v in zip(table.term.tolist(), table.value.tolist(), strict=True) if t >= 0}
    assert len(held) == table.count[0]
    return held


def check_linear(window: IlQuadtree) -> None:
    """Leaves stand in order, apart, no larger than need be, with all messages; signatures have their cells exactly."""
    trees, half = window.trees, linear.CAPACITY // 2
    found: Counter[tuple[int, int]] = Counter()
    rows = set()
    for term, value in keywords(trees.table).items():
        if value >= 0:
            start, count = linear.leaf_start(value), linear.leaf_count(value)
            words = trees.pool[start : start + count].tolist() if linear.is_leaf(value) else [value]
            assert len(words) <= linear.CAPACITY
        else:
            row, words, ends = -1 - value, [], 0
            rows.add(row)
            codes = []
            for i in range(trees.tree[row, linear.LEAVES]):
                level, code = linear.level_at(trees, row, i), linear.code_at(trees, row, i)
                start, count = linear.start_at(trees, row, i), linear.count_at(trees, row, i)
                inside = trees.pool[start : start + count].tolist()
                assert code >= ends and code % 4 ** (DEEPEST - level) == 0 and level > 0
                ends = code + 4 ** (DEEPEST - level)
                assert 0 < count <= linear.CAPACITY or level == DEEPEST
                assert all(code <= code_in(word) < ends for word in inside)
                words += inside
                codes.append((level, code))
            for level, code in codes:
                shift = 2 * (DEEPEST - level + 1)
                assert sum(code_in(word) >> shift == code >> shift for word in words) > half, "leaves to be merged"
            signed = {c for c in range(4**linear.SIGNED) if linear.is_signed(trees, row, c)}
            assert signed == {code_in(word) >> linear.SIGNED_SHIFT for word in words}, "a signature is wrong"
        for word in words:
            check_word(window, word)
            found[term, slot_in(word)] += 1
    assert found == words_of(window)
    free, row = set(), int(trees.meta[linear.FREE_TREE])
    while row >= 0:
        free.add(row)
        row = int(trees.tree[row, linear.START])
    assert not free & rows and len(free) + len(rows) == trees.meta[linear.HIGH], "no quadtree is lost"


def check_pages(window: I3) -> None:
    """Each tuple stands in the page of its cell; nodes count right; signatures of cells know their places exactly."""
    pages, found, cells, nodes = window.pages, Counter(), set(), set()

    def tuples(cell: int) -> list[int]:
        page, count, following = pages.cell[cell].tolist()
        used = pages.page[page, paged.USED]
        words = pages.word[page, :used][pages.source[page, :used] == cell].tolist()
        assert cell not in cells and len(words) == count > 0
        cells.add(cell)
        return words + (tuples(following) if following >= 0 else [])

    def visit(reference: int, level: int, code: int) -> list[int]:
        if reference >= 0:
            words = tuples(reference)
            assert len(words) <= paged.PAGE or level == DEEPEST
            return words
        node, words = paged.node_of(reference), []
        assert node not in nodes
        nodes.add(node)
        for quadrant, child in enumerate(pages.child[node].tolist()):
            below = visit(child, level + 1, code << 2 | quadrant) if child != paged.NOTHING else []
            assert all(code_in(word) >> 2 * (DEEPEST - level - 1) == code << 2 | quadrant for word in below)
            if child >= paged.NOTHING:
                held = pages.signature[node, quadrant].copy()
                paged.forget_places(pages, node, quadrant)
                for word in below:
                    paged.note_place(pages, node, quadrant, level + 1, word)
                assert held.tolist() == pages.signature[node, quadrant].tolist(), "a signature is wrong"
            words += below
        assert len(words) == pages.below[node] > paged.PAGE // 2
        return words

    for term, reference in keywords(pages.table).items():
        assert reference != paged.NOTHING
        for word in visit(reference, 0, 0):
            check_word(window, word)
            found[term, slot_in(word)] += 1
    assert found == words_of(window)
    high = int(pages.meta[paged.PAGES])
    assert pages.page[:high, paged.USED].sum() == sum(found.values())
    for used, free, column, first in (
        (cells, paged.CELLS, pages.cell[:, paged.NEXT], paged.FREE_CELL),
        (nodes, paged.NODES, pages.child[:, 0], paged.FREE_NODE),
    ):
        spare, at = set(), int(pages.meta[first])
        while at >= 0:
            spare.add(at)
            at = int(column[at])
        assert not spare & used and len(spare) + len(used) == pages.meta[free], "no number is lost"
    listed = []
    for size, first in enumerate(pages.meta[paged.PAGES + 1 :].tolist()):
        while first >= 0:
            assert max(1, 8 * size) <= paged.PAGE - pages.page[first, paged.USED] < 8 * size + 8
            listed.append(first)
            first = int(pages.page[first, 2])
    assert sorted(listed) == np.flatnonzero(pages.page[:high, paged.USED] < paged.PAGE).tolist()
