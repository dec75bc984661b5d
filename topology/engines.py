"""Which table of kinds a run uses: the product's own, or with baselines, if the run names an engine that is one.

Baselines are engines and window indexes that exist to be compared with (`baselines.kinds`). A run that names none of
them imports none. Read on in `topology.wiring`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from matching.errors import ConfigError
from matching.fields import Refusal
from matching.kind_table import Kinds
from matching.space import Space
from matching.validate import ParsedSubscription


def kinds_with(
    kinds: Kinds, engines: Mapping[str, str] | None = None, window_indexes: Mapping[str, str] | None = None
) -> Kinds:
    """The table itself if it has all these engines and window indexes (name by kind), else with baselines.

    A name that neither table has is refused where it is looked up.
    """
    wanted = [(kinds.named(kind).engines, name) for kind, name in (engines or {}).items() if kind in kinds]
    wanted += [(kinds.named(kind).windows, name) for kind, name in (window_indexes or {}).items() if kind in kinds]
    if all(name in table for table, name in wanted):
        return kinds
    from baselines.kinds import with_baselines

    return with_baselines(kinds)


def check_distance(
    kinds: Kinds,
    space: Space,
    engines: Mapping[str, str] | None = None,
    window_indexes: Mapping[str, str] | None = None,
) -> None:
    """Check that the engines and window indexes that run (name by kind) measure distances as the space does.

    Raises
    ------
    ConfigError
        If distances are on the sphere and one measures them in the plane alone; for an unknown name.
    """
    if not space.on_sphere:
        return
    for kind in kinds.run:
        if kind.place == "region":
            continue
        _check_sphere(kind.engines, kind.engine((engines or {}).get(kind.name)), f"--engine {kind.name}=")
        if kind.windowed:
            index = kind.window((window_indexes or {}).get(kind.name))
            _check_sphere(kind.windows, index, f"--window-index {kind.name}=")


def _check_sphere(table: Mapping[str, Any], one: Any, option: str) -> None:
    if not one.serves_sphere:
        able = ", ".join(name for name, other in table.items() if other.serves_sphere) or "none"
        raise ConfigError(
            f"{option}{one.name}: measures distances in the plane alone; choose --distance plane, or one that serves "
            f"the sphere: {able}"
        )


def kinds_without_filters(kinds: Kinds, window_indexes: Mapping[str, str] | None = None) -> dict[str, Refusal]:
    """Kinds whose window index (name by kind) serves no filters, and why a subscription that has one is refused.

    Raises
    ------
    ConfigError
        For an unknown window index.
    """
    chosen, refused = dict(window_indexes or {}), {}
    for kind in kinds.run:
        if not kind.windowed or kind.window(chosen.get(kind.name)).serves_filters:
            continue
        index = kind.window(chosen.get(kind.name)).name
        able = [f"--window-index {kind.name}={name}" for name, one in kind.windows.items() if one.serves_filters]
        remedy = f"use {' or '.join(able)}" if able else "no other serves them"
        detail = f"has a filter, which this window index does not serve (--window-index {kind.name}={index}); {remedy}"
        refused[kind.name] = Refusal("filter_not_served", detail)
    return refused


def filter_refusal(
    kinds: Kinds, window_indexes: Mapping[str, str] | None = None, most_terms: int = 0
) -> Callable[[ParsedSubscription], Refusal | None]:
    """A function of a checked subscription: why its filter is not served, None if it is or there is none.

    With `most_terms` new words of `not_keywords` are admitted, which makes them a filter.

    Raises ConfigError as `kinds_without_filters`.
    """
    refused = kinds_without_filters(kinds, window_indexes)

    def check(parsed: ParsedSubscription) -> Refusal | None:
        has_filter = parsed.filter or (most_terms and parsed.unknown_excluded)
        return refused.get(kinds[parsed.kind].name) if has_filter else None

    return check
