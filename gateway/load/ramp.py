"""The highest rate that a target keeps, and a hold below it: `skyray loadtest --hold 60s`.

Each step is a load test of its own: open loop, latency from due time. The rate doubles until a step breaks, then a
bisection on a logarithmic scale narrows the gap; `gateway.load.loadtest` runs a step.
"""

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from gateway.load.loadtest import SHORT, Executor, executor_beside, load_test
from matching.errors import ConfigError
from matching.extras import require_ray

#: A step is kept if at least this share of its rate was published in time.
REACHED = 0.95
#: The hold runs at this share of the peak.
HOLD_SHARE = 0.8
#: The search ends when the lowest rate that failed is at most this multiple of the highest rate that was kept.
PRECISION = 1.1
#: Steps at most: doublings, halvings and bisections together.
MOST_STEPS = 24
#: The first step of a ramp, in messages a second, and the lowest one.
FIRST_RATE, LOWEST_RATE = 1_000.0, 1.0

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(s|m|h)?")
_SECONDS_OF = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Step:
    """A step of a ramp: what was offered, what was reached, and whether it was kept.

    `p50_s` and `p99_s` are in seconds from due time to update, None where nothing matched; `why` says what broke, and
    is empty where the step was kept.
    """

    rate: float
    reached_rate: float
    p50_s: float | None
    p99_s: float | None
    kept: bool
    why: str = ""


def seconds_of(duration: str) -> float:
    """Seconds of `60s`, `5m`, `1h` or `60`.

    Raises
    ------
    ConfigError
        If it is none of these, or zero.
    """
    read = _DURATION.fullmatch(duration.strip())
    seconds = float(read[1]) * _SECONDS_OF[read[2] or ""] if read else 0.0
    if seconds <= 0:
        raise ConfigError(f"duration {duration!r}: give a positive number of seconds, as in 60s, 5m or 1h")
    return seconds


def find_peak(
    trial: Callable[[float], Step],
    first: float = FIRST_RATE,
    precision: float = PRECISION,
    on_step: Callable[[Step], None] = lambda step: None,
) -> tuple[float, list[Step]]:
    """The highest rate found that `trial` keeps, and all steps in order.

    The rate doubles while steps are kept, or halves while they break, until one of each is known; then the geometric
    mean of both is tried until they are within `precision`. So the number of steps is logarithmic in the distance of
    `first` from the peak, and in 1 / log(precision).

    Raises
    ------
    ConfigError
        If not even the lowest rate is kept.
    """
    steps: list[Step] = []
    kept, broken, rate = 0.0, 0.0, first
    while len(steps) < MOST_STEPS:
        step = trial(rate)
        steps.append(step)
        on_step(step)
        if step.kept:
            kept = rate
        else:
            broken = rate
        if (kept and broken and broken <= kept * precision) or (broken and broken <= LOWEST_RATE):
            break
        rate = (kept * broken) ** 0.5 if kept and broken else 2 * kept or max(LOWEST_RATE, broken / 2)
    if not kept:
        raise ConfigError(
            f"no rate down to {steps[-1].rate:,.0f}/s was kept ({steps[-1].why}): raise --limit-p99-ms, take fewer "
            "subscriptions or more query bolts"
        )
    return kept, steps


def judge(report: dict[str, Any], limit_p99_s: float) -> Step:
    """Judge the rate of a load test by its report."""
    latency, rate, reached = report["latency"], report["rate"], report["reached_rate"]
    p99_s, why = latency.get("p99_s"), ""
    if not latency.get("count"):
        raise ConfigError(
            f"a step at {rate:,.0f}/s had no update, so that it has no latency: generate more subscriptions, or raise "
            "loadtest.step_seconds"
        )
    if reached < REACHED * rate:
        why = f"reached {reached:,.0f}/s"
    elif p99_s > limit_p99_s:
        why = f"p99 {p99_s * 1e3:,.0f} ms"
    if not why and (failed := [*report.get("failures", ()), *report.get("gaps", ())]):
        why = failed[0]
    if why and report.get("short"):
        why += f", {SHORT}"
    return Step(rate, reached, latency["p50_s"], p99_s, not why, why)


def ramp_test(
    hold: str,
    *,
    limit_p99_ms: float = 500.0,
    step_seconds: float = 3.0,
    first_rate: float = FIRST_RATE,
    on_step: Callable[[Step], None] = lambda step: None,
    check: bool = False,
    warm_up: float = 1.0,
    load: Callable[..., dict[str, Any]] = load_test,
    **options: Any,
) -> dict[str, Any]:
    """Ramp until latency breaks, then hold `HOLD_SHARE` of the peak.

    Parameters
    ----------
    hold : str
        How long to hold, as `seconds_of` reads it.
    limit_p99_ms : float
        A step breaks if its p99 is over it, or less than `REACHED` of its rate is published in time.
    step_seconds, warm_up : float
        Of each step; the hold has the same warm-up.
    first_rate : float
        Rate of the first step.
    check : bool
        Compare the updates of the hold with the oracle.
    load : callable
        Runs one load test.
    **options
        Of `load_test`.

    Returns
    -------
    dict
        The report of the hold, as `load_test` says, with `ramp` (`peak_per_s`, `limit_p99_s`, `hold_share`, and `steps`
        as `Step` has them) and `kept_up`: that the hold was within the limits of a step.
    """
    hold_s = seconds_of(hold)
    if not (limit_p99_ms > 0 and step_seconds > 0 and first_rate > 0):
        raise ConfigError("--limit-p99-ms, loadtest.step_seconds and --rate: give positive numbers")
    limit_s = limit_p99_ms / 1e3
    run = partial(load, warm_up=warm_up, **options)
    with _connected(options) if load is load_test else nullcontext():
        peak, steps = find_peak(
            lambda rate: judge(run(rate=rate, seconds=step_seconds), limit_s), first_rate, on_step=on_step
        )
        report = run(rate=HOLD_SHARE * peak, seconds=hold_s, check=check)
    judged = judge(report, limit_s)
    ramp = {
        "peak_per_s": peak,
        "limit_p99_s": limit_s,
        "hold_share": HOLD_SHARE,
        "steps": [asdict(step) for step in steps],
    }
    return report | {"peak_per_s": peak, "kept_up": judged.kept, "ramp": ramp}


def _connected(options: dict[str, Any]) -> AbstractContextManager[Any]:
    """One Ray for all steps, which start their own otherwise; nothing where all tasks run in one process."""
    if (options.get("executor") or executor_beside(options.get("address"))) == Executor.local:
        return nullcontext()
    require_ray()
    from topology.core.executors.connection import connected

    return connected(options.get("address"))
