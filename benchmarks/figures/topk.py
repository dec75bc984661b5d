"""Figures of the kind the papers show, drawn from this machine: `skyray bench topk --figure NAME`.

    subscriptions   time of a message against the number of subscriptions (up to --subscriptions)
    k, alpha, keywords, window     time of a message against one property of the workload
    thresholds      refills a message, buffer size and time of the threshold rules
    pruning         what each rule of engine `skype` earns, by leaving it out
    streams         adversarial streams: does every engine stay exact, and how fast is it

Each checks answers against the oracle before it measures, takes the engines in turns and reports medians. A figure is
written as JSON and as PNG. Read on in `benchmarks.harness`.
"""

from functools import partial
from typing import Any

from benchmarks import thresholds
from benchmarks.adversarial import STREAMS, make_stream
from benchmarks.figures.sweeps import TIME, Asked, Page, Report, Sweep, bars, sweep, up_to, variants
from benchmarks.harness import Bench
from benchmarks.workload import PLAIN, TopkRecipe
from matching.kinds import KINDS
from matching.topk.engines.skype import PAPER, Pruning, Skype

_TOPK = KINDS.named("topk")
_SIZES = (100_000, 200_000, 500_000, 1_000_000, 2_000_000, 5_000_000)
#: Of streams: long enough for whole batches, so that no engine tells changes oftener than another.
_MOST_OF_STREAM_S = 15.0
_MOST_SUBSCRIPTIONS = 20_000
_ALPHAS = (0.1, 0.3, 0.5, 0.7, 0.9, "uniform")
_WINDOWS = (10_000, 30_000, 100_000, 300_000, 1_000_000)
_COUNTED = TIME | {
    "postings scanned a message": "scanned_per_message",
    "pairs verified a message": "verified_per_message",
}


def _thresholds(asked: Asked) -> Report:
    report = thresholds.bench(
        asked.subscriptions, asked.window or 0, seed=asked.seed, engine=asked.engines[0], tell=asked.tell
    )  # fmt: skip
    rules = {result["rule"]: result for result in report["results"]}
    wanted = TIME | {"refills a message": "refills_per_message", "entries a buffer": "entries_per_buffer"}
    panels = bars(rules, wanted, log=False)
    return {"x_label": "threshold rule", "x": list(rules), "panels": panels, "exact": report["exact"], "rows": report}


def _pruning() -> dict[str, Any]:
    """Engine `skype` with all rules, without each of them, and with the paper's alone."""
    rules = [name for name, value in Pruning()._asdict().items() if value is True]
    ways = {"all": Pruning(), **{f"no {rule}": Pruning()._replace(**{rule: False}) for rule in rules}}
    return {name: partial(Skype, pruning=pruning) for name, pruning in (ways | {"paper's rules": PAPER}).items()}


def _stream(asked: Asked, name: str) -> Bench:
    """A stream over a window of as many messages as there are subscriptions."""
    size = asked.subscriptions
    return Bench(make_stream(name, size, size, (asked.messages or 0) * asked.rounds, asked.seed), asked.rounds)


def _streams() -> Sweep:
    return sweep("stream", tuple(STREAMS), lambda _: {}, named=True, load=_stream, most_s=_MOST_OF_STREAM_S,
                 most=_MOST_SUBSCRIPTIONS)  # fmt: skip


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
        "thresholds": _thresholds,
        "pruning": variants(
            "rules", _pruning(), _COUNTED, told=lambda running: {"counters": running.room.engine.counters()}
        ),
        "streams": _streams(),
    },
    engines=("skype", "l2_scan", "ciq", "block_inverted_file", "inverted_file"),
    messages=6_000,
    window=100_000,
    resampled=False,
)
