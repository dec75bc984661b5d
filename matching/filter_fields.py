"""Checks of the fields that make the filter of a subscription: `match`, shapes, `where`, `not_keywords`."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from matching.conditions import parse_where
from matching.fields import Refusal, shown, whole_number
from matching.filter_programs import USUAL, Instruction, compile_filter
from matching.kind_table import Kind
from matching.model import CHANGE, CHANGES, ENTER, LEAVE, MATCH, UNKNOWN_TERM
from matching.vocabulary import Vocabulary

#: The region of one that asks for everything, and names none.
EVERYWHERE = (-180.0, -90.0, 180.0, 90.0)
#: Values of `everything`, text as tables have it.
EVERYTHING = {False: False, True: True, "": False, "false": False, "true": True}
#: How many keywords a message must have, if it is no number.
ALL_KEYWORDS = 0
#: Backfill of all earlier messages.
ALL_EARLIER = 0
#: Attributes that a refusal names.
_NAMED = 20
_UNITS_US = {"s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
_TIME = re.compile(r"(\d{1,6})([smhd])")
#: Texts of `backfill` that are no time, as tables have them.
_BACKFILLS = {"": None, "false": None, "true": ALL_EARLIER}


def need_of(match: Any, kind: Kind) -> int | str:
    """`ALL_KEYWORDS` or how many distinct keywords a message must have, or a reason code; `match` as it came."""
    if match is None:
        return ALL_KEYWORDS if kind.all_keywords else 1
    if match in ("all", "any"):
        return ALL_KEYWORDS if match == "all" else 1
    number = whole_number(match)
    return "bad_match" if number is None or number < 1 else number


def backfill_of(value: Any, kind: Kind) -> int | None | Refusal:
    """How far back a subscription begins, or why it is refused; `value` as it came.

    None where it does not ask; `ALL_EARLIER`; above it a number of messages, below it microseconds, negative.
    """
    if isinstance(value, str) and value.strip() in _BACKFILLS:
        found = _BACKFILLS[value.strip()]
    elif isinstance(value, bool) or value is None:
        found = ALL_EARLIER if value else None
    elif isinstance(value, str) and (time := _TIME.fullmatch(value.strip())) and int(time[1]):
        found = -int(time[1]) * _UNITS_US[time[2]]
    else:
        found = whole_number(value)
        if found is None or not 0 < found < 2**62:
            return Refusal("bad_backfill")
    if found is not None and kind.standing:
        return Refusal("backfill_of_results", f"a {kind.name} keeps a result, which begins as its kind says")
    return found


def asked_of(value: Any, kind: Kind, compares: bool) -> int | Refusal:
    """The updates that a subscription asks for (`matching.filter_programs.ASKED`), or why it is refused.

    Parameters
    ----------
    value : any        its `on`, as it came
    kind : Kind
    compares : bool    whether it has conditions on the version before: then it gets a `match` for each that holds
    """
    if compares and kind.standing:
        return Refusal("versions_of_results", f"a {kind.name} keeps a result; ask as a kind that keeps none")
    if compares:
        return (
            1 << MATCH if value is None else Refusal("bad_on", "where compares with the version before: leave out on")
        )
    if value is None:
        return USUAL
    names = value.replace(",", " ").split() if isinstance(value, str) else value
    of_objects = {CHANGES[code]: 1 << code for code in (ENTER, LEAVE, CHANGE)}
    if not isinstance(names, list | tuple) or not names or not all(isinstance(one, str) for one in names):
        return Refusal("bad_on", f"on is {shown(value)}")
    if unknown := [one for one in names if one not in of_objects]:
        return Refusal("bad_on", f"on has {shown(unknown[0])}")
    asked = sum({of_objects[one] for one in names})
    if kind.standing and asked & USUAL != USUAL:
        return Refusal("bad_on", f"a {kind.name} keeps a result, which takes enter and leave: name both")
    return asked


def include_refused(value: Any, vocabulary: Vocabulary) -> Refusal | None:
    """Why `include` is refused: it is true, for all attributes, or a list of names of some that are declared."""
    if value is None or isinstance(value, bool):
        return None
    if not isinstance(value, list | tuple):
        return Refusal("bad_include", f"include is {shown(value)}")
    known = [one.name for one in vocabulary.attributes.attributes]
    unknown = [one for one in value if one not in known]
    if unknown:
        there = ", ".join(known[:_NAMED]) or "none"
        return Refusal("bad_include", f"include has {shown(unknown[0])}; there are {there}")
    return None


class Shape(NamedTuple):
    """A checked circle or polygon, and the region around it: west, south, east, north in degrees.

    `radius_m` is NaN but for a circle around the subscription's own point.
    """

    region: tuple[float, float, float, float]
    instruction: Instruction
    radius_m: float = math.nan


def shape_of(obj: Mapping[str, Any], kind: Kind) -> Shape | Refusal | None:
    """The circle or polygon of a subscription (`obj`, as it came), None if it has neither, or why it is refused.

    O(corners * log corners) for a polygon.
    """
    named = [name for name in ("circle", "polygon", "radius_m") if obj.get(name) is not None]
    if not named:
        return None
    if len(named) > 1 or named[0] not in kind.shapes:
        return Refusal("wrong_shape", " and ".join(named))
    # here, since kernels and shapely are loaded with them, and most processes see no shapes
    from matching.filters import circle_instruction, polygon_instruction
    from matching.geo.shapes import read_circle, read_polygon, read_radius
    from matching.geo.sphere import ball_box

    value, radius_m = obj[named[0]], math.nan
    if named[0] == "polygon":
        polygon = read_polygon(value)
        if isinstance(polygon, Refusal):
            return polygon
        return Shape(polygon.region, polygon_instruction(polygon.rings))
    if named[0] == "radius_m":
        radius_m = read_radius(value)
        if isinstance(radius_m, Refusal):
            return radius_m
        radius_m = float(radius_m)
        value = {"lon": obj.get("lon"), "lat": obj.get("lat"), "radius_m": radius_m}
    circle = read_circle(value)
    if isinstance(circle, Refusal):
        return circle
    return Shape(ball_box(*circle), circle_instruction(*circle), radius_m)


def filter_of(
    where: Any,
    on: Any,
    kind: Kind,
    needs: int,
    terms: Sequence[int],
    excluded: Sequence[str],
    shape: Shape | None,
    vocabulary: Vocabulary,
    query: Sequence[Instruction] = (),
) -> bytes | Refusal:
    """The program of a subscription's filter (`compile_filter`), or why it is refused.

    Parameters
    ----------
    where : any
        As it came; see `matching.conditions.parse_where`.
    on : any
        As it came; see `asked_of`.
    kind : Kind
    needs : int
        As `need_of` says; up to 1 the index tests the keywords alone.
    terms : sequence of int
        Ids of its keywords, ascending; `UNKNOWN_TERM` for those that no message has.
    excluded : sequence of str
        Normalised terms of `not_keywords`; unknown ones exclude nothing.
    shape : Shape, optional
    vocabulary : Vocabulary
    query : sequence of Instruction, optional
        As `compile_filter` takes them.
    """
    at_least = None
    if needs > 1:
        at_least = needs, [term for term in terms if term != UNKNOWN_TERM]
    without = [term_id for term_id in map(vocabulary.id_of, excluded) if term_id is not None]
    conditions = parse_where(where, vocabulary.attributes, of_versions=True)
    if isinstance(conditions, Refusal):
        return conditions
    asked = asked_of(on, kind, any(one.of_versions for one in conditions))
    if isinstance(asked, Refusal):
        return asked
    if not (conditions or without or at_least or shape or query or asked != USUAL):
        return b""
    instruction = None if shape is None else shape.instruction
    return compile_filter(conditions, without, at_least, instruction, query, asked)


def asks_no_word(keywords: Any) -> bool:
    """Whether a value of `keywords` has nothing in it: then every visible message is asked for."""
    if isinstance(keywords, list | tuple):
        return not any(text != "" for text in keywords)
    return keywords is None or keywords == ""


def is_broad(kind: Kind, shape: Shape | None, region: tuple[float, float, float, float], where: Any) -> bool:
    """Whether a subscription that requires no word requires nothing else, and has no k that limits its result."""
    west, south, east, north = region
    limited = "k" in kind.fields or shape is not None or bool(where)
    return not limited and west <= -180.0 and east >= 180.0 and south <= -90.0 and north >= 90.0
