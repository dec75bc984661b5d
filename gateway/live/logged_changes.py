"""What the gate knows of a subscription that it has accepted, and the lines of the log read for just that, in bulk.

A line of the log was accepted once, and its checksum holds: so what a plain one says is taken as it is, without the
checks, which cut its words. A line that is not plain, as a strict decoder has it, goes to the functions of rows.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from matching.fields import MAX_ID_CHARACTERS
from matching.filter_fields import Shape, shape_of
from matching.kind_table import Kinds
from matching.kinds import KINDS

#: West, south, east, north in degrees.
Box = tuple[float, float, float, float]


class Accepted(NamedTuple):
    """A subscription that was accepted.

    subscription_id : str
    kind : int               its code
    line : bytes             as it is logged; empty where nothing is
    box : tuple of float     around its shape: west, south, east, north in degrees; east may be above 180
    owner, expires_at        free columns as they were given; None where there is none
    tell, include            the columns, as they were given
    broad : bool             whether it requires nothing (`matching.validate.ParsedSubscription`)
    """

    subscription_id: str
    kind: int
    line: bytes
    box: Box
    owner: Any = None
    expires_at: Any = None
    broad: bool = False
    tell: Any = None
    include: Any = None


class Active(Protocol):
    """The active subscriptions, as `Admission` changes them: `ActiveKinds`, or `gateway.serve.registry.Registry`."""

    def put(self, ones: Sequence[Accepted], ats: Sequence[int]) -> list[int]:
        """Take subscriptions in order, each before the message `at`; one replaces any of its id.

        Returns the kinds of those that are replaced.
        """
        ...

    def end(self, name: str, at: int) -> int | None:
        """Take one out before the message `at`; returns its kind, None if none of this id is active."""
        ...

    def __iter__(self) -> Iterator[str]:
        """Ids of those that are active."""
        ...

    def __len__(self) -> int: ...


class ActiveKinds(dict[str, int]):
    """The kind of each active subscription, and what its updates carry.

    Attributes
    ----------
    includes : dict of str to Any
        Column `include` by id, of those that have ended too, whose updates may still come.
    """

    def __init__(self) -> None:
        super().__init__()
        self.includes: dict[str, Any] = {}
        self._kinds: dict[str, int] = {}  # of those in `includes`

    def put(self, ones: Sequence[Accepted], ats: Sequence[int]) -> list[int]:
        """See `Active`."""
        replaced = []
        for one, at in zip(ones, ats, strict=True):
            if (before := self.end(one.subscription_id, at)) is not None:
                replaced.append(before)
            self[one.subscription_id] = one.kind
            self.includes.pop(one.subscription_id, None)
            if one.include is True or isinstance(one.include, list):
                self.includes[one.subscription_id] = one.include
                self._kinds[one.subscription_id] = one.kind
        return replaced

    def end(self, name: str, at: int) -> int | None:
        """See `Active`."""
        return self.pop(name, None)

    def is_standing(self, name: str) -> bool:
        """Whether a subscription in `includes` is of a kind that keeps a result."""
        return KINDS[self._kinds[name]].standing


class _Columns(msgspec.Struct, gc=False):
    subscription_id: str
    kind: str
    region: Box | None = None
    lon: float | None = None
    lat: float | None = None
    owner: Any = None
    expires_at: Any = None
    tell: Any = None
    include: Any = None
    where: Any = None
    circle: Any = None
    # with one of these a line is not plain
    on: None = None
    polygon: None = None
    radius_m: None = None
    match: None = None
    not_keywords: None = None
    query: None = None
    everything: None = None
    at: None = None
    until: None = None


class _Line(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    subscribe: _Columns | None = None
    unsubscribe: str | None = None


_DECODER = msgspec.json.Decoder(_Line)


def plain_changes(lines: Sequence[bytes], kinds: Kinds) -> list[Accepted | str | None]:
    """What logged lines say: a subscription, the id of one that ends, None where a line is not plain.

    About 1 us a line, 10 us one with a circle.
    """
    try:
        found = _DECODER.decode_lines(b"\n".join(lines))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        found = []
    if len(found) != len(lines):
        found = [_decoded(line) for line in lines]
    made: Any = tuple.__new__  # a third of the time of `Accepted`
    plain = {kind.name: (kind.code, kind.place == "region") for kind in kinds.run}
    changes: list[Accepted | str | None] = []
    for line, one in zip(lines, found, strict=True):
        columns = one.subscribe
        if columns is None:
            changes.append(one.unsubscribe)
            continue
        name, kind = columns.subscription_id, plain.get(columns.kind)
        if one.unsubscribe is not None or kind is None or not 0 < len(name) <= MAX_ID_CHARACTERS:
            changes.append(None)
            continue
        code, has_region = kind
        box, lon, lat = columns.region, columns.lon, columns.lat
        if columns.circle is not None:
            shape = shape_of({"circle": columns.circle}, kinds[code])
            box = shape.region if box is None and isinstance(shape, Shape) else None
        if not has_region and box is None and lon is not None and lat is not None:
            box = (lon, lat, lon, lat)
        elif not has_region or lon is not None or lat is not None:
            box = None
        one = name, code, line, box, columns.owner, columns.expires_at, False, columns.tell, columns.include
        changes.append(None if box is None else made(Accepted, one))
    return changes


def _decoded(line: bytes) -> _Line:
    try:
        return _DECODER.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _Line()
