"""Conditions that a request sets on an entity tag: the headers `If-Match` and `If-None-Match` (RFC 9110, 13.1)."""

import re
from typing import Annotated, NamedTuple

from fastapi import Depends, Header

from gateway.serve.problems import ApiError

_TAG = re.compile(r'(?:W/)?"[^"]*"')
_ANY = frozenset("*")


class Conditions(NamedTuple):
    """Entity tags that there must be, and that there must not be; None for a header that was not sent, `*` for any."""

    match: frozenset[str] | None = None
    none_match: frozenset[str] | None = None

    def hold(self, etag: str | None) -> bool:
        """Whether a subscription of this entity tag, or None if there is none, meets both."""
        there = frozenset() if etag is None else _ANY | {etag}
        return (self.match is None or bool(self.match & there)) and not (self.none_match or frozenset()) & there


def conditions_of(
    if_match: Annotated[list[str] | None, Header(description="entity tags, of which it must have one; or *")] = None,
    if_none_match: Annotated[
        list[str] | None, Header(description="entity tags, of which it must have none; *: only if there is none")
    ] = None,
) -> Conditions:
    """The conditions of a request. Raises ApiError."""
    none_match = _tags(if_none_match, "If-None-Match")
    weakly = None if none_match is None else frozenset(tag.removeprefix("W/") for tag in none_match)
    return Conditions(_tags(if_match, "If-Match"), weakly)  # a weak tag matches nothing in If-Match


def _tags(lines: list[str] | None, header: str) -> frozenset[str] | None:
    """The entity tags of a header's lines. Raises ApiError."""
    if lines is None:
        return None
    text = ", ".join(lines).strip()
    if text != "*" and _TAG.sub("", text).strip(", \t"):
        do = 'send entity tags, "..." with the quotes, with commas between them; or *'
        raise ApiError(422, "bad_parameter", f"{text[:60]!r} is no list of entity tags", f"header {header}", do)
    return _ANY if text == "*" else frozenset(_TAG.findall(text))


#: Parameter of a route: what the request asks of the entity tag.
IfTagged = Annotated[Conditions, Depends(conditions_of)]
