"""Server-Sent Events, wherever chunks divide them."""

import re

from hypothesis import example, given
from hypothesis import strategies as st

from gateway.client.sse import EventParser, ServerEvent

ENDS = (b"\n", b"\r", b"\r\n")
#: Bytes that mean something, and some that do not.
PIECES = [
    b"data",
    b"id",
    b"event",
    b"retry",
    b":",
    b" ",
    b"\n",
    b"\r",
    b"\r\n",
    b"\0",
    b"\xef\xbb\xbf",
    b"7",
    b"x",
    b"\x0b",
    b"\x85",
]
WORDS = st.text("ab: \u00e9\u2028\x0b", max_size=6)


def parsed(chunks):
    parser = EventParser()
    return [event for chunk in chunks for event in parser.feed(chunk)], parser.retry_ms


def by_the_specification(data):
    """Events of a whole stream, line by line, as WHATWG writes it down."""
    found, name, own, lines, retry = [], "", None, [], None
    *whole, _ = re.split(rb"\r\n|\r|\n", data.removeprefix(b"\xef\xbb\xbf"))
    for line in whole:
        if line == b"":
            if lines:
                found.append(ServerEvent(name or "message", own, b"\n".join(lines)))
            name, own, lines = "", None, []
        elif not line.startswith(b":"):
            field, value = line.split(b":", 1) if b":" in line else (line, b"")
            value = value[1:] if value[:1] == b" " else value
            if field == b"data":
                lines.append(value)
            elif field == b"event":
                name = value.decode(errors="replace")
            elif field == b"id" and 0 not in value:
                own = value.decode(errors="replace")
            elif field == b"retry" and re.fullmatch(rb"[0-9]+", value):
                retry = int(value[:9])
    return found, retry


def cut(data, places):
    """Chunks of data, some empty."""
    marks = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[low:high] for low, high in zip(marks, marks[1:], strict=False)]


@given(st.lists(st.sampled_from(PIECES), max_size=60).map(b"".join), st.lists(st.integers(0, 500), max_size=12))
@example(b"\xef\xbb\xbfdata:x\r\n\r\ndata: y\r\r", list(range(40)))
@example(b"data\n\ndata:\n\nid\ndata:a\n\n", [5])
def test_parser_gives_what_the_specification_says_wherever_chunks_divide(data, places):
    assert parsed(cut(data, places)) == by_the_specification(data)


@given(
    st.lists(st.tuples(WORDS, WORDS, st.lists(WORDS, min_size=1, max_size=3)), max_size=8),
    st.lists(st.sampled_from(ENDS), min_size=1, max_size=5),
    st.lists(st.integers(0, 5_000), max_size=20),
)
def test_parser_gives_events_as_they_were_written(events, ends, places):
    wanted, data = [], b""
    for number, (name, own, lines) in enumerate(events):
        end = ends[number % len(ends)]
        rows = [f"event: {name}", ":note", f"id: {own}", *(f"data: {line}" for line in lines), ""]
        data += b"".join(row.encode() + end for row in rows)
        wanted.append(ServerEvent(name or "message", own, "\n".join(lines).encode()))
    if ends[(len(events) - 1) % len(ends)] == b"\r":
        places = [*places, len(data)]
    assert parsed(cut(data, places))[0] == wanted


def test_parser_takes_the_events_of_the_server():
    text = b'retry: 1000\n\nid: 17-0\ndata: {"id":"17-0"}\n\nid: 17-1\nevent: progress\ndata: {"through":17}\n\nid: 18'
    events, retry_ms = parsed([text])
    assert events == [
        ServerEvent("message", "17-0", b'{"id":"17-0"}'),
        ServerEvent("progress", "17-1", b'{"through":17}'),
    ]
    assert retry_ms == 1_000
