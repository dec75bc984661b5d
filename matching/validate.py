"""Validation: the only way from untrusted values to arrays.

Every input (a line of a file, a row of a table, the body of a request) is either checked here or becomes a reason code,
one of `matching.reasons.REASONS`. Nothing in this module raises for bad input; the caller counts the code and keeps the
good rows. The fields of a subscription are those of the row of its kind (`matching.kind_table.Kind`). Single values are
checked in `matching.fields`, text becomes terms in `matching.text`.
"""

import difflib
import hashlib
import json
import math
import operator
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import chain, repeat
from typing import Any, NamedTuple

import msgspec
import numpy as np

from matching.attributes import AttributeValue, Misfit, ReadValues
from matching.decoding import bare as bare
from matching.decoding import decode
from matching.decoding import decode_object as decode_object
from matching.errors import ConfigError
from matching.faults import subscription_fault
from matching.fields import (
    FIRST_US,
    MESSAGE_ROLES,
    Fault,
    Refusal,
    coordinate,
    encodes,
    event_time_us,
    identifier,
    share,
    shown,
    whole_number,
)
from matching.filter_fields import (
    ALL_KEYWORDS,
    EVERYTHING,
    EVERYWHERE,
    asks_no_word,
    backfill_of,
    filter_of,
    is_broad,
    need_of,
    shape_of,
)
from matching.filter_programs import Instruction, asked_in, joined_programs
from matching.kind_table import Kind, Kinds
from matching.languages import in_language, language_of
from matching.model import (
    ANY_KEYWORD,
    KEYWORDS_BY_KIND,
    MATCH,
    NO_RADII,
    NO_VECTORS,
    TERM,
    UNKNOWN_TERM,
    SubscriptionTable,
)
from matching.reasons import MAX_K
from matching.reserved import RESERVED_IDF
from matching.space import Space
from matching.subscription_words import indexed_by_query, keywords_of, other_words, query_of_row, words_in, words_of
from matching.telling import telling_of
from matching.text import MAX_TEXT_CHARACTERS
from matching.vocabulary import Vocabulary, unit_weights

SUBSCRIPTION_COLUMNS = frozenset(
    ("subscription_id", "kind", "keywords", "not_keywords", "match", "lon", "lat", "region", "circle", "polygon",
     "query", "radius_m", "where", "on", "everything", "tell", "include", "k", "alpha", "at", "until", "backfill",
     "lang")
)  # fmt: skip
#: Those whose value is an object. Tables have it as JSON text, which `spouts.lines` reads.
OBJECT_COLUMNS = ("circle", "polygon", "where", "tell")
#: Those that a message must satisfy beside keywords, region and point.
CONDITION_COLUMNS = ("match", "not_keywords", "circle", "polygon", "query", "lang", "radius_m", "where", "on")
#: Short names, to which free columns are near: `one` is no slip of `on`, nor `lng` of `lang`.
_SHORT_COLUMNS = frozenset(("on", "lang"))
PUBLISH, DELETE = 0, 1
#: How alike two names are (`difflib`) if one may be a slip for the other: "keyword", "untill", "Alpha".
_NEARLY = 0.75

_OPS = {
    None: PUBLISH,
    "": PUBLISH,
    0: PUBLISH,
    "0": PUBLISH,
    "publish": PUBLISH,
    1: DELETE,
    "1": DELETE,
    "delete": DELETE,
}
_NUMBERS = struct.Struct("<6dqB")
_BLANK = (None, "")


class RawMessage(NamedTuple):
    """Values of one message as they came, by role; None where there is none."""

    text: Any = None
    lat: Any = None
    lon: Any = None
    time: Any = None
    id: Any = None
    west: Any = None
    south: Any = None
    east: Any = None
    north: Any = None
    object_id: Any = None
    op: Any = None
    lang: Any = None
    deleted: Any = None
    ttl_s: Any = None
    expires_at: Any = None


class ParsedMessage(NamedTuple):
    """A checked message. Degrees; microseconds since 1970; `content` is a 16-byte hash of all but the id.

    `ahead`: dated too long after its arrival, so that it is set aside; a live stream decides that, once.
    `attributes`: their values in the order of the schema; of a live stream alone. `misfits`: those that do not fit, and
    are missing among `attributes`. `expires_us`: when the version ends its object, in a stream of objects.
    `lang`: the language of its words (`matching.languages`), "" for the stream's.
    """

    message_id: str
    content: bytes
    lon: float
    lat: float
    west: float | None
    south: float | None
    east: float | None
    north: float | None
    event_time_us: int | None
    text: str
    object_id: str
    op: int
    ahead: bool = False
    attributes: tuple[AttributeValue, ...] = ()
    misfits: tuple[Misfit, ...] = ()
    expires_us: int | None = None
    lang: str = ""


class ParsedSubscription(NamedTuple):
    """A checked subscription.

    `kind` is the code of the kind; `x`, `y` are in the unit square (NaN for kinds with a region), `region` is west,
    south, east, north in degrees (NaN for kinds with a point); `match` is a code of `matching.model`; `k` is 0 and
    `alpha` NaN where the kind has none.
    `terms` ascend, `idf` goes with them (0 for `UNKNOWN_TERM`). `words` are all terms as people read them. `unknown`
    and `stopped` count those the vocabulary lacks and those it removed. Where all keywords are needed and one is
    unknown, `UNKNOWN_TERM` comes last and nothing can match. `filter` is the program of `matching.filters`, `needs` how
    many keywords a message must have, if that is a number; `others` are the words of `not_keywords` and the query that
    are not among `words`, of which the vocabulary lacks `unknown_others`. With a query, or a word that is cut into
    pieces, `words` are those that it is found by or scores with. One without such has no words, and the reserved term
    (`matching.reserved`).
    `vector` is the point as a unit vector, if distances are on the sphere; `radius_m` where proximity is 0, NaN where
    the subscription does not say. `broad`: every visible message matches, but those with an excluded word.
    `backfill` is as of `matching.filter_fields.backfill_of`.
    """

    subscription_id: str
    kind: int
    x: float
    y: float
    region: tuple[float, float, float, float]
    match: int
    k: int
    alpha: float
    terms: tuple[int, ...]
    idf: tuple[float, ...]
    words: tuple[str, ...]
    unknown: int
    stopped: int
    at: int
    until: int | None
    filter: bytes = b""
    needs: int = 1
    others: tuple[str, ...] = ()
    unknown_others: int = 0
    vector: tuple[float, ...] = ()
    radius_m: float = math.nan
    broad: bool = False
    backfill: int | None = None

    @property
    def can_match(self) -> bool:
        """Whether messages may have as many of its keywords as it needs."""
        return self.needs <= len(self.terms) and self.terms[-1] != UNKNOWN_TERM


_FIELDS = ParsedSubscription._fields


class MessageDecoder:
    """Decodes lines of JSON into `RawMessage`; made once for a set of column names.

    Parameters
    ----------
    columns : mapping
        Field of `RawMessage` to column name; one without a column, or with an empty one, stays None.

    Raises
    ------
    ConfigError
        For a role that messages do not have, or a column name with a quote, backslash or control character.
    """

    def __init__(self, columns: Mapping[str, str | None]):
        if unknown := sorted(set(columns) - set(RawMessage._fields)):
            raise ConfigError(f"no such message column: {', '.join(unknown)}; there are {', '.join(MESSAGE_ROLES)}")
        names = sorted({name for name in columns.values() if name})
        if bad := [name for name in names if not name.isprintable() or '"' in name or "\\" in name]:
            raise ConfigError(f"column name {bad[0]!r} cannot be used: rename the column in the input")
        fields = {name: f"field_{number}" for number, name in enumerate(names)}
        row_type = msgspec.defstruct(
            "Row",
            [(field, Any, None) for field in fields.values()] + [("absent", None, None)],
            rename={field: name for name, field in fields.items()} | {"absent": "\uffff"},
        )
        self._decoder = msgspec.json.Decoder(row_type)
        named = [columns.get(role) or "" for role in RawMessage._fields]
        self._pick = operator.attrgetter(*(fields.get(name, "absent") for name in named))

    def decode(self, line: bytes) -> RawMessage | str:
        """Values of one line, or the reason why there are none. Linear; never raises."""
        row = decode(self._decoder, line)
        return row if isinstance(row, str) else RawMessage._make(self._pick(row))


#: The point of a deletion that has none, where no world is known.
NOWHERE = (math.nan, math.nan)


def message_row(
    raw: RawMessage,
    space: Space | None = None,
    read_time: Callable[[Any], int | None] = event_time_us,
    stem_language: str = "",
) -> ParsedMessage | str:
    """Check one message.

    Parameters
    ----------
    raw : RawMessage
        Values of any type.
    space : Space, optional
        World box; points outside are `outside_world`. None lets in the whole earth.
    read_time : callable
        From the time as it came to microseconds since 1970, None where there is none; raises ValueError.
    stem_language : str
        The language that the stream stems in; "" for none.

    Returns
    -------
    ParsedMessage, or str
        A reason code (`matching.reasons`).

    Notes
    -----
    A message may lack text. A delete (`op` 1) has no terms; one that names its object may lack a point, and gets the
    middle of the world, `NOWHERE` without one. A range message may lack its point: it gets the middle of its rectangle.
    Without an id the hash of the content is the id. About 8 us.
    """
    known = isinstance(raw.op, str | int | None) and not isinstance(raw.op, bool)  # False equals 0
    op = _OPS.get(raw.op) if known else None
    if op is None:
        number = whole_number(raw.op)  # 1.0, "1.0", as some tables store columns with gaps
        op = None if number is None else _OPS.get(number)
    if op is None:
        return "bad_op"
    text = "" if raw.text is None else raw.text
    if type(text) is not str:
        return "wrong_type"
    if len(text) > MAX_TEXT_CHARACTERS:
        return "text_too_long"
    box = _rectangle(raw)
    if isinstance(box, str):
        return box
    west, south, east, north = box
    if west is not None and raw.lon is None and raw.lat is None:
        lon, lat = (west + east) / 2, (south + north) / 2  # type: ignore[operator]
    elif op == DELETE and raw.object_id not in _BLANK and raw.lon in _BLANK and raw.lat in _BLANK:
        lon, lat = NOWHERE if space is None else ((space.west + space.east) / 2, (space.south + space.north) / 2)
        space = None
    else:
        lon = coordinate(raw.lon, 180.0)
        if isinstance(lon, str):
            return lon
        lat = coordinate(raw.lat, 90.0)
        if isinstance(lat, str):
            return lat
    if space is not None and not (space.west <= lon <= space.east and space.south <= lat <= space.north):
        return "outside_world"
    try:
        time_us = read_time(raw.time)
    except ValueError:
        return "bad_time"
    lang = language_of(raw.lang, stem_language)
    message_id = identifier(raw.id)
    object_id = identifier(raw.object_id)
    if message_id is None or object_id is None:
        return "bad_id"
    try:
        encoded = f"{object_id}\0{text}{in_language('', lang)}".encode()
        message_id.encode()
    except UnicodeEncodeError:
        return "bad_utf8"
    if "\0" in text or "\0" in message_id or "\0" in object_id:
        return "nul_byte"
    content = _content(lon, lat, box, time_us, op, encoded)
    message_id = message_id or content.hex()
    object_id = object_id or message_id
    return ParsedMessage(
        message_id, content, lon, lat, west, south, east, north, time_us, text, object_id, op, lang=lang
    )


def content_of(
    lon: float, lat: float, time_us: int | None, text: str, lang: str, attributes: tuple[Any, ...] = ()
) -> bytes:
    """The hash of the content of a point message about itself; `lang`: of its words, `attributes`: checked values."""
    encoded = f"\0{text}{in_language('', lang)}".encode()
    content = _content(lon, lat, (None, None, None, None), time_us, PUBLISH, encoded)
    return _with_attributes(content, attributes) if attributes else content


def _content(
    lon: float, lat: float, box: tuple[float | None, ...], time_us: int | None, op: int, encoded: bytes
) -> bytes:
    sides = (math.nan,) * 4 if box[0] is None else box
    numbers = _NUMBERS.pack(lon, lat, *sides, FIRST_US - 1 if time_us is None else time_us, op)
    return hashlib.blake2b(numbers + encoded, digest_size=16).digest()


def _with_attributes(content: bytes, attributes: tuple[Any, ...]) -> bytes:
    written = json.dumps(attributes, ensure_ascii=False, separators=(",", ":"))
    return hashlib.blake2b(content + written.encode(errors="backslashreplace"), digest_size=len(content)).digest()


def with_attributes(message: ParsedMessage, read: ReadValues) -> ParsedMessage:
    """The message with its attributes, which count for the hash of its content, and for the id where that is it.

    A value that does not fit counts as it came, so that two rows are the same only if they were sent the same.
    """
    content = _with_attributes(message.content, read.content) if read.content else message.content
    old = message.content.hex()
    if message.message_id == old:
        object_id = content.hex() if message.object_id == old else message.object_id
        message = message._replace(message_id=content.hex(), object_id=object_id)
    return message._replace(content=content, attributes=read.values, misfits=read.misfits)


def _rectangle(raw: RawMessage) -> tuple[float, float, float, float] | tuple[None, None, None, None] | str:
    """The rectangle of a range message, four times None for a point, or a reason code."""
    sides = raw[5:9]
    if sides == (None, None, None, None) or all(side is None or side == "" for side in sides):
        return None, None, None, None
    degrees = []
    for side, limit in zip(sides, (180.0, 90.0, 180.0, 90.0), strict=True):
        value = coordinate(side, limit)
        if isinstance(value, str):
            return "bad_rectangle" if value == "missing_coordinate" else value
        degrees.append(value)
    west, south, east, north = degrees
    return (west, south, east, north) if west <= east and south <= north else "bad_rectangle"


def subscription_row(
    obj: Mapping[str, Any], vocabulary: Vocabulary, space: Space, kinds: Kinds
) -> ParsedSubscription | Refusal:
    """Check one subscription of any kind.

    Parameters
    ----------
    obj : mapping
        Column name (`SUBSCRIPTION_COLUMNS`) to a value of any type; None counts as absent. Other columns are their
        owner's and mean nothing here, unless they look like a slip of the pen (`misspelt`).
    vocabulary : Vocabulary
        Gives keywords their ids; unknown and stop terms are treated as design says for each kind. Where terms are
        admitted later, unknown ones are: they have no id yet, and the subscription is matched once they have.
    space : Space
        World box and projection; a point outside is `outside_world`. A region may reach beyond the box.
    kinds : Kinds
        Those there are, whether they run or not.

    Returns
    -------
    ParsedSubscription, or Refusal

    Notes
    -----
    About 15 us. `k` and `alpha` of kinds that have none are ignored; a point for a kind with a region, or the other way
    round, is `wrong_place`, since its owner expects something that would not happen.
    """
    parsed = _parsed(obj, vocabulary, space, kinds)
    if isinstance(parsed, ParsedSubscription):
        return parsed
    found = Refusal(parsed) if isinstance(parsed, str) else parsed
    fault = found.fault or subscription_fault(found.reason, obj)
    return found if fault is None else Refusal(found.reason, found.detail or str(fault), fault)


def _parsed(
    obj: Mapping[str, Any], vocabulary: Vocabulary, space: Space, kinds: Kinds
) -> ParsedSubscription | Refusal | str:
    """As `subscription_row`; a reason code where it needs no detail."""
    if not obj.keys() <= SUBSCRIPTION_COLUMNS:
        for name, value in obj.items():
            if value is not None and (meant := misspelt(name)):
                what = f"{shown(name)} is no column of subscriptions; did you mean {meant}?"
                return Refusal("unknown_column", what, Fault(name, value))
    subscription_id = identifier(obj.get("subscription_id"))
    if not subscription_id:
        return "bad_id" if subscription_id is None else "missing_id"
    if "\0" in subscription_id:
        return "nul_byte"
    if not encodes(subscription_id):
        return "bad_utf8"
    name = obj.get("kind")
    if not isinstance(name, str) or name not in kinds:
        return "unknown_kind"
    kind = kinds.named(name)
    for column in OBJECT_COLUMNS:
        if isinstance(obj.get(column), str):
            return Refusal(f"bad_{column}", f"{column} is text {_no_object(obj[column])}")
    if obj.get("tell") is not None and isinstance(why := telling_of(obj["tell"]), str):
        return Refusal("bad_tell", why)
    shape = shape_of(obj, kind)
    if isinstance(shape, Refusal):
        return shape
    asked = obj.get("everything")
    if asked is not None and not (isinstance(asked, bool | str) and asked in EVERYTHING):
        return "bad_everything"
    everything = asked is not None and EVERYTHING[asked]
    vocabulary = words_in(obj, vocabulary)
    query = query_of_row(obj, kind, vocabulary)
    if isinstance(query, Refusal | str):
        return query
    lacks_keywords = asks_no_word(obj.get("keywords"))
    wordless = lacks_keywords and (query is None or not query.scoring)
    requires_something = not lacks_keywords or (query is not None and query.requires)
    if kind.place != "region":
        place = _point_of(obj, space)
    elif everything and not requires_something and shape is None and obj.get("region") is None:
        place = math.nan, math.nan, EVERYWHERE, ()
    else:
        place = _region_of(obj, kind, None if shape is None else shape.region)
    if isinstance(place, str | Refusal):
        return place
    if shape is not None and not math.isnan(shape.radius_m) and "alpha" in kind.fields and not space.on_sphere:
        return "radius_in_plane"
    k, alpha = 0, math.nan
    if "k" in kind.fields:
        k = whole_number(obj.get("k"))
        if k is None or not 1 <= k <= MAX_K:
            return "bad_k"
    if "alpha" in kind.fields:
        given = share(obj.get("alpha"))
        if given is None and not (wordless and obj.get("alpha") is None):
            return "bad_alpha"
        alpha = 1.0 if wordless or given is None else given  # without keywords by place alone
    at = 0 if obj.get("at") is None else whole_number(obj["at"])
    until = None if obj.get("until") is None else whole_number(obj["until"])
    if (
        at is None
        or not 0 <= at < 2**62
        or (obj.get("until") is not None and (until is None or not at < until < 2**62))
    ):
        return "bad_span"
    backfill = backfill_of(obj.get("backfill"), kind)
    if isinstance(backfill, Refusal):
        return backfill
    needs = need_of(obj.get("match"), kind)
    if isinstance(needs, str):
        return needs
    if wordless and not kind.wordless:
        return Refusal("no_keyword", f"a {kind.name} compares words: give keywords, or take another kind")
    if lacks_keywords and obj.get("match") not in (None, "all"):
        return Refusal("no_keyword", f"match is {shown(obj['match'])}: there is none to match")
    decided: Sequence[Instruction] = ()
    if query is not None:
        indexed = indexed_by_query(obj, kind, needs, query, vocabulary)
        if isinstance(indexed, str | Refusal):
            return indexed
        found, needs, decided = indexed
    elif wordless:
        found = (vocabulary.reserved,), (RESERVED_IDF,), (), 0, 0
        needs = ALL_KEYWORDS if kind.all_keywords else 1
    else:
        found = keywords_of(obj["keywords"], needs == ALL_KEYWORDS and kind.all_keywords, vocabulary)
    if isinstance(found, str):
        return found
    match = ANY_KEYWORD if kind.all_keywords and needs != ALL_KEYWORDS else KEYWORDS_BY_KIND
    words = found[2]
    if needs > len(words) and words:
        return "match_too_large"
    if needs == ALL_KEYWORDS and not kind.all_keywords:
        needs = len(words)
    excluded = () if obj.get("not_keywords") is None else words_of(obj["not_keywords"], vocabulary)
    if isinstance(excluded, str):
        return excluded
    without = () if query is not None and "not_keywords" in query.columns else excluded
    program = filter_of(obj.get("where"), obj.get("on"), kind, needs, found[0], without, shape, vocabulary, decided)
    if isinstance(program, Refusal):
        return program
    if backfill is not None and asked_in(program) == 1 << MATCH:
        return Refusal("bad_backfill", "where compares with the version before, and earlier messages have none")
    others = excluded if query is None else other_words(obj, query, excluded, words, vocabulary)
    broad = not requires_something and is_broad(kind, shape, place[2], obj.get("where"))
    if broad and not everything:
        return "requires_nothing"
    unknown = sum(vocabulary.id_of(word) is None and word not in vocabulary.stop_terms for word in others)
    radius_m = shape.radius_m if shape is not None and "alpha" in kind.fields else math.nan
    return ParsedSubscription(
        subscription_id, kind.code, *place[:3], match, k, alpha, *found, at, until, program, needs, others, unknown,
        place[3], radius_m, broad, backfill,
    )  # fmt: skip


def _no_object(text: str) -> str:
    """Why a text is not read as a JSON object, for people."""
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as error:
        return f"that is no JSON ({error})"
    return f"where an object belongs: {shown(text)}"


@lru_cache(maxsize=1024)
def misspelt(name: str) -> str | None:
    """The column of subscriptions that this name is nearly, None if it is one, or a free column of its owner's."""
    if name in SUBSCRIPTION_COLUMNS:
        return None
    longer = sorted(SUBSCRIPTION_COLUMNS - _SHORT_COLUMNS)
    near = difflib.get_close_matches(name.strip().lower(), longer, n=1, cutoff=_NEARLY)
    return near[0] if near else None


#: x, y, region, and on the sphere the unit vector of a point.
_Place = tuple[float, float, tuple[float, float, float, float], tuple[float, ...]]
#: Of a subscription with a point.
NO_REGION = (math.nan, math.nan, math.nan, math.nan)


def _point_of(obj: Mapping[str, Any], space: Space) -> _Place | str:
    """x, y, no region, and on the sphere a unit vector; or a reason code."""
    if obj.get("region") is not None:
        return "wrong_place"
    lon = coordinate(obj.get("lon"), 180.0)
    if isinstance(lon, str):
        return lon
    lat = coordinate(obj.get("lat"), 90.0)
    if isinstance(lat, str):
        return lat
    if not space.contains(lon, lat):  # type: ignore[arg-type]
        return "outside_world"
    x, y = space.project(lon, lat)  # type: ignore[arg-type]
    vectors = space.vectors(np.array([lon], np.float64), np.array([lat], np.float64))
    return float(x), float(y), NO_REGION, tuple(vectors.ravel().tolist())


def _region_of(
    obj: Mapping[str, Any], kind: Kind, around: tuple[float, float, float, float] | None
) -> _Place | Refusal | str:
    """No x, no y, the region, or that around a shape; or a reason code."""
    sides = obj.get("region")
    if obj.get("lon") is not None or obj.get("lat") is not None or (around is not None and sides is not None):
        return "wrong_place"
    if around is not None:
        return math.nan, math.nan, around, ()
    if sides is None:
        return Refusal("bad_region", "region is missing; everywhere is [-180, -90, 180, 90]")
    if not isinstance(sides, list | tuple) or len(sides) != 4:
        return "bad_region"
    degrees = []
    for side, limit in zip(sides, (180.0, 90.0, 180.0, 90.0), strict=True):
        value = coordinate(side, limit)
        if isinstance(value, str):
            return value if value.startswith("coordinate") else "bad_region"
        degrees.append(value)
    west, south, east, north = degrees
    if west > east and not kind.wraps:
        return "crosses_antimeridian"
    if south > north or (kind.needs_extent and west == east and south == north):
        return "bad_region"
    return math.nan, math.nan, (west, south, east, north), ()


def build_table(parsed: Sequence[ParsedSubscription], numbers: Sequence[int], ats: Sequence[int]) -> SubscriptionTable:
    """Lay checked subscriptions out as columns.

    Parameters
    ----------
    parsed : sequence of ParsedSubscription
    numbers, ats : sequence of int
        Internal number of each, and the seq it takes effect before (the loader may know better than the row).

    Returns
    -------
    SubscriptionTable
        In the given order; weights are unit idf vectors over the terms in the vocabulary.

    Notes
    -----
    O(rows + terms).
    """
    rows: Any = ParsedSubscription._make(zip(*parsed, strict=True) if parsed else repeat((), len(_FIELDS)))
    offsets = np.zeros(len(parsed) + 1, np.int64)
    np.cumsum(list(map(len, rows.terms)), out=offsets[1:])
    terms, raw = (list(chain.from_iterable(column)) for column in (rows.terms, rows.idf))
    filter_offsets, filter_words = joined_programs(rows.filter)
    nowhere = (math.nan, math.nan, math.nan)
    vector, radius_m = NO_VECTORS, np.array(rows.radius_m, np.float64)
    if any(rows.vector):
        vector = np.array([one or nowhere for one in rows.vector], np.float64)
    return SubscriptionTable(
        number=np.array(numbers, np.int64),
        kind=np.array(rows.kind, np.int8),
        at=np.array(ats, np.int64),
        x=np.array(rows.x, np.float64),
        y=np.array(rows.y, np.float64),
        region=np.array(list(chain.from_iterable(rows.region)), np.float64).reshape(len(parsed), 4),
        match=np.array(rows.match, np.int8),
        k=np.array(rows.k, np.int32),
        alpha=np.array(rows.alpha, np.float64),
        term_offsets=offsets,
        terms=np.array(terms, TERM),
        weights=unit_weights(np.array(raw, np.float64), offsets),
        filter_offsets=filter_offsets,
        filter_words=filter_words,
        vector=vector,
        radius_m=NO_RADII if np.isnan(radius_m).all() else radius_m,
    )
