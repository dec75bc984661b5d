"""Figures of kind `decay` in the shapes of the CIQ paper (9 to 18): `skyray bench decay --figure NAME`.

    subscriptions          time of a message against the number of subscriptions (up to --subscriptions)
    keywords, alpha, k     against one property of the subscriptions
    fading                 against the half-life: the sooner scores fade, the more messages are results
    history                against the messages that have gone before
    insertion              subscriptions that come a second, with the cost model of `ciq` and with its heuristic
    block, buckets         against postings of a block and buckets of a cell, of the paper's index as it is printed

Beside the time of a message stand its text relevances, which the paper's cost model counts (`benchmarks.evaluations`
counts nothing else).
"""

from functools import partial

from benchmarks.cases import HALF_LIFE_S
from benchmarks.figures.sweeps import BYTES, CHANGES, TIME, Page, by, sweep, up_to
from benchmarks.workload import TopkRecipe
from matching.kinds import KINDS
from papers.ciq.ciq_paper import CiqPaper

_DECAY = KINDS.named("decay")
_K, _NUMBERS, _ALPHAS = _DECAY.recipe.k, (1, 2, 3, 4, 5), (0.1, 0.3, 0.5, 0.7, 0.9)
_SIZES = (50_000, 100_000, 200_000, 500_000, 1_000_000, 2_000_000)
_HISTORIES = (20_000, 50_000, 100_000, 200_000, 400_000)
_LIVES = [round(HALF_LIFE_S * times) for times in (0.1, 0.25, 1.0, 4.0, 10.0)]
_EVALUATED = TIME | {"text relevances a message": "text_relevances_per_message"}
_BLOCKS, _BUCKETS = (32, 128, 512, 1_024, 4_096), (1, 4, 16, 30)
_sweep = partial(sweep, metrics=_EVALUATED)


def _printed(name: str, value: int) -> type[CiqPaper]:
    """The paper's index with another number of something."""
    return type("Printed", (CiqPaper,), {name: value})


PAGE = Page(
    _DECAY,
    {
        "subscriptions": [_sweep("subscriptions", up_to(_SIZES), by("subscriptions"))],
        "keywords": [
            _sweep("keywords", _NUMBERS, lambda asked, n: asked.bench(recipe=TopkRecipe(_K, keywords=(n, n))))
        ],
        "alpha": [_sweep("alpha", _ALPHAS, lambda asked, a: asked.bench(recipe=TopkRecipe(_K, alpha=(a, a))))],
        "k": [_sweep("k", (5, 10, 20, 30, 50), lambda asked, k: asked.bench(recipe=TopkRecipe((k, k))))],
        "fading": [_sweep("half-life in s", _LIVES, by("half_life_s"))],
        "history": [_sweep("messages before", _HISTORIES, by("history"))],
        "insertion": [sweep("engine", metrics=TIME | BYTES | CHANGES, changes=True)],
        "block": [_sweep("engine", engines={f"block of {n}": _printed("block", n) for n in _BLOCKS})],
        "buckets": [_sweep("engine", engines={f"{n} buckets": _printed("buckets", n) for n in _BUCKETS})],
    },
    messages=3_000,
)
