"""What updates carry for subscriptions with `include`."""

import json

from gateway.live.logged_changes import Accepted, ActiveKinds
from gateway.live.update_listener import MessageText
from gateway.live.write_ahead_log import LoggedValues
from gateway.serve.included import IncludedValues
from gateway.serve.released import JSON_BEGINS, RANKS, UpdateRows
from matching.attributes import AttributeSchema
from matching.kinds import KINDS
from tests.support.releasing import RawUpdate, released_of

SCHEMA = AttributeSchema.parse(["price:number", "sold:time", "kind:category"])
#: Versions of one object: messages 3, 5, 6 and 7, of boundaries that end with 4 and 7; 6 has no price.
VALUES = {
    3: LoggedValues((900.0,), -1),
    5: LoggedValues((800.0, None, "flat"), 3),
    6: LoggedValues((None, 1_000_000, "flat"), 5),
    7: LoggedValues((700.0, 1_000_000, "flat"), 6),
}
ENDS = [4, 7]
NOWHERE = (0.0, 0.0, 0.0, 0.0)
CARRIED = ("change", "message_id", "score", "attributes", "previous")


def told(include, standing, *updates, instead=None):
    """Attributes and previous values of updates (change, seq, as_of) of the boundary that ends with 7."""
    values = {"s": include}, lambda _: standing, lambda seqs: {seq: VALUES[seq] for seq in seqs}
    included = IncludedValues(*values, lambda: SCHEMA, ENDS)
    raw = [RawUpdate("s", RANKS[change], seq, as_of, None) for change, seq, as_of in updates]
    released = released_of(7, [*raw, RawUpdate("t", RANKS["enter"], 7, 7, None)])
    texts = {seq: MessageText(f"m{seq}", "", 0.0, 0.0) for seq in VALUES}
    rows = UpdateRows(released, None, lambda seqs: texts, included=included)
    found = [json.loads(one) for one in rows.events((JSON_BEGINS,), b"").each()]
    plain = UpdateRows(released, None, lambda seqs: texts).events((JSON_BEGINS,), b"").each()
    assert found[-1] == json.loads(plain[-1]), "who asks for nothing gets nothing"
    lines = [json.loads(line) for line in rows.lines().splitlines()]
    assert [tuple(map(one.get, CARRIED)) for one in lines] == [tuple(map(one.get, CARRIED)) for one in found]
    if instead is not None:
        found = [json.loads(one.data) for one in rows.updates(instead)]
        assert ("attributes" in found[-1]) == bool(instead)
    return [(one["change"], one.get("attributes"), one.get("previous")) for one in found[:-1]]


def test_included_values_of_changes_at_once_are_against_the_version_before():
    found = told(["price", "kind"], False, ("enter", 5, 5), ("change", 6, 6), ("leave", 6, 7))
    assert found == [
        ("enter", {"price": 800.0, "kind": "flat"}, {"price": 900.0, "kind": None}),
        ("change", {"price": None, "kind": "flat"}, {"price": 800.0}),
        ("leave", {"price": None, "kind": "flat"}, None),
    ]


def test_included_values_of_results_are_against_the_version_at_the_boundary_before():
    assert told(["price"], True, ("change", 7, 7)) == [("change", {"price": 700.0}, {"price": 900.0})]


def test_included_value_of_what_has_long_been_there_has_no_previous():
    assert told(["price"], True, ("enter", 3, 7)) == [("enter", {"price": 900.0}, None)]


def test_included_true_is_all_attributes_and_times_are_text():
    ((_, attributes, previous),) = told(True, False, ("change", 6, 6))
    assert attributes == {"price": None, "sold": "1970-01-01T00:00:01+00:00", "kind": "flat"}
    assert previous == {"price": 800.0, "sold": None}


def test_included_values_that_a_reader_names_replace_those_of_the_subscription():
    assert told(["price"], False, ("change", 6, 6), instead=["kind", "sold"]) == [
        ("change", {"sold": "1970-01-01T00:00:01+00:00", "kind": "flat"}, {"sold": None})
    ]
    assert told(["price"], False, ("change", 6, 6), instead=False) == [("change", None, None)]


def test_active_kinds_keep_what_updates_carry_until_the_subscription_is_replaced():
    active = ActiveKinds()
    kinds = KINDS.named("boolean").code, KINDS.named("knn").code
    active.put(
        [Accepted(name, kind, b"", NOWHERE, include=["a"]) for name, kind in zip("bk", kinds, strict=True)], [0, 0]
    )
    assert [active.is_standing(name) for name in active.includes] == [False, True]
    active.end("k", 5)
    assert list(active) == ["b"] and active.includes == {"b": ["a"], "k": ["a"]} and active.is_standing("k")
    active.put([Accepted("k", kinds[0], b"", NOWHERE), Accepted("b", kinds[1], b"", NOWHERE, include=True)], [6, 6])
    assert active.includes == {"b": True} and active.is_standing("b")
