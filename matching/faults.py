"""Which column of a refused row is at fault, and what it has there, for whoever has to mend the row.

The checks of `matching.validate` give reason codes; this finds the column again, once a row is refused.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from matching.attributes import NO_ATTRIBUTES, AttributeSchema, attribute_value
from matching.fields import Fault, coordinate, encodes, identifier, value_at
from matching.space import Space

_SIDES = {"west": 180.0, "south": 90.0, "east": 180.0, "north": 90.0}
_PLACE = {"lon": 180.0, "lat": 90.0}
_IDS = ("id", "object_id")
#: Columns of subscriptions that a reason is about, whatever they have.
_OF_REASON = {
    "bad_alpha": ("alpha",),
    "bad_circle": ("circle",),
    "backfill_needs_log": ("backfill",),
    "backfill_of_results": ("backfill",),
    "bad_backfill": ("backfill",),
    "bad_everything": ("everything",),
    "bad_include": ("include",),
    "bad_k": ("k",),
    "bad_lang": ("lang",),
    "bad_match": ("match",),
    "bad_on": ("on",),
    "bad_polygon": ("polygon",),
    "bad_query": ("query",),
    "bad_radius": ("radius_m", "circle"),
    "bad_region": ("region",),
    "bad_span": ("until", "at"),
    "bad_tell": ("tell",),
    "bad_where": ("where",),
    "bad_attribute": ("where",),
    "crosses_antimeridian": ("region",),
    "invalid_polygon": ("polygon",),
    "long_edge": ("polygon",),
    "match_too_large": ("match",),
    "missing_id": ("subscription_id",),
    "bad_id": ("subscription_id",),
    "needs_objects": ("on", "where"),
    "no_word_order": ("query",),
    "no_needed_word": ("query",),
    "no_keyword": ("keywords",),
    "no_known_keyword": ("keywords",),
    "radius_in_plane": ("radius_m", "circle"),
    "requires_nothing": ("everything",),
    "stop_term": ("keywords",),
    "too_many_conditions": ("where",),
    "too_many_corners": ("polygon",),
    "too_large_query": ("query",),
    "query_in_keywords": ("keywords", "not_keywords"),
    "too_many_words": ("query",),
    "too_many_keywords": ("keywords", "not_keywords"),
    "too_many_terms": ("keywords",),
    "unknown_attribute": ("where",),
    "unknown_kind": ("kind",),
    "kind_without_engine": ("kind",),
    "versions_of_results": ("where",),
    "wrong_place": ("region", "lon", "lat"),
    "wrong_shape": ("circle", "polygon", "radius_m"),
}


def message_fault(
    reason: str, row: Mapping[str, Any], space: Space | None = None, schema: AttributeSchema = NO_ATTRIBUTES
) -> Fault | None:
    """The cause of a reason of `matching.validate.message_row`, or of an attribute; None if it is no single column.

    `row` has the columns of a message by their roles (`matching.fields.MESSAGE_ROLES`).
    """

    def first(names: Mapping[str, Any], at_fault: Callable[[str, Any], bool]) -> Fault | None:
        found = (Fault(name, row.get(name)) for name in names if at_fault(name, row.get(name)))
        return next(found, None)

    if reason == "bad_attribute":
        values = (Fault(one.path, value_at(row, one.path)) for one in schema.attributes)
        types = (one.type for one in schema.attributes)
        return next((value for kind, value in zip(types, values, strict=True) if not _fits(kind, value.value)), None)
    if reason == "text_too_long" or (reason == "wrong_type" and not _is_text(row.get("text"))):
        return Fault("text", row.get("text"))
    if reason in ("bad_time", "missing_time"):
        return Fault("time", row.get("time"))
    if reason == "bad_expiry":
        return first(dict.fromkeys(("ttl_s", "expires_at")), lambda _, value: value is not None)
    if reason == "bad_op":
        return Fault("op", row.get("op"))
    if reason == "bad_id":
        return first(dict.fromkeys(_IDS), lambda _, value: identifier(value) is None)
    if reason == "bad_rectangle":
        return first(_SIDES, lambda _, value: value is None or value == "") or Fault("west", row.get("west"))
    if reason == "outside_world" and space is not None:
        west, south, east, north = space.west, space.south, space.east, space.north
        bounds = {"lon": (west, east), "lat": (south, north)}
        return first(bounds, lambda name, value: not _within(coordinate(value, 180.0), *bounds[name]))
    if reason in ("nul_byte", "bad_utf8"):
        return first(dict.fromkeys(("text", *_IDS)), lambda _, value: _is_text(value) and not _is_good(value or ""))
    limits = _PLACE if reason == "missing_coordinate" else _SIDES | _PLACE
    return first(limits, lambda name, value: coordinate(value, limits[name]) == reason)


def subscription_fault(reason: str, row: Mapping[str, Any]) -> Fault | None:
    """The cause of a reason of `matching.validate.subscription_row`; None if it is no single column."""
    if reason in _OF_REASON:
        there = [name for name in _OF_REASON[reason] if row.get(name) is not None]
        name = next(iter(there), _OF_REASON[reason][0])
        return Fault(name, row.get(name))
    if reason in ("nul_byte", "bad_utf8") and not _is_good(identifier(row.get("subscription_id")) or ""):
        return Fault("subscription_id", row.get("subscription_id"))
    if reason in ("wrong_type", "text_too_long", "bad_utf8"):
        for name in ("keywords", "not_keywords"):
            texts = row.get(name)
            if not isinstance(texts, str | None) and reason == "wrong_type":
                if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
                    return Fault(name, texts)
    if reason == "outside_world":
        return Fault("lon", row.get("lon"))
    for name, limit in _PLACE.items():
        if row.get("region") is None and coordinate(row.get(name), limit) == reason:
            return Fault(name, row.get(name))
    if reason.startswith("coordinate_") and row.get("region") is not None:
        return Fault("region", row["region"])
    return None


def _fits(type_code: int, value: Any) -> bool:
    try:
        attribute_value(type_code, value)
    except ValueError:
        return False
    return True


def _is_text(value: Any) -> bool:
    return isinstance(value, str | None)


def _is_good(text: str) -> bool:
    return encodes(text) and "\0" not in text


def _within(value: float | str, least: float, most: float) -> bool:
    return isinstance(value, float) and not math.isnan(value) and least <= value <= most
