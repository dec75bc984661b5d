"""The parameter `kind` of what lists subscriptions or updates."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import Query
from pydantic import WithJsonSchema

from gateway.serve.problems import ApiError
from matching.kinds import KINDS

_Name = Annotated[str, WithJsonSchema({"type": "string", "enum": list(KINDS.names)})]
#: Kinds by name, one or several.
KindNames = Annotated[list[_Name] | None, Query(description="only these kinds")]


def refuse_unknown_kinds(names: Sequence[str] | None) -> None:
    """Raises ApiError if one is no kind."""
    for name in names or ():
        if name not in KINDS.names:
            raise ApiError(422, "unknown_kind", f"{name!r} is no kind", "query kind", f"one of {KINDS.names}")
