"""Boolean engines with filters against the oracle through any order of changes, and marks against single conditions."""

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from matching.attributes import MISSING_KEY
from matching.boolean.engines.cell_term import CellTerm
from matching.conditions import ABSENT, ANY_OF, NONE_OF, PRESENT, WITHIN
from matching.filter_programs import Instruction, joined_programs, program_of
from matching.filters import FilterStore
from matching.model import SubscriptionTable
from matching.naive_filters import holds, instructions_of
from matching.storage.marks import Marker
from tests.property import test_boolean_engines as plain
from tests.support.boolean_tables import SPACE, batch, engine_pairs, oracle_pairs, table
from tests.support.filters import filter_rows, with_keys

_LAST = 2**63 - 1
FEW = st.integers(0, 4)
#: Keys at both ends, of both signs, and close together.
MANY = st.one_of(
    st.integers(-40, 40),
    st.sampled_from([MISSING_KEY + 1, MISSING_KEY + 2, -(2**62), 2**62, _LAST - 1, _LAST]),
)


@st.composite
def conditions(draw, keys):
    """An instruction about one of six attributes, of which four are marked at most."""
    operation, attribute = draw(st.sampled_from([WITHIN, ANY_OF, NONE_OF, PRESENT, ABSENT])), draw(st.integers(0, 5))
    if operation == WITHIN:
        return Instruction(operation, attribute, [draw(keys), draw(keys)])
    if operation in (ANY_OF, NONE_OF):
        return Instruction(operation, attribute, sorted(draw(st.sets(keys, min_size=1, max_size=20))))
    return Instruction(operation, attribute, [])


def marked(programs):
    """Marker that has learned these programs, of slots from 0, and the marks of all."""
    store, rows = FilterStore(), [program_of(each) for each in programs]
    offsets, words = joined_programs(rows)
    whole = table([((-1.0, -1.0, 1.0, 1.0), [0])] * len(rows))
    slots = np.arange(len(rows), dtype=np.int32)
    store.insert(SubscriptionTable(**(whole._asdict() | {"filter_offsets": offsets, "filter_words": words})), slots)
    marker = Marker(store)
    assert marker.learn()
    return marker, marker.of_slots(slots)


def satisfied(program, keys) -> bool:
    words = np.frombuffer(program_of(program), np.int64).tolist()
    return all(holds(one, 0.0, 0.0, (), keys) for one in instructions_of(words))


@given(
    programs=st.lists(st.lists(conditions(MANY), min_size=1, max_size=3), min_size=1, max_size=60),
    rows=st.lists(st.lists(st.one_of(st.just(MISSING_KEY), MANY), min_size=6, max_size=6), min_size=1, max_size=8),
)
@settings(max_examples=150, deadline=None)
def test_marks_never_turn_away_what_a_filter_lets_pass(programs, rows):
    marker, marks = marked(programs)
    messages = marker.of_messages(np.array(rows, np.int64), len(rows))
    for program, mark in zip(programs, marks.tolist(), strict=True):
        for keys, message in zip(rows, messages.tolist(), strict=True):
            assert not (mark & message and satisfied(program, keys))


@given(
    programs=st.lists(st.lists(conditions(FEW), min_size=1, max_size=3), min_size=1, max_size=30),
    rows=st.lists(st.lists(st.one_of(st.just(MISSING_KEY), st.integers(-1, 5)), min_size=4, max_size=4), min_size=1),
)
@settings(max_examples=150, deadline=None)
def test_marks_of_four_attributes_of_few_values_decide(programs, rows):
    programs = [[one._replace(argument=one.argument % 4) for one in each] for each in programs]
    # Every value of each of the four is named, so that each has a stretch of its own.
    programs += [[Instruction(ANY_OF, attribute, [value])] for attribute in range(4) for value in range(6)]
    marker, marks = marked(programs)
    messages = marker.of_messages(np.array(rows, np.int64), len(rows))
    for program, mark in zip(programs, marks.tolist(), strict=True):
        for keys, message in zip(rows, messages.tolist(), strict=True):
            assert (mark & message == 0) == satisfied(program, keys)


def test_messages_without_attributes_lack_them():
    marker, marks = marked([[Instruction(PRESENT, 1, [])], [Instruction(ABSENT, 1, []), Instruction(ANY_OF, 1, [3])]])
    there, absent = marker.of_messages(np.zeros((0, 0), np.int64), 1), marker.of_messages(np.full((1, 1), 7), 1)
    assert there == absent
    assert (marks & there).astype(bool).tolist() == [True, True]


def of_values(values, first=0, term=1):
    """Subscriptions of one place and word, each with one value of attribute 0; and a message of each value."""
    rows = table([((-10.0, -10.0, 10.0, 10.0), [term])] * len(values), first)
    offsets, words = joined_programs([program_of([Instruction(ANY_OF, 0, [value])]) for value in values])
    messages = batch([((1.0, 1.0), [1])] * len(values))
    rows = SubscriptionTable(**(rows._asdict() | {"filter_offsets": offsets, "filter_words": words}))
    return rows, type(messages)(**(messages._asdict() | {"keys": np.array(values).reshape(-1, 1)}))


def test_postings_from_before_get_new_marks_when_more_values_are_known():
    engine = CellTerm(SPACE)
    rows, messages = of_values([3])
    engine.insert(rows)
    assert engine_pairs(engine, messages) == [(0, 0)]
    engine.insert(of_values([1, 2, 4], 1)[0])
    assert engine_pairs(engine, messages) == [(0, 0)]


def test_marks_and_programs_follow_their_postings_when_others_leave_and_come():
    for count in (10, 300):  # a tail alone, and a block that is sorted
        engine = CellTerm(SPACE)
        rows, messages = of_values([number % 10 for number in range(count)])
        slots = engine.insert(rows)
        engine.remove(slots[::3])
        left = rows.take(np.setdiff1d(np.arange(count), np.arange(0, count, 3)))
        assert engine_pairs(engine, messages) == oracle_pairs(left, messages)
        # of another word: these move the block, and the programs of those that are left
        engine.insert(of_values([number % 10 for number in range(2 * count)], count, term=0)[0])
        assert engine_pairs(engine, messages) == oracle_pairs(left, messages)


def test_postings_of_what_a_condition_refuses_are_not_verified():
    rows, messages = of_values([number % 10 for number in range(200)])
    engine = CellTerm(SPACE)
    engine.insert(rows)
    hits = engine.match(messages.take(np.array([3])))
    assert (hits.matched, hits.verified) == (20, 20)


@given(
    subscriptions=plain.SUBSCRIPTIONS, messages=plain.MESSAGES, copies=st.sampled_from([1, 9]), seed=st.integers(0, 99)
)
@settings(max_examples=60, deadline=None)
def test_engine_with_filters_on_any_world_agrees_with_the_oracle(subscriptions, messages, copies, seed):
    rows, columns = filter_rows(table(subscriptions * copies), seed, 6), with_keys(batch(messages), seed)
    engine = CellTerm(SPACE)
    engine.insert(rows)
    wanted = oracle_pairs(rows, columns)
    assert engine_pairs(engine, columns) == wanted
    restored = CellTerm(SPACE)
    restored.insert(engine.table())
    assert engine_pairs(restored, columns) == wanted


class FilterMachine(plain.BooleanMachine):
    """The same stream; some subscriptions have filters, from a step on that hypothesis picks."""

    name = "cell_term"
    filtering = False

    @initialize(filtering=st.booleans())
    def begin_to_filter(self, filtering):
        self.filtering = filtering

    @rule(filtering=st.booleans())
    def switch(self, filtering):
        self.filtering = filtering

    def _advance(self, messages, added, gone):
        if self.filtering:
            added = filter_rows(added, 7, 6)
        super()._advance(messages, added, gone)

    def _columns(self, messages, first):
        return with_keys(super()._columns(messages, first), 7)


TestFilterMachine = FilterMachine.TestCase
TestFilterMachine.settings = settings(
    max_examples=25, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
