"""Procedures of several requests: retries, rows in groups, pages, and a stream of updates that reconnects.

Each is a coroutine or an asynchronous generator over a `Link`, which has the socket and the clock. Over a link that
blocks, none of them waits for a loop.
"""

import random
import re
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import msgspec

from gateway.client import requests
from gateway.client.answers import Answer, Failure, Request
from gateway.client.errors import ClientError, Failed, Gap, NotFound, Refused, Unreachable, error_of
from gateway.client.requests import Call, Row
from gateway.client.rows import Event, MessageOutcome, Missed, Progress, Snapshot, SubscriptionOutcome, Telling, Update
from gateway.client.sse import EventParser, ServerEvent
from gateway.client.transport import Link
from matching.decoding import bare, decode_object
from matching.errors import InputError
from matching.reasons import REASONS

T = TypeVar("T")
#: Rows of a caller.
Source = Iterable[Row] | AsyncIterable[Row]
#: Most rows, and most bytes, of one request; a server accepts 16 MiB.
GROUP_ROWS, GROUP_BYTES = 1_000, 4 << 20
#: Seconds without a byte after which a connection counts as lost; a server sends something every 5 s.
SILENCE_S = 15.0
#: Bytes of an event of updates that is not read further: a server's are a row, or the results of a subscription.
MOST_EVENT_BYTES = 256 << 20


class Patience(NamedTuple):
    """Policy of retries: exponential backoff with jitter.

    Attributes
    ----------
    seconds : float       limit of all waits between two successes together; `inf` for no limit
    first_s : float       wait before the second attempt; doubles with each further one
    most_s : float        limit of one wait, beside what the server requests
    spread : callable     returns the jitter, 0 to 1
    """

    seconds: float = 30.0
    first_s: float = 0.2
    most_s: float = 20.0
    spread: Callable[[], float] = random.random

    def delay_s(self, attempt: int, at_least_s: float = 0.0) -> float:
        """Seconds before the next attempt: `at_least_s`, and 0.5 to 1 of the backoff of this attempt (from 0)."""
        backoff_s = min(self.most_s, self.first_s * 2 ** min(attempt, 30)) * (0.5 + 0.5 * self.spread())
        return at_least_s + backoff_s


class _Tries:
    """Counts attempts and waits between them, up to the limit of a `Patience`."""

    def __init__(self, patience: Patience):
        self.forget(patience)

    def forget(self, patience: Patience) -> None:
        """Reset after a success, with this patience for the next attempts."""
        self._patience = patience
        self.count, self._waited_s = 0, 0.0

    async def wait(self, link: Link, request: Request, outcome: Answer | Failure, at_least_s: float = 0.0) -> None:
        """Wait before the next attempt. Raises the error of the outcome once `Patience.seconds` would be exceeded."""
        hint_s = max(at_least_s, (outcome.retry_after_s or 0.0) if isinstance(outcome, Answer) else 0.0)
        delay_s = self._patience.delay_s(self.count, hint_s)
        if self._waited_s + delay_s > self._patience.seconds:
            raise _final(request, outcome)
        self._waited_s += delay_s
        self.count += 1
        await link.sleep(delay_s)


async def _exchange(link: Link, request: Request, tries: _Tries) -> Answer:
    """Send a request, with retries, until an answer has a status below 400.

    After 429, or 503 with `Retry-After`, it is sent again after that time. A request without an answer is sent again
    only if a repetition is safe (`Request.again`) or the server cannot have got it.

    Raises
    ------
    ClientError
        For any other status, and when the retries are used up.
    """
    while True:
        outcome = await link.send(request)
        if isinstance(outcome, Answer):
            if outcome.status < 400:
                return outcome
            if not _is_for_a_time(outcome):
                raise error_of(request, outcome)
        elif outcome.sent and not request.again:
            raise _final(request, outcome)
        await tries.wait(link, request, outcome)


def _is_for_a_time(answer: Answer) -> bool:
    """Whether the refusal is temporary."""
    return answer.status == 429 or (answer.status == 503 and answer.retry_after_s is not None)


def _final(request: Request, outcome: Answer | Failure) -> ClientError:
    if isinstance(outcome, Answer):
        return error_of(request, outcome)
    do = "see whether the server runs, and the address"
    if outcome.sent and request.method != "GET":
        do = "it may have been taken: " + (
            "send it again, with the same id" if request.again else "look before you send"
        )
    return Unreachable(request.what, outcome.detail, "unreachable", do=do)


async def answered(link: Link, call: Call[T], patience: Patience) -> T:
    """The value of a call. Raises ClientError."""
    tries = _Tries(patience)
    try:
        answer = await _exchange(link, call.request, tries)
    except NotFound as error:
        if call.repeated is not None and tries.count and error.reason == "unknown_subscription":
            return call.repeated(error)
        raise
    try:
        return call.read(answer)
    except msgspec.MsgspecError as error:
        do = "see that server and client are of one release"
        raise Failed(
            call.request.what, f"an answer that is none: {error}", "bad_answer", answer.status, do=do
        ) from None


# ------------------------------------------------------------------------------------------------- rows in groups


class SentRows(NamedTuple):
    """How rows of one sort are sent.

    path, params    of the request
    column          the id, by which the server recognises a row that is sent again
    read            from an answer to the outcomes of its rows
    refused         makes the outcome of a row that the client refuses itself
    """

    path: str
    params: tuple[tuple[str, str], ...]
    column: str
    read: Callable[[Answer], list[Any]]
    refused: Callable[..., Any]

    @classmethod
    def of_messages(cls, wait: requests.Wait) -> "SentRows":
        params = () if wait is None else (("wait", wait),)
        return cls(requests.MESSAGES, params, "id", _messages_of, MessageOutcome)

    @classmethod
    def of_subscriptions(cls, replace: bool) -> "SentRows":
        params = (("replace", "true"),) if replace else ()
        return cls(requests.SUBSCRIPTIONS, params, "subscription_id", _subscriptions_of, SubscriptionOutcome)


class _Messages(msgspec.Struct):
    outcomes: list[MessageOutcome]
    delivered: bool | None = None


_SUBSCRIPTIONS = msgspec.json.Decoder(list[SubscriptionOutcome])
_MESSAGES = msgspec.json.Decoder(_Messages)


def _messages_of(answer: Answer) -> list[MessageOutcome]:
    found = _MESSAGES.decode(answer.body)
    if found.delivered is None:
        return found.outcomes
    return [
        one if one.seq is None else msgspec.structs.replace(one, delivered=found.delivered) for one in found.outcomes
    ]


def _subscriptions_of(answer: Answer) -> list[SubscriptionOutcome]:
    return _SUBSCRIPTIONS.decode(answer.body)


async def in_groups(
    link: Link, source: Source, rows: SentRows, patience: Patience, most: int = GROUP_ROWS
) -> AsyncGenerator[Any]:
    """Send the caller's rows in groups of at most `most`, and hand on one outcome for each row, in order.

    Takes the rows of a group only after the answer to the group before. Gives every row without an id a new one, so
    that a group whose answer was lost can be sent again: the server accepts each row once.
    """
    first, coming = 1, aiter(source) if isinstance(source, AsyncIterable) else iter(source)
    while taken := await _taken(coming, most):
        lines, named = zip(*(_line_of(row, rows.column) for row in taken), strict=True)
        place = 0
        for group in _within_bytes(lines):
            outcomes = iter(await _send(link, [line for line in group if isinstance(line, bytes)], rows, patience))
            for line in group:
                outcome = next(outcomes, None) if isinstance(line, bytes) else rows.refused("refused", **_refusal(line))
                if outcome is None:
                    raise Failed(
                        f"POST {rows.path}", "fewer outcomes than rows", "bad_answer", do="see the server's log"
                    )
                outcome = outcome if named[place] else _unnamed(outcome)
                yield msgspec.structs.replace(outcome, line=first + place)
                place += 1
        first += len(taken)


async def _taken(rows: Iterator[Row] | AsyncIterator[Row], most: int) -> list[Row]:
    """At most so many of the caller's rows; empty at the end."""
    if not isinstance(rows, AsyncIterator):
        return list(islice(rows, most))
    taken: list[Row] = []
    async for row in rows:
        taken.append(row)
        if len(taken) == most:
            break
    return taken


def _refusal(reason: str) -> dict[str, str]:
    return {"reason": reason, "detail": REASONS[reason]}


def _unnamed(outcome: Any) -> Any:
    """The outcome without the id that the row was given here, if it was refused."""
    name = getattr(outcome, "subscription_id", None)
    if outcome.status != "refused" or name is None:
        return outcome
    detail = (outcome.detail or "").replace(f"subscription {name!r}", "the subscription", 1)
    return msgspec.structs.replace(outcome, subscription_id=None, detail=detail)


def _line_of(row: Row, column: str) -> tuple[bytes | str, bool]:
    """A row as JSON with an id, or the reason code of a line that is no object; and whether it came with an id."""
    if isinstance(row, str | bytes):
        line = bare(row.encode("utf-8", "surrogatepass") if isinstance(row, str) else row)
        found = decode_object(line)
        if isinstance(found, str) or _is_named(found, column):
            return (found if isinstance(found, str) else line), True
        row = found
    named = _is_named(row, column)
    return requests.encode(row if named else requests.with_id(row, column)), named


def _is_named(row: Mapping[str, Any], column: str) -> bool:
    return row.get(column) is not None or "unsubscribe" in row


def _within_bytes(lines: Sequence[bytes | str]) -> Iterator[list[bytes | str]]:
    """Groups of at most `GROUP_BYTES` bytes; a longer row is a group of its own."""
    group: list[bytes | str] = []
    size = 0
    for line in lines:
        more = len(line) if isinstance(line, bytes) else 0
        if group and size + more > GROUP_BYTES:
            yield group
            group, size = [], 0
        group.append(line)
        size += more
    yield group


async def _send(link: Link, lines: list[bytes], rows: SentRows, patience: Patience) -> list[Any]:
    """Send a group; returns its outcomes. A group that the server refuses as too large (413) is halved."""
    if not lines:
        return []
    headers = {"Content-Type": "application/json"}
    request = Request("POST", rows.path, rows.params, headers, b"[" + b",".join(lines) + b"]")
    try:
        return await answered(link, Call(request, rows.read), patience)
    except Refused as error:
        if error.status != 413:
            raise
        if len(lines) == 1:
            return [rows.refused("refused", reason=error.reason, detail=str(error))]
    half = len(lines) // 2
    first = await _send(link, lines[:half], rows, patience)
    return first + await _send(link, lines[half:], rows, patience)


async def pages(link: Link, filters: Mapping[str, Any], patience: Patience) -> AsyncGenerator[dict[str, Any]]:
    """Hand on the columns of all active subscriptions, page by page."""
    after: int | None = None
    while True:
        found = await answered(link, requests.page(filters, after), patience)
        for columns in found.subscriptions:
            yield columns
        if (after := found.after) is None:
            return


async def tellings(
    link: Link, subscription: requests.Names, since: int | None, patience: Patience
) -> AsyncGenerator[Telling]:
    """Hand on each telling behind a number once, in order, until the caller closes the flow. Raises Gap."""
    names = [subscription] if isinstance(subscription, str) else None if subscription is None else list(subscription)
    while True:
        call = requests.told(names, since, 0.0 if since is None else TOLD_WAIT_S)
        found = await answered(link, call, patience)
        if found.gap is not None:
            raise Gap(call.request.what, found.gap)
        for one in found.told:
            yield one
        since = found.through


async def all_features(link: Link, filters: Mapping[str, Any], patience: Patience) -> dict[str, Any]:
    """All active subscriptions as one FeatureCollection."""
    features: list[Any] = []
    after: int | None = None
    while True:
        found = await answered(link, requests.features(filters, after), patience)
        features += found["features"]
        if (after := found["after"]) is None:
            return {"type": "FeatureCollection", "features": features}


# ------------------------------------------------------------------------------------------------------- updates


class Followed:
    """State of a stream of updates across connections.

    Attributes
    ----------
    position : str or None     position of the last update handed on; for `since=`
    through : int              seq up to which all updates were handed on; -1 before the first
    connections : int          connections opened so far
    """

    def __init__(self, since: str | None):
        self.stand(since)
        self.through = -1
        self.connections = 0

    def stand(self, position: str | None) -> None:
        """Set the position; None: the beginning that the server chooses."""
        self.position = position
        self._place = None if position is None else _place_of(position)

    def take(self, event: ServerEvent) -> Event | None:
        """The event as a value; None if it was handed on before."""
        if event.name == "message":
            if not self._moves(event.id, again=False):
                return None
            return _UPDATE.decode(event.data)
        if event.name == "progress":
            self._moves(event.id, again=True)
            found = _PROGRESS.decode(event.data)
            self.through = max(self.through, found.through)
            return found
        if event.name == "snapshot":
            return _SNAPSHOT.decode(event.data)
        return _MISSED.decode(event.data) if event.name == "gap" else None

    def _moves(self, position: str | None, again: bool) -> bool:
        """Advance to a position if it is later; returns whether it was (with `again`: or the same)."""
        if position is None:
            return False
        place = _place_of(position)
        if self._place is not None and place <= self._place:
            return again and place == self._place
        self.position, self._place = position, place
        return True


class FollowedStream:
    """Public attributes of a stream of updates, the same in both clients.

    Attributes
    ----------
    position : str or None    position of the last update handed on; pass it as `since=` to continue after it
    through : int             seq up to which all updates were handed on; -1 before the first
    connections : int         connections opened so far
    """

    def __init__(self, state: Followed):
        self._state = state

    @property
    def position(self) -> str | None:
        return self._state.position

    @property
    def through(self) -> int:
        return self._state.through

    @property
    def connections(self) -> int:
        return self._state.connections


#: Seconds that a request waits for what is told.
TOLD_WAIT_S = 10.0
_UPDATE = msgspec.json.Decoder(Update)
_PROGRESS = msgspec.json.Decoder(Progress)
_SNAPSHOT = msgspec.json.Decoder(Snapshot)
_MISSED = msgspec.json.Decoder(Missed)
_BEHIND_ALL = float("inf")
_POSITION = re.compile(r"(-1|[0-9]{1,18})(?:-([0-9]{1,19})(?:-[0-9a-f]{8})?)?")


def _place_of(position: str) -> tuple[float, float]:
    """A position as (boundary, index); without an index it is the end of its boundary. Raises InputError."""
    if position == "begin":
        return -1, 0
    found = _POSITION.fullmatch(position)
    if found is None:
        do = "give a position that a stream had, or begin"
        raise InputError("bad_position", f"since: {position[:60]!r} is no position of a stream; {do}")
    return int(found[1]), _BEHIND_ALL if found[2] is None else int(found[2])


class Following(NamedTuple):
    """Parameters of a stream of updates.

    Attributes
    ----------
    request : callable         from a position to the request that continues after it
    first : Patience           retries before the first event
    patience : Patience        retries after an event
    silence_s : float          seconds without a byte, after which the client reconnects
    snapshot : bool            whether the server sends the present results first
    everything : bool          whether the flow hands on events other than updates, too
    on_gap : callable or None  called with each gap event; None: the flow raises `Gap`
    """

    request: Callable[[str | None], Request]
    first: Patience
    patience: Patience
    silence_s: float
    snapshot: bool
    everything: bool
    on_gap: Callable[[Missed], None] | None


async def start(link: Link, state: Followed, following: Following) -> None:
    """Without a position, take that of the stream's head: a failure of the first connection then loses no update."""
    if state.position is None and not following.snapshot:
        facts = await answered(link, requests.facts("/v1/stream"), following.first)
        state.stand(str(facts["complete_through"]))


async def follow(link: Link, state: Followed, following: Following) -> AsyncGenerator[Any]:
    """Hand on every event after the position once, in order; reconnect until the caller closes the flow.

    Raises
    ------
    Gap
        If updates are lost and `Following.on_gap` is None.
    ClientError
        If the server refuses the request, and when the retries are used up.
    """
    tries = _Tries(following.first)
    try:
        await start(link, state, following)
        while True:
            request, hint_s = following.request(state.position), 0.0
            outcome = await link.open(request, following.silence_s)
            if isinstance(outcome, Answer) and outcome.status == 200:
                state.connections += 1
                parser = EventParser()
                while isinstance(chunk := await link.read(), bytes):
                    for found in _events_of(chunk, parser, state, following, request):
                        tries.forget(following.patience)
                        if isinstance(found, Update) or (following.everything and not _is_slow(found)):
                            yield found
                hint_s = (parser.retry_ms or 0) / 1_000 if chunk is None else 0.0
                outcome = Failure("the stream ended", True) if chunk is None else chunk
            elif isinstance(outcome, Answer) and outcome.status < 500 and not _is_for_a_time(outcome):
                raise error_of(request, outcome)  # from 500 on a proxy may answer while the server restarts
            await tries.wait(link, request, outcome, hint_s)
    finally:
        await link.close()


def _is_slow(event: Event) -> bool:
    """Whether the server ends the connection, since this client reads too slowly; no update is lost."""
    return isinstance(event, Missed) and event.reason == "slow"


def _events_of(
    chunk: bytes, parser: EventParser, state: Followed, following: Following, request: Request
) -> Iterator[Event]:
    """The new events that end within a chunk. Raises Gap, and Failed for an event that is too long."""
    for event in parser.feed(chunk):
        found = state.take(event)
        if isinstance(found, Missed) and not _is_slow(found):
            state.stand(found.resume)
            if following.on_gap is None:
                raise Gap(request.what, found)
            following.on_gap(found)
        if found is not None:
            yield found
    if parser.size_bytes > MOST_EVENT_BYTES:
        detail = f"an event has more than {MOST_EVENT_BYTES:,} bytes"
        raise Failed(request.what, detail, "event_too_long", do="check the address, and the proxies before it")


def following_of(
    filters: Mapping[str, Any],
    first: Patience,
    on_gap: Callable[[Missed], None] | None,
    silence_s: float,
    patience_s: float,
    snapshot: bool = False,
    everything: bool = False,
) -> Following:
    """The `Following` of a client's method; `filters` are parameters of `/v1/updates`."""
    params = requests.params_of(**filters)

    def request(since: str | None) -> Request:
        return requests.updates(params, snapshot, since)

    return Following(request, first, first._replace(seconds=patience_s), silence_s, snapshot, everything, on_gap)
