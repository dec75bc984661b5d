"""Schedule of the attempts of a delivery."""

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
    uniform: Callable[[float, float], float],
) -> float | None:
    """When the next attempt is, in seconds since 1970; None: the delivery is dead.

    Parameters
    ----------
    settings : WebhookSettings
    attempts : int
        That have failed, this one among them.
    created_s, now_s : float
        Seconds since 1970.
    wanted_s : float or None
        `Retry-After` of the receiver, in seconds: the wait is not shorter.
    uniform : callable
        A random number between two (full jitter), so that deliveries which failed together do not come again together.
    """
    if attempts >= settings.webhook_attempts:
        return None
    wait_s = uniform(0.0, longest_wait_s(attempts, settings.webhook_retry_s))
    due_s = now_s + max(wait_s, min(wanted_s or 0.0, LONGEST_S))
    return None if due_s > created_s + settings.webhook_lasts_h * 3600 else due_s
