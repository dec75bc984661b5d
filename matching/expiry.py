"""When a version of an object ends by time: its columns `ttl_s` and `expires_at`."""

from collections.abc import Callable
from typing import Any

from matching.attributes import NUMBER, attribute_value
from matching.fields import LAST_US, event_time_us


def expiry_us(
    ttl_s: Any, expires_at: Any, since_us: int | None, read_time: Callable[[Any], int | None] = event_time_us
) -> int | str | None:
    """When a version ends its object, in microseconds since 1970; None if it does not say (None, or blank).

    The reason code `bad_expiry` if it has both, one that cannot be read, or `ttl_s` and nothing to count from. O(1).

    Parameters
    ----------
    ttl_s, expires_at : any
        As they came.
    since_us : int or None
        Of a live stream now, of files the time of the version.
    read_time : callable
        As of `matching.validate.message_row`.
    """
    try:
        seconds, at_us = attribute_value(NUMBER, ttl_s), read_time(expires_at)
        if seconds is None:
            return "bad_expiry" if at_us is not None and not 0 <= at_us <= LAST_US else at_us
        if at_us is not None or since_us is None or not isinstance(seconds, float) or seconds <= 0:
            return "bad_expiry"
        found = since_us + round(seconds * 1e6)
    except (ValueError, OverflowError):
        return "bad_expiry"
    return found if found <= LAST_US else "bad_expiry"
