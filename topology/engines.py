"""Checks that the engines and window indexes that a run chooses serve its distance, its objects and its filters."""

from collections.abc import Callable, Mapping

from matching.errors import ConfigError
from matching.fields import Refusal
from matching.filter_programs import USUAL, asked_in
from matching.kind_table import Kinds
from matching.space import Space
from matching.validate import ParsedSubscription
from matching.window import LIVING, Window


def check_distance(kinds: Kinds, space: Space, engines: Mapping[str, str] | None = None) -> None:
    """Check that the chosen engines (name by kind) serve the distance of the run; all window indexes do.

    Raises
    ------
    ConfigError
        If distances are on the sphere and an engine serves the plane only; for an unknown name.
    """
    for kind in kinds.run if space.on_sphere else ():
        if kind.place == "region" or kind.engine(name := kind.chosen((engines or {}).get(kind.name))).serves_sphere:
            continue
        able = ", ".join(name for name, other in kind.engines.items() if other.serves_sphere) or "none"
        raise ConfigError(
            f"--engine {kind.name}={name}: measures distances in the plane alone; choose --distance plane, or one that "
            f"serves the sphere: {able}"
        )


def check_window(window: Window, objects: bool) -> None:
    """Refuse a window of living versions in a stream of messages, which would keep them all. Raises ConfigError."""
    if window == LIVING and not objects:
        raise ConfigError("--window living: only a stream of objects (--objects) has it; take count:N or time:SECONDS")


def kinds_without_objects(kinds: Kinds, engines: Mapping[str, str] | None) -> dict[str, Refusal]:
    """Kinds that serve no stream of objects with their engine (name by kind), and why a subscription is refused.

    Raises
    ------
    ConfigError
        For an unknown engine.
    """
    refused = {}
    for kind in kinds.of_objects().run:
        name = kind.chosen((engines or {}).get(kind.name))
        assert kind.operator is not None, "it is run"
        served = kind.operator.serves_objects and getattr(kind.engine(name), "serves_objects", True)
        if not served:
            detail = f"is of kind {kind.name}, whose engine {name} serves no stream of objects (--objects)"
            refused[kind.name] = Refusal("objects_not_served", detail)
    return refused


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
    kinds: Kinds, window_indexes: Mapping[str, str] | None = None, most_terms: int = 0, objects: bool = False
) -> Callable[[ParsedSubscription], Refusal | None]:
    """Return a function from a parsed subscription to the refusal of its filter; None if it is served or absent.

    Parameters
    ----------
    window_indexes : mapping of str to str, optional
        Name by kind.
    most_terms : int
        Terms that the stream admits at most; 0 if its vocabulary is fixed. A stream that admits terms turns unknown
        words of `not_keywords` into terms, and so into a filter.
    objects : bool
        The stream is one of objects; in one of messages no subscription may ask for changes, or compare versions.

    Raises
    ------
    ConfigError
        For an unknown window index.
    """
    refused = kinds_without_filters(kinds, window_indexes)

    def check(parsed: ParsedSubscription) -> Refusal | None:
        if not parsed.filter and not parsed.unknown_others:
            return None
        if not objects and asked_in(parsed.filter) != USUAL:
            return Refusal(
                "needs_objects", "has on, or compares with the version before: begin the stream with --objects"
            )
        has_filter = parsed.filter or (most_terms and parsed.unknown_others)
        return refused.get(kinds[parsed.kind].name) if has_filter else None

    return check
