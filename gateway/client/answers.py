"""Requests and answers of HTTP as values, without the library; webhooks read `Retry-After` here, too."""

from collections.abc import Mapping
from typing import NamedTuple

from matching.fields import event_time_us


class Request(NamedTuple):
    """A request; `again` says whether it may be sent a second time when no answer came."""

    method: str
    path: str
    params: tuple[tuple[str, str], ...] = ()
    headers: Mapping[str, str] = {}
    body: bytes | None = None
    again: bool = True

    @property
    def what(self) -> str:
        """How errors name it; without parameters, since messages and keys may be in them."""
        return f"{self.method} {self.path}"


class Answer(NamedTuple):
    """An answer, read to its end unless it is a stream of status 200."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def retry_after_s(self) -> float | None:
        """Seconds after which the server wants to be called again; None where it does not say.

        A date counts from the answer's own date, since the clocks of both sides may differ.
        """
        return wait_of(self.headers.get("retry-after"), _http_date_s(self.headers.get("date", "")))


def wait_of(retry_after: str | None, now_s: float | None) -> float | None:
    """Seconds of a header `Retry-After`; None if it is missing or unreadable, or a date and the present is unknown.

    Parameters
    ----------
    retry_after : str, optional
        A number of seconds, or a date of HTTP.
    now_s : float, optional
        Seconds since 1970.
    """
    text = (retry_after or "").strip()
    if text.isascii() and text.isdecimal() and len(text) < 10:
        return float(text)
    until_s = _http_date_s(text)
    return None if until_s is None or now_s is None else max(0.0, until_s - now_s)


def _http_date_s(text: str) -> float | None:
    """Seconds since 1970 of a date of HTTP, which is of GMT also where it does not say so; None if it is none."""
    try:
        time_us = event_time_us(text) if text[:1].isalpha() else None  # its three forms begin with the day of the week
    except ValueError:
        return None
    return None if time_us is None else time_us / 1e6


class Failure(NamedTuple):
    """No answer, or none to its end; `sent` says whether the server may have got the request."""

    detail: str
    sent: bool
