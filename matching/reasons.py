"""Reason codes of refused rows, on which scripts and counters rely, and the meaning of each for people.

The texts take facts about kinds from the table in use, so that they are right for added kinds too.
"""

from collections.abc import Callable, Sequence

from matching.fields import MAX_ID_CHARACTERS
from matching.kind_table import Kind, Kinds
from matching.text import MAX_TEXT_CHARACTERS

#: Longest line that is decoded at all; a text of `MAX_TEXT_CHARACTERS` takes at most a sixteenth of it.
MAX_LINE_BYTES = 16 * 2**20
#: Most lists and objects within each other in a row, the row counted: far fewer than any reader's stack holds.
MAX_DEPTH = 64
MAX_K = 10_000
#: Most terms of one subscription.
MAX_SUBSCRIPTION_TERMS = 256
#: Most words and conditions of one query, and characters of its texts.
MAX_LEAVES, MAX_QUERY_CHARACTERS = 256, 8_192
#: Known words that a beginning stands for when a subscription with it is made: its filter may have them all.
MAX_BEGUN = 1_000
#: Most corners of one polygon, those that close its rings not counted.
MAX_CORNERS = 10_000
#: No two places on the earth are farther apart.
MAX_RADIUS_M = 20_015_115

#: Reason code -> what it means. Codes are stable. Words in braces are filled in by `explain`.
REASONS = {
    "bad_alpha": "alpha must be a number from 0 to 1 ({alpha_needed} one)",
    "backfill_of_results": "backfill is of boolean, whose subscriptions begin empty",
    "bad_backfill": "backfill must be true, a time such as 7d, 12h or 30m, or a whole number of messages",
    "backfill_needs_log": "backfill takes earlier messages from the log of a live stream, and here is none",
    "bad_circle": "circle must have lon, lat and radius_m, and nothing else",
    "bad_attribute": "an attribute's value is a list, has another type than the schema says, or is no finite number",
    "bad_csv": "the row has not as many fields as the header, or its quotes do not close",
    "bad_everything": "everything must be true or false",
    "bad_expiry": "ttl_s of an object must be seconds above 0, or expires_at a time; only one of them, and in files "
    "ttl_s only beside a time",
    "bad_geometry": "the geometry is neither a point nor a rectangle along the axes, in degrees, or is no WKT or WKB",
    "bad_id": f"an id must be text or a whole number (a float: below 2^53), of at most {MAX_ID_CHARACTERS} characters",
    "bad_include": "include must be true, or a list of declared attributes, which updates carry then",
    "bad_k": f"k must be a whole number from 1 to {MAX_K:,} ({{k_needed}} one)",
    "bad_lang": "lang must be the name of a language in which words can be stemmed",
    "bad_match": "match must be all, any, or a whole number from 1: how many distinct words of the keywords are needed",
    "bad_on": "on must be a list of enter, leave, change: the updates of objects that are wanted",
    "bad_op": "op must be publish (0) or delete (1)",
    "bad_polygon": "polygon must be a GeoJSON geometry, Polygon or MultiPolygon, whose rings end where they begin",
    "bad_query": "query must be words, OR, brackets and -, as in ramen (late OR night) -closed, or an object of all, "
    "any, none and where",
    "bad_radius": f"radius_m must be a number of metres above 0, at most {MAX_RADIUS_M:,} (half around the earth)",
    "bad_rectangle": "west, south, east, north must be given together, with west <= east and south <= north",
    "bad_region": "region must be [west, south, east, north] in degrees, south <= north{extent_needed}",
    "bad_span": "at and until must be whole numbers >= 0, and until greater than at",
    "bad_tell": "tell must be an object of at, zone, quiet, most_an_hour, similar, paused, as documented",
    "bad_time": "the time has none of the forms that are read, or a zone that is not known",
    "bad_utf8": "the text is not valid UTF-8, or has half a surrogate pair",
    "bad_where": "where must be an object of attributes, with a value, a list, or lt, lte, gt, gte, not, exists, "
    "or of objects decreased, decreased_by, increased, changed",
    "broken_file": "the file cannot be read to its end",
    "coordinate_not_finite": "a coordinate is NaN or infinite",
    "coordinate_not_number": "a coordinate is text that is no plain decimal number",
    "coordinate_out_of_range": "longitude must be within -180..180 and latitude within -90..90",
    "crosses_antimeridian": "west is greater than east, which {wraps} regions may have",
    "duplicate_id": "an earlier message has the same id and other content",
    "empty_line": "the line is empty",
    "impossible_where": "the bounds of a condition leave no value: no message could ever match",
    "invalid_polygon": "rings of the polygon cross each other or themselves, overlap, or enclose nothing",
    "line_too_long": f"the line is longer than {MAX_LINE_BYTES:,} bytes",
    "long_edge": "an edge of the polygon is longer than 180 degrees: to cross the antimeridian write longitudes beyond "
    "180 (190 for -170), otherwise put a corner between",
    "match_too_large": "match is a larger number than the keywords have distinct words",
    "missing_coordinate": "longitude or latitude is missing",
    "missing_id": "subscription_id is missing",
    "missing_time": "the time is missing, where one is required",
    "needs_objects": "on and conditions on the version before (decreased, decreased_by, increased, changed) need a "
    "stream of objects (--objects)",
    "no_needed_word": "the query also takes messages without any of its words, by which this kind ranks: add a word "
    "that all must have, or ask as a kind that does not rank",
    "no_keyword": "no word is left of the keywords",
    "no_known_keyword": "no message has any of the keywords, and this kind matches by shared keywords",
    "not_json": "the line is not a JSON object",
    "nul_byte": "the line, text or id has a NUL",
    "number_not_finite": "a number is NaN, infinite, or too large",
    "outside_world": "the point lies outside the world box",
    "requires_nothing": "no keyword, no where, and no region but the whole earth: every message would match; if so "
    'meant, add "everything": true',
    "stop_term": "a keyword is a stop term that was removed from the messages, so all keywords can never be found",
    "text_too_long": f"the text is longer than {MAX_TEXT_CHARACTERS:,} characters",
    "too_deep": f"lists and objects are nested more than {MAX_DEPTH} deep, the row counted",
    "too_many_corners": f"the polygon has more than {MAX_CORNERS:,} corners",
    "too_many_conditions": "where has more than 64 conditions, or a list of more than 1,024 values",
    "too_many_terms": "the keywords have new words, and there is no room left for them (stream.most_terms)",
    "too_large_query": f"the query has over {MAX_LEAVES} words and conditions, or {MAX_QUERY_CHARACTERS:,} characters",
    "too_many_words": f"the beginning of a word, or a word with ~1, stands for more than {MAX_BEGUN:,} known words: "
    "write more of it",
    "too_many_keywords": f"the keywords give more than {MAX_SUBSCRIPTION_TERMS} terms",
    "unknown_attribute": "where names an attribute that the messages do not have",
    "no_word_order": "phrases need the order of words, without which the messages were prepared: run the ETL again",
    "query_in_keywords": 'keywords are plain words; "in quotes", beginn* and (a OR b) are for query',
    "radius_in_plane": "radius_m of a kind with alpha needs --distance sphere",
    "unknown_column": "a column's name is nearly one that subscriptions have; check the spelling, or name it otherwise",
    "unknown_kind": "kind must be one of {kinds}",
    "versions_of_results": "conditions on the version before are of boolean: each version that satisfies them is one "
    "match",
    "wrong_place": "{region_taken} a region{or_shape} and no point, the other kinds a point and no region",
    "wrong_shape": "{circle_taken} a circle, {polygon_taken} a polygon, {radius_taken} radius_m; only one of them",
    "wrong_type": "a value has the wrong type",
}


def explain(code: str, kinds: Kinds, detail: str = "") -> str:
    """What a code of `REASONS` means where there are these kinds, and what is wrong where, if that is known.

    Raises
    ------
    KeyError
        For an unknown code.
    """

    def those(which: Callable[[Kind], bool]) -> list[str]:
        return [kind.name for kind in kinds if which(kind)]

    wraps = those(lambda kind: kind.wraps)
    extent = [f"a {name}'s" for name in those(lambda kind: kind.needs_extent)]
    meaning = REASONS[code].format(
        kinds=", ".join(kinds.names),
        alpha_needed=_they(those(lambda kind: "alpha" in kind.fields), "need"),
        k_needed=_they(those(lambda kind: "k" in kind.fields), "need"),
        region_taken=_they(those(lambda kind: kind.place == "region"), "take"),
        or_shape=" (or a circle or polygon in its place)" if those(lambda kind: "circle" in kind.shapes) else "",
        circle_taken=_they(those(lambda kind: "circle" in kind.shapes), "take"),
        polygon_taken=_they(those(lambda kind: "polygon" in kind.shapes), "take"),
        radius_taken=_they(those(lambda kind: "radius_m" in kind.shapes), "take"),
        extent_needed=f"; {_they(extent, 'need')} some size" if extent else "",
        wraps=f"only {' and '.join(wraps)}" if wraps else "no",
    )
    return f"{detail} ({meaning})" if detail else meaning


def _they(names: Sequence[str], verb: str) -> str:
    """These do something: "a, b and c need", "a needs", "no kind needs"."""
    if len(names) < 2:
        return f"{names[0] if names else 'no kind'} {verb}s"
    return f"{', '.join(names[:-1])} and {names[-1]} {verb}"
