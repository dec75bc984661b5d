"""Placement by cost: how evenly each algorithm spreads subscriptions over simulated workers, and what it takes.

    python -m benchmarks.placement [--subscriptions 100000,1000000] [--workers 20] [--sample 10000] [--rounds 10]
                                   [--kind knn] [--index places|keywords] [--printed] [--seed N] > results.json

As the paper's experiments (DkM-SKS, section 5): subscriptions take after messages, 1 to 5 keywords, k from 1 to 10; all
are placed together, then in every round 100 leave, 100 come and 1,000 messages are matched. The costs go by the first
messages, the rounds by later ones. Hashing, which goes by no cost, stands beside the others.

What a worker does for a batch is told by its index, which a factory makes (`Index`). Those here count postings exactly,
so that their figures are the same on every machine: `keywords` all postings of a message's terms, as an inverted file
reads them; `places` those whose subscription listens at the message's place, the fewest that a grid could read, with
balls as the first messages left them. `--printed` adds DkM-SKS with the parameters as the paper prints them.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any, Protocol

import numpy as np

from benchmarks.workload import WORLD, TopkRecipe, boolean_subscriptions, make_messages, topk_subscriptions
from distribution.placed import DkmSksRouter, KopRouter, PlacedRouter, Placer, Ps2StreamRouter, SopRouter, warmup
from distribution.placement.costs import Costs, SampleCosts
from distribution.placement.demand import Demand, demand_of
from distribution.placement.dkm_sks import DkmSks
from distribution.router import spread
from matching.kinds import KINDS
from matching.model import ChangeList, Float64, Int64, MessageBatch, Names, Removals, SubscriptionTable

#: Messages that subscriptions take after, beside those that costs go by.
_LIKE = 200_000
_MESSAGES_A_ROUND, _CHANGES_A_ROUND = 1_000, 100


class Index(Protocol):
    """One worker's subscriptions."""

    def insert(self, table: SubscriptionTable) -> None:
        """Take new ones."""
        ...

    def remove(self, numbers: Int64) -> None:
        """Forget some of them."""
        ...

    def work(self, messages: MessageBatch) -> float:
        """What a batch takes: postings, or seconds."""
        ...


#: Makes an empty index; `Costs` are what is known of the messages before the first of them comes.
Factory = Callable[[Costs], Index]


class CountedPostings:
    """Counts postings that a batch meets: pairs of a message and a keyword of a subscription that it carries."""

    def __init__(self, known: Costs, by_place: bool = True):
        self.known, self.by_place = known, by_place
        self.tables: list[tuple[Int64, SubscriptionTable, Demand]] = []

    def insert(self, table: SubscriptionTable) -> None:
        if len(table):
            self.tables.append((table.number, table, demand_of(table, KINDS.traits, WORLD, self.known)))

    def remove(self, numbers: Int64) -> None:
        for place, (number, table, demand) in enumerate(self.tables):
            kept = np.flatnonzero(~np.isin(number, numbers))
            if kept.size < number.size:
                self.tables[place] = (number[kept], table.take(kept), demand.take(kept))

    def work(self, messages: MessageBatch) -> float:
        batch, total = SampleCosts(WORLD, messages), 0.0
        for _, table, demand in self.tables:
            box = demand.box if self.by_place else np.tile(batch.world, (len(table), 1))
            words = batch.numbered(table.terms)
            total += float(batch.of_words(box, table.term_offsets, words).sum()) * len(messages)
        return round(total)


FACTORIES: dict[str, Factory] = {
    "places": CountedPostings,
    "keywords": lambda known: CountedPostings(known, by_place=False),
}


class _AsPrinted(DkmSks):
    gamma_1, gamma_2 = 100_000, 20


class _PrintedRouter(DkmSksRouter):
    name = "dkm-sks as printed"
    algorithm = _AsPrinted


class _Hashed:
    """Stands in for a placer: by hash of the number."""

    def __init__(self, workers: int):
        self.workers = workers

    def follow(self, changes: ChangeList) -> ChangeList:
        return changes._replace(owner=spread(changes.added.number, self.workers))


def placement(
    subscriptions: int,
    workers: int,
    sample: int,
    rounds: int,
    kind: str,
    factory: Factory,
    seed: int,
    printed: bool,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Every algorithm on one workload."""
    stream = make_messages(_LIKE + sample + rounds * _MESSAGES_A_ROUND, seed)
    # those that come later are drawn by themselves, so that they do not depend on how many were there
    everyone = [_draw(stream, kind, count, seed + place) for place, count in enumerate((subscriptions, 100 * rounds))]
    everyone[1] = _with(everyone[1], number=everyone[1].number + subscriptions)
    known = stream.batch.take(np.arange(_LIKE, _LIKE + sample))
    batches = [
        stream.batch.take(np.arange(first, first + _MESSAGES_A_ROUND))
        for first in range(_LIKE + sample, len(stream.batch), _MESSAGES_A_ROUND)
    ]
    costs = SampleCosts(WORLD, known)
    routers: list[type[PlacedRouter]] = [KopRouter, SopRouter, DkmSksRouter, Ps2StreamRouter]
    results = [_one("hashing", _Hashed(workers), costs, everyone, batches, workers, factory, seed)]
    for router in routers + [_PrintedRouter] * printed:
        placer = router(workers, WORLD, costs).placer()
        results.append(_one(router.name, placer, costs, everyone, batches, workers, factory, seed))
        row = results[-1]
        tell(
            f"{row['name']}: placed in {row['placing_s']:.1f} s, a round in {1e3 * row['round_s']:.2f} ms; busiest of "
            f"{workers} workers {row['work']['max_to_mean']:.2f} times the mean, by count "
            f"{row['subscriptions']['max_to_mean']:.2f}"
        )
    workload = {
        "kind": kind, "subscriptions": subscriptions, "workers": workers, "sample": sample, "rounds": rounds,
        "messages_a_round": _MESSAGES_A_ROUND, "changes_a_round": _CHANGES_A_ROUND, "seed": seed,
    }  # fmt: skip
    return {"workload": workload, "results": results}


def _draw(stream: Any, kind: str, count: int, seed: int) -> SubscriptionTable:
    """Subscriptions that take after messages, of one kind."""
    row = KINDS.named(kind)
    if row.place == "region":
        return boolean_subscriptions(stream, count, seed)
    table = topk_subscriptions(stream, count, seed, TopkRecipe(k=row.recipe.k))
    return _with(table, kind=np.full(count, row.code, np.int8))


def _with(table: SubscriptionTable, **columns: np.ndarray) -> SubscriptionTable:
    all_columns: Any = table._asdict() | columns
    return SubscriptionTable(**all_columns)


def _one(
    name: str,
    placer: Placer | _Hashed,
    costs: Costs,
    everyone: list[SubscriptionTable],
    batches: list[MessageBatch],
    workers: int,
    factory: Factory,
    seed: int,
) -> dict[str, Any]:
    """Place all, then round after round: some leave, some come, a batch is matched."""
    first, later = everyone
    nobody = np.zeros(0, np.int64)
    begun = perf_counter()
    owner = placer.follow(_changes(0, first, nobody, first)).owner
    placing_s = perf_counter() - begun
    assert owner is not None
    owners, indexes = [owner], [factory(costs) for _ in range(workers)]
    for task, index in enumerate(indexes):
        index.insert(first.take(np.flatnonzero(owner == task)))
    figures: dict[str, Any] = {"name": name, "placing_s": placing_s}
    if isinstance(placer, Placer):
        figures |= {"cost": _balance(placer.ledger.load.copy()), "placement": placer.placement.describe()}
    # the same ones leave whatever the algorithm
    leaving = np.random.default_rng([seed, 9]).permutation(len(first))
    work, alive, rounds_s = [], np.bincount(owner, minlength=workers).astype(np.float64), []
    for place, messages in enumerate(batches):
        rows = np.arange(place * _CHANGES_A_ROUND, (place + 1) * _CHANGES_A_ROUND)
        added, gone = later.take(rows), np.sort(leaving[rows[rows < leaving.size]])
        begun = perf_counter()
        new = placer.follow(_changes(place + 1, added, gone, first)).owner
        rounds_s.append(perf_counter() - begun)
        assert new is not None
        owners.append(new)
        alive += np.bincount(new, minlength=workers) - np.bincount(owner[gone], minlength=workers)
        for task, index in enumerate(indexes):
            index.remove(gone[owner[gone] == task])
            index.insert(added.take(np.flatnonzero(new == task)))
        work.append([index.work(messages) for index in indexes])
    per_round = np.array(work, np.float64).reshape(-1, workers)
    newcomers = np.bincount(np.concatenate([nobody, *owners[1:]]), minlength=workers).astype(np.float64)
    return figures | {
        "round_s": float(np.median(rounds_s)) if rounds_s else 0.0,
        "subscriptions": _balance(alive),
        "newcomers": _balance(newcomers),
        "work": _balance(per_round.sum(axis=0)),
        # the paper's measure of balance: greatest less least of a round, on average
        "work_difference_a_round": float(np.mean(per_round.max(axis=1) - per_round.min(axis=1))) if work else 0.0,
    }


def _changes(batch: int, added: SubscriptionTable, gone: Int64, first: SubscriptionTable) -> ChangeList:
    at = np.full(len(added), batch)
    removed = Removals(gone, first.kind[gone], np.full(gone.shape[0], batch))
    return ChangeList(batch, _with(added, at=at), Names.of([]), removed)


def _balance(load: Float64) -> dict[str, Any]:
    """Each worker's load, and how far they are apart."""
    mean = float(load.mean())
    return {
        "max_to_mean": float(load.max()) / mean if mean else 1.0,
        "max_less_min": float(load.max() - load.min()),
        "of_each": load.tolist(),
    }


def main() -> None:
    """Measure and print JSON."""
    parser = argparse.ArgumentParser(description="placement of subscriptions by cost on simulated workers")
    parser.add_argument("--subscriptions", default="100000,1000000", help="how many, one after the other")
    parser.add_argument("--workers", type=int, default=20)
    parser.add_argument("--sample", type=int, default=10_000, help="messages that the costs go by")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--kind", default="knn", choices=KINDS.names)
    parser.add_argument("--index", default="places", choices=tuple(FACTORIES), help="what a worker counts")
    parser.add_argument("--printed", action="store_true", help="also with the parameters as the paper prints them")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()

    def tell(line: str) -> None:
        print(line, file=sys.stderr)

    warmup()
    measured = [
        placement(
            int(count), given.workers, given.sample, given.rounds, given.kind, FACTORIES[given.index], given.seed,
            given.printed, tell,
        )
        for count in given.subscriptions.split(",")
    ]  # fmt: skip
    print(json.dumps({"index": given.index, "cores": os.cpu_count(), "measured": measured}, indent=1))


if __name__ == "__main__":
    main()
