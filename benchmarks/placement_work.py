"""Placement by cost with real worker indexes: what the slowest of many workers takes, and what placement alone earns.

    python -m benchmarks.placement_work [--subscriptions 1000000] [--workers 20] [--rounds 100] [--history 1000000]
                                        [--messages-from ETL] [--seed N] > results.json

As the paper's experiments (DkM-SKS, section 5): every worker is a room of kind `knn` over its share of the
subscriptions, one after the other in this process, and its time is measured; in every round 100 leave, 100 come and
1,000 messages are matched, broadcast to all. First each placement with the index that its paper gives a worker, then
all with the default index of this project: the one says what the systems are worth, the other what placement is.

Results are those of a stream that has run (`benchmarks.lasting`), so that influence regions are as small as they would
be. Whatever the placement, all workers together must tell the same updates, which are compared by a digest of every
one of them; what the first of them tell some subscriptions is held against the oracle. Rounds are interleaved:
placement after placement takes the same round.
"""

import hashlib
import sys
from statistics import median
from time import perf_counter
from typing import Annotated, Any

import numpy as np

from benchmarks import command
from benchmarks.cases import Case, make_case
from benchmarks.command import Tell
from benchmarks.harness import of_numbers
from benchmarks.lasting import LastingBench
from benchmarks.verdict import verdict
from benchmarks.workload import WORLD, changed
from distribution.placed import DkmSksRouter, KopRouter, Ps2StreamRouter, SopRouter
from distribution.placed import warmup as warm_placements
from distribution.placement.costs import SampleCosts
from distribution.router import spread
from matching.alone import Alone
from matching.kinds import KINDS
from matching.model import (
    ChangeList,
    Int64,
    MessageBatch,
    Names,
    Removals,
    SubscriptionTable,
    UpdateBatch,
    concatenate,
    take_rows,
)
from matching.naive import tally
from matching.storage.state import State
from matching.warmup import warm_engine
from matching.window import Boundary, Window

_KNN = KINDS.named("knn")
_MESSAGES_A_ROUND, _CHANGES_A_ROUND = 1_000, 100
_SAMPLE = 10_000
_PLACEMENTS = {router.name: router for router in (KopRouter, SopRouter, Ps2StreamRouter, DkmSksRouter)}
#: The index of a worker in the paper of each placement: the others than KOP go by place as well.
_GRID = "influence_grid"
_OF_PAPER = {"kop": "inverted_file", "sop": _GRID, "ps2stream": _GRID, "dkm-sks": _GRID}


class Workers:
    """All workers of one placement with one index."""

    def __init__(self, name: str, engine: str, count: int, case: Case, state: State, costs: SampleCosts):
        self.name, self.engine, self.count, nobody = name, engine, count, np.zeros(0, np.int64)
        self.placer = None if name == "hashing" else _PLACEMENTS[name](count, WORLD, costs).placer()
        begun = perf_counter()
        owner = self._owners(0, case.table, nobody)
        self.placing_s = perf_counter() - begun
        self.largest_to_mean = float(np.bincount(owner, minlength=count).max()) / (len(case.table) / count)
        full = case.boundary(-1, 0, case.filled)
        self.alone = []
        for worker in range(count):
            one = Alone([_KNN], WORLD, Window("count", 1), engines={"knn": engine})
            one.restore(full, case.messages.take(nobody), {_KNN.code: state.take(np.flatnonzero(owner == worker))})
            self.alone.append(one)
        self.seconds: list[list[float]] = []
        self.changing: list[float] = []
        self.digest = hashlib.blake2b(digest_size=16)

    def _owners(self, batch: int, added: SubscriptionTable, gone: Int64) -> Int64:
        if self.placer is None:
            return spread(added.number, self.count)
        owner = self.placer.follow(ChangeList(batch, added, Names.of([]), _leaving(gone, batch))).owner
        assert owner is not None
        return owner

    def round(self, boundary: Boundary, messages: MessageBatch, added: SubscriptionTable, gone: Int64) -> UpdateBatch:
        """Some leave, some come, and a batch is matched by one worker after the other; what they tell, in one order."""
        begun = perf_counter()
        owner = self._owners(boundary.number + 1, added, gone)
        self.changing.append(perf_counter() - begun)
        told, seconds = [], []
        for worker, one in enumerate(self.alone):
            mine, removed = added.take(np.flatnonzero(owner == worker)), _leaving(gone, boundary.first_seq)
            begun = perf_counter()
            told.append(one.process(boundary, messages, mine, removed).updates)
            seconds.append(perf_counter() - begun)
        self.seconds.append(seconds)
        updates = concatenate(told)
        updates = take_rows(updates, np.lexsort((updates.change, updates.seq, updates.number)))
        for column in updates:
            self.digest.update(np.ascontiguousarray(column).tobytes())
        return updates

    def figures(self) -> dict[str, Any]:
        seconds = np.array(self.seconds)
        most, all_of_them = seconds.max(axis=1), seconds.sum(axis=1)
        return {
            "placement": self.name,
            "index": self.engine,
            "placing_s": self.placing_s,
            "owner_of_changes_ms": 1e3 * median(self.changing),
            "slowest_ms": 1e3 * float(np.median(most)),
            "all_ms": 1e3 * float(np.median(all_of_them)),
            "max_less_min_ms": 1e3 * float(np.median(most - seconds.min(axis=1))),
            "max_to_mean": float(np.median(most / seconds.mean(axis=1))),
            "subscriptions_max_to_mean": self.largest_to_mean,
            "digest": self.digest.hexdigest(),
        }


def _leaving(gone: Int64, at: int) -> Removals:
    """Who leaves before message or batch `at`."""
    return Removals(gone, np.full(gone.shape[0], _KNN.code, np.int8), np.full(gone.shape[0], at))


def measure(
    subscriptions: Annotated[int, "how many are placed"] = 1_000_000,
    workers: Annotated[int, "how many share them"] = 20,
    rounds: Annotated[int, "of 1,000 messages"] = 100,
    history: Annotated[int, "messages that have passed before"] = 1_000_000,
    messages_from: Annotated[str | None, "resample the messages of this output folder of `skyray etl`"] = None,
    seed: Annotated[int, "of the workload"] = 1,
    tell: Tell = print,
) -> dict[str, Any]:
    """Every placement with its paper's index and with the default one; exact if all told the same and were right."""
    timed, real = rounds * _MESSAGES_A_ROUND, messages_from
    case = make_case(_KNN, subscriptions, timed, None, rounds, seed, history=history, messages_from=real)
    tell("filling results from the history")
    reference = LastingBench(case, rounds)
    costs = SampleCosts(WORLD, case.messages.take(np.arange(max(0, case.filled - _SAMPLE), case.filled)))
    best = next(iter(_KNN.engines))
    pairs = list(_OF_PAPER.items()) + [(name, best) for name in ("hashing", *_OF_PAPER)]
    warm_placements()
    for engine in {engine for _, engine in pairs}:
        warm_engine(_KNN, engine)
    built = []
    for name, engine in pairs:
        built.append(Workers(name, engine, workers, case, reference.filled(), costs))
        tell(f"{name} with {engine}: placed in {built[-1].placing_s:.1f} s")
    leaving = np.random.default_rng([seed, 9]).permutation(len(case.table))
    compared: list[tuple[Boundary, UpdateBatch]] = []
    left = np.zeros(0, np.int64)
    for number in range(rounds):
        first = case.filled + number * _MESSAGES_A_ROUND
        boundary = case.boundary(number, first, first + _MESSAGES_A_ROUND)
        messages, _ = case.batch_of(boundary)
        rows = np.arange(number * _CHANGES_A_ROUND, (number + 1) * _CHANGES_A_ROUND)
        coming = changed(case.fresh.take(rows % len(case.fresh)), at=np.full(rows.shape[0], first))
        gone = np.sort(leaving[rows[rows < leaving.size]])
        told = [each.round(boundary, messages, coming, gone) for each in built]
        if not compared or boundary.last_seq < case.filled + reference.checked:
            compared.append((boundary, told[0]))
            left = np.union1d(left, gone)
        if number % 10 == 9:
            tell(f"{number + 1} of {rounds} rounds")
    results = [each.figures() for each in built]
    same = len({row["digest"] for row in results}) == 1
    staying = reference.sample.take(np.flatnonzero(~np.isin(reference.sample.number, left)))
    wanted = reference.expect(staying, [boundary for boundary, _ in compared]).updates
    found = tally(of_numbers(concatenate([updates for _, updates in compared]), staying.number))
    judged = verdict(same and found == wanted, wanted.total(), len({event[1] for event in wanted}))
    for row in results:
        tell(
            f"{row['placement']:>9} {row['index']:<15} slowest {row['slowest_ms']:8.2f} ms a round, all "
            f"{row['all_ms']:9.1f}, max / mean {row['max_to_mean']:.2f}"
        )
    workload = case.facts | {"workers": workers, "rounds": rounds, "messages_a_round": _MESSAGES_A_ROUND}
    facts = workload | {"changes_a_round": _CHANGES_A_ROUND}
    return {"workload": facts, "same_updates": same, **judged, "results": results}


if __name__ == "__main__":
    sys.exit(command.main(measure))
