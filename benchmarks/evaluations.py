"""Text relevances a message, by engine of `decay`, one property of the CIQ paper varied at a time: counts, no times.

    python -m benchmarks.evaluations [--subscriptions 300000] [--engines ciq_paper,bif_paper] [--figures alpha,k] > F

The paper's cost model counts evaluations of text relevance, and its figures 9 to 17 are times of an implementation in
Java. Counts do not depend on the machine, so they can be compared on a busy one. Behind the messages that are counted
every engine must have the results of the bulk routine (`benchmarks.lasting.best_messages`), all of them.
"""

import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any

from benchmarks import command
from benchmarks.cases import HALF_LIFE_S, make_case
from benchmarks.command import Tell, verdict
from benchmarks.lasting import LastingBench
from benchmarks.workload import TopkRecipe
from matching.kinds import KINDS
from papers.ciq.bif_paper import BifPaper
from papers.ciq.ciq_paper import CiqPaper

_DECAY = KINDS.named("decay")
_K = _DECAY.recipe.k
#: Name of a figure to its values and what each changes in the case.
FIGURES: Mapping[str, Mapping[str, dict[str, Any]]] = {
    "standard": {"uniform": {}},
    "keywords": {str(n): {"recipe": TopkRecipe(_K, keywords=(n, n))} for n in (1, 3, 5)},
    "alpha": {str(alpha): {"recipe": TopkRecipe(_K, alpha=(alpha, alpha))} for alpha in (0.1, 0.3, 0.5, 0.7, 0.9)},
    "k": {str(k): {"recipe": TopkRecipe((k, k))} for k in (5, 20, 50)},
    "half_life": {str(times): {"half_life_s": times * HALF_LIFE_S} for times in (0.25, 4.0, 20.0)},
    "block": {str(size): {} for size in (1, 16, 128, 1_024)},
    "buckets": {str(count): {} for count in (1, 4, 16, 30)},
}
#: Figures that vary the engines of the paper instead of the workload.
_BY_ENGINE = ("block", "buckets")


def _engines(figure: str, value: str) -> dict[str, Any]:
    """Engines to measure in place of those asked for; alpha 0.9, where the paper gains most."""
    changed = {figure: int(value)}
    engines = {"ciq_paper": type("Varied", (CiqPaper,), changed)}
    return engines | ({"bif_paper": type("Varied", (BifPaper,), changed)} if figure == "block" else {})


def _rows(
    figure: str, subscriptions: int, messages: int, engines: tuple[str, ...], seed: int,
    real: Mapping[str, str | None], tell: Tell,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    made: LastingBench | None = None
    for value, changes in FIGURES[figure].items():
        kind, names = _DECAY, engines
        given: dict[str, Any] = dict(changes)
        if figure in _BY_ENGINE:
            kind = replace(_DECAY, engines=dict(_DECAY.engines) | _engines(figure, value))
            names = tuple(_engines(figure, value))
            given = {"recipe": TopkRecipe(_K, alpha=(0.9, 0.9))}
        if made is None or figure not in _BY_ENGINE:  # the workload is the same
            made = LastingBench(make_case(kind, subscriptions, messages, rounds=1, seed=seed, **real, **given), 1)
        made.kind, made.case = kind, made.case._replace(kind=kind)
        counted = {}
        for name in names:
            running = made.build(name)
            for _ in made._take(running, made.checked, math.inf):
                pass
            same, compared, new = made.compare_results(running)
            engine, done = running.operator.engine, made.checked
            scanned, verified, matched = (engine.counters / done).tolist()
            row = {"text_relevances_per_message": verified, "scanned_per_message": scanned}
            row |= {"matched_per_message": matched} | verdict(same, new, subscriptions) | {"compared_results": compared}
            if lists := getattr(engine, "lists", None):
                row["associations"] = getattr(lists, "associations", subscriptions) / subscriptions
            counted[name] = row
            tell(f"{figure} {value}: {name}: {verified:,.0f} text relevances a message, exact: {row['exact']}")
        yield {"figure": figure, "x": value, "engines": counted}


def bench(
    subscriptions: Annotated[int, "live from the start"] = 300_000,
    messages: Annotated[int, "a round, none of which is timed"] = 100,
    engines: Annotated[tuple[str, ...], "of decay"] = ("ciq_paper", "bif_paper"),
    figures: Annotated[tuple[str, ...], "what is varied"] = tuple(FIGURES),
    seed: Annotated[int, "of the workload"] = 0,
    messages_from: Annotated[str | None, "resample the messages of this output folder of `skyray etl`"] = None,
    subscriptions_from: Annotated[str | None, "let subscriptions take after the texts of another such folder"] = None,
    tell: Tell = print,
) -> dict[str, Any]:
    """Every figure's values, and how many text relevances a message costs each engine."""
    real = {"messages_from": messages_from, "subscriptions_from": subscriptions_from}
    rows = [row for name in figures for row in _rows(name, subscriptions, messages, engines, seed, real, tell)]
    exact = all(one["exact"] for row in rows for one in row["engines"].values())
    return {"kind": "decay", "subscriptions": subscriptions, "rows": rows, "exact": exact}


if __name__ == "__main__":
    from benchmarks import evaluations

    sys.exit(command.main(evaluations.bench))
