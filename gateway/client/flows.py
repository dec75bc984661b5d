"""What takes several requests: trying again, rows in groups, pages, and a stream that outlives its connection.

Generators of `gateway.client.commands`: no socket, no clock, so a test drives them by hand. Used by both clients.
"""

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from gateway.client import requests
from gateway.client.commands import Answer, Failure, Flow, Item, Open, Read, Request, Send, Sleep, Take
from gateway.client.errors import ClientError, Failed, Gap, NotFound, Refused, Unreachable, error_of
from gateway.client.requests import Call, Row
from gateway.client.rows import Event, MessageOutcome, Missed, Progress, Snapshot, SubscriptionOutcome, Update
from gateway.client.sse import EventParser, ServerEvent
from matching.errors import InputError

T = TypeVar("T")
#: Rows and bytes of a request at most; a server takes 16 MiB.
GROUP_ROWS, GROUP_BYTES = 1_000, 4 << 20
#: A server sends something every 5 s: three times that without a byte is a lost connection.
SILENCE_S = 15.0


class Patience(NamedTuple):
    """How long a client tries again.

    Attributes
    ----------
    seconds : float       of waiting in all, from one success to the next; infinite for ever
    first_s : float       before the second attempt; doubles with each
    most_s : float        before any attempt, unless the server wants more
    spread : callable     -> 0 to 1, by which waits of many clients differ
    """

    seconds: float = 30.0
    first_s: float = 0.2
    most_s: float = 20.0
    spread: Callable[[], float] = random.random

    def delay_s(self, attempt: int, at_least_s: float = 0.0) -> float:
        """Seconds before the next attempt: half to all of the doubled wait, behind what the server asks for."""
        backoff_s = min(self.most_s, self.first_s * 2 ** min(attempt, 30)) * (0.5 + 0.5 * self.spread())
        return at_least_s + backoff_s


class _Tries:
    """Waits between attempts, until the patience is over."""

    def __init__(self, patience: Patience):
        self.forget(patience)

    def forget(self, patience: Patience) -> None:
        """After a success: begin anew, with this patience."""
        self._patience = patience
        self.count, self._waited_s = 0, 0.0

    def wait(self, request: Request, outcome: Answer | Failure, at_least_s: float = 0.0) -> Flow[None]:
        """Wait before the next attempt. Raises Throttled or Unreachable once the patience is over."""
        hint_s = max(at_least_s, (outcome.retry_after_s or 0.0) if isinstance(outcome, Answer) else 0.0)
        delay_s = self._patience.delay_s(self.count, hint_s)
        if self._waited_s + delay_s > self._patience.seconds:
            raise _final(request, outcome)
        self._waited_s += delay_s
        self.count += 1
        yield Sleep(delay_s)


def exchange(request: Request, patience: Patience) -> Flow[Answer]:
    """Send until there is an answer below 400.

    What was refused for a time (429, 503) is sent again after `Retry-After`; what got no answer only if that is safe.

    Raises
    ------
    ClientError
    """
    return (yield from _exchange(request, _Tries(patience)))


def _exchange(request: Request, tries: _Tries) -> Flow[Answer]:
    while True:
        outcome = yield Send(request)
        if isinstance(outcome, Answer):
            if outcome.status < 400:
                return outcome
            if not _is_for_a_time(outcome):
                raise error_of(request, outcome)
        elif outcome.sent and not request.again:
            raise _final(request, outcome)
        yield from tries.wait(request, outcome)


def _is_for_a_time(answer: Answer) -> bool:
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


def answered(call: Call[T], patience: Patience) -> Flow[T]:
    """The value of a call. Raises ClientError."""
    tries = _Tries(patience)
    try:
        answer = yield from _exchange(call.request, tries)
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


class Rows(NamedTuple):
    """How rows of one sort are sent: where, and which column makes sending again safe."""

    path: str
    params: tuple[tuple[str, str], ...]
    column: str
    read: Callable[[Answer], list[Any]]
    refused: Callable[..., Any]

    @classmethod
    def of_messages(cls, wait: requests.Wait) -> "Rows":
        params = () if wait is None else (("wait", wait),)
        return cls(requests.MESSAGES, params, "id", _messages_of, MessageOutcome)

    @classmethod
    def of_subscriptions(cls, replace: bool) -> "Rows":
        params = (("replace", "true"),) if replace else ()
        return cls(requests.SUBSCRIPTIONS, params, "subscription_id", _subscriptions_of, SubscriptionOutcome)


class _Messages(msgspec.Struct):
    outcomes: list[MessageOutcome]
    delivered: bool | None = None


_SUBSCRIPTIONS = msgspec.json.Decoder(list[SubscriptionOutcome])
_MESSAGES = msgspec.json.Decoder(_Messages)
_OBJECT = msgspec.json.Decoder(dict[str, Any])


def _messages_of(answer: Answer) -> list[MessageOutcome]:
    found = _MESSAGES.decode(answer.body)
    if found.delivered is None:
        return found.outcomes
    return [
        one if one.seq is None else msgspec.structs.replace(one, delivered=found.delivered) for one in found.outcomes
    ]


def _subscriptions_of(answer: Answer) -> list[SubscriptionOutcome]:
    return _SUBSCRIPTIONS.decode(answer.body)


def in_groups(rows: Rows, patience: Patience, most: int = GROUP_ROWS) -> Flow[None]:
    """Send the caller's rows, some at a time, and hand on an outcome for each, in order.

    No more rows are taken before those are answered. Every row has an id, so that a group whose answer was lost is
    sent again and nothing is taken twice.
    """
    first = 1
    while taken := (yield Take(most)):
        lines = [_line_of(row, rows.column) for row in taken]
        for group in _within_bytes(lines):
            outcomes = iter((yield from _send([line for line in group if line is not None], rows, patience)))
            for line in group:
                outcome = next(outcomes, None) if line is not None else rows.refused("refused", **_NOT_JSON)
                if outcome is None:
                    raise Failed(
                        f"POST {rows.path}", "fewer outcomes than rows", "bad_answer", do="see the server's log"
                    )
                yield Item(msgspec.structs.replace(outcome, line=first))
                first += 1


_NOT_JSON = {"reason": "not_json", "detail": "the line is no object of JSON"}


def _line_of(row: Row, column: str) -> bytes | None:
    """A row as JSON with an id; None if it is a line that is no object."""
    if isinstance(row, str | bytes):
        try:
            found = _OBJECT.decode(row)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return None
        text = row.encode() if isinstance(row, str) else row
        return text if found.get(column) is not None else requests.encode(_named(found, column))
    return requests.encode(_named(row, column))


def _named(row: Mapping[str, Any], column: str) -> Mapping[str, Any]:
    return row if "unsubscribe" in row else requests.with_id(row, column)


def _within_bytes(lines: Sequence[bytes | None]) -> Iterator[list[bytes | None]]:
    """Groups of at most `GROUP_BYTES`, but of one row at least."""
    group: list[bytes | None] = []
    size = 0
    for line in lines:
        more = 0 if line is None else len(line)
        if group and size + more > GROUP_BYTES:
            yield group
            group, size = [], 0
        group.append(line)
        size += more
    yield group


def _send(lines: list[bytes], rows: Rows, patience: Patience) -> Flow[list[Any]]:
    """The outcomes of a group; one that is too large for the server, or for the caller's share, is halved."""
    if not lines:
        return []
    headers = {"Content-Type": "application/json"}
    request = Request("POST", rows.path, rows.params, headers, b"[" + b",".join(lines) + b"]")
    try:
        return (yield from answered(Call(request, rows.read), patience))
    except Refused as error:
        if error.status != 413:
            raise
        if len(lines) == 1:
            return [rows.refused("refused", reason=error.reason, detail=str(error))]
    half = len(lines) // 2
    first = yield from _send(lines[:half], rows, patience)
    return first + (yield from _send(lines[half:], rows, patience))


def pages(filters: Mapping[str, Any], patience: Patience) -> Flow[None]:
    """Hand on the columns of all active subscriptions, page by page."""
    after: int | None = None
    while True:
        found = yield from answered(requests.page(filters, after), patience)
        for columns in found.subscriptions:
            yield Item(columns)
        if (after := found.after) is None:
            return


def all_features(filters: Mapping[str, Any], patience: Patience) -> Flow[dict[str, Any]]:
    """All active subscriptions as one FeatureCollection."""
    features: list[Any] = []
    after: int | None = None
    while True:
        found = yield from answered(requests.features(filters, after), patience)
        features += found["features"]
        if (after := found["after"]) is None:
            return {"type": "FeatureCollection", "features": features}


# ------------------------------------------------------------------------------------------------------- updates


class Followed:
    """How far a stream of updates has come.

    Attributes
    ----------
    position : str or None     behind the last update that was handed on; for `since=`
    through : int              all updates as of messages up to this one were handed on; -1 before
    connections : int          that were opened
    """

    def __init__(self, since: str | None):
        self.stand(since)
        self.through = -1
        self.connections = 0

    def stand(self, position: str | None) -> None:
        """Go to a position; None: wherever the stream begins."""
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
        """Take a later position; whether it is one (or, with `again`, the same)."""
        if position is None:
            return False
        place = _place_of(position)
        if self._place is not None and place <= self._place:
            return again and place == self._place
        self.position, self._place = position, place
        return True


class FollowedStream:
    """What both clients say of a stream of updates.

    Attributes
    ----------
    position : str or None    behind the last update that was handed on; give it as `since=` to go on from there
    through : int             all updates as of messages up to this one were handed on; -1 before
    connections : int         that were opened
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


_UPDATE = msgspec.json.Decoder(Update)
_PROGRESS = msgspec.json.Decoder(Progress)
_SNAPSHOT = msgspec.json.Decoder(Snapshot)
_MISSED = msgspec.json.Decoder(Missed)
_BEHIND_ALL = float("inf")
_POSITION = re.compile(r"(-1|[0-9]{1,18})(?:-([0-9]{1,18}))?")


def _place_of(position: str) -> tuple[float, float]:
    """A position as numbers; one without an index is behind its whole boundary. Raises InputError."""
    if position == "begin":
        return -1, 0
    found = _POSITION.fullmatch(position)
    if found is None:
        do = "give a position that a stream had, or begin"
        raise InputError("bad_position", f"since: {position[:60]!r} is no position of a stream; {do}")
    return int(found[1]), _BEHIND_ALL if found[2] is None else int(found[2])


class Following(NamedTuple):
    """What a stream of updates is asked for.

    Attributes
    ----------
    request : callable         position -> its request
    first : Patience           before the first event
    patience : Patience        between two events
    silence_s : float          without a byte, after which it connects again
    snapshot : bool            whether results come first
    everything : bool          whether events besides updates are handed on
    on_gap : callable or None  gets what is missing; None: `Gap` is raised
    """

    request: Callable[[str | None], Request]
    first: Patience
    patience: Patience
    silence_s: float
    snapshot: bool
    everything: bool
    on_gap: Callable[[Missed], None] | None


def start(state: Followed, following: Following) -> Flow[None]:
    """Take a definite position, if there is none, so that what comes from now on is lost by no later failure."""
    if state.position is None and not following.snapshot:
        facts = yield from answered(requests.facts("/v1/stream"), following.first)
        state.stand(str(facts["complete_through"]))


def follow(state: Followed, following: Following) -> Flow[None]:
    """Hand on every event after the position once, in order; connects again until the caller ends it.

    Raises
    ------
    Gap
        If updates are lost, and nobody takes the gap.
    ClientError
        For a request that the server does not take, and once the patience is over.
    """
    tries = _Tries(following.first)
    yield from start(state, following)
    while True:
        request = following.request(state.position)
        outcome = yield Open(request, following.silence_s)
        hint_s = 0.0
        if isinstance(outcome, Answer):
            if outcome.status == 200:
                state.connections += 1
                outcome, hint_s = yield from _read(state, following, request, tries)
            elif not _is_for_a_time(outcome):
                raise error_of(request, outcome)
        yield from tries.wait(request, outcome, hint_s)


def _read(state: Followed, following: Following, request: Request, tries: _Tries) -> Flow[tuple[Failure, float]]:
    """Hand on the events of one connection; why it ended, and after how long to connect again."""
    parser = EventParser()
    while isinstance(chunk := (yield Read()), bytes):
        for event in parser.feed(chunk):
            found = state.take(event)
            if found is None:
                continue
            tries.forget(following.patience)
            if isinstance(found, Missed):
                if found.reason == "slow":
                    continue  # the stream ends, and nothing is lost
                state.stand(found.resume)
                if following.on_gap is None:
                    raise Gap(request.what, found)
                following.on_gap(found)
            if following.everything or isinstance(found, Update):
                yield Item(found)
    if chunk is None:
        return Failure("the stream ended", True), (parser.retry_ms or 0) / 1_000
    return chunk, 0.0


def following_of(
    filters: Mapping[str, Any],
    first: Patience,
    on_gap: Callable[[Missed], None] | None,
    silence_s: float,
    patience_s: float,
    snapshot: bool = False,
    everything: bool = False,
) -> Following:
    """What is followed, with parameters of `/v1/updates` as the client's methods have them."""
    params = requests.params_of(**filters)

    def request(since: str | None) -> Request:
        return requests.updates(params, snapshot, since)

    return Following(request, first, first._replace(seconds=patience_s), silence_s, snapshot, everything, on_gap)
