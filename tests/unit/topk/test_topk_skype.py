"""Engine `skype`, rule by rule: alone against brute force, in a stream against the oracle."""

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from benchmarks.driving import Tasks, kind_of
from matching.geo.sphere import point_of
from matching.index import HitBuffer
from matching.model import TOPK, MessageBatch, SubscriptionTable
from matching.naive_rows import tally
from matching.space import Space
from matching.topk.engines import skype_bounds, skype_lists, skype_scan, skype_verify
from matching.topk.engines.skype import PAPER, Pruning, Skype
from matching.topk.engines.skype_tree import FLOATS, INTS, SPHERE_FLOATS, TreeShape, build_tree, envelope_places
from tests.support.topk_tables import brute_force, found_by, in_space, messages_of, table_of
from tests.support.worlds import SPACE, SPHERE, Recipe, make_world

SWITCHES = tuple(name for name, value in Pruning()._asdict().items() if isinstance(value, bool))
# groups this small, because a tree must stand over the short lists of a test
SMALL = {"group_size": 3, "cell_size": 9}
NONE = Pruning(**dict.fromkeys(SWITCHES, False), **SMALL)
ALL = Pruning(**dict.fromkeys(SWITCHES, True), **SMALL)
VARIANTS = {
    "default": Pruning(**SMALL),
    "paper": PAPER._replace(**SMALL),
    "none": NONE,
    "all": ALL,
    **{f"only_{name}": NONE._replace(**{name: True}) for name in SWITCHES},
    **{f"without_{name}": ALL._replace(**{name: False}) for name in SWITCHES},
}


def engine_of(rules: Pruning) -> type[Skype]:
    """An engine class with these rules, as the table of kinds would hold it."""
    return type("Skype", (Skype,), {"pruning": rules})


def assert_columns_bound_their_postings(index: Skype) -> None:
    """Every node's maxima are exact or too high, never too low: the invariant all pruning rests on."""
    v = index.lists.view
    for term in np.flatnonzero(v.built):
        a = int(v.start[term])
        for node in range(int(v.node_start[term]), int(v.node_start[term] + v.node_count[term])):
            first, last = a + v.node_ints[node, 0], a + v.node_ints[node, 1]
            base, slope = v.base[first:last], v.slope[first:last]
            row = v.node_floats[node]
            for column, away in ((5, 0.0), (6, v.stored_at[0]), (7, v.stored_at[1])):
                lines = base - slope * away
                assert row[column] >= lines.max() - 1e-6 * max(1.0, abs(lines.max()))
            alive = v.slot[first:last] >= 0
            assert np.all(v.x[first:last][alive] >= row[0]) and np.all(v.y[first:last][alive] <= row[3])
            assert row[4] <= slope.min()
            if v.z.size:
                z = v.z[first:last][alive]
                assert np.all(z >= row[12]) and np.all(z <= row[13])
                assert row[14] <= v.alpha[first:last][alive].min(initial=1.0)


def busy_life(rules: Pruning, seed: int, grid: int | None, steps: int = 7, space: Space = SPACE):
    """Subscriptions come, go, and have thresholds raised, lowered and lost; after each step all hits are compared."""
    rng = np.random.default_rng(seed)
    index = engine_of(rules)(space)
    live, number, compared = np.zeros(0, np.int32), 0, 0
    for step in range(steps):
        rows = int(rng.integers(1, 120))
        table = in_space(space, rng, table_of(rng, number, rows, grid))
        number += rows
        live = np.concatenate([live, index.insert(table)])
        changed = rng.choice(live, live.size // 2, replace=False)
        index.set_thresholds(changed, rng.choice([0.3, 0.5, 0.75, 0.9], changed.size))
        for _ in range(2):
            batch = in_space(space, rng, messages_of(rng, 25, grid))
            expected = brute_force(index.subscriptions, batch, live)
            assert found_by(index, batch) == expected, f"seed {seed} step {step}"
            compared += len(expected)
            some = rng.choice(live, live.size // 3, replace=False)
            index.set_thresholds(some, rng.choice([-np.inf, -1e5, -7.0, 0.1, 0.6, 0.8, np.inf], some.size))
            gone = rng.choice(live, live.size // 4, replace=False)
            index.remove(gone)
            live = np.setdiff1d(live, gone).astype(np.int32)
            assert_columns_bound_their_postings(index)
        if step % 3 == 1:  # another goes on in its place, made of what an operator would save of it
            again = type(index)(space)
            slots = again.insert(index.subscriptions.rows(live))
            again.set_thresholds(slots, index.subscriptions.columns.threshold[live])
            index, live = again, slots
    assert compared > 500, "a life without hits proves nothing"
    return index


@pytest.mark.parametrize("rules", VARIANTS.values(), ids=VARIANTS)
def test_skype_with_any_rules_finds_what_brute_force_finds(rules):
    assert busy_life(rules, 1, None).counters()["nodes"] > 0
    busy_life(rules, 2, 4)
    assert busy_life(rules, 3, None, space=SPHERE).counters()["nodes"] > 0


@pytest.mark.parametrize("rules", VARIANTS.values(), ids=VARIANTS)
def test_skype_with_any_rules_over_a_stream_equals_oracle(rules):
    recipes = (
        Recipe(kinds=(TOPK,), subscriptions=120, terms=6, messages=120),
        Recipe(kinds=(TOPK,), subscriptions=120, terms=6, messages=120, grid=3, window="time:30"),
        Recipe(kinds=(TOPK,), subscriptions=120, terms=6, messages=120, sphere=True, radii=0.5),
    )
    nodes = 0
    for seed, recipe in enumerate(recipes):
        world = make_world(recipe, seed)
        expected, results = world.expected()
        tasks = Tasks(kind_of("topk", engine_of(rules)), world.space, world.window)
        for number, (boundary, messages, changes) in enumerate(world.batches):
            step = tasks.process(boundary, messages, changes.added, changes.removed)
            walked = tasks.operator.engine
            assert isinstance(walked, Skype) and walked.pruning._replace(signature=rules.signature) == rules
            assert tally(step.updates) == expected[number], f"seed {seed} batch {number}"
            nodes += walked.counters()["nodes"]
            if number == 3:
                tasks.go_on()
        assert Counter(row[:4] for row in tasks.results()) == results
    assert nodes > 0, "no tree was walked"


def sorted_hits(hits) -> list[tuple[int, int, float]]:
    return sorted(zip(hits.row.tolist(), hits.slot.tolist(), hits.scores[0].tolist(), strict=True))


@pytest.mark.parametrize(("together", "most_candidates"), [(1, 1), (7, 1 << 22), (64, 200), (4096, 3000)])
@pytest.mark.parametrize("dense_slots", [0, 1 << 20], ids=["by_message", "by_slot"])
def test_skype_messages_taken_together_in_any_number_find_the_same_hits(together, most_candidates, dense_slots):
    rng = np.random.default_rng(8)
    index = Skype(SPACE)
    slots = index.insert(table_of(rng, 0, 600))
    thresholds = rng.random(slots.size) + 0.2
    thresholds[::5] = -np.inf  # a third of the messages has more candidates than a chunk may have
    index.set_thresholds(slots, thresholds)
    batch = messages_of(rng, 150)
    whole = index.match(batch)
    index.together, index.most_candidates, index.dense_slots = together, most_candidates, dense_slots
    before, found = index.counters(), sorted_hits(whole)
    assert sorted_hits(index.match(batch)) == found
    assert index.counters()["postings"] - before["postings"] == before["postings"], "a chunk given up left its counts"
    first, row = 0, 0
    while row < len(batch):  # stopped after every few hits
        part = index.match(batch, row, 500)
        assert sorted_hits(part) == found[first : first + part.slot.size]
        first, row = first + part.slot.size, part.next_row
    assert first == whole.slot.size > 5_000


@pytest.mark.parametrize("terms", [12, 300])
def test_skype_messages_of_many_terms_are_not_compared_with_each_of_a_candidates(terms):
    """Many candidates are verified slot by slot, which takes long for long texts: then message by message."""
    rng = np.random.default_rng(4)
    index, table, batch = Skype(SPACE), table_of(rng, 0, 200), messages_of(rng, 40)
    slots = index.insert(table)
    index.set_thresholds(slots, np.full(slots.size, 0.2))
    many = np.tile(np.arange(terms, dtype=np.int32), len(batch))
    long = {
        "term_offsets": np.arange(len(batch) + 1) * terms,
        "terms": many,
        "weights": np.full(many.size, 1 / np.sqrt(terms), np.float32),
    }
    batch = MessageBatch(**(batch._asdict() | long))
    hits = index.match(batch)
    expected = brute_force(index.subscriptions, batch, slots)
    assert found_by(index, batch) == expected and len(expected) > 1_000
    ascending = hits.row if terms > 64 else hits.slot
    assert np.all(np.diff(ascending) >= 0)


@pytest.mark.parametrize("grid", [None, 1], ids=["anywhere", "at_few_points"])
def test_skype_posted_terms_report_only_pairs_whose_first_common_term_is_posted(grid):
    rng = np.random.default_rng(5)
    table = table_of(rng, 0, 200, grid)
    posted = rng.random(table.terms.size) < 0.5
    row = np.repeat(np.arange(200), np.diff(table.term_offsets))
    unposted = {(int(n), int(t)) for n, t in zip(row[~posted], table.terms[~posted], strict=True)}
    index = Skype(SPACE, Pruning(**SMALL))
    slots = index.insert(table, posted)
    index.set_thresholds(slots, 0.5)
    batch = messages_of(rng, 60, grid)
    expected = brute_force(index.subscriptions, batch, slots, unposted)
    assert found_by(index, batch) == expected and expected != brute_force(index.subscriptions, batch, slots)
    index.remove(slots)
    assert not found_by(index, batch)


def test_skype_all_at_one_point_with_one_keyword_finds_all():
    rng = np.random.default_rng(3)
    rows = 300
    same = {"x": np.full(rows, 0.5), "y": np.full(rows, 0.25), "alpha": np.full(rows, 0.5)}
    word = {
        "term_offsets": np.arange(rows + 1),
        "terms": np.zeros(rows, np.int32),
        "weights": np.ones(rows, np.float32),
    }
    table = SubscriptionTable(**(table_of(rng, 0, rows)._asdict() | same | word))
    for rules in VARIANTS.values():
        index = Skype(SPACE, rules)
        slots = index.insert(table)
        index.set_thresholds(slots, np.where(np.arange(rows) % 2, 1.0 + 1e-12, 1.0))
        seq = np.arange(2)
        x, y = np.full(2, 0.5), np.full(2, 0.25)
        text = (np.array([0, 1, 2]), np.array([0, 0], np.int32), np.ones(2, np.float32))
        # the even ones are reached by both messages, the odd ones by a hair's breadth not at all
        assert len(found_by(index, MessageBatch(seq, x, y, x, y, x, y, seq, *text))) == rows


def test_skype_each_rule_cuts_something():
    rng = np.random.default_rng(11)
    rules = ALL._replace(group_size=8, cell_size=40)
    cut = dict.fromkeys(skype_bounds.COUNTERS, 0)
    for chosen in (rules, rules._replace(groups=False, cells=False, l2=False), PAPER._replace(**SMALL)):
        index = Skype(SPACE, chosen)
        slots = index.insert(table_of(rng, 0, 3000, terms=30))
        index.set_thresholds(slots, 0.5 + 0.5 * rng.random(slots.size))
        found_by(index, messages_of(rng, 200, terms=35))
        cut = {name: value + cut[name] for name, value in index.counters().items()}
    assert all(cut.values()), f"idle: {[name for name, value in cut.items() if not value]}"


def test_skype_default_rules_scan_a_fraction_of_the_postings():
    rng = np.random.default_rng(12)
    index = Skype(SPACE)
    table = table_of(rng, 0, 20_000, terms=30)
    slots = index.insert(SubscriptionTable(**(table._asdict() | {"alpha": np.full(len(table), 0.5)})))
    index.set_thresholds(slots, 0.9)
    found_by(index, messages_of(rng, 200, terms=35))
    counters = index.counters()
    assert counters["scanned"] * 3 < counters["postings"]
    assert counters["scanned"] + counters["cells"] + counters["groups"] == counters["postings"]


def test_skype_lowered_threshold_spoils_no_cell_for_good():
    rng = np.random.default_rng(13)
    index = Skype(SPACE, Pruning(**SMALL))
    slots = index.insert(table_of(rng, 0, 2000, terms=5))
    index.set_thresholds(slots, 0.9)
    batch = messages_of(rng, 100)
    found_by(index, batch)
    before, floats = index.counters()["scanned"], index.lists.view.node_floats.copy()
    found_by(index, batch)
    usual = index.counters()["scanned"] - before
    for slot in slots[::7]:
        index.set_thresholds(np.array([slot], np.int32), -np.inf)
        index.set_thresholds(np.array([slot], np.int32), 0.9)
    assert np.array_equal(floats, index.lists.view.node_floats)
    before = index.counters()["scanned"]
    found_by(index, batch)
    assert index.counters()["scanned"] - before <= usual * 1.2


def test_skype_churn_leaves_nothing_behind():
    rng = np.random.default_rng(14)
    index = Skype(SPACE, Pruning(**SMALL))
    sizes = []
    for step in range(30):
        slots = index.insert(table_of(rng, step * 500, 500))
        index.set_thresholds(slots, 0.7)
        found_by(index, messages_of(rng, 5))
        index.remove(slots)
        sizes.append(sum(array.nbytes for array in index.lists.arrays().values()))
    assert len(index) == 0 and max(sizes[10:]) <= 2 * max(sizes[:10]), sizes


class StaleCells(Skype):
    """Broken: lowers a threshold without telling the cells."""

    def set_thresholds(self, slots, thresholds):
        floats = self.lists.view.node_floats.copy()
        super().set_thresholds(slots, thresholds)
        self.lists.view.node_floats[:] = floats


class TightNodes(Skype):
    """Broken: one column of every node bounds too little."""

    column, by = 5, -0.1

    def match(self, batch, first_row=0, most_hits=1 << 21):
        self.lists.settle(self.subscriptions)
        self.lists.view.node_floats[:, self.column] += np.float32(self.by)
        found = super().match(batch, first_row, most_hits)
        self.lists.view.node_floats[:, self.column] -= np.float32(self.by)
        return found


class NoSignatures(Skype):
    """Broken: believes that no posting has later terms."""

    def match(self, batch, first_row=0, most_hits=1 << 21):
        self.lists.settle(self.subscriptions)
        self.lists.view.signature[:] = 0
        return super().match(batch, first_row, most_hits)


class LostFifth(Skype):
    """Broken: signatures forget that a subscription has more than four later terms."""

    def match(self, batch, first_row=0, most_hits=1 << 21):
        self.lists.settle(self.subscriptions)
        bytes_ = self.lists.view.signature.view(np.uint8)
        bytes_[bytes_ == skype_lists.ANY_TERM] = 0
        return super().match(batch, first_row, most_hits)


class EarlyStops(Skype):
    """Broken: the suffix maxima of a group know only their own posting."""

    def match(self, batch, first_row=0, most_hits=1 << 21):
        self.lists.settle(self.subscriptions)
        v = self.lists.view
        v.stop_base[: v.base.size] = v.base - 0.2
        return super().match(batch, first_row, most_hits)


class LongInner(Skype):
    """Broken: subscriptions seem farther from the side of their cell than they are."""

    def match(self, batch, first_row=0, most_hits=1 << 21):
        self.lists.settle(self.subscriptions)
        self.lists.view.inner[:] += np.float32(0.1)
        return super().match(batch, first_row, most_hits)


class ShortText(Skype):
    """Broken: the columns of one text bound are half of what they should be."""

    columns = ("own", "rest")

    def insert(self, table, posted=None):
        slots = super().insert(table, posted)
        for name in self.columns:
            getattr(self.lists.view, name)[:] *= np.float32(0.5)
        return slots


BROKEN = {
    "stale_cells": (StaleCells, Pruning(**SMALL)),
    "groups_and_cells_too_tight": (TightNodes, Pruning(**SMALL)),
    "envelope_too_tight": (type("Near", (TightNodes,), {"column": 6}), Pruning(**SMALL)),
    "slope_too_steep": (type("Steep", (TightNodes,), {"column": 4, "by": 0.3}), Pruning(**SMALL, envelope=False)),
    "box_too_far": (type("Box", (TightNodes,), {"column": 0, "by": 0.3}), Pruning(**SMALL)),
    "node_text_too_small": (type("Own", (TightNodes,), {"column": 8, "by": -0.2}), Pruning(**SMALL)),
    "no_signatures": (NoSignatures, Pruning(**SMALL)),
    "lost_fifth": (LostFifth, Pruning(**SMALL)),
    "early_stops": (EarlyStops, NONE._replace(early_stop=True)),
    "long_inner": (LongInner, NONE._replace(inner_outer=True)),
    "short_norms": (ShortText, NONE._replace(l2=True)),
    "short_sums": (type("Sums", (ShortText,), {"columns": ("total", "peak")}), NONE._replace(prefix=True)),
}


@pytest.mark.parametrize(("engine", "rules"), BROKEN.values(), ids=BROKEN)
def test_skype_broken_on_purpose_is_found_out(engine, rules):
    rng = np.random.default_rng(21)
    differing = 0
    for _ in range(4):
        index = engine(SPACE, rules)
        live = index.insert(table_of(rng, 0, 400))
        index.set_thresholds(live, 0.9)
        found_by(index, messages_of(rng, 1))
        index.set_thresholds(live, rng.choice([0.4, 0.6, 0.8], live.size))
        batch = messages_of(rng, 40)
        differing += found_by(index, batch) != brute_force(index.subscriptions, batch, live)
    assert differing, f"{engine.__name__} went unnoticed"


@pytest.mark.parametrize("forgetful", [False, True])
def test_skype_verification_needs_the_bound_of_unseen_terms(forgetful):
    rng = np.random.default_rng(22)
    index = Skype(SPACE, NONE._replace(unseen=True))
    live = index.insert(table_of(rng, 0, 200))
    index.set_thresholds(live, 0.5)
    batch, c = messages_of(rng, 30), index.subscriptions.columns
    lost = 0
    for slot, row in brute_force(index.subscriptions, batch, live):
        a, b = batch.term_offsets[row], batch.term_offsets[row + 1]
        terms, weights = batch.terms[a:b], batch.weights[a:b]
        first = next(t for t in terms if t in c.terms[c.term_start[slot] :][: c.term_count[slot]])
        norm, total = np.sqrt(np.cumsum((weights * weights)[::-1]))[::-1], np.cumsum(weights[::-1])[::-1]
        peak = np.maximum.accumulate(weights[::-1])[::-1]
        suffix = np.stack([np.append(column, 0) for column in (norm, total, peak)]).astype(np.float32)
        rest, sums, peaks = suffix * np.float32(not forgetful)
        lost += may_reach(c, slot, first, point_of(batch, row), terms, weights, rest, sums, peaks) != 1
    assert (lost > 0) == forgetful


def may_reach(*arguments) -> int:
    kernel: Any = skype_bounds.may_reach
    return kernel(*arguments)


def test_skype_tree_nodes_are_runs_that_cover_the_list():
    rng = np.random.default_rng(23)
    for rules in (Pruning(**SMALL), PAPER._replace(**SMALL)):
        index = Skype(SPACE, rules)
        index.insert(table_of(rng, 0, 700, terms=4))
        index.lists.settle(index.subscriptions)
        v = index.lists.view
        for term in range(4):
            ints = v.node_ints[v.node_start[term] :][: v.node_count[term]]
            groups = ints[ints[:, 2] == 1]
            assert groups[0, 0] == 0 and groups[-1, 1] == v.built[term] > 0
            assert all(a[1] == b[0] for a, b in pairwise(groups))
            assert (groups[:, 1] - groups[:, 0]).max() <= 3 and ints[0, 2] == len(ints)


def test_skype_signatures_bound_what_follows_in_a_message():
    rng = np.random.default_rng(31)
    signature_with: Any = skype_lists.signature_with
    suffixes: Any = skype_scan._suffixes
    norm_at: Any = skype_scan._norm_at
    tight = 0
    for _ in range(200):
        own = rng.choice(2000, rng.integers(0, 8), replace=False)
        signature = np.int32(0)
        for term in own.tolist():
            signature = signature_with(signature, term)
        bytes_ = np.array([signature], np.int32).view(np.uint8)
        assert np.count_nonzero(bytes_) == min(4, own.size)
        assert (skype_lists.ANY_TERM in bytes_) == (own.size > 4)
        others = rng.choice(2000, rng.integers(0, 9), replace=False)
        terms = np.unique(np.concatenate([others, own[: rng.integers(0, own.size + 1)]])).astype(np.int32)
        raw = rng.random(terms.size) + 0.01
        weights = (raw / max(1e-9, np.linalg.norm(raw))).astype(np.float32)
        offsets, counts = np.array([0, terms.size]), np.ones(terms.size, np.int32)
        text = {"term_offsets": offsets, "terms": terms, "weights": weights, "counts": counts}
        batch = MessageBatch(**(messages_of(rng, 1)._asdict() | text))
        stats, squares = np.empty((terms.size + 1, 3), np.float32), np.zeros((1, 256), np.uint8)
        suffixes(batch, 0, 1, stats, squares)
        norm, least = norm_at(squares, 0, signature), np.linalg.norm(weights[np.isin(terms, own)])
        assert norm >= least - 1e-6
        tight += norm < least + 0.1
    assert tight > 100, "a bound that is always large bounds nothing"


def test_skype_tree_over_points_a_step_of_rounding_apart_has_no_more_nodes_than_room():
    low = np.float32(0.75)
    x = np.array([low, np.nextafter(low, np.float32(1.0))] * 4, np.float32)
    assert (x[0] + x[1]) * np.float32(0.5) == low, "so that a quadrant takes all"
    same, none = np.full(8, low), np.zeros(0, np.float32)
    plane = [(x, same, none), (same, x, none), (x, x, none)]
    for points in (*plane, (same, same, x), (x, same, x), (x, x, x)):
        ones, text = np.ones(8, np.float32), np.ones((8, 4), np.float32)
        order = np.empty(8, np.int32)
        alpha, width = (ones, SPHERE_FLOATS) if points[2].size else (none, FLOATS)
        floats, ints = np.zeros((200, width), np.float32), np.zeros((200, INTS), np.int32)
        build: Any = build_tree
        for adaptive in (False, True):
            shape = TreeShape(adaptive, 3, 3, True)
            nodes = build(*points, ones, ones, alpha, text, order, floats, ints, shape, envelope_places())
            assert nodes <= 2 * 8 and sorted(order) == list(range(8))


def test_skype_batch_from_the_object_store_needs_no_kernel_of_its_own():
    rng = np.random.default_rng(9)
    index = Skype(SPACE)
    index.insert(table_of(rng, 0, 20))
    batch = messages_of(rng, 5)
    index.match(batch)
    kernel: Any = skype_scan.scan
    before = len(getattr(kernel, "signatures", ()))  # none where the compiler is off
    read_only = MessageBatch(*(np.frombuffer(column.tobytes(), column.dtype).reshape(column.shape) for column in batch))
    assert not read_only.seq.flags.writeable
    index.match(read_only)
    assert len(getattr(kernel, "signatures", ())) == before


@pytest.mark.parametrize("capacity", [1 << 17, 50])
def test_skype_scans_messages_flat_while_nearly_everybody_is_a_candidate(capacity):
    rng, index = np.random.default_rng(8), Skype(SPACE)
    index.insert(table_of(rng, 0, 4_000))
    # in the midst of it some leave, whose tombstones stay in the lists, and some come, who lie in their tails
    for step, threshold in enumerate((-np.inf, -np.inf, -np.inf, 0.4, 0.95, -np.inf)):
        if step == 1:
            index.remove(rng.choice(index.subscriptions.live_slots(), 700, replace=False))
        elif step == 2:
            index.insert(table_of(rng, 5_000, 300))
        flat, standing = threshold < 0.9, index.subscriptions.live_slots()
        index.set_thresholds(standing, threshold)
        index._hits = HitBuffer(1, capacity)
        for _ in range(2):  # the first leaves the way of the step before
            batch = messages_of(rng, 60)
            batch = batch.take(np.flatnonzero(np.diff(batch.term_offsets) > 3)[:6])  # few words, few candidates
            expected = brute_force(index.subscriptions, batch, standing)
            assert len(expected) > (3_000 if flat else 0), "a step in which nobody is hit proves nothing"
            assert found_by(index, batch) == expected, f"step {step}"
        assert (int(index._chunk[0]) == 0) is flat, f"step {step}"


@pytest.mark.parametrize("largest", [0, 1, 255, 256, 70_000, 2**31 - 1])
def test_skype_orders_places_by_their_keys_and_keeps_those_of_equal_ones(largest):
    rng = np.random.default_rng(41)
    in_order: Any = skype_verify.in_order
    for rows in (0, 1, 2, 900):
        keys = rng.integers(0, largest + 1, max(1, rows), dtype=np.int64).astype(np.int32)
        places = rng.permutation(keys.size)[:rows]
        before = places.copy()
        assert np.array_equal(in_order(keys, places), before[np.argsort(keys[before], kind="stable")])
        assert np.array_equal(places, before), "they are the caller's"


def test_skype_brings_slots_into_order_without_comparing_them():
    rng = np.random.default_rng(42)
    ascend: Any = skype_verify._ascend
    for rows, capacity in ((0, 5), (1, 1), (1, 5), (5, 5), (300, 2_000), (2_000, 2_000)):
        slots = rng.permutation(capacity)[:rows].astype(np.int32)
        expected = np.sort(slots)
        ascend(slots, capacity)
        assert np.array_equal(slots, expected)
