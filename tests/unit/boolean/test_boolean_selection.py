"""Selection by an attribute: the same pairs as the oracle's, whoever comes and goes, from fewer postings."""

from typing import Any

import numpy as np
import pytest

from matching.attributes import MISSING_KEY, number_keys
from matching.boolean.engines.cell_term import CellTerm
from matching.boolean.selection import FIRST, MOST
from matching.conditions import ANY_OF, NONE_OF, PRESENT, WITHIN
from matching.filter_programs import WITHOUT, Instruction, joined_programs, program_of
from matching.model import MessageBatch, SubscriptionTable
from tests.support.boolean_tables import RESERVED, SPACE, batch, engine_pairs, oracle_pairs, table

EARTH = (-180.0, -90.0, 180.0, 90.0)
LEAST, LAST = MISSING_KEY + 1, np.iinfo(np.int64).max


def key(number: float) -> int:
    return int(number_keys(np.array([number]))[0])


def with_programs(rows: SubscriptionTable, programs: list[list[Instruction]]) -> SubscriptionTable:
    offsets, words = joined_programs([program_of(one) for one in programs])
    changed: Any = rows._asdict() | {"filter_offsets": offsets, "filter_words": words}
    return SubscriptionTable(**changed)


def random_program(rng: np.random.Generator) -> list[Instruction]:
    low, high = np.sort(rng.choice([-1e9, -3.5, 0.0, 1.0, 400.0, 450.5, 900.0, 1e12], 2))
    values = np.unique([key(one) for one in rng.integers(0, 6, rng.integers(1, 7))]).tolist()
    attribute = int(rng.integers(3))
    some = [
        Instruction(WITHIN, attribute, [key(low), key(high)]),
        Instruction(WITHIN, attribute, [key(low), LAST]),
        Instruction(WITHIN, attribute, [LEAST, key(high)]),
        Instruction(WITHIN, attribute, [key(3.0), key(3.0)]),
        Instruction(ANY_OF, attribute, values),
        Instruction(NONE_OF, attribute, values),
        Instruction(PRESENT, attribute, []),
        Instruction(WITHOUT, 0, [1, 2]),
    ]
    return [some[int(at)] for at in rng.choice(len(some), rng.integers(0, 4), replace=False)]


def world(seed: int, count: int = 150) -> tuple[SubscriptionTable, MessageBatch]:
    rng = np.random.default_rng(seed)
    west, south = rng.integers(-18, 10, count) * 10.0, rng.integers(-9, 5, count) * 10.0
    boxes = [EARTH if rng.random() < 0.5 else (w, s, w + 40.0, s + 30.0) for w, s in zip(west, south, strict=True)]
    words = [[RESERVED] if rng.random() < 0.7 else rng.choice(6, 2, replace=False).tolist() for _ in range(count)]
    loose = [words[at] != [RESERVED] and bool(rng.integers(2)) for at in range(count)]
    rows = with_programs(
        table(list(zip(boxes, words, strict=True)), loose=loose), [random_program(rng) for _ in range(count)]
    )
    places = [(float(lon), float(lat)) for lon, lat in rng.integers(-9, 9, (60, 2)) * 10]
    said = [sorted({*rng.integers(0, 6, rng.integers(0, 4)).tolist(), *([RESERVED] if rng.random() < 0.8 else [])})
            for _ in places]  # fmt: skip
    numbers = rng.choice([-1e9, -3.5, 0.0, 1.0, 2.0, 3.0, 4.0, 400.0, 420.0, 900.0, 1e12], (60, 3))
    keys = np.where(rng.random((60, 3)) < 0.2, MISSING_KEY, number_keys(numbers.reshape(-1)).reshape(60, 3))
    changed: Any = batch(list(zip(places, said, strict=True)))._asdict() | {"keys": keys}
    return rows, MessageBatch(**changed)


@pytest.mark.parametrize("seed", range(6))
def test_engine_that_selects_by_attributes_agrees_with_the_oracle_through_changes_and_restores(seed):
    rows, messages = world(seed)
    engine = CellTerm(SPACE)
    engine.insert(rows.take(np.arange(100)))
    assert engine_pairs(engine, messages) == oracle_pairs(rows.take(np.arange(100)), messages)
    engine.remove(engine.find(np.arange(0, 100, 3)))
    engine.insert(rows.take(np.arange(100, 150)))
    left = np.setdiff1d(np.arange(150), np.arange(0, 100, 3))
    wanted = oracle_pairs(rows.take(left), messages)
    assert len(wanted) > 100 and engine_pairs(engine, messages) == wanted
    saved = engine.table()
    assert saved.terms.max() == RESERVED and np.signbit(saved.weights[saved.terms == RESERVED]).all()
    assert np.array_equal(saved.match, rows.match[left])
    restored = CellTerm(SPACE)
    restored.insert(saved)
    assert engine_pairs(restored, messages) == wanted
    for again, before in zip(restored.table(), saved, strict=True):
        np.testing.assert_array_equal(again, before)


def test_engine_scans_what_has_the_value_or_lies_near_the_interval_and_not_all():
    count = 4_000
    programs = [[Instruction(ANY_OF, 0, [key(float(at))])] for at in range(count // 2)]
    programs += [[Instruction(WITHIN, 1, [key(10.0 * at), key(10.0 * at + 5.0)])] for at in range(1, count // 2 + 1)]
    rows = with_programs(table([(EARTH, [RESERVED])] * count), programs)
    engine = CellTerm(SPACE)
    engine.insert(rows)
    changed: Any = batch([((1.0, 1.0), [RESERVED])] * 50)._asdict()
    numbers = np.stack([np.arange(50) * 7.0, np.arange(50) * 131.0 + 3.0], axis=1)
    changed["keys"] = number_keys(numbers.reshape(-1)).reshape(50, 2)
    messages = MessageBatch(**changed)
    assert engine_pairs(engine, messages) == oracle_pairs(rows, messages)
    assert engine.match(messages).scanned < 50 * count / 20


def test_row_that_requires_many_values_or_a_wide_interval_stays_under_the_reserved_term():
    wide = [
        [Instruction(ANY_OF, 0, [key(float(at)) for at in range(MOST + 1)])],
        [Instruction(WITHIN, 0, [LEAST, key(900.0)])],
        [Instruction(PRESENT, 0, [])],
        [],
    ]
    engine = CellTerm(SPACE)
    given = with_programs(table([(EARTH, [RESERVED])] * 4), wide)
    assert engine._selection.of_subscriptions(given) is given
    narrow = with_programs(table([(EARTH, [RESERVED])]), [[Instruction(ANY_OF, 0, [7, 8])]])
    assert (engine._selection.of_subscriptions(narrow).terms >= FIRST).all()


def test_row_of_a_small_region_has_one_posting_and_crowded_cells_are_made_finer():
    """Eight thousand searches of one city: a message meets its corner, not the city, whatever interval they require."""
    rng, count = np.random.default_rng(3), 8_000
    west, south = (rng.normal(middle, 0.3, count) for middle in (2.35, 48.85))
    boxes = [(w, s, w + 0.03, s + 0.03) for w, s in zip(west.tolist(), south.tolist(), strict=True)]
    programs = [[Instruction(WITHIN, 0, [key(10.0 * at), key(10.0 * at + 5.0)])] for at in rng.integers(1, 90, count)]
    rows = with_programs(table([(box, [RESERVED]) for box in boxes]), programs)
    engine = CellTerm(SPACE)
    engine.insert(rows)
    assert engine._selection.of_subscriptions(rows) is rows and engine._engine_of_parts is None
    places = [(w + 0.01, s + 0.01) for w, s in zip(west[:500].tolist(), south[:500].tolist(), strict=True)]
    changed: Any = batch([(place, [RESERVED]) for place in places])._asdict()
    changed["keys"] = number_keys(10.0 * rng.integers(1, 90, 500)).reshape(-1, 1)
    messages = MessageBatch(**changed)
    assert len(wanted := oracle_pairs(rows, messages)) > 20 and engine_pairs(engine, messages) == wanted
    assert engine.match(messages).scanned < 500 * count / 8


def test_message_that_is_not_visible_gets_no_terms_of_attributes():
    engine = CellTerm(SPACE)
    engine.insert(with_programs(table([(EARTH, [RESERVED])]), [[Instruction(ANY_OF, 0, [7])]]))
    changed: Any = batch([((1.0, 1.0), [RESERVED]), ((1.0, 1.0), [1]), ((1.0, 1.0), [])])._asdict()
    changed["keys"] = np.array([[7], [7], [7]])
    assert engine_pairs(engine, MessageBatch(**changed)) == [(0, 0)]


def test_engine_names_the_reserved_term_as_the_rarest_of_those_that_an_attribute_selects():
    """A signature takes out what it was given, which knows nothing of an engine's terms."""
    one, some, none = [Instruction(ANY_OF, 0, [7])], [Instruction(ANY_OF, 0, [7, 8])], []
    engine = CellTerm(SPACE)
    rows = with_programs(table([(EARTH, [RESERVED])] * 3 + [(EARTH, [2, 4])]), [one, some, none, one])
    slots = engine.insert(rows)
    assert engine.rarest(slots).tolist() == [RESERVED] * 3 + [2]
    engine.remove(slots[:3])
    again = engine.insert(with_programs(table([(EARTH, [1, 3])], numbers=[9]), [one]))
    assert engine.rarest(again).tolist() == [1]
