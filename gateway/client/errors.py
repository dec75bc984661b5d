"""Errors of the client: a class for each kind of remedy, with the server's reason code."""

from typing import TYPE_CHECKING

import msgspec

from matching.errors import EngineError

if TYPE_CHECKING:
    from gateway.client.answers import Answer, Request
    from gateway.client.rows import Missed


class ClientError(EngineError):
    """What the client raises.

    Attributes
    ----------
    reason : str        code that programs rely on
    status : int        of HTTP; 0 without an answer
    where : str         parameter, header or body that is wrong
    do : str            what to do
    """

    def __init__(self, what: str, detail: str, reason: str, status: int = 0, where: str = "", do: str = ""):
        place = f" ({where})" if where else ""
        super().__init__(f"{what}: {detail}{place} [{reason}]" + (f"; {do}" if do else ""))
        self._arguments = what, detail, reason, status, where, do
        self.reason = reason
        self.status = status
        self.where = where
        self.do = do

    def __reduce__(self):
        return type(self), self._arguments


class NotFound(ClientError):
    """No such subscription, message or path."""


class Refused(ClientError):
    """The server does not take it as it is: `reason` says why, `do` what to change."""


class Denied(ClientError):
    """The key is missing, wrong, expired, or has not the scope."""


class Throttled(ClientError):
    """The server takes nothing for now, and the client's patience is over: send less, or later."""


class Failed(ClientError):
    """The server failed; what was sent may or may not have been taken."""


class Unreachable(ClientError):
    """No answer came; unless the connection was refused, what was sent may have been taken."""


class Gap(ClientError):
    """Updates were lost.

    Attributes
    ----------
    missed : Missed
        What is missing; `missed.resume` is the position behind it, for `since=`.
    """

    def __init__(self, what: str, missed: "Missed"):
        super().__init__(what, missed.detail, missed.reason, do=missed.do)
        self._given = what, missed
        self.missed = missed

    def __reduce__(self):
        return type(self), self._given


class _Problem(msgspec.Struct):
    reason: str = "no_problem"
    detail: str = ""
    where: str | None = None
    do: str = ""


def error_of(request: "Request", answer: "Answer") -> ClientError:
    """The error that an answer of status 400 or more means."""
    try:
        problem = msgspec.json.decode(answer.body, type=_Problem)
    except msgspec.MsgspecError:
        detail = f"status {answer.status}, from something that is no Skyray server"
        problem = _Problem("no_problem", detail, do="check the address, and the proxies before it")
    found = problem.reason, answer.status, problem.where or "", problem.do
    return _class_of(answer, problem.reason)(request.what, problem.detail, *found)


def _class_of(answer: "Answer", reason: str) -> type[ClientError]:
    if answer.status == 404:
        return NotFound
    if answer.status in (401, 403) and reason != "too_many_subscriptions":
        return Denied
    if answer.retry_after_s is not None or answer.status == 429:
        return Throttled
    return Refused if answer.status < 500 else Failed
