"""The gate for messages: lines of JSON, single values, whole rows."""

import math
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import pytest

from matching.attributes import CATEGORY, attribute_value
from matching.errors import ConfigError
from matching.fields import coordinate, event_time_us, identifier, share, whole_number
from matching.reasons import MAX_LINE_BYTES, REASONS
from matching.space import Space
from matching.text import MAX_TEXT_CHARACTERS
from matching.validate import (
    DELETE,
    MESSAGE_ROLES,
    PUBLISH,
    MessageDecoder,
    ParsedMessage,
    RawMessage,
    decode_object,
    message_row,
)

GOOD = RawMessage(text="ramen bar", lat=1.5, lon=2.5, time="2020-01-02T03:04:05Z", id="m1")


def decode(line: bytes, **columns):
    return MessageDecoder({role: role for role in MESSAGE_ROLES} | columns).decode(line)


def parsed(**changes) -> ParsedMessage:
    row = message_row(GOOD._replace(**changes))
    assert isinstance(row, ParsedMessage), row
    return row


def test_decode_good_line_picks_columns_by_role():
    raw = decode(b'{"body": "x", "lat": 1, "lon": "2", "other": {"deep": [1]}, "op": null}', text="body")
    assert raw == RawMessage(text="x", lat=1, lon="2")


def test_decode_two_roles_of_one_column_both_get_it():
    raw = decode(b'{"id": "a", "text": "x"}', object_id="id")
    assert isinstance(raw, RawMessage) and (raw.id, raw.object_id) == ("a", "a")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"", "empty_line"),
        (b"  \r", "empty_line"),
        (b'{"text": "x"', "not_json"),
        (b'{"text": "x"} y', "not_json"),
        (b"[1]", "not_json"),
        (b"null", "not_json"),
        (b'"text"', "not_json"),
        (b"plain words", "not_json"),
        (b"[" * 100_000, "not_json"),
        (b'{"lat":' + b"[" * 100_000, "not_json"),
        (b'{"other":' + b'{"a":' * 100_000, "not_json"),
        (b'{"text": "\xff"}', "bad_utf8"),
        (b"\xff\xfe{", "bad_utf8"),
        (b'{"text": "\\ud83d"}', "bad_utf8"),
        (b'{"text": "a\0b"}', "nul_byte"),
        (b'{"text": "\xff\0"}', "nul_byte"),
        (b'{"lat": NaN}', "number_not_finite"),
        (b'{"lat": -Infinity}', "number_not_finite"),
        (b'{"lat": 1e400}', "number_not_finite"),
        (b'{"text":"' + b"x" * MAX_LINE_BYTES + b'"}', "line_too_long"),
    ],
    ids=lambda value: ascii(value[:24]),
)
def test_decode_bad_line_gives_reason(line, reason):
    assert decode(line) == reason
    assert reason in REASONS
    if reason != "not_json" or line[:1] not in (b"[", b'"', b"n"):
        assert decode_object(line) == reason


def test_decode_object_good_line_gives_dict():
    assert decode_object(b'{"a": [1, 2.5, null]}') == {"a": [1, 2.5, None]}


def test_message_decoder_unknown_role_is_refused():
    with pytest.raises(ConfigError, match="colour"):
        MessageDecoder({"colour": "c"})


def test_message_decoder_impossible_column_is_refused():
    with pytest.raises(ConfigError, match="quote"):
        MessageDecoder({"text": 'quote"'})


def test_message_row_good_row_is_parsed():
    row = parsed()
    assert row[:1] + row[2:] == (
        "m1",
        2.5,
        1.5,
        None,
        None,
        None,
        None,
        int(datetime(2020, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp()) * 10**6,
        "ramen bar",
        "m1",
        0,
        False,
        (),
        (),
        None,
        "",
    )
    assert len(row.content) == 16


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"text": 5}, "wrong_type"),
        ({"text": ["x"]}, "wrong_type"),
        ({"text": "x" * (MAX_TEXT_CHARACTERS + 1)}, "text_too_long"),
        ({"text": "x" * 10_000_000}, "text_too_long"),
        ({"text": "a\0"}, "nul_byte"),
        ({"id": "a\0"}, "nul_byte"),
        ({"object_id": "a\0"}, "nul_byte"),
        ({"text": "a\udc80"}, "bad_utf8"),
        ({"id": "a\udc80"}, "bad_utf8"),
        ({"lat": None}, "missing_coordinate"),
        ({"lon": ""}, "missing_coordinate"),
        ({"lat": math.nan}, "coordinate_not_finite"),
        ({"lon": "inf"}, "coordinate_not_finite"),
        ({"lat": 90.0000001}, "coordinate_out_of_range"),
        ({"lon": -181}, "coordinate_out_of_range"),
        ({"lon": 10**400}, "coordinate_out_of_range"),
        ({"lat": "1,234,5"}, "coordinate_not_number"),
        ({"lat": "41,"}, "coordinate_not_number"),
        ({"lat": True}, "wrong_type"),
        ({"lat": [1]}, "wrong_type"),
        ({"time": "yesterday"}, "bad_time"),
        ({"time": {}}, "bad_time"),
        ({"id": 1.5}, "bad_id"),
        ({"id": True}, "bad_id"),
        ({"id": "x" * 513}, "bad_id"),
        ({"object_id": []}, "bad_id"),
        ({"op": "remove"}, "bad_op"),
        ({"op": 2}, "bad_op"),
        ({"op": []}, "bad_op"),
        ({"op": False}, "bad_op"),
        ({"west": 1}, "bad_rectangle"),
        ({"west": 3, "south": 0, "east": 2, "north": 1}, "bad_rectangle"),
        ({"west": 1, "south": 2, "east": 2, "north": 1}, "bad_rectangle"),
        ({"west": 1, "south": 2, "east": 200, "north": 3}, "coordinate_out_of_range"),
    ],
    ids=lambda value: ascii(value)[:40],
)
def test_message_row_bad_value_gives_reason(changes, reason):
    assert message_row(GOOD._replace(**changes)) == reason
    assert reason in REASONS


def test_message_row_outside_world_is_rejected_and_edge_is_kept():
    space = Space.parse("0,0,2.5,1.5", None)
    assert isinstance(message_row(GOOD, space), ParsedMessage)
    assert message_row(GOOD._replace(lon=2.5000001), space) == "outside_world"


def test_message_row_without_id_gets_hash_of_content():
    first, again, other = parsed(id=None), parsed(id=""), parsed(id=None, text="ramen")
    assert first.message_id == again.message_id == first.object_id == first.content.hex()
    assert other.message_id != first.message_id


def test_message_row_content_ignores_id_and_how_numbers_are_written():
    assert parsed(id="a").content == parsed(id="b", lat="1.50", lon=Decimal("2.5"), time=1577934245).content


@pytest.mark.parametrize(
    "changes", [{"text": "ramen"}, {"lat": 1.25}, {"time": None}, {"op": 1}, {"object_id": "o"}], ids=str
)
def test_message_row_content_tells_differences(changes):
    assert parsed(**changes).content != parsed().content


def test_message_row_rectangle_without_point_gets_its_middle():
    row = parsed(lat=None, lon=None, west=1, south=2, east="3", north=4)
    assert (row.lon, row.lat, row.west, row.south, row.east, row.north) == (2, 3, 1, 2, 3, 4)
    assert parsed(west="", south=None, east="", north="").west is None


@pytest.mark.parametrize("sides", [(1, 2, 3, 2), (1, 2, 1, 4), (1, 2, 1, 2)], ids=["horizontal", "vertical", "point"])
def test_message_row_rectangle_without_area_is_taken(sides):
    west, south, east, north = sides
    row = parsed(west=west, south=south, east=east, north=north)
    assert (row.west, row.south, row.east, row.north) == sides


def test_message_row_delete_needs_no_text():
    row = parsed(op="delete", text=None, object_id="o7")
    assert (row.op, row.text, row.object_id) == (1, "", "o7")


@pytest.mark.parametrize(
    ("value", "degrees"), [(0, 0.0), ("41.5", 41.5), (" -3e1 ", -30.0), ("+.5", 0.5), (Decimal("1.25"), 1.25), (90, 90)]
)
def test_coordinate_number_in_any_form_is_read(value, degrees):
    assert coordinate(value, 90) == degrees


def test_coordinate_minus_zero_becomes_zero():
    assert [str(coordinate(value, 90)) for value in (-0.0, "-0", 0)] == ["0.0"] * 3


@pytest.mark.parametrize("value", ["1_0", "٣", "0x1f", "1e", "--1", "41.5N", "1 2"])
def test_coordinate_text_that_is_no_plain_number_is_refused(value):
    assert coordinate(value, 90) == "coordinate_not_number"


MOMENT = int(datetime(2013, 4, 1, 5, 30, tzinfo=UTC).timestamp()) * 10**6


@pytest.mark.parametrize(
    ("value", "microseconds"),
    [
        ("2013-04-01T05:30:00", MOMENT),
        ("2013-04-01 05:30", MOMENT),
        ("2013-04-01T05:30:00Z", MOMENT),
        ("2013-04-01 05:30:00 UTC", MOMENT),
        ("2013-04-01T07:30:00+02:00", MOMENT),
        ("2013-04-01 07:30:00 +0200", MOMENT),
        ("2013-04-01T05:30:00.1234567", MOMENT + 123_456),
        ("2013-04-01", MOMENT - 19_800 * 10**6),
        ("20130401", MOMENT - 19_800 * 10**6),
        ("2013-04", MOMENT - 19_800 * 10**6),
        ("2013", 1_356_998_400 * 10**6),
        (MOMENT // 10**6, MOMENT),
        (MOMENT // 10**3, MOMENT),
        (MOMENT, MOMENT),
        (MOMENT / 10**6 + 0.5, MOMENT + 500_000),
        (str(MOMENT // 10**6), MOMENT),
        (str(MOMENT // 10**3), MOMENT),
        (0, 0),
        (-1, -(10**6)),
        (datetime(2013, 4, 1, 5, 30), MOMENT),
        (datetime(2013, 4, 1, 7, 30, tzinfo=timezone(timedelta(hours=2))), MOMENT),
        (date(2013, 4, 1), MOMENT - 19_800 * 10**6),
        # the zone of a day is no time of day
        ("2013-04-01Z", MOMENT - 19_800 * 10**6),
        ("2013-04-01+02:00", MOMENT - 27_000 * 10**6),
        ("2013-04-01 +0200", MOMENT - 27_000 * 10**6),
        ("20130401-0930", MOMENT + 14_400 * 10**6),
        ("2013-W14-1-09:30", MOMENT + 14_400 * 10**6),
        ("2013-04-01T05:30 gmt", MOMENT),
        ("2013-04-01_05:30", MOMENT),
        ("2013-04-01\u202f05:30Z", MOMENT),
        ("20130401T0530Z", MOMENT),
        ("Mon, 01 Apr 2013 07:30:00 +0200", MOMENT),
        ("1 Apr 2013 01:30 EDT", MOMENT),
        ("Monday, 01-Apr-13 05:30:00 GMT", MOMENT),
        ("Mon, 01 Apr 13 05:30:00 UT", MOMENT),
        ("Mon Apr  1 05:30:00 2013", MOMENT),
        ("Mon Apr 01 07:30:00 +0200 2013", MOMENT),
        # a date and a clock, which in milliseconds would be of the year 2607
        (20130401053000, MOMENT),
        ("20130401053000", MOMENT),
        (20130401053000.0, MOMENT),
        (Decimal("20130401053000"), MOMENT),
        # a date, which in seconds would be of August 1970; other numbers of eight digits are seconds
        (20130401, MOMENT - 19_800 * 10**6),
        (20130401.0, MOMENT - 19_800 * 10**6),
        (Decimal(20130401), MOMENT - 19_800 * 10**6),
        (20131301, 20131301 * 10**6),
        (20130401.5, 20130401_500_000),
        # mail servers write the zone's name behind its offset
        ("Mon, 01 Apr 2013 07:30:00 +0200 (CEST)", MOMENT),
        ("Mon, 1 Apr 2013 05:30:00 GMT(x y)", MOMENT),
        ("2013-04-01T05:30:00,5", MOMENT + 500_000),
        # the first and last numbers of each unit
        (10**10 - 1, (10**10 - 1) * 10**6),
        (1 - 10**10, (1 - 10**10) * 10**6),
        (10**11, 10**14),
        (10**13 - 1, (10**13 - 1) * 1000),
        (10**14, 10**14),
        (10**16 - 1, 10**16 - 1),
        (201310011260, 201310011260 * 1000),
        (None, None),
        (" ", None),
    ],
    ids=str,
)
def test_event_time_any_form_is_read(value, microseconds):
    assert event_time_us(value) == microseconds


@pytest.mark.parametrize(
    "value",
    ["x", "2013-13-01", "12345", "2013-04-01T25:00", True, [], math.nan, math.inf, 10**30, "9" * 400, "0000"]
    + [10**400, Decimal("nan"), Decimal("snan"), Decimal("-inf"), Decimal("1e9999999")]
    # perhaps a zone, perhaps an hour, and no clock at all
    + ["2013-04-01-05", "2013-04-01+05", "2013-04-01/12", "2013-04-01x05", "2013-04-01_23", "2013-04-01x05:30"]
    + ["2013-04-01T05:30+02:60", "2013-04-01T05:30 +25:00", "2013-04-01T", "2013-04+02:00"]
    # zones that mean several, or that no other machine knows
    + [f"Mon, 01 Apr 2013 05:30:00 {zone}" for zone in ("CET", "JST", "BST", "IST", "MSK", "A", "J", "X", "CEST")]
    + ["Mon Apr  1 05:30:00 CET 2013", "2013-04-01 05:30 CET", "2013-04-01T05:30[Europe/Paris]", "2013-04-01 EST"]
    # fractions of minutes and hours, which would be read as seconds
    + ["2013-04-01T05:30.5", "2013-04-01T05.5", "2013-04-01T0530.5Z", "2013-04-01T05:3000"]
    + ["Mon, 01 Apr 2013 05:30:00 (GMT)", "Mon, 01 Apr 2013 05:30:00 CET (+0100)"]
    # of two units, or of none of them
    + [10**10, -(10**10), 63072000000, 10**11 - 1, 10**13, -(10**13), 10**14 - 1, 10**16, "63072000000"]
    + [201304010530, "201304010530", 20131301053000, 20130401056000, 18130401053000, 20130401053000.5],
    ids=str,
)
def test_event_time_unreadable_raises_value_error(value):
    with pytest.raises(ValueError):
        event_time_us(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (7, "7"),
        (7.0, "7"),
        (-7.0, "-7"),
        (Decimal("7.00"), "7"),
        (Decimal("1E+3"), "1000"),
        ("7", "7"),
        ("7.0", "7.0"),
        (None, ""),
        (2**64, "18446744073709551616"),
        (float(2**53 - 1), "9007199254740991"),
        (float(2**53), None),
        (1.05e18, None),
        (Decimal(2**70), str(2**70)),
        (Decimal("1E+999999"), None),
        (Decimal("NaN"), None),
        (Decimal("7.5"), None),
        (float("inf"), None),
        (float("nan"), None),
        (7.5, None),
        (False, None),
        (10**600, None),
    ],
)
def test_identifier_whole_numbers_become_text_if_no_digit_is_lost(value, text):
    assert identifier(value) == text


@pytest.mark.parametrize("value", [12, 12.0, "12", " 12.0 ", "12.", Decimal("12.0")])
def test_whole_number_decimals_without_a_fraction_are_whole(value):
    assert whole_number(value) == 12


@pytest.mark.parametrize("value", ["12.5", 12.5, "1e3", Decimal("12.5"), True, None, "", ".0", 2.0**60, [12]])
def test_whole_number_others_are_none(value):
    assert whole_number(value) is None


@pytest.mark.parametrize(("op", "code"), [(1.0, DELETE), ("1.0", DELETE), (Decimal(1), DELETE), (0.0, PUBLISH)])
def test_message_row_op_may_be_a_decimal(op, code):
    parsed = message_row(RawMessage(text="a", lon=1, lat=2, op=op))
    assert isinstance(parsed, ParsedMessage) and parsed.op == code


def test_attribute_value_category_whole_decimals_are_whole_numbers():
    assert [attribute_value(CATEGORY, value) for value in (3, 3.0, Decimal("3.0"), -0.0)] == ["3", "3", "3", "0"]
    for value in (3.5, 2.0**60, float("nan")):
        with pytest.raises(ValueError, match="a whole number"):
            attribute_value(CATEGORY, value)


def test_share_may_be_a_decimal():
    assert (share(Decimal("0.5")), share(Decimal("1.5")), share(0.5)) == (0.5, None, 0.5)
