"""What the cell-term index knows of conditions: marks beside postings, and equalities as keys of its blocks."""

import numpy as np
import pytest

from matching.attributes import MISSING_KEY
from matching.boolean.engines.cell_term import CellTerm
from matching.conditions import ABSENT, ANY_OF, NONE_OF, PRESENT, WITHIN
from matching.filter_programs import Instruction, joined_programs, program_of
from matching.model import MessageBatch, SubscriptionTable
from matching.storage import cell_keys
from matching.storage.cell_keys import BY_KEYWORD, number_of
from tests.support.boolean_tables import SPACE, batch, engine_pairs, oracle_pairs, table

HOUSTON = (-96.0, 29.0, -95.0, 30.0)
HERE = (-95.5, 29.5)
#: Terms that nearly all messages have, and a value that few have.
COMMON, OTHER, THIRD = 7, 8, 9
RARE = 5


def with_programs(rows: SubscriptionTable, *programs: list[Instruction]) -> SubscriptionTable:
    """The subscriptions with these filters, repeated for more rows."""
    made = [program_of(programs[row % len(programs)]) for row in range(len(rows))]
    filters = dict(zip(("filter_offsets", "filter_words"), joined_programs(made), strict=True))
    return SubscriptionTable(**(rows._asdict() | filters))


def with_values(messages: MessageBatch, *values: list[int]) -> MessageBatch:
    """The messages with these keys, repeated for more rows."""
    keys = np.array([values[row % len(values)] for row in range(len(messages))], np.int64)
    return MessageBatch(**(messages._asdict() | {"keys": keys}))


@pytest.fixture(autouse=True)
def few_counted(monkeypatch):
    """Eight messages decide what is rare."""
    monkeypatch.setattr(cell_keys, "COUNTED", 8)


@pytest.fixture
def engine():
    return CellTerm(SPACE)


def stream(count: int, *values: list[int], terms=(COMMON, OTHER, THIRD)) -> MessageBatch:
    return with_values(batch([(HERE, terms)] * count), *values)


def matched(engine: CellTerm, rows: SubscriptionTable, messages: MessageBatch) -> list[tuple[int, int]]:
    """What the engine finds, which must be what the oracle says."""
    found = engine_pairs(engine, messages)
    assert found == oracle_pairs(rows, messages)
    return found


def counted(engine: CellTerm, *values: list[int]) -> None:
    """Let the engine count messages, of which all but one have a value that no subscription wants."""
    engine.match(stream(8, *([[100] * len(values[0])] * 7), *values))


def under_values(engine: CellTerm) -> int:
    """Subscriptions that are posted under values."""
    return int(np.count_nonzero(engine.index.arrays().get("ordinal", np.zeros(0)) != BY_KEYWORD))


def test_cell_term_rare_value_of_a_common_keyword_is_what_is_looked_up(engine):
    rows = with_programs(table([(HOUSTON, [COMMON])] * 200), [Instruction(ANY_OF, 0, [RARE])])
    engine.insert(rows)
    assert engine.match(stream(2, [100])).scanned == 400
    counted(engine, [RARE])
    assert under_values(engine) == 200
    common = stream(2, [100], [RARE])
    assert len(matched(engine, rows, common)) == 200
    assert engine.match(common).scanned == 200  # the message with the value alone


def test_cell_term_subscription_that_comes_later_is_posted_under_its_value_at_once(engine):
    first = with_programs(table([(HOUSTON, [COMMON])] * 3), [Instruction(ANY_OF, 0, [RARE])])
    later = with_programs(table([(HOUSTON, [COMMON])] * 50, first=3), [Instruction(ANY_OF, 0, [RARE])])
    engine.insert(first)
    counted(engine, [RARE])
    engine.insert(later)
    assert under_values(engine) == 53
    assert engine.match(stream(1, [100])).scanned == 0


def test_cell_term_value_that_is_no_rarer_than_the_keyword_is_no_key(engine):
    engine.insert(with_programs(table([(HOUSTON, [COMMON])] * 50), [Instruction(ANY_OF, 0, [100])]))
    engine.match(stream(8, [100]))
    assert under_values(engine) == 0


def test_cell_term_list_of_values_gives_each_pair_once(engine):
    across = (170.0, -10.0, -170.0, 10.0)
    rows = with_programs(table([(across, [COMMON])] * 40), [Instruction(ANY_OF, 0, [4, RARE, 6])])
    engine.insert(rows)
    counted(engine, [RARE])
    assert under_values(engine) == 40
    places = [(175.0, 0.0), (-175.0, 0.0), (180.0, 0.0), (0.0, 0.0), (-180.0, -5.0, 180.0, 5.0)]
    for value in (4, RARE, 6, 7, MISSING_KEY):
        messages = with_values(batch([(place, [COMMON]) for place in places]), [value])
        assert len(matched(engine, rows, messages)) == (160 if value in (4, RARE, 6) else 0)


def test_cell_term_list_of_many_values_stays_under_its_keyword(engine):
    engine.insert(with_programs(table([(HOUSTON, [COMMON])] * 40), [Instruction(ANY_OF, 0, [1, 2, 3, 4, 5])]))
    counted(engine, [RARE])
    assert under_values(engine) == 0


def test_cell_term_value_is_not_mistaken_for_the_term_of_the_same_number(engine):
    valued = [Instruction(ANY_OF, 0, [RARE])]
    rows = table([(HOUSTON, [RARE])] * 2 + [(HOUSTON, [COMMON])] * 3)
    rows = with_programs(rows, [], [], valued, valued, valued)
    engine.insert(rows)
    counted(engine, [RARE])
    assert under_values(engine) == 3
    assert matched(engine, rows, stream(1, [RARE])) == [(2, 0), (3, 0), (4, 0)]
    assert matched(engine, rows, stream(1, [100], terms=(RARE, COMMON))) == [(0, 0), (1, 0)]


def test_cell_term_list_of_values_that_share_a_number_has_one_posting(engine):
    # The highest bits of a key are left out of a number.
    rows = with_programs(table([(HOUSTON, [COMMON])] * 40), [Instruction(ANY_OF, 0, [RARE, RARE + 2**62])])
    engine.insert(rows)
    counted(engine, [RARE])
    assert under_values(engine) == 40
    assert len(matched(engine, rows, stream(2, [RARE], [RARE + 2**62]))) == 80
    engine.remove(engine.find(np.arange(39)))
    assert engine_pairs(engine, stream(2, [RARE], [RARE + 2**62])) == [(39, 0), (39, 1)]


def test_cell_term_values_that_share_a_number_give_each_pair_once(engine):
    # Of two attributes: a number mixes key and attribute.
    same = RARE ^ int(number_of(1, 0) ^ number_of(0, 0))
    assert number_of(0, RARE) == number_of(0, RARE + 2**62) == number_of(1, same) != number_of(1, RARE)
    rows = with_programs(
        table([(HOUSTON, [COMMON])] * 42),
        [Instruction(ANY_OF, 0, [RARE, RARE + 2**62])],
        [Instruction(ANY_OF, 1, [same])],
        [Instruction(ANY_OF, 0, [3, RARE])],
    )
    engine.insert(rows)
    counted(engine, [RARE, 100])
    assert under_values(engine) == 42
    found = matched(engine, rows, stream(4, [RARE, same], [RARE, 0], [0, same], [3, same]))
    assert len(found) == len(set(found)) == 42 + 28 + 14 + 28


def test_cell_term_subscription_under_a_value_needs_all_its_keywords(engine):
    wanted = [[COMMON], [COMMON, OTHER], [COMMON, OTHER, THIRD], [COMMON, OTHER, THIRD, 10]]
    rows = with_programs(table([(HOUSTON, terms) for terms in wanted * 12]), [Instruction(ANY_OF, 0, [RARE])])
    engine.insert(rows)
    engine.match(stream(8, [100], terms=(*range(7, 11),)))
    assert under_values(engine) == 48
    for has in ([COMMON], [COMMON, THIRD], [COMMON, OTHER], [COMMON, OTHER, 10], [COMMON, OTHER, THIRD], [OTHER]):
        assert len(matched(engine, rows, stream(1, [RARE], terms=has))) == 12 * sum(
            set(terms) <= set(has) for terms in wanted
        )


def test_cell_term_subscription_under_a_value_leaves_and_comes_back(engine):
    rows = with_programs(table([(HOUSTON, [COMMON])] * 90), [Instruction(ANY_OF, 0, [RARE, 6])], [])
    engine.insert(rows)
    counted(engine, [RARE])
    assert under_values(engine) == 45
    engine.remove(engine.find(np.arange(0, 90, 3)))
    left = rows.take(np.flatnonzero(np.arange(90) % 3))
    assert len(matched(engine, left, stream(2, [RARE], [100]))) == 30 + 60
    engine.insert(rows.take(np.arange(0, 90, 3)))
    assert len(matched(engine, rows, stream(2, [RARE], [100]))) == 90 + 45
    restored = CellTerm(SPACE)
    restored.insert(engine.table())
    assert len(matched(restored, rows, stream(2, [RARE], [100]))) == 90 + 45
    counted(restored, [RARE])
    assert len(matched(restored, rows, stream(2, [RARE], [100]))) == 90 + 45


def test_cell_term_removal_of_what_waits_for_its_release_is_not_posted_again(engine):
    engine.insert(with_programs(table([(HOUSTON, [COMMON])] * 9), [Instruction(ANY_OF, 0, [RARE])]))
    slots = engine.find(np.arange(4))
    engine.withdraw(slots)
    counted(engine, [RARE])
    engine.release(slots)
    assert [number for number, _ in engine_pairs(engine, stream(1, [RARE]))] == [4, 5, 6, 7, 8]


def test_cell_term_mark_drops_postings_whose_conditions_fail(engine):
    rows = with_programs(
        table([(HOUSTON, [COMMON])] * 400), *[[Instruction(WITHIN, 0, [10 * low, 10 * low + 9])] for low in range(20)]
    )
    engine.insert(rows)
    messages = stream(20, *[[10 * low + 3] for low in range(20)])
    assert len(matched(engine, rows, messages)) == 400
    hits = engine.match(messages)
    assert hits.scanned == 8_000 and hits.verified == 400


@pytest.mark.parametrize("attributes", [1, 2, 5])
def test_cell_term_mark_of_any_condition_loses_nothing(engine, attributes):
    values = [MISSING_KEY, MISSING_KEY + 1, -(2**40), -1, 0, 1, 2, 3, 50, 2**40, 2**63 - 1]
    conditions = []
    for attribute in range(attributes):
        for low in values[1:]:
            conditions += [Instruction(WITHIN, attribute, [low, high]) for high in (low, 3, 2**63 - 1)]
        conditions += [Instruction(ANY_OF, attribute, sorted(some)) for some in ([0], [1, 50], [-1, 2, 2**40])]
        conditions += [Instruction(NONE_OF, attribute, [0, 3])]
        conditions += [Instruction(PRESENT, attribute, []), Instruction(ABSENT, attribute, [])]
    pairs = zip(conditions, np.random.default_rng(5).permutation(len(conditions)).tolist(), strict=True)
    programs = [[one] for one in conditions] + [[one, conditions[other]] for one, other in pairs]
    rows = with_programs(table([(HOUSTON, [COMMON])] * len(programs)), *programs)
    engine.insert(rows)
    rng = np.random.default_rng(6)
    own = [np.array(values)[rng.integers(0, len(values), attributes)].tolist() for _ in range(60)]
    assert len(matched(engine, rows, stream(60, *own))) > 500
    short = with_values(stream(1, [0]), [0])  # a batch that has fewer attributes lacks the others
    assert matched(engine, rows, short)


def test_cell_term_lanes_are_chosen_anew_when_filters_double(engine):
    engine.insert(table([(HOUSTON, [COMMON])] * 50))
    first = with_programs(table([(HOUSTON, [COMMON])] * 50, first=50), [Instruction(PRESENT, 0, [])])
    engine.insert(first)
    second = with_programs(
        table([(HOUSTON, [COMMON])] * 200, first=100), *[[Instruction(WITHIN, 1, [one, one])] for one in range(4)]
    )
    engine.insert(second)
    hits = engine.match(stream(1, [5, 3]))
    assert hits.verified == hits.matched == 150
    engine.remove(engine.find(np.arange(0, 300, 2)))
    assert engine.match(stream(1, [5, 3])).matched == 100


def test_cell_term_without_filters_has_neither_marks_nor_keys(engine):
    engine.insert(table([(HOUSTON, [COMMON])] * 50))
    engine.match(stream(10, [RARE]))
    assert not {"mark", "ordinal", "counted"} & engine.index.arrays().keys()
    engine.insert(with_programs(table([(HOUSTON, [COMMON])] * 2, first=50), [Instruction(ANY_OF, 0, [RARE])]))
    assert engine.index.arrays()["mark"].shape == engine.index.arrays()["link"].shape
