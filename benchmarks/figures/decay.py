"""Figures of kind `decay` in the shapes of the CIQ paper (9 to 18): `skyray bench decay --figure NAME`.

    subscriptions          time of a message against the number of subscriptions (up to --subscriptions)
    keywords, alpha, k     against one property of the subscriptions
    fading                 against the half-life: the sooner scores fade, the more messages are results
    history                against the messages that have gone before

They are of our engines; `benchmarks.evaluations` has the paper's figures by its printed forms. Beside the time of a
message stand its text relevances.
"""

from functools import partial

from benchmarks.cases import HALF_LIFE_S
from benchmarks.figures.sweeps import TIME, Page, by, sweep, up_to
from benchmarks.workload import TopkRecipe
from matching.kinds import KINDS

_DECAY = KINDS.named("decay")
_K, _NUMBERS, _ALPHAS = _DECAY.recipe.k, (1, 2, 3, 4, 5), (0.1, 0.3, 0.5, 0.7, 0.9)
_SIZES = (50_000, 100_000, 200_000, 500_000, 1_000_000, 2_000_000)
_HISTORIES = (20_000, 50_000, 100_000, 200_000, 400_000)
_LIVES = [round(HALF_LIFE_S * times) for times in (0.1, 0.25, 1.0, 4.0, 10.0)]
_EVALUATED = TIME | {"text relevances a message": "text_relevances_per_message"}
_sweep = partial(sweep, metrics=_EVALUATED)


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
    },
    messages=3_000,
)
