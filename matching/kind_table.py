"""A kind of subscription as data: one row of a table, and the table that routers, validation and tools read.

The rows of this product are in `matching.kinds`; a topology may be wired with a longer table (`Kinds.plus`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, NamedTuple, Self

import numpy as np

from matching.errors import ConfigError
from matching.half_life import DecayParameters
from matching.operator import (
    Bools,
    KindOperator,
    OperatorContext,
    Ranged,
    Replicated,
    ResultOperator,
    Windowed,
    WindowIndex,
)
from matching.space import Space
from matching.storage.state import State, join_states


@dataclass(frozen=True)
class Recipe:
    """How subscriptions of a kind are generated from messages (`gateway.subscriptions.generate`) and shown in the demo.

    paper : str
    keywords : (int, int)      fewest and most
    frequent : bool            frequent keywords are preferred
    k : (int, int)             the range k is drawn from, where rows have one
    side : float               largest side of a region as a fraction of the extent's side, where rows have one
    square : bool              areas are uniform, not sides
    shown : str                the change that the demo shows
    share : int                divisor of the demo's number of subscriptions
    load : int                 number of subscriptions in a load test, by default
    degrees : float            side of the square regions in a load test; 0: as drawn
    """

    paper: str
    keywords: tuple[int, int] = (1, 5)
    frequent: bool = False
    k: tuple[int, int] = (10, 10)
    side: float = 0.01
    square: bool = False
    shown: str = "enter"
    share: int = 1
    load: int = 0
    degrees: float = 0.0


def at_place(place: Any) -> Any:
    """What is at "module:name", imported now; what is no text is returned as it is."""
    if not isinstance(place, str):
        return place
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


class ByName(Mapping[str, Any]):
    """Engines, or window indexes, by name; the class is imported when it is looked up.

    Pickled by names, so that a task on another machine imports what it looks up, and nothing else.

    Parameters
    ----------
    own : mapping of str to str    those that a user would choose: name to "module:class", the default first
    **others : str                 the same of papers and opponents

    Attributes
    ----------
    own : list of str
    """

    def __init__(self, own: Mapping[str, str], **others: str):
        self.own = list(own)
        self._places = {**own, **others}

    def __getitem__(self, name: str) -> Any:
        return at_place(self._places[name])

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


class _Imported:
    """A field that is given as a class or as "module:class", and imported when it is first read."""

    def __get__(self, kind: Any, owner: Any = None) -> type[KindOperator] | None:
        if kind is None:
            return None  # the default
        found = vars(kind)["operator"] = at_place(vars(kind)["operator"])
        return found

    def __set__(self, kind: Any, value: "type[KindOperator] | str | None") -> None:
        vars(kind)["operator"] = value


@dataclass(frozen=True)
class Kind:
    """A kind of subscription: one row of the table.

    Attributes
    ----------
    code : int                position in `SubscriptionTable.kind`
    name : str                as in subscription files
    place : str               "region" (a closed rectangle) or "point"
    message_place : str       what of a message must meet a region: "box", its rectangle, or "centre"
    wraps : bool              a region may cross the antimeridian
    needs_extent : bool       a region must be more than a point
    wordless : bool           a subscription may have no keywords, and asks for every visible message then
    all_keywords : bool       every match has all keywords, unless the row has `match` = any
    fields : tuple of str     fields of a row beside keywords and place: of "k", "alpha", "match"
    shapes : tuple of str     shapes of its subscriptions: of "circle" and "polygon", in place of a region, or a filter
                              beside a point, and "radius_m" around the point
    needs_ended : bool        a message ends for it when a later version of its object comes
    nearest : bool            its result is the nearest messages: those farther than the k-th do not matter
    newer_first : bool        of equal scores in a result the newer message ranks first, else the older
    fades : bool              scores decay with the age of the message, at a rate set by the run
    columns : tuple of str    message columns it needs beside place and terms: of "counts", "event_time_us"
    engines : mapping         name to a callable that makes an engine of a space, the default first; none: not run
    windows : mapping         name to `WindowIndex`, the default first
    operator : type of KindOperator    may be given as "module:class", which is imported when it is read
    objects : mapping         fields that differ in a stream of objects (`Kinds.of_objects`)
    beside : mapping          component -> its work, as a multiple of what all query bolts do for the kind, and so how
                              many tasks it has for each of them
    recipe : Recipe
    """

    code: int
    name: str
    place: str
    operator: _Imported = _Imported()
    message_place: str = "centre"
    wraps: bool = False
    needs_extent: bool = False
    wordless: bool = True
    all_keywords: bool = False
    fields: tuple[str, ...] = ()
    shapes: tuple[str, ...] = ()
    needs_ended: bool = False
    nearest: bool = False
    newer_first: bool = False
    fades: bool = False
    columns: tuple[str, ...] = ()
    engines: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    windows: Mapping[str, type[WindowIndex]] = field(default_factory=dict)
    objects: Mapping[str, Any] = field(default_factory=dict)
    beside: Mapping[str, float] = field(default_factory=dict)
    recipe: Recipe = Recipe("")

    @property
    def runs(self) -> bool:
        """Whether it has an operator."""
        return vars(self)["operator"] is not None

    @property
    def standing(self) -> bool:
        """Whether it has results, which messages enter and leave; else a pair is one `match`."""
        return self._has(ResultOperator)

    @property
    def windowed(self) -> bool:
        """Whether it starts from the window and refills from it; needs window indexes."""
        return self._has(Windowed)

    @property
    def cumulative(self) -> bool:
        """Whether it is cumulative: results do not come from the window, and may have messages that have left it."""
        return self.standing and not self.windowed

    @property
    def replicated(self) -> bool:
        """Whether it has thresholds, by which routers drop messages, and replicas at the tasks of keywords."""
        return self._has(Replicated)

    @property
    def ranged(self) -> bool:
        """Whether its results say where messages may still matter, by which routers drop others."""
        return self._has(Ranged)

    def engine(self, name: str | None = None) -> Callable[..., Any]:
        """An engine by name, by default the first.

        Raises
        ------
        ConfigError
            For an unknown name.
        """
        return self._named("engine", self.engines, name)

    def chosen(self, engine: str | None) -> str:
        """Name of the engine that runs: the given one, or the default."""
        return engine or next(iter(self.engines))

    def window(self, name: str | None = None) -> type[WindowIndex]:
        """A window index by name, by default the first.

        Raises
        ------
        ConfigError
            For an unknown name.
        """
        return self._named("window index", self.windows, name)

    def make_window(
        self, space: Space, name: str | None = None, kept_boundaries: int = 0, fading: DecayParameters | None = None
    ) -> WindowIndex:
        """An empty window index of a name, by default the first; `fading` is that of the run.

        Raises
        ------
        ConfigError
            For an unknown name.
        """
        made: Any = self.window(name)
        return made(space, kept_boundaries, fading) if self.fades else made(space, kept_boundaries)

    def make_operator(self, context: OperatorContext, engine: str | None = None) -> KindOperator:
        """An empty operator.

        Raises
        ------
        ConfigError
            For an unknown engine.
        """
        made = self.engine(engine)
        assert self.operator is not None, "kinds without engine have been refused"
        return self.operator(made, context)

    def _has(self, capability: type[KindOperator]) -> bool:
        return self.operator is not None and issubclass(self.operator, capability)

    def _named(self, what: str, table: Mapping[str, Any], name: str | None) -> Any:
        if not table:
            raise ConfigError(f"{what} for {self.name}: there is none")
        chosen = name or next(iter(table))
        if chosen not in table:
            raise ConfigError(f"{what} {chosen!r} for {self.name}: choose one of {', '.join(table)}")
        return table[chosen]


class Traits(NamedTuple):
    """Attributes of `Kind` for routers, as bool[codes]."""

    region: Bools
    box: Bools
    all_keywords: Bools
    standing: Bools
    needs_ended: Bools
    nearest: Bools
    replicated: Bools
    ranged: Bools


class Kinds:
    """A table of kinds, by code and by name.

    Attributes
    ----------
    plain : Kinds    the same kinds in a stream of messages
    run : tuple of Kind    those that have an operator

    Raises
    ------
    ConfigError
        If codes are not 0, 1, 2, ..., two kinds have one name, or one has both `k` and `match`, which share a column.
    """

    def __init__(self, kinds: Iterable[Kind]):
        self._rows = tuple(sorted(kinds, key=lambda kind: kind.code))
        self._by_name = {kind.name: kind for kind in self._rows}
        self.plain = self
        self.run = tuple(kind for kind in self._rows if kind.runs)
        named = ", ".join(kind.name for kind in self._rows)
        if [kind.code for kind in self._rows] != list(range(len(self._rows))):
            raise ConfigError(f"kinds {named}: codes must be 0, 1, 2, ...")
        if len(self._by_name) < len(self._rows):
            raise ConfigError(f"kinds {named}: a name stands for one kind; rename the others")
        for kind in self._rows:
            if {"k", "match"} <= set(kind.fields):
                raise ConfigError(f"kind {kind.name}: k and match share a column; leave one of them out of its fields")

    def __iter__(self) -> Iterator[Kind]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, code: int) -> Kind:
        return self._rows[code]

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    @property
    def names(self) -> tuple[str, ...]:
        """All names, in order of code."""
        return tuple(self._by_name)

    def named(self, name: str) -> Kind:
        """The kind of a name.

        Raises
        ------
        ConfigError
            For an unknown name.
        """
        if name not in self._by_name:
            raise ConfigError(f"unknown kind {name!r}; choose from {', '.join(self._by_name)}")
        return self._by_name[name]

    def plus(self, *more: Kind) -> Self:
        """A table with more kinds."""
        return type(self)([*self._rows, *more])

    def of_objects(self) -> Self:
        """The same kinds in a stream of objects. O(kinds)."""
        found = type(self)(replace(kind, **kind.objects) for kind in self._rows)
        found.plain = self.plain
        return found

    def saved_states(self, parts: Sequence[Mapping[str, np.ndarray]]) -> dict[int, State]:
        """State of each kind in the snapshots of all query tasks (`parts`), joined, by code. O(total log rows)."""
        states = {}
        for kind in self.run:
            prefix = f"{kind.name}:"
            of_each = [
                State.from_arrays({name[len(prefix) :]: each for name, each in part.items() if name.startswith(prefix)})
                for part in parts
            ]
            states[kind.code] = join_states(of_each)
        return states

    @property
    def traits(self) -> Traits:
        """The traits of all kinds."""
        return Traits(
            region=self._flags(lambda kind: kind.place == "region"),
            box=self._flags(lambda kind: kind.place == "region" and kind.message_place == "box"),
            all_keywords=self._flags(lambda kind: kind.all_keywords),
            standing=self._flags(lambda kind: kind.standing),
            needs_ended=self._flags(lambda kind: kind.needs_ended),
            nearest=self._flags(lambda kind: kind.nearest),
            replicated=self._flags(lambda kind: kind.replicated),
            ranged=self._flags(lambda kind: kind.ranged),
        )

    def _flags(self, flag: Callable[[Kind], bool]) -> Bools:
        return np.array([flag(kind) for kind in self._rows], np.bool_)
