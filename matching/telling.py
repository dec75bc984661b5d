"""When the owner of a subscription is told of its updates: the column `tell`, and the times of a wall clock.

Matching goes on whatever this says. Times of day are those of a wall clock in a zone: where clocks go forward over a
time, it is the moment at which they do; one that comes twice counts the first time.
"""

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from matching.fields import share, shown, whole_number

#: Set times of a day at most.
MOST_TIMES = 96
_HOUR_S = 3_600
_TIME = re.compile(r"([01]\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?")
_NAMES = ("at", "zone", "quiet", "most_an_hour", "similar", "paused")


class TellingRule(NamedTuple):
    """A checked `tell`.

    at : tuple of int        set times, in seconds of the day, ascending; none: as updates come
    zone : str               of the IANA database
    quiet : tuple of int     from when to when nothing is told, in seconds of the day; none: never
    most_an_hour : int       updates that are told one by one in an hour of UTC; 0: any number
    similar : float          Jaccard similarity from which a message is left out; 0: none is
    paused : bool
    """

    at: tuple[int, ...] = ()
    zone: str = "UTC"
    quiet: tuple[int, ...] = ()
    most_an_hour: int = 0
    similar: float = 0.0
    paused: bool = False

    def holds_until(self, now_s: float, told: int) -> float | None:
        """Until when an update that comes now is held; None: it is told at once.

        Parameters
        ----------
        now_s : float    seconds since 1970
        told : int       updates that were told in this hour one by one
        """
        if self.at:
            return next_time(self.at, self.zone, now_s)
        if (end_s := self.quiet_until(now_s)) is not None:
            return end_s
        return (now_s // _HOUR_S + 1) * _HOUR_S if 0 < self.most_an_hour <= told else None

    def quiet_until(self, now_s: float) -> float | None:
        """When the quiet hours end that it is in now; None outside of them."""
        if not self.quiet:
            return None
        begin, end = self.quiet
        end_s = next_time((end,), self.zone, _last_time(begin, self.zone, now_s))
        return end_s if now_s < end_s else None


#: Of a subscription that says nothing.
AT_ONCE = TellingRule()


def telling_of(value: Any) -> TellingRule | str:
    """A checked `tell`, or what is wrong with it."""
    if not isinstance(value, Mapping):
        return f"tell is {shown(value)}, and must be an object of {', '.join(_NAMES)}"
    if unknown := [name for name in value if name not in _NAMES]:
        return f"tell has {shown(unknown[0])}; there are {', '.join(_NAMES)}"
    given = {name: one for name, one in value.items() if one is not None}
    zone = given.get("zone", "UTC")
    if not isinstance(zone, str) or not _is_zone(zone):
        return f"tell zone: {shown(zone)} is no zone that this machine knows, such as Europe/Berlin"
    at = given.get("at", [])
    times = (
        [_seconds_of(one) for one in ([at] if isinstance(at, str) else at)] if isinstance(at, str | list) else [None]
    )
    if None in times or len(times) > MOST_TIMES:
        return f"tell at: {shown(at)} must be times such as 08:00, at most {MOST_TIMES}"
    quiet = given.get("quiet", [])
    span = [_seconds_of(one) for one in quiet] if isinstance(quiet, list) else [None]
    if None in span or len(span) not in (0, 2) or (len(span) == 2 and span[0] == span[1]):
        return f"tell quiet: {shown(quiet)} must be two times of a day, such as 22:00 and 07:00"
    most = whole_number(given.get("most_an_hour", 0))
    if most is None or not 0 <= most <= 1_000_000 or isinstance(given.get("most_an_hour"), bool):
        return f"tell most_an_hour: {shown(given['most_an_hour'])} must be a whole number"
    similar = share(given.get("similar", 0))
    if similar is None or ("similar" in given and not 0.1 <= similar <= 1):
        return f"tell similar: {shown(given['similar'])} must be a number from 0.1 to 1"
    paused = given.get("paused", False)
    if not isinstance(paused, bool):
        return f"tell paused: {shown(paused)} must be true or false"
    if times and (span or most):
        return "tell has at, which says when, beside quiet or most_an_hour: leave these out"
    seconds = sorted({one for one in times if one is not None})
    return TellingRule(
        tuple(seconds), zone, tuple(one for one in span if one is not None), most, float(similar), paused
    )


def next_time(times: Iterable[int], zone: str, after_s: float) -> float:
    """The first of some times of the day that comes after a moment; seconds of the day, and since 1970."""
    return min(one for one in _times(tuple(times), zone, after_s, range(-1, 3)) if one > after_s)


def wall_clock(zone: str, at_s: float) -> str:
    """What a clock in a zone shows at a moment."""
    return datetime.fromtimestamp(at_s, _zone(zone)).isoformat(timespec="seconds")


def _last_time(time: int, zone: str, now_s: float) -> float:
    """When it was this time of the day last, or is."""
    return max(one for one in _times((time,), zone, now_s, range(-2, 2)) if one <= now_s)


def _times(times: tuple[int, ...], zone: str, near_s: float, days: Iterable[int]) -> Iterable[float]:
    """When it is these times on the days around a moment, those of some offsets."""
    today = datetime.fromtimestamp(near_s, _zone(zone)).replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
    for day in days:
        for time in times:
            local = today + timedelta(days=day, seconds=time)
            yield local.replace(tzinfo=_zone(zone)).timestamp()


def _seconds_of(text: Any) -> int | None:
    """Seconds of the day of `08:00` or `08:00:30`; None if it is none."""
    found = _TIME.fullmatch(text) if isinstance(text, str) else None
    return None if found is None else int(found[1]) * _HOUR_S + int(found[2]) * 60 + int(found[3] or 0)


def _is_zone(name: str) -> bool:
    try:
        _zone(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True


@lru_cache(maxsize=1024)
def _zone(name: str) -> Any:
    return UTC if name == "UTC" else ZoneInfo(name)
