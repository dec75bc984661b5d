"""Routers by name: the factory, and what each router can do.

A new router is a class of its own file and a row of `_CLASSES` here.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from distribution.hashing import HashingRouter
from distribution.influence import InfluenceRouter
from distribution.keyword import KeywordRouter, PrefixRouter
from distribution.location import LocationRouter
from distribution.placed import DkmSksRouter, KopRouter, PlacedRouter, Ps2StreamRouter, SopRouter
from distribution.placement.costs import PlacementCosts, UniformCosts
from distribution.router import Router
from distribution.signatures.signature import MODES, spec_of
from matching.errors import ConfigError
from matching.kind_table import Kinds
from matching.kinds import KINDS
from matching.model import Float64
from matching.space import Space

_PLACED: tuple[type[PlacedRouter], ...] = (KopRouter, SopRouter, DkmSksRouter, Ps2StreamRouter)
_CLASSES: dict[str, type[Router]] = {
    router.name: router
    for router in (
        HashingRouter,
        LocationRouter,
        KeywordRouter,
        PrefixRouter,
        InfluenceRouter,
        *_PLACED,
    )  # fmt: skip
}
#: Names of all routers, as written after `--router`, the default first.
ROUTERS = tuple(_CLASSES)
#: Names of routers that support signatures.
SIGNING = (HashingRouter.name, LocationRouter.name, InfluenceRouter.name)
#: Names of routers that place subscriptions by cost.
PLACING = tuple(router.name for router in _PLACED)
#: Names of routers that can rebalance when a run resumes.
REBALANCING = tuple(name for name, router in _CLASSES.items() if router.rebalances)


def router_named(
    name: str,
    tasks: int,
    space: Space,
    load: Callable[[], tuple[Float64, Float64]],
    signatures: str = "off",
    kinds: Kinds = KINDS,
    costs: Callable[[], PlacementCosts] | None = None,
) -> Router:
    """Make a router.

    Parameters
    ----------
    name : str           one of `ROUTERS`
    tasks : int          number of query tasks
    space : Space
    load : callable      returns x and y (float64[n] each) of a sample of messages in the unit square, by which a router
                         by place cuts the world into parts of equal load; other routers do not call it
    signatures : str     one of `distribution.signatures.signature.MODES`
    kinds : Kinds
    costs : callable     returns message statistics for the routers of `PLACING`; by default all places and terms cost
                         the same

    Raises
    ------
    ConfigError
        For an unknown name, or signatures that the router does not support.
    """
    if name not in _CLASSES:
        raise ConfigError(f"router {name!r}: choose one of {', '.join(ROUTERS)}")
    if signatures not in MODES:
        raise ConfigError(f"signatures {signatures!r}: choose one of {', '.join(MODES)}")
    if signatures != "off" and name not in SIGNING:
        raise ConfigError(
            f"signatures {signatures}: router {name} sends {_sends(name)} and has no use for them; "
            f"use {' or '.join(SIGNING)}, or leave signatures off"
        )
    made: Any = _CLASSES[name]
    traits, spec = kinds.traits, spec_of(signatures, space, kinds.traits, tasks)
    if issubclass(_CLASSES[name], LocationRouter):
        return made(tasks, space, *load(), spec, traits)
    if name in PLACING:
        return made(tasks, space, costs() if costs else UniformCosts(space, np.zeros(0, np.int64), 0), traits)
    return made(tasks, spec, traits) if name in SIGNING else made(tasks, traits)


def works_on_all_kinds(name: str) -> bool:
    """Whether query tasks exchange hits under this router; then kernels of kinds without subscriptions run, too."""
    return name in _CLASSES and _CLASSES[name].exchanges_hits


def has_replicas(name: str) -> bool:
    """Whether kinds with thresholds are matched by replicas under this router."""
    return name in _CLASSES and _CLASSES[name].replicates


def _sends(name: str) -> str:
    return "by keyword" if has_replicas(name) else "every message to all"


def placeable(name: str, kinds: Kinds, kind: str, row_wants_any: bool, wordless: bool = False) -> str | None:
    """Why a router cannot place a subscription of a kind, as the end of a sentence about it; None if the router can.

    `row_wants_any`: whether the subscription matches by any of its keywords (`"match": "any"`); `wordless`: whether it
    has none.
    """
    if not has_replicas(name) or kind not in kinds:
        return None
    of_kind = kinds.named(kind)
    if wordless:
        return "has no keywords, and this router places it by one of them"
    if of_kind.all_keywords:
        return 'has "match": "any", and this router places it by one of its keywords' if row_wants_any else None
    return None if of_kind.replicated else f"is of kind {kind}, which this router cannot place"
