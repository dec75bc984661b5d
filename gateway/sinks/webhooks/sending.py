"""One attempt: a signed POST within a total time, and what its answer means.

No redirect is followed, at most 64 KiB of the answer are read, and none of it is shown.
"""

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from http.cookiejar import CookieJar, DefaultCookiePolicy
from importlib.metadata import version
from typing import Any

import httpcore2
import httpx2
import msgspec

from gateway.client.answers import wait_of
from gateway.serve.released import JSON_BEGINS
from gateway.sinks.telling import Told
from gateway.sinks.webhooks.guard import Forbidden, Guard, GuardedBackend
from gateway.sinks.webhooks.model import DELIVERED, AttemptVerdict, Batch, Outcome
from gateway.sinks.webhooks.signing import signed_headers

#: Bytes of an answer that are read.
MOST_ANSWER_BYTES = 64 * 2**10
#: Connections that wait for the next attempt, and seconds that they do.
_KEPT, _KEPT_S = 200, 30.0
#: What the body says that it is.
TYPE, TOLD_TYPE = "skyray.updates", "skyray.told"
#: How the line begins that says what a telling is.
_TOLD = b'{"told":'


def body_of(webhook_id: str, batch: Batch) -> bytes:
    """The body of a batch; the same at every attempt."""
    at = datetime.fromtimestamp(batch.created_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    head: dict[str, Any] = {"webhook_id": webhook_id, "first": batch.first, "last": batch.last}
    kind, rows = TYPE, batch.rows
    if rows.startswith(_TOLD):
        line, _, rows = rows.partition(b"\n")
        kind, head["told"] = TOLD_TYPE, msgspec.Raw(line[len(_TOLD) : -1])
    updates = msgspec.Raw(b"[" + rows.rstrip(b"\n").replace(b"\n", b",") + b"]")  # JSON has no raw line break
    return msgspec.json.encode({"type": kind, "timestamp": at, "data": {**head, "updates": updates}})


def batch_of_told(webhook_id: str, told: Told) -> Batch:
    """The batch of a telling; `rows` begin with what it is."""
    rows = _TOLD + told.head + b"}\n" + told.rows
    first = told.rows[len(JSON_BEGINS) : told.rows.find(b'"', len(JSON_BEGINS))].decode() or told.through.text
    return Batch(f"{webhook_id}_{told.told_id}", int(told.told_s), first, told.through.text, rows)


class WebhookClient:
    """The HTTP client of all webhooks; connections go to checked addresses.

    Parameters
    ----------
    guard : Guard
    timeout_s : float
        Of an attempt in all.
    """

    def __init__(self, guard: Guard, timeout_s: float):
        self._guard = guard
        self._timeout_s = timeout_s
        self._headers = {"Content-Type": "application/json", "User-Agent": f"skyray/{version('skyray')}"}
        self._http = httpx2.AsyncClient(
            transport=_Transport(guard),
            timeout=timeout_s,
            follow_redirects=False,
            trust_env=False,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),  # one endpoint's must reach no other
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def post(self, url: str, secrets: Sequence[str], batch_id: str, body: bytes) -> Outcome:
        """One attempt."""
        try:
            async with asyncio.timeout(self._timeout_s):
                self._guard.host_of(url)  # addresses are checked where a connection begins
                headers = signed_headers(secrets, batch_id, int(time.time()), body)
                return await self._answer(url, body, self._headers | headers)
        except Forbidden as error:
            return Outcome(AttemptVerdict.FAILED, error.reason, error.detail)
        except TimeoutError:
            return Outcome(AttemptVerdict.FAILED, "timeout", f"no whole answer came within {self._timeout_s:g} s")
        except httpx2.TimeoutException:
            return Outcome(AttemptVerdict.FAILED, "timeout", f"no whole answer came within {self._timeout_s:g} s")
        except (httpx2.HTTPError, httpx2.InvalidURL, httpcore2.NetworkError, OSError, ValueError) as error:
            return Outcome(AttemptVerdict.FAILED, "connection", f"the connection failed ({type(error).__name__})")

    async def _answer(self, url: str, body: bytes, headers: dict[str, str]) -> Outcome:
        async with self._http.stream("POST", url, content=body, headers=headers) as answer:
            read = 0
            async for piece in answer.aiter_raw():
                read += len(piece)
                if read > MOST_ANSWER_BYTES:
                    break  # the connection is closed: its rest is not read
            return outcome_of(answer.status_code, answer.headers.get("retry-after"))


def outcome_of(status: int, retry_after: str | None = None) -> Outcome:
    """What an answer means.

    Parameters
    ----------
    status : int
    retry_after : str, optional
        The header.
    """
    if 200 <= status < 300:
        return DELIVERED
    if status == 410:
        return Outcome(AttemptVerdict.GONE, "gone", "it answered with 410")
    if 300 <= status < 400:
        return Outcome(AttemptVerdict.FAILED, "redirect", f"it answered with {status}, and redirects are not followed")
    return Outcome(AttemptVerdict.FAILED, "status", f"it answered with {status}", wait_of(retry_after, time.time()))


class _Transport(httpx2.AsyncHTTPTransport):
    """httpx's transport over a pool that connects by way of the guard."""

    def __init__(self, guard: Guard):
        super().__init__(trust_env=False)
        pool: Any = httpcore2.AsyncConnectionPool(
            ssl_context=httpx2.create_ssl_context(trust_env=False),
            max_connections=None,  # `dispatch` bounds attempts
            max_keepalive_connections=_KEPT,
            keepalive_expiry=_KEPT_S,
            network_backend=GuardedBackend(guard),
        )
        self._pool = pool
