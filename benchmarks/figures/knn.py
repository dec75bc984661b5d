"""Figures of kind `knn` in the shapes of the DkM-SKS paper (7 to 10, tables 2 and 3): `skyray bench knn --figure NAME`.

    ticks            figure 7: update time tick by tick
    workers          figure 8: against the number of workers
    subscriptions    figure 9: against the number of subscriptions (up to --subscriptions)
    k                figure 10: against the largest k
    load             tables 2 and 3: slowest worker, distance to the fastest, insertion and deletion of 20 workers
    best             the same placements, all with our default index

A placement has the index that the paper gives its workers (`benchmarks.placements`), so that a figure shows what the
paper's shows. A tick is 1,000 messages, 100 subscriptions that come and 100 that go, at all sizes.
"""

from functools import partial

from benchmarks.figures.sweeps import Page, by, sweep, up_to
from benchmarks.placements import SYSTEMS, WORKERS, slowest_by_tick, with_workers
from benchmarks.workload import TopkRecipe
from matching.kinds import KINDS

_KNN = KINDS.named("knn")
_SIZES = (100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000, 10_000_000)
_UPDATE = {"ms a tick, slowest worker": "update_ms"}
_LOAD = _UPDATE | {
    "ms between slowest and fastest": "load_gap_ms", "ms all workers": "all_ms", "ms insertion": "insertion_ms",
    "ms deletion": "deletion_ms",
}  # fmt: skip
_sweep = partial(sweep, engines=SYSTEMS, metrics=_UPDATE)

PAGE = Page(
    _KNN,
    {
        "ticks": [_sweep("tick", turns=slowest_by_tick)],
        "workers": [
            _sweep("workers", (workers,), turns=with_workers(workers), title=f"{workers} workers")
            for workers in (5, 10, 20, 40)
        ],
        "subscriptions": [_sweep("subscriptions", up_to(_SIZES), by("subscriptions"), turns=with_workers(WORKERS))],
        "k": [
            _sweep(
                "largest k", (5, 10, 20, 50), lambda asked, k: asked.bench(recipe=TopkRecipe((1, k))),
                turns=with_workers(WORKERS),
            )
        ],
        "load": [_sweep("placement", metrics=_LOAD, turns=with_workers(WORKERS))],
        "best": [_sweep("placement", metrics=_LOAD, turns=with_workers(WORKERS, best=True))],
    },
    messages=10_000,
    rounds=10,
)  # fmt: skip
