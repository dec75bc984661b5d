"""Bodies of requests: read within a limit, cut into rows, and streams of rows with an outcome a line."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from itertools import repeat
from typing import Any, NamedTuple, TypeVar

import msgspec
from fastapi import Request, Response
from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from gateway.live.admission import whole_row
from gateway.live.pipe import one_line
from gateway.serve.access import Caller, buffer_of, header_of
from gateway.serve.door import Door
from gateway.serve.problems import ApiError, answer, later
from gateway.serve.writer import MOST_ROWS, TURN_ROWS, Outcome, Row, refused
from matching.decoding import cut_deep, has_more_members, is_deep
from matching.reasons import MAX_DEPTH
from matching.validate import bare

NDJSON = "application/x-ndjson"
#: Bytes of a body that is read whole, and of a line of a stream.
MOST_BODY_BYTES, MOST_LINE_BYTES = 16 * 2**20, 2**20
#: Seconds within which a body that is read whole has to come.
BODY_S = 60.0
#: Rows of a stream that are logged at a time: no more than a turn of the writer takes, so that the groups that wait
#: there keep their order.
GROUP_ROWS = TURN_ROWS
#: Groups of a stream that wait for the writer, about. With one the writer and what reads the lines wait for each other,
#: and lines wait in the socket.
GROUPS_AHEAD = 4
#: Bytes of outcomes that wait for a client that does not read them.
MOST_OUTCOME_BYTES = 64 * 2**20

#: Bytes of a body up to which the event loop cuts it and checks its rows, which a thread does otherwise.
_SHORT_BYTES = 64 * 2**10
_RAW = msgspec.json.Decoder(list[msgspec.Raw])
_ENCODER = msgspec.json.Encoder()
#: Seconds between two looks whether a stream of lines may continue, while none come.
_LOOK_S = 0.5

_Decoded = TypeVar("_Decoded")
_Made = TypeVar("_Made")
RowOf = Callable[[bytes], Row | Outcome]
#: Numbers of lines, and the lines.
_Group = tuple[Sequence[int], list[bytes]]


def array_of(schema: dict[str, Any]) -> dict[str, Any]:
    """Schema of an array of rows, of which a bad one is refused by its outcome, and the array is taken."""
    return {"type": "array", "items": {"anyOf": [schema, {"description": "anything else is refused by its outcome"}]}}


def media_type(request: Request, *others: str) -> str:
    """The media type of a body, without parameters. Raises ApiError unless it is JSON, lines of it, or a named one."""
    found = header_of(request.scope, b"content-type").partition(";")[0].strip().lower()
    if found not in ("application/json", NDJSON, *others):
        raise ApiError(
            415,
            "wrong_media_type",
            f"the body is {found or 'of no media type'}",
            "header Content-Type",
            f"send application/json, or {NDJSON} for lines",
        )
    if header_of(request.scope, b"content-encoding").lower() not in ("", "identity"):
        raise ApiError(
            415, "wrong_encoding", "compressed bodies are not read", "header Content-Encoding", "send it plain"
        )
    return found


async def read_body(request: Request) -> bytes:
    """A body of at most `MOST_BODY_BYTES`, that comes within `BODY_S`, from its first row on. Raises ApiError."""
    if request.scope.get("has_body"):
        return await _whole(request)
    try:
        async with asyncio.timeout(BODY_S):
            return await _whole(request)
    except TimeoutError:
        do = f"send less at once, or lines as {NDJSON}"
        raise ApiError(408, "body_too_slow", f"the body has not come within {BODY_S:g} s", do=do) from None


async def _whole(request: Request) -> bytes:
    parts, size, more = [], 0, True
    if int(header_of(request.scope, b"content-length") or 0) > MOST_BODY_BYTES:
        raise _too_long_body()
    buffer = buffer_of(request)
    while more:
        event = await request.receive()
        if event["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk, more = event.get("body", b""), event.get("more_body", False)
        size += len(chunk)
        if size > MOST_BODY_BYTES:
            raise _too_long_body()
        if not buffer.take(len(chunk)):
            raise later(429, "overloaded", "more bytes of bodies wait, of this caller or of all, than may", 1)
        parts.append(chunk)
    return bare(b"".join(parts))


def _too_long_body() -> ApiError:
    detail = f"the body is longer than {MOST_BODY_BYTES:,} bytes"
    return ApiError(413, "body_too_long", detail, do=f"send several requests, or lines as {NDJSON}")


async def rows_of(body: bytes) -> list[bytes] | None:
    """The members of a JSON array as lines; None if the body is no array.

    A long body is cut in a thread. Raises ApiError, also for more than `MOST_ROWS` members.
    """
    if not body.startswith(b"["):
        return None
    return _members(body) if len(body) <= _SHORT_BYTES else await asyncio.to_thread(_members, body)


def _members(body: bytes) -> list[bytes]:
    if has_more_members(body, MOST_ROWS):
        detail = f"the array has more than {MOST_ROWS:,} members, and no more are taken at once"
        raise ApiError(
            413, "too_many_rows", detail, "body", f"send lines as {NDJSON}, which have no end, or fewer at once"
        )
    try:
        return [one_line(bytes(row)) for row in decoded(body, _RAW.decode)]
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ApiError(400, "not_json", f"the body is no JSON array ({error})") from None


def decoded(body: bytes, decode: Callable[[bytes], _Decoded]) -> _Decoded:
    """What a decoder makes of a body; a row too deep for it stays so deep that it is refused."""
    try:
        return decode(body)
    except RecursionError:
        if not is_deep(body):
            raise
        return decode(cut_deep(body, 2 * MAX_DEPTH))


async def log_rows(door: Door, caller: Caller, data: Sequence[bytes], row_of: RowOf) -> list[Outcome]:
    """Log rows of a caller, and return the outcome of each; `row_of` may refuse one, and is called in a thread."""
    rows, taken, size_bytes = await _made(data, row_of)
    return _in_place(rows, await door.submit(taken, size_bytes, caller) if taken else [])


async def _made(data: Sequence[bytes], row_of: RowOf) -> tuple[list[Row | Outcome], list[Row], int]:
    """A row of each line, or its refusal; the rows alone; and the bytes of all lines."""

    def rows_of_data() -> list[Row | Outcome]:
        if max(map(len, data), default=0) <= MOST_LINE_BYTES:
            return list(map(row_of, data))
        return [_too_long(each) if len(each) > MOST_LINE_BYTES else row_of(each) for each in data]

    size_bytes = sum(map(len, data))
    rows = rows_of_data() if size_bytes <= _SHORT_BYTES else await asyncio.to_thread(rows_of_data)
    return rows, [row for row in rows if not isinstance(row, dict)], size_bytes


def _in_place(rows: Sequence[Row | Outcome], outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The outcomes of rows, in their order, and those that were refused before."""
    if len(outcomes) == len(rows):
        return list(outcomes)
    logged = iter(outcomes)
    return [row if isinstance(row, dict) else next(logged) for row in rows]


def _too_long(row: bytes) -> Outcome:
    return refused("line_too_long", f"the row is longer than {MOST_LINE_BYTES:,} bytes", whole_row(row))


class _Logging(NamedTuple):
    """Lines of a stream that are being logged.

    numbers : sequence of int
    rows : list of Row or Outcome    a row of each line, or its refusal
    logged : Future or None          the outcomes of the rows; None without any
    """

    numbers: Sequence[int]
    rows: list[Row | Outcome]
    logged: asyncio.Future[list[Outcome]] | None


class LineOutcomes(Response):
    """Reads lines of JSON and answers with a line for each, while more come.

    Parameters
    ----------
    caller : Caller
        Whose key must count as long as lines come.
    row_of : callable
        A line -> a row, or its refusal.
    delivered : bool
        Whether to wait for the updates of the messages at the end, and say so in a last line.
    paced : bool
        Whether rows are messages, of which a caller may send so many a second.

    Notes
    -----
    Outcomes wait in memory for a client that sends all before it reads any.
    """

    media_type = NDJSON

    def __init__(self, door: Door, caller: Caller, row_of: RowOf, delivered: bool = False, paced: bool = False):
        super().__init__()
        self._door = door
        self._caller = caller
        self._paced = paced
        self._row_of = row_of
        self._delivered = delivered
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._changed = asyncio.Event()
        self._ended = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, sending, every = Request(scope, receive), None, []
        self._buffer = buffer_of(request)
        try:
            async with aclosing(_ahead(self._logging(request), GROUPS_AHEAD)) as groups:
                async for group in groups:
                    outcomes = _in_place(group.rows, await group.logged if group.logged else [])
                    numbered = [{"line": number, **one} for number, one in zip(group.numbers, outcomes, strict=True)]
                    if self._delivered:
                        every += [one for one in outcomes if "seq" in one][-1:]
                    if sending is None:
                        sending = asyncio.create_task(self._send(send))
                    await self._put(_ENCODER.encode_lines(numbered))
            if self._delivered:
                await self._put(msgspec.json.encode({"delivered": await self._door.delivered(every)}) + b"\n")
        except ClientDisconnect:
            if sending is not None:
                sending.cancel()
            return
        except ApiError as problem:
            if sending is None:
                await answer(problem)(scope, receive, send)
                return
            await self._put(msgspec.json.encode({"status": "failed", "problem": problem.body}) + b"\n")
        self._ended = True
        self._changed.set()
        await (sending or self._send(send))

    async def _logging(self, request: Request) -> AsyncGenerator[_Logging]:
        """The groups of lines that come, each on its way to the log. Raises ApiError if one may not go there."""
        groups = _groups(request)
        while (group := await self._next(groups)) is not None:
            numbers, lines = group
            if self._paced:
                await self._door.access.pace_messages(self._caller, len(lines))
            self._door.access.refuse_if_ended(self._caller)
            rows, taken, size_bytes = await _made(lines, self._row_of)
            logged = await self._door.submit_patiently(taken, size_bytes, self._caller) if taken else None
            yield _Logging(numbers, rows, logged)
            if logged is not None and self._door.writer.parks:  # it may be this group, which the next would overtake
                await asyncio.wait((logged,))

    async def _next(self, groups: AsyncGenerator[_Group]) -> _Group | None:
        """The next lines; None at the end. Raises ApiError if the server or the caller's key ends before they come."""
        coming = asyncio.ensure_future(anext(groups, None))
        try:
            while not (await asyncio.wait((coming,), timeout=_LOOK_S))[0]:
                self._door.refuse_if_closing()
                self._door.access.refuse_if_ended(self._caller)
            return coming.result()
        finally:
            coming.cancel()

    async def _put(self, data: bytes) -> None:
        while self._waiting_bytes > MOST_OUTCOME_BYTES or not self._buffer.take(len(data)):
            await asyncio.sleep(0.02)
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        self._changed.set()

    async def _send(self, send: Send) -> None:
        headers = [(b"content-type", NDJSON.encode()), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        while True:
            await self._changed.wait()
            self._changed.clear()
            data, self._waiting, self._waiting_bytes = b"".join(self._waiting), [], 0
            ended = self._ended
            await send({"type": "http.response.body", "body": data, "more_body": not ended})
            self._buffer.give_back(len(data))
            if ended:
                return


async def _ahead(source: AsyncGenerator[_Made], most: int) -> AsyncGenerator[_Made]:
    """The items of a generator, which runs ahead in a task by about so many; its error comes behind them."""
    made: asyncio.Queue[_Made | Exception | None] = asyncio.Queue(most)

    async def make() -> None:
        try:
            async for one in source:
                await made.put(one)
            await made.put(None)
        except Exception as error:
            await made.put(error)

    making = asyncio.create_task(make())
    try:
        while (one := await made.get()) is not None:
            if isinstance(one, Exception):
                raise one
            yield one
    finally:
        making.cancel()


async def _groups(request: Request) -> AsyncGenerator[_Group]:
    """Lines of a body with their numbers from 1, as they come, some at a time. Those without a row are left out."""
    rest, number = b"", 0
    async for chunk in request.stream():
        lines = (rest + chunk).split(b"\n")
        rest = lines.pop()[: MOST_LINE_BYTES + 1]
        for first in range(0, len(lines), GROUP_ROWS):
            part = lines[first : first + GROUP_ROWS]
            numbers: Sequence[int] = range(number + 1, number + 1 + len(part))
            number += len(part)
            if not all(map(bytes.startswith, part, repeat(b"{"))):
                numbers = [numbers[place] for place, line in enumerate(part) if bare(line)]
                part = list(filter(bare, part))
            if part:
                yield numbers, part
            else:
                await asyncio.sleep(0)  # a body of line ends alone is not to keep all others waiting
    if bare(rest):
        yield [number + 1], [rest]


def encoded(
    content: Any, status: int = 200, headers: dict[str, str] | None = None, media: str = "application/json"
) -> Response:
    """An answer of JSON."""
    return Response(msgspec.json.encode(content), status, headers=headers, media_type=media)


async def encoded_outcomes(outcomes: Sequence[Outcome], counts: dict[str, Any] | None = None) -> Response:
    """An answer with an outcome a row, encoded and sent some rows at a time.

    Parameters
    ----------
    counts : dict, optional
        Written before them, in an object that has them as `outcomes`; without it the answer is an array.
    """
    pieces = [b"[" if counts is None else msgspec.json.encode(counts)[:-1] + b',"outcomes":[']
    for first in range(0, len(outcomes), GROUP_ROWS):
        rows = [{"line": line, **one} for line, one in enumerate(outcomes[first : first + GROUP_ROWS], start=first + 1)]
        pieces += [b"," if first else b"", msgspec.json.encode(rows)[1:-1]]
        await asyncio.sleep(0)
    pieces.append(b"]" if counts is None else b"]}")

    async def parts() -> AsyncGenerator[bytes]:
        for piece in pieces:
            yield piece

    headers = {"Content-Length": str(sum(map(len, pieces)))}
    return StreamingResponse(parts(), headers=headers, media_type="application/json")
