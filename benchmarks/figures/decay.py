"""Figures of kind `decay` in the shapes of the CIQ paper (9 to 18): `skyray bench decay --figure NAME`.

    subscriptions   time of a message against the number of subscriptions (up to --subscriptions)
    keywords, alpha, k     against one property of the subscriptions
    fading          against the half-life: the sooner scores fade, the more messages are results
    arrivals        against how fast messages come, with the half-life as it is
    history         against the messages that have gone before
    blocks, buckets engine `ciq` with blocks of other sizes, or other numbers of buckets a cell, than its own
    insertion       subscriptions that come a second, and time of a message, with the cost model and with its heuristic

Each compares answers before it measures (`benchmarks.lasting`), takes the engines in turns and reports medians. A
figure is written as JSON and as PNG.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.figures.sweeps import Tell, bars, draw, sweep
from benchmarks.lasting import HALF_LIFE_S, LastingBench, lasting_case
from benchmarks.workload import MESSAGES_PER_S, TopkRecipe
from matching.decay.engines.ciq import Ciq
from matching.errors import ConfigError
from matching.kinds import KINDS
from matching.storage.celled_lists import MOST_BUCKETS

_DECAY = KINDS.named("decay")
_SIZES = (50_000, 100_000, 200_000, 500_000, 1_000_000, 2_000_000)
_ROUNDS, _MESSAGES = 3, 3_000
_K = _DECAY.recipe.k
_BLOCKS = (32, 64, 128, 256, 512, 1024)
_BUCKETS = (1, 2, 4, 8, 16, MOST_BUCKETS - 2)  # two more are for those without a bound


def figure(
    name: str,
    out: Path,
    subscriptions: int = 100_000,
    window: int | None = None,
    messages: int | None = None,
    engines: Sequence[str] | None = None,
    seed: int = 0,
    messages_from: str | None = None,
    on_progress: Tell | None = None,
) -> dict[str, Any]:
    """Measure and draw a figure; writes `decay-NAME.json` and `decay-NAME.png` into `out`.

    Raises
    ------
    ConfigError
        For a name nobody knows, a window, which this kind has not, or if matplotlib is not installed.
    """
    if window is not None:
        raise ConfigError("decay has no window: leave --window out")
    given = {"messages": messages or _MESSAGES, "seed": seed, "messages_from": messages_from}
    chosen = tuple(engines or _DECAY.engines)
    return draw(
        _DECAY, FIGURES, name, out, chosen, on_progress,
        lambda measure, tell: measure(subscriptions, given, chosen, tell),
    )  # fmt: skip


def _bench(subscriptions: int, given: dict[str, Any], **more: Any) -> LastingBench:
    return LastingBench(lasting_case(_DECAY, subscriptions, rounds=_ROUNDS, **given, **more), _ROUNDS)


def _subscriptions(subscriptions, given, engines, tell):
    sizes = [size for size in _SIZES if size <= subscriptions] or [subscriptions]
    return sweep("subscriptions", sizes, lambda n: _bench(n, given), engines, tell, log=True)


def _by_recipe(label: str, values: Sequence[Any], recipe: Callable[[Any], TopkRecipe]):
    def measure(subscriptions, given, engines, tell):
        return sweep(label, values, lambda v: _bench(subscriptions, given, recipe=recipe(v)), engines, tell)

    return measure


def _fading(subscriptions, given, engines, tell):
    lives = [round(HALF_LIFE_S * times) for times in (0.1, 0.25, 1.0, 4.0, 10.0)]
    return sweep(
        "half-life in s", lives, lambda v: _bench(subscriptions, given, half_life_s=v), engines, tell, log=True
    )


def _arrivals(subscriptions, given, engines, tell):
    """Times matter only beside the half-life: messages that come twice as fast see it twice as long."""
    rates = (2, 4, 8, 16, 32)
    lives = {rate: HALF_LIFE_S * rate / MESSAGES_PER_S for rate in rates}
    return sweep(
        "messages a second", rates, lambda r: _bench(subscriptions, given, half_life_s=lives[r]), engines, tell
    )


def _history(subscriptions, given, engines, tell):
    histories = (20_000, 50_000, 100_000, 200_000, 400_000)
    return sweep(
        "messages before", histories, lambda n: _bench(subscriptions, given, history=n), engines, tell, log=True
    )


def _variants(label: str, attribute: str, values: Sequence[int]):
    """Engine `ciq` with one of its settings at other values."""

    def measure(subscriptions, given, engines, tell):
        made = {str(value): type("Variant", (Ciq,), {attribute: value}) for value in values}
        case = lasting_case(replace(_DECAY, engines=made), subscriptions, rounds=_ROUNDS, **given)
        return bars(label, LastingBench(case, _ROUNDS), tuple(made), tell)

    return measure


def _insertion(subscriptions, given, engines, tell):
    load = _bench(subscriptions, given)
    return bars("engine", load, engines, tell, {"subscriptions that come a second": "subscribe_per_s"}, changes=True)


FIGURES: dict[str, Callable[..., dict[str, Any]]] = {
    "subscriptions": _subscriptions,
    "keywords": _by_recipe("keywords", (1, 2, 3, 4, 5), lambda n: TopkRecipe(_K, keywords=(n, n))),
    "alpha": _by_recipe("alpha", (0.1, 0.3, 0.5, 0.7, 0.9), lambda a: TopkRecipe(_K, alpha=(a, a))),
    "k": _by_recipe("k", (5, 10, 20, 30, 50), lambda k: TopkRecipe((k, k))),
    "fading": _fading,
    "arrivals": _arrivals,
    "history": _history,
    "blocks": _variants("postings a block", "block", _BLOCKS),
    "buckets": _variants("buckets a cell", "buckets", _BUCKETS),
    "insertion": _insertion,
}
