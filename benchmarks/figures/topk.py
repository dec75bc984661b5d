"""Figures of the kind the papers show, drawn from this machine: `skyray bench topk --figure NAME`.

    subscriptions   time of a message against the number of subscriptions (up to --subscriptions)
    k, alpha, keywords, window     time of a message against one property of the workload
    thresholds      refills a message, buffer size and time of the threshold rules, over three windows; the first does
                    not count, since thresholds settle in it. What a hit and a refill take is what the constants of
                    `matching.topk.thresholds_cost` go by
    thresholds-mixed      the same with k = 1, 10 and 100, of a third of the subscriptions each
    pruning         what each rule of engine `skype` earns, by leaving it out
    streams         adversarial streams: does every engine stay exact, and how fast is it

Each checks answers against the oracle before it measures, takes the engines in turns and reports medians. A figure is
written as JSON and as PNG. Read on in `benchmarks.harness`.
"""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from benchmarks.adversarial import STREAMS, make_stream
from benchmarks.cases import make_case
from benchmarks.figures.sweeps import TIME, Asked, Page, Report, Sweep, sweep, up_to, variants
from benchmarks.harness import Bench, Running
from benchmarks.workload import PLAIN, TopkRecipe, changed
from matching.kinds import KINDS
from matching.topk.engines.skype import PAPER, Pruning, Skype
from matching.topk.thresholds import RULES

_TOPK = KINDS.named("topk")
_SIZES = (100_000, 200_000, 500_000, 1_000_000, 2_000_000, 5_000_000)
#: Of streams: long enough for whole batches, so that no engine tells changes oftener than another.
_MOST_STREAM_S = 15.0
_MOST_STREAM = 20_000
#: Of threshold rules: for how many windows the stream runs on.
_WINDOWS_OF_RULES, _ROUNDS_A_WINDOW = 3, 4
_OF_RULES = TIME | {"refills a message": "refills_per_message", "entries a buffer": "entries_per_buffer"}
_ALPHAS = (0.1, 0.3, 0.5, 0.7, 0.9, "uniform")
_WINDOWS = (10_000, 30_000, 100_000, 300_000, 1_000_000)
_COUNTED = TIME | {
    "postings scanned a message": "scanned_per_message",
    "pairs verified a message": "verified_per_message",
}


def _thresholds(*k: int) -> Sweep:
    """Rules over the same stream; of each k equal parts of the subscriptions."""

    def load(asked: Asked, _: None) -> Bench:
        rounds, window = _WINDOWS_OF_RULES * _ROUNDS_A_WINDOW, asked.window or 0
        size, messages = asked.subscriptions, _WINDOWS_OF_RULES * window
        case = make_case(_TOPK, size, messages, window, rounds, asked.seed)
        drawn = np.random.default_rng([asked.seed, 11]).permutation(np.arange(size) % len(k))
        table = changed(case.table, k=np.array(k, np.int32)[drawn])
        case = case._replace(table=table, facts=case.facts | {"k": list(k), "windows": _WINDOWS_OF_RULES})
        return Bench(case, rounds, options={name: {"threshold_rule": name} for name in RULES})

    # all of them the whole round, however slow: what they tell is compared
    return variants("threshold rule", RULES, _OF_RULES, load=load, most_s=math.inf, settled=_ROUNDS_A_WINDOW,
                    told=_of_buffers, compared=_of_rules)  # fmt: skip


def _of_buffers(running: Running) -> Report:
    buffers, held = running.room.buffers, running.room.buffers.describe()
    size_bytes = sum(array.nbytes for array in buffers.arrays().values())
    return {
        "entries_per_buffer": held["entries"] / max(1, held["buffers"]),
        "buffer_bytes_per_subscription": size_bytes / len(running.room),
        "learned": running.room.rule.describe(),
    }


def _of_rules(rules: Mapping[str, Report]) -> Report:
    """All must tell the same number of updates; and what a refill and a hit in the buffers take."""
    spent = {name: {part: rule["us_per_message"] * rule[f"share_{part}"] for part in ("refills", "kept")}
             for name, rule in rules.items()}  # fmt: skip
    same = len({rule["updates_timed"] for rule in rules.values()}) == 1
    return {
        "exact": same,
        "same_updates": same,
        "us_per_refill": {name: spent[name]["refills"] / (rule["refills_per_message"] or math.inf)
                          for name, rule in rules.items()},
        "ns_per_hit": {name: 1e3 * spent[name]["kept"] / rule["matched_per_message"] for name, rule in rules.items()},
    }  # fmt: skip


def _pruning() -> dict[str, Any]:
    """Engine `skype` with all rules, without each of them, and with the paper's alone."""
    rules = [name for name, value in Pruning()._asdict().items() if value is True]
    ways = {"all": Pruning(), **{f"no {rule}": Pruning()._replace(**{rule: False}) for rule in rules}}
    return {name: partial(Skype, pruning=pruning) for name, pruning in (ways | {"paper's rules": PAPER}).items()}


def _stream(asked: Asked, name: str) -> Bench:
    """A stream over a window of as many messages as there are subscriptions."""
    size = asked.subscriptions
    return Bench(make_stream(name, size, size, (asked.messages or 0) * asked.rounds, asked.seed), asked.rounds)


PAGE = Page(
    _TOPK,
    {
        "subscriptions": sweep("subscriptions", up_to(_SIZES, _SIZES[1]), lambda n: {"subscriptions": n}, log=True),
        "k": sweep("k", (5, 10, 20, 50, 100), lambda k: {"recipe": TopkRecipe(k=(k, k))}),
        "alpha": sweep("alpha", _ALPHAS, lambda a: {"recipe": PLAIN if a == "uniform" else TopkRecipe(alpha=(a, a))}),
        "keywords": sweep("keywords", (1, 2, 3, 4, 5), lambda n: {"recipe": TopkRecipe(keywords=(n, n))}),
        "window": sweep(
            "messages in the window",
            lambda asked: [size for size in _WINDOWS if size <= max(asked.window or 0, 100_000)],
            lambda n: {"window": n},
            log=True,
        ),
        "thresholds": _thresholds(10),
        "thresholds-mixed": _thresholds(1, 10, 100),
        "pruning": variants(
            "rules", _pruning(), _COUNTED, told=lambda running: {"counters": running.room.engine.counters()}
        ),
        "streams": sweep("stream", tuple(STREAMS), named=True, load=_stream, most_s=_MOST_STREAM_S, most=_MOST_STREAM),
    },
    engines=("skype", "l2_scan", "ciq", "block_inverted_file", "inverted_file"),
    messages=6_000,
    window=100_000,
    resampled=False,
)
