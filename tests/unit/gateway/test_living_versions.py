"""The table of living objects that a server has: what replaces what, what ends by time, and when it is full."""

from gateway.live.living_versions import LivingVersions
from matching.attributes import NO_ATTRIBUTES
from matching.validate import ParsedMessage
from spouts.messages import MessageBlock


def block(*rows):
    """Messages of (object, deleted, ahead, when it expires in us)."""
    place = 0.0, 0.0, None, None, None, None, None
    return MessageBlock.of(
        [
            ParsedMessage(f"m{n}", b"", *place, "", name, int(deleted), ahead=ahead, expires_us=expires)
            for n, (name, deleted, ahead, expires) in enumerate(rows)
        ],
        NO_ATTRIBUTES,
    )


def test_living_versions_are_replaced_and_deleted_and_what_is_ahead_changes_nothing():
    living = LivingVersions()
    rows = [("a", 0, 0, None), ("a", 0, 0, None), ("b", 0, 0, None), ("a", 0, 1, None), ("a", 1, 0, None)]
    assert living.take(10, block(*rows)).tolist() == [-1, 10, -1, -1, 11]
    assert living.get("a") is None and living.get("b") == 12 and living.listed(-1, 9) == [("b", 12)]
    assert living.take(15, block(("b", 1, 0, None), ("b", 1, 0, None))).tolist() == [12, -1]
    assert len(living) == 0 and living.size_bytes == 0


def test_living_version_expires_once_and_only_if_it_lives_still():
    living = LivingVersions()
    living.take(0, block(("a", 0, 0, 50), ("b", 0, 0, 60), ("a", 0, 0, None), ("c", 0, 0, 90)))
    assert living.expired(49, 9) == [] and living.expired(60, 9) == ["b"] and living.expired(60, 9) == []
    living.take(4, block(("d", 0, 0, 95)))
    assert living.expired(100, 1) == ["c"] and living.expired(100, 1) == ["d"]


def test_full_table_takes_versions_and_deletions_and_no_new_object():
    living = LivingVersions(most_bytes=300)
    living.take(0, block(("a", 0, 0, None), ("b", 0, 0, None)))
    assert living.is_full
    assert "2 objects live" in living.refusal({"object_id": "new"}) and living.refusal({"id": "new"})
    assert not living.refusal({"object_id": "a"}) and not living.refusal({"id": "b"})
    assert not living.refusal({"object_id": "new", "deleted": True})
    living.take(2, block(("a", 1, 0, None)))
    assert not living.refusal({"object_id": "new"})
