"""Figures of kind `decay` in the shapes of the CIQ paper (9 to 18): `skyray bench decay --figure NAME`.

    subscriptions   time of a message against the number of subscriptions (up to --subscriptions)
    keywords, alpha, k     against one property of the subscriptions
    fading          against the half-life: the sooner scores fade, the more messages are results
    arrivals        against how fast messages come, with the half-life as it is
    history         against the messages that have gone before
    blocks, buckets engine `ciq` with blocks of other sizes, or other numbers of buckets a cell, than its own
    insertion       subscriptions that come a second, and time of a message, with the cost model and with its heuristic

Read on in `benchmarks.lasting`, which fills and checks results.
"""

from collections.abc import Sequence

from benchmarks.cases import HALF_LIFE_S
from benchmarks.figures.sweeps import TIME, Page, Sweep, sweep, up_to, variants
from benchmarks.workload import MESSAGES_PER_S, TopkRecipe
from matching.decay.engines.ciq import Ciq
from matching.kinds import KINDS
from matching.storage.celled_lists import MOST_BUCKETS

_DECAY = KINDS.named("decay")
_K = _DECAY.recipe.k
_SIZES = (50_000, 100_000, 200_000, 500_000, 1_000_000, 2_000_000)
_LIVES = [round(HALF_LIFE_S * times) for times in (0.1, 0.25, 1.0, 4.0, 10.0)]


def _variants(label: str, attribute: str, values: Sequence[int]) -> Sweep:
    """Engine `ciq` with one of its settings at other values."""
    return variants(label, {str(value): type("Variant", (Ciq,), {attribute: value}) for value in values})


PAGE = Page(
    _DECAY,
    {
        "subscriptions": sweep("subscriptions", up_to(_SIZES), lambda n: {"subscriptions": n}, log=True),
        "keywords": sweep("keywords", (1, 2, 3, 4, 5), lambda n: {"recipe": TopkRecipe(_K, keywords=(n, n))}),
        "alpha": sweep("alpha", (0.1, 0.3, 0.5, 0.7, 0.9), lambda a: {"recipe": TopkRecipe(_K, alpha=(a, a))}),
        "k": sweep("k", (5, 10, 20, 30, 50), lambda k: {"recipe": TopkRecipe((k, k))}),
        "fading": sweep("half-life in s", _LIVES, lambda s: {"half_life_s": s}, log=True),
        # times matter only beside the half-life: messages that come twice as fast see it twice as long
        "arrivals": sweep(
            "messages a second", (2, 4, 8, 16, 32), lambda r: {"half_life_s": HALF_LIFE_S * r / MESSAGES_PER_S}
        ),
        "history": sweep(
            "messages before", (20_000, 50_000, 100_000, 200_000, 400_000), lambda n: {"history": n}, log=True
        ),
        "blocks": _variants("postings a block", "block", (32, 64, 128, 256, 512, 1024)),
        # two more are for those without a bound
        "buckets": _variants("buckets a cell", "buckets", (1, 2, 4, 8, 16, MOST_BUCKETS - 2)),
        "insertion": variants(
            "engine",
            metrics=TIME
            | {"bytes a subscription": "bytes_per_subscription", "subscriptions that come a second": "subscribe_per_s"},
            changes=True,
        ),
    },
    engines=tuple(_DECAY.engines),
    messages=3_000,
)
