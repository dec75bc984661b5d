"""Lines of the log that are read in bulk say of subscriptions what the checks of rows say."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.live.admission import Admission, RefusedLine
from gateway.live.logged_changes import Accepted, plain_changes
from gateway.serve.registry import Registry
from matching.fields import Refusal, point_of
from matching.kinds import KINDS
from matching.space import EARTH, Space
from matching.validate import ParsedSubscription, subscription_row
from matching.vocabulary import Vocabulary
from matching.window import Window
from spouts.log import Admitted, Record
from tests.property.test_subscription_rows import GOOD_ROWS, SIZES, VALUES, rows, vocabulary

SPACE = Space(*EARTH, distance="sphere")


def line_of(row):
    """The line of a row that the gate would log, None if it would not."""
    if row.get("at") is not None or row.get("until") is not None:
        return None
    if not isinstance(subscription_row(row, vocabulary(100), SPACE, KINDS), ParsedSubscription):
        return None
    return msgspec.json.encode({"subscribe": row})


def wanted_of(line):
    """What the checks of rows say of a line."""
    change = msgspec.json.decode(line)
    if "unsubscribe" in change:
        return change["unsubscribe"]
    row = change["subscribe"]
    parsed = subscription_row(row, vocabulary(100), SPACE, KINDS)
    assert isinstance(parsed, ParsedSubscription)
    box = (*point_of(row), *point_of(row)) if KINDS[parsed.kind].place == "point" else parsed.region
    free = row.get("owner"), row.get("expires_at")
    return Accepted(parsed.subscription_id, parsed.kind, line, box, *free, parsed.broad)


def compare(lines):
    wanted = list(map(wanted_of, lines))
    for size in SIZES:
        cut = [lines[first : first + size] for first in range(0, len(lines), size)]
        found = [one for some in cut for one in plain_changes(some, KINDS)]
        assert [one or other for one, other in zip(found, wanted, strict=True)] == wanted
    return found


@settings(max_examples=60, deadline=None)
@given(st.lists(rows(), max_size=60))
def test_lines_read_together_say_what_rows_say(some):
    lines = [line for row in some if (line := line_of(row)) is not None]
    compare([*lines, b'{"unsubscribe":"s"}', *lines])


def test_lines_with_one_odd_value_say_what_rows_say_and_plain_ones_are_all_read_in_bulk():
    some = [row | {name: value} for row in GOOD_ROWS for name, values in VALUES.items() for value in values]
    lines = [line for row in [*GOOD_ROWS, *some] if (line := line_of(row)) is not None]
    found = compare(lines)
    plain = [isinstance(one, Accepted) for one in found[: len(GOOD_ROWS)]]
    assert len(lines) > 300 and plain == ["polygon" not in row for row in GOOD_ROWS]
    assert sum(one is None for one in found) > 20


@pytest.mark.parametrize(
    "line",
    [
        b'{"subscribe":{"subscription_id":"a","kind":"knn"},"unsubscribe":"b"}',
        b'{"subscribe":null}',
        b'{"subscribe":{"subscription_id":"a","kind":"knn","lon":1,"lat":1},"more":1}',
        b'{"unsubscribe":7}',
        b"{",
    ],
)
def test_line_that_is_not_plain_goes_to_the_functions_of_rows_and_those_beside_it_do_not(line):
    good = [msgspec.json.encode({"subscribe": row}) for row in GOOD_ROWS if "polygon" not in row]
    first, odd, *others = plain_changes([good[0], line, *good[1:]], KINDS)
    assert odd is None and all(isinstance(one, Accepted) for one in (first, *others))


def gate(refuses=lambda parsed: None, **more):
    known = Vocabulary([], [], [], [], 0, most_terms=100)
    return Admission(known, SPACE, Window("count", 10), refuses=refuses, **more)


def record_of(some, last_seq=-1, admitted=()):
    lines = [msgspec.json.encode({"subscribe": row}) for row in some]
    return Record(last_seq, 1, last_seq + 1, (0,) * len(lines), lines, admitted=Admitted(tuple(admitted), 0))


def named(number, words):
    return GOOD_ROWS[number % 5] | {"subscription_id": f"s{number}", "keywords": words}


def test_logged_subscription_of_a_kind_that_no_task_takes_now_is_refused():
    some = [named(number, "ramen") for number in range(20)]
    refusing = gate(lambda parsed: Refusal("not_placeable", "nowhere") if parsed.kind == 1 else None)
    found = refusing.logged(record_of(some), 0)
    assert isinstance(found, RefusedLine) and found.reason == "not_placeable" and "s1" in found.what
    assert gate().logged(record_of(some), 0) is None


def test_logged_subscriptions_that_require_nothing_are_counted():
    registry = Registry()
    again = gate(active=registry)
    some = [named(0, None) | {"subscription_id": f"s{number}"} for number in range(20)]
    for row in some[::3]:
        row["everything"] = True  # one with a region still requires that
    for row in some[::6]:
        del row["region"]
    assert again.logged(record_of(some), 0) is None
    assert len(registry) == 20 and registry.broad == len(some[::6])
    again.unsubscribe("s0")
    again.subscribe(some[1] | {"subscription_id": "s6"})
    assert registry.broad == len(some[::6]) - 2


@pytest.mark.parametrize("count", [12, 300])
def test_words_of_logged_subscriptions_behind_the_last_batch_come_with_the_next_one(count):
    again = gate()
    before = [named(number, f"early{number % 7}") for number in range(count)]
    words = sorted({f"early{number}" for number in range(7)})
    assert again.logged(record_of(before, last_seq=0, admitted=words), 0) is None
    assert again.logged(record_of([named(count + number, f"late{number % 3}") for number in range(count)]), 1) is None
    late = record_of([named(count + number, f"late{number % 3}") for number in range(count)]).lines
    checked = again.logged_words([*late, b'{"unsubscribe":7}'])
    assert not isinstance(checked, Refusal)
    words = [word for one in checked if not isinstance(one, str) for word in one.words]
    assert words == [f"late{number % 3}" for number in range(count)]
    assert checked[-1] == "7" and again.new_terms.admit((), 1).terms == ("late0", "late1", "late2")
    assert len(again.active) == 2 * count
