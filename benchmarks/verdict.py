"""When a figure counts: what was told is what had to be told, and enough of it was compared to say so.

Whatever times something asks this one function, and ends with an exit code of 1 where a figure does not count. Read on
in `benchmarks.harness`, which compares.
"""

from typing import Any

#: Updates, matches or answers of an independent computation that are compared at least, and subscriptions they are of.
FEWEST_COMPARED, FEWEST_SUBSCRIPTIONS = 1_000, 500


def verdict(same: bool, compared: int, subscriptions: int) -> dict[str, Any]:
    """Whether a figure counts (`exact`): all of so many expected updates, of so many subscriptions, were the `same`."""
    enough = compared >= FEWEST_COMPARED and subscriptions >= FEWEST_SUBSCRIPTIONS
    report = {"exact": bool(same) and enough, "compared": compared, "compared_subscriptions": subscriptions}
    if not enough:
        report["warning"] = (
            f"only {compared:,} expected of {subscriptions:,} subscriptions were compared: a figure counts from "
            f"{FEWEST_COMPARED:,} of {FEWEST_SUBSCRIPTIONS:,} on; take more subscriptions or messages"
        )
    return report
