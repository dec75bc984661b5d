"""A stream of objects: the table of living versions, and boolean results over it, against plain rules."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bolts.distribution import _in_pairs
from distribution.location import LocationRouter
from matching.attributes import AttributeSchema, key_of, list_keys
from matching.conditions import parse_where
from matching.filter_programs import USUAL, compile_filter, joined_programs
from matching.kinds import KINDS
from matching.local_engine import LocalEngine
from matching.model import CHANGE, ENTER, LEAVE, MATCH, SubscriptionTable, concatenate, empty
from matching.naive import Oracle
from matching.naive_rows import Extras, tally
from matching.operator import OperatorContext, OperatorInput
from matching.space import Space
from matching.validate import DELETE, RawMessage
from matching.window import NO_FLOOR, Boundary, Floors, Window
from spark_etl.options import EtlOptions
from spark_etl.rows import RowCleaner
from spouts.cutting import cut_messages
from spouts.parsed import parse_message
from spouts.versions import LivingObjects, Objects
from tests.support.boolean_tables import RESERVED, SPACE, batch, removals, table

KIND = KINDS.named("boolean")
VERSION, DELETION, ASIDE = range(3)
#: A few places, so that objects move into regions, out of them, within them and along their borders.
PLACES = st.sampled_from([(0.0, 0.0), (1.0, 1.0), (1.5, 1.0), (2.0, 2.0), (0.0, 0.0, 2.0, 2.0), (1.0, 1.0, 3.0, 1.0)])
REGIONS = st.sampled_from([(0.0, 0.0, 1.0, 1.0), (1.0, 1.0, 2.0, 2.0), (-1.0, -1.0, 3.0, 3.0), (179.0, 0.0, 1.0, 1.0)])
WORDS = st.sets(st.integers(0, 2), max_size=2)
ROWS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from([VERSION] * 6 + [DELETION, ASIDE]), PLACES, WORDS), max_size=24
)
#: A number and a list of categories of each row; some are missing, and many stay as they were.
VALUES = st.lists(
    st.tuples(
        st.sampled_from([None, -3.0, -1.0, 0.0, 0.5, 2.0, 2.5]), st.sampled_from([(), ("a",), ("b",), ("a", "b")])
    ),
    min_size=24,
    max_size=24,
)
SCHEMA = AttributeSchema.parse(["price:number", "tags:categories"])


def program(asked=USUAL, **where):
    """The filter of a subscription that asks for these updates, or has conditions on the version before."""
    return compile_filter(parse_where(where, SCHEMA, of_versions=True), asked=asked)


ASKED = st.sampled_from(
    [
        b"",
        program(price={"gte": 0}),
        *(program(sum(1 << each for each in some)) for some in ((ENTER, LEAVE, CHANGE), (ENTER,), (LEAVE, CHANGE))),
        program(USUAL | 1 << CHANGE, price={"lt": 1}),
        program(1 << MATCH, price={"decreased": True}),
        program(1 << MATCH, price={"decreased_by": 2.5, "lte": 2}),
        program(1 << MATCH, price={"increased": True}),
        program(1 << MATCH, price={"changed": True}),
        program(1 << MATCH, tags={"changed": True, "any": "a"}),
    ]
)
SUBSCRIPTIONS = st.lists(st.tuples(REGIONS, st.one_of(WORDS, st.just({RESERVED})), ASKED), max_size=6)


def subscribed(one, number, at):
    """A subscription as a table."""
    offsets, words = joined_programs([one[2]])
    return table([one[:2]], number, at).having(filter_offsets=offsets, filter_words=words)


def valued(messages, values):
    """The messages with these attributes."""
    some = values[: len(messages)]
    prices = np.array([[key_of(price)] for price, _ in some], np.int64).reshape(-1, 1)
    return messages.having(keys=np.concatenate([prices, list_keys([tags for _, tags in some])], axis=1))


def stream(rows):
    """Messages, their objects, the rows that are set aside, and the oracle's columns."""
    words = [words | {RESERVED} if what == VERSION else set() for _, what, _, words in rows]
    messages = batch([(place, sorted(own)) for (_, _, place, _), own in zip(rows, words, strict=True)])
    names = [f"object {number}" for number, _, _, _ in rows]
    deleted, aside = (np.array([what == which for _, what, _, _ in rows], np.bool_) for which in (DELETION, ASIDE))
    extras = Extras(object_id=names, op=deleted.astype(int).tolist())
    return messages, Objects(names, deleted), aside, extras


def pieces_of(objects, aside, first, last):
    return Objects(objects.names[first:last], objects.deleted[first:last]), aside[first:last]


def fed(living, messages, objects, aside, size):
    """Boundary, messages and ended versions of each batch, by the table of living objects."""
    for number, first in enumerate(range(0, len(messages), size)):
        last = min(first + size, len(messages))
        boundary = Boundary(number, first, last - 1, NO_FLOOR)
        some = living.feed(cut_messages(messages, first, last), *pieces_of(objects, aside, first, last))
        yield boundary, some, living.pop_ended(boundary)


def plain_previous(rows):
    """What each row replaces or ends, by the rule alone."""
    living, previous = {}, []
    for seq, (name, what, _, _) in enumerate(rows):
        previous.append(-1 if what == ASIDE else living.pop(name, -1))
        if what == VERSION:
            living[name] = seq
    return previous, living


def restored(living, next_seq):
    """A table as a checkpoint at the boundary before `next_seq` gives it back."""
    state = {
        name: array for fragment in living.fragments(next_seq).values() for name, array in fragment.arrays().items()
    }
    other = LivingObjects()
    other.restore(state)
    return other


@given(rows=ROWS, size=st.sampled_from([1, 3, 24]), ahead=st.sampled_from([0, 2, 5]), stop=st.integers(0, 23))
@settings(max_examples=200, deadline=None)
def test_living_objects_name_and_return_the_versions_that_rows_replace(rows, size, ahead, stop):
    """Rows are fed further than the boundary; a checkpoint is taken and loaded at one of them."""
    messages, objects, aside, _ = stream(rows)
    previous, _ = plain_previous(rows)
    living, fed, published = LivingObjects(), 0, []
    for number, first in enumerate(range(0, len(rows), size)):
        last = min(first + size, len(rows))
        target = min(last + ahead, len(rows))
        if fed < target:
            own, out = pieces_of(objects, aside, fed, target)
            published += living.feed(cut_messages(messages, fed, target), own, out).previous_seq.tolist()
            fed = target
        assert published[first:last] == previous[first:last]
        ended = living.pop_ended(Boundary(number, first, last - 1, NO_FLOOR))
        wanted = sorted(seq for seq in previous[first:last] if seq >= 0)
        assert ended.seq.tolist() == wanted
        for mine, theirs in zip(ended, messages.take(np.array(wanted, np.int64)), strict=True):
            np.testing.assert_array_equal(mine, theirs)
        if first <= stop < last:
            ended_so_far, living, fed = living.ended, restored(living, last), last
            published = published[:last]
            living.resume_after(last - 1, ended_so_far)
    assert len(living) == len(plain_previous(rows)[1])


def test_living_objects_keep_no_more_than_twice_the_living_versions():
    living, rng = LivingObjects(), np.random.default_rng(1)
    for first in range(0, 20_000, 100):
        rows = [(int(number), VERSION, (0.0, 0.0), {1}) for number in rng.integers(0, 300, 100)]
        messages, objects, aside, _ = stream(rows)
        living.feed(messages.having(seq=messages.seq + first), objects, aside)
        living.pop_ended(Boundary(first // 100, first, first + 99, NO_FLOOR))
        held = sum(map(len, living._table.runs))
        assert held <= 2 * len(living) and len(living._table.runs) < 12
    assert len(living) == 300


@pytest.mark.parametrize("engine", KIND.engines)
@given(
    rows=ROWS,
    values=VALUES,
    subscriptions=SUBSCRIPTIONS,
    size=st.sampled_from([1, 7, 24]),
    starts=st.lists(st.integers(0, 24), min_size=6, max_size=6),
    ends=st.lists(st.integers(0, 30), min_size=6, max_size=6),
)
@settings(max_examples=60, deadline=None)
def test_boolean_over_objects_tells_what_is_asked_for(engine, rows, values, subscriptions, size, starts, ends):
    messages, objects, aside, extras = stream(rows)
    messages = valued(messages, values)
    living = LivingObjects()
    tasks = LocalEngine([KIND], SPACE, Window("count", 10), engines={"boolean": engine}, objects=True)
    oracle = Oracle(None, SPACE.max_distance, objects=True)
    order = sorted(range(len(subscriptions)), key=lambda one: starts[one])
    every = [subscribed(subscriptions[one], nth, starts[one]) for nth, one in enumerate(order)]
    gone = [(nth, ends[one]) for nth, one in enumerate(order) if ends[one] > starts[one]]
    for boundary, some, ended in fed(living, messages, objects, aside, size):
        first, last = boundary.first_seq, boundary.last_seq + 1
        low = first if first else -1
        added = concatenate([empty(SubscriptionTable)] + [one for one in every if low <= one.at[0] < last])
        leaving = sorted(((at, one) for one, at in gone if low <= at < last))
        removed = removals([one for _, one in leaving], [at for at, _ in leaving])
        more = Extras(object_id=extras.object_id[first:last], op=extras.op[first:last])
        wanted = oracle.advance(boundary, some, added, removed, more)
        found = tasks.process(boundary, some, added, removed, ended).updates
        assert tally(found) == tally(wanted)
        assert np.all(np.diff(found.as_of) >= 0)


@given(
    deleted=st.lists(st.booleans(), max_size=40),
    size=st.integers(1, 9),
    length=st.integers(1, 8),
    stop=st.integers(0, 9),
)
@settings(max_examples=200, deadline=None)
def test_floor_of_a_count_window_over_objects_passes_over_deletions(deleted, size, length, stop):
    """At each boundary so many rows that are no deletions are above it, also after it is saved and loaded."""
    floors, seqs = Floors(Window("count", length), objects=True), np.arange(len(deleted))
    for number, first in enumerate(range(0, len(deleted), size)):
        last = min(first + size, len(deleted)) - 1
        floor = floors.at(last, NO_FLOOR, seqs[first : last + 1][deleted[first : last + 1]])
        kept = [seq for seq in range(last + 1) if not deleted[seq]]
        assert floor == (kept[-length - 1] if len(kept) > length else -1)
        if number == stop:
            state, floors = floors.state(), Floors(Window("count", length), objects=True)
            floors.restore(last, state)


def test_floor_of_a_checkpoint_of_an_earlier_release_goes_on_as_it_was():
    floors = Floors(Window("count", 3), objects=True)
    floors.restore(9, {})
    assert floors.at(9, NO_FLOOR) == 6 and floors.at(11, NO_FLOOR, np.array([10])) == 7
    plain = Floors(Window("count", 3))
    assert plain.at(11, NO_FLOOR, np.array([10])) == 8 and plain.state() == {}


@pytest.mark.parametrize("row", [{"id": "o", "deleted": True}, {"id": "v2", "object_id": "o", "op": "delete"}])
def test_deletion_needs_no_place_by_either_door(row):
    """It stands in the middle of the world, or nowhere where none is known; in a stream of messages it is refused."""
    parsed = parse_message(row, SPACE, objects=True)
    assert not isinstance(parsed, str)
    assert (parsed.object_id, parsed.op, parsed.lon, parsed.lat) == ("o", DELETE, 0.0, 0.0)
    cleaned = RowCleaner(EtlOptions(inputs=("x",), objects=True)).clean(RawMessage(**row))
    assert not isinstance(cleaned, str)
    assert (cleaned.message.object_id, cleaned.message.op) == ("o", DELETE) and np.isnan(cleaned.message.lon)
    assert parse_message({"id": "o", "op": "delete"}, SPACE) == "missing_coordinate"


def test_oracle_of_objects_by_hand():
    """A move in, a move within, a set-aside row, a deletion, and a subscription that begins while the object is in."""
    rows = [
        (0, VERSION, (5.0, 5.0), {1}),
        (0, VERSION, (0.5, 0.5), {1}),
        (0, ASIDE, (5.0, 5.0), set()),
        (0, VERSION, (0.6, 0.5), {1}),
        (0, DELETION, (0.0, 0.0), set()),
        (0, DELETION, (0.0, 0.0), set()),
    ]
    messages, _, _, extras = stream(rows)
    region = (0.0, 0.0, 1.0, 1.0)
    added = concatenate([table([(region, [1])], 0, 0), table([(region, [1])], 1, 2)])
    oracle = Oracle(None, SPACE.max_distance, objects=True)
    updates = oracle.advance(Boundary(0, 0, 5, NO_FLOOR), messages, added, removals([], []), extras)
    told = [(one.as_of, one.number, one.seq, one.change) for one in updates]
    assert told == [(1, 0, 1, ENTER), (4, 0, 3, LEAVE), (4, 1, 3, LEAVE)]


def test_oracle_of_versions_by_hand():
    """A price that rises, falls twice, is missing, and comes back; who asks for changes, and who for drops."""
    prices = [900.0, 950.0, 890.0, 880.0, None, 700.0, 690.0]
    messages, _, _, extras = stream([(0, VERSION, (0.5, 0.5), {1})] * len(prices))
    messages = valued(messages, [(price, ()) for price in prices])
    region = (0.0, 0.0, 1.0, 1.0)
    asked = [
        program(USUAL | 1 << CHANGE, price={"lt": 940}),
        program(1 << MATCH, price={"decreased": True}),
        program(1 << MATCH, price={"decreased_by": 60}),
        program(1 << CHANGE),
    ]
    added = concatenate([subscribed((region, [1], one), number, 0) for number, one in enumerate(asked)])
    oracle = Oracle(None, SPACE.max_distance, objects=True)
    updates = oracle.advance(Boundary(0, 0, 6, NO_FLOOR), messages, added, removals([], []), extras)
    found = [(one.as_of, one.seq, one.change) for one in updates if one.number == 0]
    assert found == [(0, 0, ENTER), (1, 0, LEAVE), (2, 2, ENTER), (3, 3, CHANGE), (4, 3, LEAVE), (5, 5, ENTER),
                     (6, 6, CHANGE)]  # fmt: skip
    drops = [[one.seq for one in updates if one.number == number and one.change == MATCH] for number in (1, 2)]
    assert drops == [[2, 3, 6], [2]]
    assert [one.seq for one in updates if one.number == 3] == [1, 2, 3, 4, 5, 6]


#: Small, so that the places lie in the parts of several tasks.
WORLD = Space(-4.0, -4.0, 4.0, 4.0)


class Routed:
    """Boolean operators of several tasks behind a routing table, as distribution and query bolts drive them."""

    def __init__(self, router):
        self.router, self.table = router, router.table()
        made = (OperatorContext(WORLD, Window("count", 10), task, router.tasks, objects=True) for task in range(3))
        self.operators = [KIND.make_operator(context) for context in made]

    def process(self, boundary, messages, added, removed, ended):
        self.table.change(added, removed)
        sent = self.table.route(messages), self.table.route(ended) if len(ended) else []
        rows, ends = _in_pairs(messages, ended, *sent) if len(ended) else (sent[0], [np.zeros(0, np.int64)] * 3)
        for task, operator in enumerate(self.operators):
            mine = self.router.assigned_to(added, task)
            own = added.take(np.flatnonzero(mine))
            columns = boundary, messages.take(rows[task]), ended.take(ends[task]), own, np.full(len(own), task)

            def owned(region, some, row, task=task):
                return self.router.owned_pairs(region, some, row, task)

            there = np.ones(len(own), np.bool_)
            yield operator.match(OperatorInput(*columns, there, removed, owned)).own_hits.updates


@given(rows=ROWS, values=VALUES, subscriptions=SUBSCRIPTIONS, size=st.sampled_from([1, 7, 24]), late=st.integers(0, 12))
@settings(max_examples=150, deadline=None)
def test_boolean_over_objects_routed_by_place_tells_each_update_at_one_task(rows, values, subscriptions, size, late):
    """A shape over several tasks, a move within it, out of it and back: what one task would tell, by whichever task."""
    messages, objects, aside, extras = stream(rows)
    messages = valued(messages, values)
    lon, lat = np.repeat(np.linspace(-0.5, 3.5, 9), 9), np.tile(np.linspace(-0.5, 3.5, 9), 9)
    tasks = Routed(LocationRouter(3, WORLD, *WORLD.project(lon, lat)))
    assert len({*tasks.router.owner_of_centre(batch([((float(x), 1.0), []) for x in range(3)])).tolist()}) > 1
    living, oracle = LivingObjects(), Oracle(None, WORLD.max_distance, objects=True)
    added = [subscribed(one, nth, 0 if nth % 2 else late) for nth, one in enumerate(subscriptions) if one[0][0] < 100.0]
    added.sort(key=lambda one: int(one.at[0]))
    for boundary, some, ended in fed(living, messages, objects, aside, size):
        first, last = boundary.first_seq, boundary.last_seq + 1
        low = first if first else -1
        begun = concatenate([empty(SubscriptionTable)] + [one for one in added if low <= one.at[0] < last])
        more = Extras(object_id=extras.object_id[first:last], op=extras.op[first:last])
        wanted = tally(oracle.advance(boundary, some, begun, removals([], []), more))
        told = list(tasks.process(boundary, some, begun, removals([], []), ended))
        assert tally(concatenate(told)) == wanted
