"""Figures of kind `knn` from this machine: `skyray bench knn --figure NAME`.

    subscriptions   time of a message against the number of subscriptions (up to --subscriptions)
    k, keywords     time of a message against one property of the workload
    history         time of a message against the messages that have gone before
    grids           engine `influence_grid` with other grids than its own: one alone as in the paper, or more; narrower
                    or wider balls in them

Read on in `benchmarks.lasting`, which makes the cases.
"""

from benchmarks.figures.sweeps import Page, sweep, up_to, variants
from benchmarks.workload import TopkRecipe
from matching.kinds import KINDS
from matching.knn.engines.influence_grid import InfluenceGrid

_KNN = KINDS.named("knn")
_SIZES = (100_000, 200_000, 500_000, 1_000_000, 2_000_000, 5_000_000)
#: Cells a side of the grids, and how many of them a ball may be wide.
_GRIDS = {
    "1024, 4 wide": ((1024,), 4.0),
    "4096, 4 wide": ((4096,), 4.0),
    "256, 4096, 2 wide": ((256, 4096), 2.0),
    "16, 256, 4096, 1 wide": ((16, 256, 4096), 1.0),
    "16, 256, 4096, 2 wide": ((16, 256, 4096), 2.0),
    "16, 256, 4096, 4 wide": ((16, 256, 4096), 4.0),
    "8, 64, 512, 4096, 1 wide": ((8, 64, 512, 4096), 1.0),
    "8, 64, 512, 4096, 2 wide": ((8, 64, 512, 4096), 2.0),
    "4, 16, ..., 16384, 1 wide": ((4, 16, 64, 256, 1024, 4096, 16384), 1.0),
}

PAGE = Page(
    _KNN,
    {
        "subscriptions": sweep("subscriptions", up_to(_SIZES), lambda n: {"subscriptions": n}, log=True),
        "k": sweep("k", (1, 2, 5, 10, 20, 50), lambda k: {"recipe": TopkRecipe(k=(k, k))}),
        "keywords": sweep("keywords", (1, 2, 3, 4, 5), lambda n: {"recipe": TopkRecipe(k=(1, 10), keywords=(n, n))}),
        "history": sweep(
            "messages before", (100_000, 300_000, 1_000_000, 3_000_000), lambda n: {"history": n}, log=True
        ),
        "grids": variants(
            "grids",
            {
                name: type("Variant", (InfluenceGrid,), {"sides": sides, "widest": widest})
                for name, (sides, widest) in _GRIDS.items()
            },
        ),
    },
    engines=tuple(_KNN.engines),
    messages=6_000,
)
