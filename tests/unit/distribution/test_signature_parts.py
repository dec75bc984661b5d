"""The two halves of a signature and both its sides: nothing that matters is ever kept back, and patches keep copies
equal to the bit."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distribution.signatures import claims as claims_module
from distribution.signatures import signature as signature_module
from distribution.signatures.claims import Claims, claims_of, claims_of_rows
from distribution.signatures.minwise import nodes_down_to
from distribution.signatures.patches import SignaturePatch
from distribution.signatures.signature import QuerySignature, SignatureBoard, SignatureReplica, SignatureSpec
from distribution.signatures.spatial import (
    Boxes,
    CellBitmap,
    CellCounts,
    CellNumbering,
    cells_of,
    region_boxes,
    whole_domain,
)
from distribution.signatures.text import claimed_pairs, message_pairs
from matching.errors import ConfigError, EngineError
from matching.model import ANY_KEYWORD, BOOLEAN, SKYLINE, TOPK, UNKNOWN_TERM, MessageBatch
from matching.naive import common_terms, skyline_scores
from matching.naive_rows import messages_of, subscriptions_of
from matching.space import Space
from matching.storage.region_subscriptions import RegionSubscriptions
from tests.support.signature_tables import (
    SMALL,
    SPACE,
    change,
    claims_in,
    in_touch,
    matching,
    no_claims,
    random_messages,
    random_subscriptions,
    room_of_boolean,
)

LOSSLESS = [
    SMALL._replace(text=text, spatial_filter=spatial, text_filter=words)
    for spatial, (text, words) in itertools.product(
        ("bitmap", "cuckoo"), ((False, "cuckoo"), (True, "cuckoo"), (True, "minwise"))
    )
]
QUARTER = np.array([[True, False], [False, False]])  # the south-west


def name(spec: SignatureSpec) -> str:
    return f"{spec.spatial_filter}-{spec.text_filter if spec.text else 'none'}"


# -- spatial


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.booleans())
def test_cells_of_regions_contain_every_message_that_touches_them(seed, ranges):
    table, messages = random_subscriptions(seed, 12, kinds=(SKYLINE, BOOLEAN)), random_messages(seed, 40, ranges)
    replica = SignatureReplica(SMALL._replace(text=False), whole_domain())
    replica.note(0, claims_of(table))
    passed = replica.may_match(messages)
    assert not np.any(matching(table, messages) & ~passed)


def test_cells_border_belongs_to_both_sides_and_no_further():
    boxes = region_boxes(Space(0.0, 0.0, 16.0, 16.0), np.array([[4.0, 4.0, 8.0, 8.0], [4.5, 4.5, 7.5, 7.5]]), 16)
    assert boxes.cells.tolist() == [[3, 3, 8, 8], [4, 4, 7, 7]]


def test_cells_region_across_the_antimeridian_is_two_boxes():
    boxes = region_boxes(SPACE, np.array([[170.0, 0.0, -170.0, 10.0], [0.0, 0.0, 1.0, 1.0]]), 16)
    assert boxes.row.tolist() == [0, 0, 1]
    counts = CellCounts(CellNumbering(16, whole_domain()))
    counts.add(boxes)
    assert set((counts.items() % 16).tolist()) == {0, 15, 7, 8}  # 0 degrees is a border, so cell 7 as well


def test_cells_outside_the_domain_are_not_counted():
    square = Space(0.0, 0.0, 16.0, 16.0)
    everywhere = region_boxes(square, np.array([[0.0, 0.0, 16.0, 16.0]]), 16)
    south_west, rest = CellCounts(CellNumbering(16, QUARTER)), CellCounts(CellNumbering(16, ~QUARTER))
    for counts in (south_west, rest):
        counts.add(everywhere)
    assert south_west.items().tolist() == list(range(8 * 8))
    assert rest.items().tolist() == list(range(3 * 8 * 8))
    box = region_boxes(square, np.array([[0.5, 0.5, 0.5, 0.5]]), 16)  # cell 0 alone
    assert [cells_of(box, 1, counts.numbering)[1].tolist() for counts in (south_west, rest)] == [[0], []]
    with pytest.raises(ConfigError, match="does not divide"):
        CellNumbering(16, np.ones((3, 3), np.bool_))


@pytest.mark.parametrize("domain", [whole_domain(), QUARTER], ids=["world", "quarter"])
def test_cells_of_many_wide_boxes_are_counted_together_as_one_by_one(domain):
    rng = np.random.default_rng(2)
    low = rng.integers(0, 16, (200, 2))
    boxes = Boxes(np.arange(200), np.concatenate([low, low + rng.integers(0, 16 - low)], axis=1).astype(np.int32))
    singly, together = CellCounts(CellNumbering(16, domain)), CellCounts(CellNumbering(16, domain))
    for step in ("add", "subtract", "add"):
        rows = slice(None) if step == "add" else slice(0, 150)
        part = Boxes(boxes.row[rows], boxes.cells[rows])
        getattr(together, step)(part)
        for i in range(part.row.size):
            getattr(singly, step)(Boxes(part.row[i : i + 1], part.cells[i : i + 1]))
        assert np.array_equal(singly.counts, together.counts) and together.counts.max() > 4
        assert singly.changed() == together.changed() is True
        assert [part.tolist() for part in singly.pop_changes()] == [part.tolist() for part in together.pop_changes()]
        if step == "add":
            together.add(boxes)
            assert not together.changed(), "every cell was there before"
            together.subtract(boxes)
            assert not together.changed(), "and is there still"
    with pytest.raises(EngineError, match="not added as often"):
        together.subtract(Boxes(np.arange(2000), np.tile(boxes.cells, (10, 1))))


def test_cells_subtracted_more_often_than_added_are_refused():
    boxes = region_boxes(SPACE, np.array([[0.0, 0.0, 10.0, 10.0]]), 16)
    counts = CellCounts(CellNumbering(16, whole_domain()))
    counts.add(boxes)
    counts.subtract(boxes)
    assert [part.size for part in counts.pop_changes()] == [0, 0]
    with pytest.raises(EngineError, match="not added as often"):
        counts.subtract(boxes)


def test_cells_of_a_message_over_half_the_world_let_it_through_unseen():
    spec = SMALL._replace(side=1024)
    boxes = region_boxes(SPACE, np.array([[-170.0, -80.0, 170.0, 80.0]]), spec.side)
    offsets, items, beyond = cells_of(boxes, 1, CellNumbering(spec.side, whole_domain()))
    assert (offsets.tolist(), items.size, beyond.tolist()) == ([0, 0], 0, [True])


@pytest.mark.parametrize("side", [16, 1024], ids=["by its cells", "beyond them"])
@pytest.mark.parametrize("words", [1, 5000], ids=["by its pairs", "beyond them"])
def test_signature_lets_messages_as_wide_as_the_world_through(side, words):
    """However many cells and pairs a message has, and though they are not looked at, it reaches who waits for it."""
    spec = SMALL._replace(side=side)
    one = np.zeros(1, np.int64)
    west, south, east, north = (np.array([side]) for side in (-180.0, -90.0, 180.0, 90.0))
    terms, weights = np.arange(words, dtype=np.int32), np.ones(words, np.float32)
    middle = np.full(1, 0.5)
    everywhere = MessageBatch(
        one, middle, middle, west, south, east, north, one, np.array([0, words]), terms, weights
    )  # fmt: skip
    query, replica = in_touch(spec)
    claims = Claims(np.array([[10.0, 10.0, 11.0, 11.0]]), np.array([0, 1]), np.zeros(1, np.int32))
    query.change(claims, no_claims())
    patch = query.patch(0, noted=False)
    assert patch is not None
    replica.apply(patch)
    assert replica.may_match(everywhere).tolist() == [True]


@settings(deadline=None)
@given(st.sets(st.integers(0, 99)), st.sets(st.integers(0, 99)))
def test_bitmap_is_the_set_itself(first, second):
    made = CellBitmap(100)
    made.insert(np.array(sorted(first), np.int64))
    going = np.array(sorted(first & second), np.int64)
    made.delete(going)
    assert set(np.flatnonzero(made.contains(np.arange(100))).tolist()) == first - second
    assert len(made) == len(first - second)
    if going.size:
        with pytest.raises(EngineError, match="never inserted"):
            made.delete(going)


# -- text


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.booleans(), st.integers(0, 4))
def test_pairs_of_a_match_are_shared(seed, ranges, levels):
    """Whatever the tree, a message and a subscription that it matters to have a (node, keyword) in common."""
    table, messages = random_subscriptions(seed, 10), random_messages(seed, 30, ranges)
    spec = SMALL._replace(levels=levels)
    for row in range(len(table)):
        alone = table.take(np.array([row]))
        replica = SignatureReplica(spec, whole_domain())
        replica.note(0, claims_of(alone))
        assert not np.any(matching(alone, messages) & ~replica.may_match(messages))


def test_pairs_rectangle_is_in_at_most_four_nodes_of_the_finest_level_that_fits():
    used = np.zeros(4, np.int64)
    region = np.array([[1.0, 1.0, 1.5, 1.5], [1.0, 1.0, 5.0, 1.5], [0.5, 0.5, 15.5, 15.5]])
    boxes = region_boxes(Space(0.0, 0.0, 16.0, 16.0), region, 16)
    pairs = claimed_pairs(boxes, 16, 3, np.arange(4), np.array([3, 4, 5], np.int32), used, 1)
    assert used.tolist() == [0, 1, 1, 1]
    assert np.bincount(pairs & (2**31 - 1)).tolist()[3:] == [1, 2, 4]
    assert (pairs >> 31).max() < nodes_down_to(3)
    claimed_pairs(boxes, 16, 3, np.arange(4), np.array([3, 4, 5], np.int32), used, -1)
    assert not used.any()


def test_pairs_unused_levels_are_not_asked_and_wide_messages_pass():
    boxes = region_boxes(SPACE, np.array([[0.5, 0.5, 1.0, 1.0], [-170.0, -80.0, 170.0, 80.0]]), 64)
    offsets, pairs, beyond = message_pairs(boxes, 64, 6, np.array([0, 2, 12]), np.arange(12, dtype=np.int32), 0b1000001)
    assert np.diff(offsets).tolist() == [4, 0]
    assert beyond.tolist() == [False, True]
    assert pairs.size == 4


# -- claims


def test_claims_all_of_boolean_by_the_rarest_and_any_of_skyline_by_each():
    table = random_subscriptions(4, 200)
    claims = claims_of(table)
    texts = [table.terms[a:b].tolist() for a, b in itertools.pairwise(table.term_offsets.tolist())]
    expected = []
    for text, kind, match in zip(texts, table.kind, table.match, strict=True):
        every = kind == BOOLEAN and match != ANY_KEYWORD
        known = [term for term in text if term != UNKNOWN_TERM]
        if known and not (every and known != text):
            expected.append(known[:1] if every else known)
    assert {len(text) for text in expected} == {1, 2, 3}
    got = [claims.terms[a:b].tolist() for a, b in itertools.pairwise(claims.term_offsets.tolist())]
    assert got == expected and 100 < len(got) < 200


def test_claims_from_rows_and_rooms_equal_those_from_the_table():
    table = random_subscriptions(5, 100, kinds=(BOOLEAN,), loose=0.0)
    rows = RegionSubscriptions()
    rows.insert(table)
    loose = type(table)(**(table._asdict() | {"match": np.full(100, ANY_KEYWORD, np.int8)}))
    for one, other in zip(claims_of(_known(loose)), claims_of_rows(rows, table.number), strict=True):
        assert np.array_equal(one, other)
    operator = room_of_boolean()
    change(operator, 0, table, table.number[:0])
    for one, other in zip(claims_of(table), claims_in(operator, table.number), strict=True):
        assert np.array_equal(one, other)
    assert 50 < operator.claims(table.number)[1].size < 100


def _known(table):
    """The rows without an unknown keyword, which an engine's rows keep nothing of."""
    last = table.terms[np.maximum(table.term_offsets[1:] - 1, 0)]
    return table.take(np.flatnonzero(last != UNKNOWN_TERM))


@pytest.mark.parametrize("kinds", [(BOOLEAN,), (SKYLINE,), (BOOLEAN, SKYLINE, TOPK)])
def test_signature_follows_a_room_through_additions_and_removals(kinds):
    table, operator = random_subscriptions(9, 200, kinds=kinds), room_of_boolean()
    signature, replica = in_touch(SMALL)
    rng, live = np.random.default_rng(1), np.zeros(0, np.int64)
    for batch in range(10):
        coming, going = np.arange(batch * 20, batch * 20 + 20), live[rng.random(live.size) < 0.4]
        signature.follow(table.take(coming), going, claims_in(operator, going))
        change(operator, batch, table.take(coming), going)
        live = np.concatenate([np.setdiff1d(live, going), coming[table.kind[coming] != TOPK]])
        replica.apply(signature.patch(batch, noted=True))
        messages = random_messages(batch, 100)
        assert not np.any(matching(table.take(live), messages) & ~replica.may_match(messages))
    signature.follow(table.take(live[:0]), live, claims_in(operator, live))
    assert (len(signature.summary.cells), len(signature.summary.pairs)) == (0, 0)


def test_signature_of_skyline_lets_candidates_and_their_ends_through_wherever_their_centre_is():
    """A skyline looks at the centre of a range message alone, a signature at its whole rectangle."""
    for seed in range(4):
        table = random_subscriptions(seed, 40, kinds=(SKYLINE,), terms=12)
        messages = random_messages(seed, 150, ranges=True, terms=12)
        candidates = np.zeros(150, np.bool_)
        for message in messages_of(messages):
            candidates[message.seq] = any(
                common_terms(one, message) and skyline_scores(one, message) is not None
                for one in subscriptions_of(table)
                if one.weights
            )
        board = SignatureBoard(SMALL, [whole_domain()])
        board.change(table, lambda rows, task: np.ones(len(rows), np.bool_))
        rows = np.arange(150)
        travelling = board.wanted(messages, rows, 0)
        signature = QuerySignature(SMALL, whole_domain(), 0)
        signature.follow(table, np.zeros(0, np.int64), no_claims())
        board.apply(signature.patch(0, noted=True))
        ended = board.wanted(messages, rows, 0, counted=False)
        assert (
            np.isin(np.flatnonzero(candidates), travelling).all() and np.isin(np.flatnonzero(candidates), ended).all()
        )
        assert 10 < np.count_nonzero(candidates) <= ended.size < 150
        assert board.queried == 150, "what was ended is not counted as messages"


def test_signature_of_one_skyline_keyword_alone_would_lose_candidates(monkeypatch):
    """What a boolean subscription claims, its rarest keyword, is not enough for one that wants any."""
    for module in (claims_module, signature_module):
        monkeypatch.setattr(module, "is_loose", lambda table, traits: np.zeros(len(table), np.bool_))
    table, messages = random_subscriptions(1, 60, kinds=(SKYLINE,)), random_messages(1, 200)
    signature, replica = in_touch(SMALL)
    signature.change(claims_of(table), no_claims())
    replica.apply(signature.patch(0, noted=True))
    assert np.any(matching(table, messages) & ~replica.may_match(messages))


# -- both sides


def history(seed: int, spec: SignatureSpec, steps: int, lag: int, ranges: bool = False, domain=None):
    """Changes and patches in any order that links allow; yields what lives, what may match, and both sides.

    A patch arrives up to `lag` lists late, now and then before the list it goes to.
    """
    rng = np.random.default_rng(seed)
    signature, replica = in_touch(spec, domain)
    table = random_subscriptions(seed, 300)
    live: list[int] = []
    on_the_way: list[SignaturePatch] = []
    for batch in range(steps):
        coming = np.arange(batch * 10, batch * 10 + rng.integers(0, 11))
        going = np.array(
            [live.pop(int(rng.integers(len(live)))) for _ in range(int(rng.integers(0, len(live) + 1)) // 2)]
        )
        going = going.astype(np.int64)
        staying = coming[rng.random(coming.size) < 0.8]  # the others leave in the batch in which they came
        if batch and rng.random() < 0.5 and len(on_the_way) > lag:
            replica.apply(on_the_way.pop(0))
        replica.note(batch, claims_of(table.take(coming)))
        yield table.take(np.array(sorted([*live, *coming, *going]), np.int64)), signature, replica
        live += staying.tolist()
        signature.change(claims_of(table.take(staying)), claims_of(table.take(going)))
        patch = signature.patch(batch, noted=coming.size > 0)
        if patch is not None:
            on_the_way.append(patch)
        while on_the_way and (len(on_the_way) > lag + 1 or rng.random() < 0.3):
            replica.apply(on_the_way.pop(0))
    while on_the_way:
        replica.apply(on_the_way.pop(0))
    yield table.take(np.array(sorted(live), np.int64)), signature, replica


@pytest.mark.parametrize("spec", LOSSLESS, ids=name)
@pytest.mark.parametrize("ranges", [False, True], ids=["points", "ranges"])
def test_signature_while_patches_travel_misses_nothing(spec, ranges):
    kept_back = 0
    for seed, lag in itertools.product(range(3), (0, 3)):
        messages = random_messages(seed, 60, ranges)
        for live, _, replica in history(seed, spec, 20, lag, ranges):
            passed = replica.may_match(messages)
            assert not np.any(matching(live, messages) & ~passed), f"seed {seed}, lag {lag}"
            kept_back += int(np.count_nonzero(~passed))
    assert kept_back > 100, "a filter that lets everything through proves nothing"


@pytest.mark.parametrize("spec", LOSSLESS, ids=name)
def test_signature_copies_are_equal_to_the_bit_and_end_as_made_anew(spec):
    for seed in range(3):
        *_, (live, signature, replica) = history(seed, spec, 25, 2)
        for mine, copy in zip(signature.filters(), (replica.cells, replica.pairs), strict=True):
            for key, array in mine.arrays().items() if mine is not None else ():
                assert np.array_equal(array, copy.arrays()[key]), key
        assert replica.noted_claims == 0
        fresh, copy = in_touch(spec)
        fresh.change(claims_of(live), no_claims())
        copy.apply(fresh.patch(0, noted=False))
        if spec.text_filter == "cuckoo":  # min-wise bins keep what was deleted
            assert len(copy.cells) == len(replica.cells)
        messages = random_messages(seed, 300)
        more = replica.may_match(messages) & ~copy.may_match(messages)
        assert more.mean() < (0.02 if spec.text_filter == "cuckoo" else 0.5)


def test_signature_small_changes_travel_as_changes_and_growth_as_a_whole():
    spec = SMALL._replace(side=256, spatial_filter="cuckoo")
    signature, replica = in_touch(spec)
    claims = claims_of(random_subscriptions(1, 3000, terms=1000))
    signature.change(claims, no_claims())
    first = signature.patch(0, noted=True)
    signature.change(no_claims(), claims.take(np.arange(20)))
    second = signature.patch(1, noted=False)
    assert (first.cells.whole, first.pairs.whole) == (True, True)
    assert (second.cells.whole, second.pairs.whole) == (False, False)
    assert second.nbytes() < first.nbytes() / 5
    assert signature.patch(2, noted=False) is None
    assert signature.patch(2, noted=True) is not None, "whoever noted something waits for a patch"
    signature.change(no_claims(), claims.take(np.arange(20, claims.rows)))
    last = signature.patch(3, noted=False)
    assert last.cells.whole and last.nbytes() < first.nbytes() / 5, "an almost empty filter is made anew, and smaller"
    for patch in (first, second):
        replica.apply(patch)
    assert not replica.may_match(random_messages(1, 100)).all()


def test_signature_takes_out_only_what_it_took_in():
    signature, _ = in_touch(SMALL)
    claims = claims_of(random_subscriptions(2, 20))
    signature.change(claims, no_claims())
    with pytest.raises(EngineError, match="not added as often"):
        signature.change(no_claims(), claims.take(np.array([0, 0])))


def test_replica_missing_patch_is_noticed():
    signature, replica = in_touch(SMALL)
    claims = claims_of(random_subscriptions(2, 20))
    signature.change(claims.take(np.arange(5)), no_claims())
    signature.patch(0, noted=True)
    signature.change(claims.take(np.arange(5, 10)), no_claims())
    with pytest.raises(EngineError, match="patch 1 came after -1"):
        replica.apply(signature.patch(1, noted=True))


def test_replica_note_of_a_list_that_a_patch_covers_is_not_kept():
    signature, replica = in_touch(SMALL)
    claims = claims_of(random_subscriptions(2, 20))
    signature.change(claims, no_claims())
    signature.change(no_claims(), claims)
    replica.apply(signature.patch(0, noted=True))
    replica.note(0, claims)
    assert replica.noted_claims == 0
    assert not replica.may_match(random_messages(1, 50)).any()


def test_board_asks_only_the_task_it_is_asked_for():
    board = SignatureBoard(SMALL._replace(text=False), [QUARTER, ~QUARTER])
    table = random_subscriptions(3, 50, kinds=(BOOLEAN,))
    board.change(table, lambda added, task: np.full(len(added), task == 1))
    messages = random_messages(3, 100)
    rows = np.arange(0, 100, 2)
    assert board.wanted(messages, rows, 0).size == 0
    wanted = board.wanted(messages, rows, 1)
    assert 0 < wanted.size < 50 and np.isin(wanted, rows).all()
    assert board.describe() == {
        "signature_bytes": 0,
        "signature_patch_bytes": 0,
        "signature_queried": 100,
        "signature_kept_back": 100 - wanted.size,
    }
