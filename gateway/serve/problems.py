"""Errors as `application/problem+json` (RFC 9457), with a reason code, where, and what to do."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match

from matching.errors import ConfigError, EngineError, InputError
from topology.core.executors.logs import driver_log

MEDIA_TYPE = "application/problem+json"
#: Statuses of reason codes; every other refusal is 422.
STATUS_OF = {
    "subscription_exists": 409,
    "too_many_subscriptions": 403,
    "duplicate_id": 409,
    "attribute_exists": 409,
    "precondition_failed": 412,
    "line_too_long": 413,
    "unknown_subscription": 404,
    "unknown_message": 404,
    "not_durable": 503,
    "not_json": 400,
}
#: Content of an error, for OpenAPI.
CONTENT = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
#: Descriptions of answers for OpenAPI: a body that is too large, and a request to repeat later.
TOO_LARGE: dict[int | str, dict[str, Any]] = {
    413: {"description": "More bytes or rows than a request may have, which `detail` names", "content": CONTENT}
}
LATER: dict[int | str, dict[str, Any]] = {
    429: {
        "description": "Too many rows wait, of this caller or of all",
        "headers": {"Retry-After": {"description": "seconds", "schema": {"type": "integer"}}},
        "content": CONTENT,
    }
}
#: What to do about a reason, where its detail does not say.
_REMEDIES = {
    "unknown_subscription": "check the id; GET /v1/subscriptions lists the active ones",
    "unknown_message": "check the id; seq:N names a message by its number",
    "subscription_exists": "PUT /v1/subscriptions/ID to replace it, or choose another id",
    "duplicate_id": "give the message an id of its own",
    "too_many_subscriptions": "end some first",
    "precondition_failed": "GET the subscription, and send its ETag in If-Match",
    "not_durable": "send it again once the server runs again: it is taken once",
}


class ApiError(Exception):
    """An answer that is an error.

    Parameters
    ----------
    reason : str
        Code that scripts rely on.
    where : str, optional
        Parameter, header, or line.
    do : str, optional
        The remedy; by default the one that the reason has.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        detail: str,
        where: str = "",
        do: str = "",
        headers: dict[str, str] | None = None,
    ):
        super().__init__(detail)
        self.status = status
        self.headers = headers or {}
        self.body = body_of(status, reason, detail, where, do)


def body_of(status: int, reason: str, detail: str, where: str = "", do: str = "") -> dict[str, Any]:
    """The fields of a problem."""
    do = do or _REMEDIES.get(reason, "change what the detail names, and send it again")
    body = {"type": f"urn:skyray:problem:{reason}", "title": HTTPStatus(status).phrase, "status": status}
    return {**body, "detail": detail, "reason": reason, **({"where": where} if where else {}), "do": do}


def refusal(outcome: dict[str, Any], where: str = "body") -> ApiError:
    """The problem of a refused row (`gateway.serve.writer.Outcome`)."""
    reason = outcome["reason"]
    problem = ApiError(STATUS_OF.get(reason, 422), reason, outcome["detail"], where)
    problem.body |= {name: outcome[name] for name in ("column", "value") if name in outcome}
    return problem


def later(status: int, reason: str, detail: str, retry_s: int, more: str = "") -> ApiError:
    """A problem that is over after some seconds, with `Retry-After`; `more` ends its remedy."""
    do = f"send it again after {retry_s} s" + (f": {more}" if more else "")
    return ApiError(status, reason, detail, do=do, headers={"Retry-After": str(retry_s)})


def overloaded(retry_s: int = 1) -> ApiError:
    """429: too many rows wait."""
    return later(429, "overloaded", "too many rows wait to be logged, of this caller or of all", retry_s)


def problem_of(error: EngineError) -> ApiError:
    """The problem of an error of the engine."""
    if isinstance(error, InputError):
        return ApiError(STATUS_OF.get(error.reason_code, 422), error.reason_code, str(error))
    status, reason = (404, "unknown_subscription") if isinstance(error, ConfigError) else (500, "failed")
    return ApiError(status, reason, str(error))


def answer(problem: ApiError) -> Response:
    """Log a problem, unless it is a refused row or a 404, and return its response."""
    if "column" not in problem.body and problem.status != HTTPStatus.NOT_FOUND:
        reason, what = problem.body["reason"], problem.body["detail"]
        log = driver_log().error if problem.status == HTTPStatus.INTERNAL_SERVER_ERROR else driver_log().warning
        log("request_refused", sampled=reason, status=problem.status, reason=reason, what=what)
    data = msgspec.json.encode(problem.body)
    return Response(data, problem.status, headers=problem.headers, media_type=MEDIA_TYPE)


def install(app: FastAPI, routes: Sequence[BaseRoute]) -> None:
    """Make every error of the app a problem; `routes` are the routes of its routers."""

    @app.exception_handler(ApiError)
    def of_problem(_: Request, error: ApiError) -> Response:
        return answer(error)

    @app.exception_handler(EngineError)
    def of_engine(_: Request, error: EngineError) -> Response:
        return answer(problem_of(error))

    @app.exception_handler(RequestValidationError)
    def of_validation(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = " ".join(map(str, first["loc"]))
        return answer(ApiError(422, "bad_parameter", first["msg"], where, "see /openapi.json"))

    @app.exception_handler(HTTPException)
    def of_http(request: Request, error: HTTPException) -> Response:
        reason = {404: "no_such_path", 405: "no_such_method"}.get(error.status_code, "refused")
        headers = dict(error.headers or {})
        if error.status_code == 405:  # the framework names the methods of one route, a path has several
            headers["Allow"] = ", ".join(_methods_of(request, [*app.routes, *routes]))
        return answer(ApiError(error.status_code, reason, str(error.detail), do="see /openapi.json", headers=headers))

    app.add_exception_handler(Exception, failed)


def failed(_: Request, error: Exception) -> Response:
    """The answer to a request that raised an unexpected error."""
    return answer(ApiError(500, "failed", "the server failed", do=f"see its log; {type(error).__name__}"))


def _methods_of(request: Request, routes: Sequence[BaseRoute]) -> list[str]:
    """The methods that the path of a request takes."""
    found: set[str] = set()
    for route in routes:
        if route.matches(request.scope)[0] is not Match.NONE:
            found |= set(getattr(route, "methods", None) or ())
    return sorted(found | ({"HEAD"} if "GET" in found else set()))
