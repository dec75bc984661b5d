"""Routers by name: the one factory for whoever starts a topology.

Read on in `distribution.router` for what they have in common, then in `distribution.hashing`.
"""

from collections.abc import Callable
from typing import Any

from distribution.hashing import HashingRouter
from distribution.keyword import KeywordRouter, PrefixRouter
from distribution.location import LocationRouter
from distribution.router import Router
from distribution.signatures.signature import MODES, spec_of
from matching.errors import ConfigError
from matching.kind_table import Kinds
from matching.kinds import KINDS
from matching.model import Float64
from matching.space import Space

_CLASSES: dict[str, type[Router]] = {
    router.name: router for router in (HashingRouter, LocationRouter, KeywordRouter, PrefixRouter)
}
#: As written after `--router`, the default first.
ROUTERS = tuple(_CLASSES)
#: Those that can make use of signatures.
SIGNING = (HashingRouter.name, LocationRouter.name)


def router_named(
    name: str,
    tasks: int,
    space: Space,
    load: Callable[[], tuple[Float64, Float64]],
    signatures: str = "off",
    kinds: Kinds = KINDS,
) -> Router:
    """A router for so many query tasks.

    Parameters
    ----------
    name : str           one of `ROUTERS`
    tasks : int
    space : Space
    load : callable      gives points of the unit square (float64[n] each) by which `location` balances the world
    signatures : str     one of `distribution.signatures.signature.MODES`
    kinds : Kinds

    Raises
    ------
    ConfigError
        For a name nobody knows, or signatures that the router has no use for.
    """
    if name not in _CLASSES:
        raise ConfigError(f"router {name!r}: choose one of {', '.join(ROUTERS)}")
    if signatures not in MODES:
        raise ConfigError(f"signatures {signatures!r}: choose one of {', '.join(MODES)}")
    if signatures != "off" and name not in SIGNING:
        raise ConfigError(
            f"signatures {signatures}: router {name} sends by keyword and has no use for them; "
            f"use {' or '.join(SIGNING)}, or leave signatures off"
        )
    made: Any = _CLASSES[name]
    traits, spec = kinds.traits, spec_of(signatures, space, kinds.traits)
    if name == LocationRouter.name:
        return made(tasks, space, *load(), spec, traits)
    return made(tasks, spec, traits) if name in SIGNING else made(tasks, traits)


def placeable(name: str, kinds: Kinds, kind: str, row_wants_any: bool) -> str | None:
    """Why a router cannot place a subscription of a kind, in words that follow its name; None if it can."""
    if name not in _CLASSES or not _CLASSES[name].replicates or kind not in kinds:
        return None
    of_kind = kinds.named(kind)
    if of_kind.all_keywords:
        return 'has "match": "any", and this router places it by one of its keywords' if row_wants_any else None
    return None if of_kind.replicas else f"is of kind {kind}, which this router cannot place"
