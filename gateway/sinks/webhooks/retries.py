"""Schedule of the attempts of a delivery."""

import random
from collections.abc import Callable

from gateway.sinks.webhooks.settings import WebhookSettings

#: How much longer each wait may be than the one before.
FACTOR = 3.0
#: Longest wait in seconds, also if the receiver requests a longer one.
LONGEST_S = 4 * 3600.0


def longest_wait_s(attempts: int, first_s: float) -> float:
    """The longest wait in seconds after this number of failed attempts, at least one."""
    return min(LONGEST_S, first_s * FACTOR ** min(attempts - 1, 50))


def next_attempt_s(
    settings: WebhookSettings,
    attempts: int,
    created_s: float,
    now_s: float,
    wanted_s: float | None,
    uniform: Callable[[float, float], float] = random.uniform,
) -> float | None:
    """The time of the next attempt, in seconds since 1970; None: the delivery is dead.

    Parameters
    ----------
    settings : WebhookSettings
    attempts : int
        Number of failed attempts.
    created_s, now_s : float
        Seconds since 1970.
    wanted_s : float or None
        `Retry-After` of the receiver, in seconds: the wait is not shorter.
    uniform : callable
        Draws the wait (full jitter), so that deliveries that failed together are not repeated together.
    """
    if attempts >= settings.webhook_attempts:
        return None
    wait_s = uniform(0.0, longest_wait_s(attempts, settings.webhook_retry_s))
    due_s = now_s + max(wait_s, min(wanted_s or 0.0, LONGEST_S))
    return None if due_s > created_s + settings.webhook_lasts_h * 3600 else due_s
