"""How long many subscriptions that come over a full window wait for their first results.

    python -m benchmarks.cold_start [--subscriptions 1000000] [--window 100000] [--turns 3]

The operator of a kind and its window index, as `skyray run` has them, in one process: the window is full, then
subscriptions come, `together` a batch, and each batch has its first results before the next one. A sample of what they
hold is first compared with the oracle. Timed is all of it, insertion and queries of the window; the benchmarks of
`benchmarks.harness` fill their engines the same way, by several operators at once.
"""

import sys
from collections.abc import Sequence
from statistics import median
from time import perf_counter, process_time
from typing import Annotated, Any

import numpy as np

from benchmarks import command
from benchmarks.cases import Case, make_case
from benchmarks.command import verdict
from benchmarks.driving import Batch, take
from matching.bulk_oracle import counted, expected, of_numbers
from matching.kinds import KINDS
from matching.local_engine import LocalEngine
from matching.window import NO_FLOOR, Boundary
from topology.warmup import warm_engine

#: Subscriptions that are compared with the oracle.
_SAMPLE = 1_000


def bench(
    kind: Annotated[str, "one that has a window, in which no message ends another"] = "topk",
    subscriptions: Annotated[int, "come over a full window"] = 1_000_000,
    window: Annotated[int, "messages"] = 100_000,
    together: Annotated[int, "subscriptions a batch"] = 20_000,
    turns: Annotated[int, "each with an engine of its own"] = 3,
    seed: Annotated[int, "of the workload"] = 0,
    tell: command.Tell = print,
) -> dict[str, Any]:
    """Seconds until the last of the subscriptions has its first result, turn by turn, and the median."""
    row = KINDS.named(kind)
    warm_engine(row, row.engine(None).name)
    case = make_case(row, subscriptions, 7, window, seed=seed)
    seconds, busy, judged = [], [], {}
    for turn in range(turns):
        alone, took, busy_s = fill(case, together)
        if turn == 0:
            judged = _held_against(case, alone, [case.boundary(1, 0, case.filled)] * 2)
        seconds.append(took)
        busy.append(busy_s)
        tell(f"turn {turn + 1} of {turns}: {took:.1f} s, {busy_s:.1f} s of the processor; {judged}")
    figures = {"together": together, "seconds": seconds, "processor_s": busy, "median_s": median(seconds)}
    return {"workload": case.facts, **figures, "us_per_subscription": 1e6 * median(seconds) / subscriptions, **judged}


def fill(case: Case, together: int) -> tuple[LocalEngine, float, float]:
    """An engine over a full window after all subscriptions have come, `together` a batch; seconds, and of cores."""
    alone, end, full = LocalEngine([case.kind], case.space, case.window), case.filled, case.boundary(1, 0, case.filled)
    messages, ended = case.batch_of(full)
    # two steps, so that the operator sees a window of this length and not a sudden batch
    take(alone, Batch(Boundary(0, 0, -1, NO_FLOOR)))
    take(alone, Batch(full, messages, ended=ended))
    rows, begun, busy = np.arange(len(case.table)), perf_counter(), process_time()
    for number, some in enumerate(np.split(rows, range(together, rows.shape[0], together)), start=2):
        take(alone, Batch(Boundary(number, end, end - 1, full.floor), added=case.table.take(some)))
    return alone, perf_counter() - begun, process_time() - busy


def _held_against(case: Case, alone: LocalEngine, boundaries: Sequence[Boundary]) -> dict[str, Any]:
    """What some of the subscriptions hold, against the oracle at the last boundary."""
    sample = case.table.take(np.unique(np.linspace(0, len(case.table) - 1, _SAMPLE).astype(np.int64)))
    wanted = expected(case.messages, sample, boundaries, case.space.max_distance).results
    held = counted(of_numbers(alone.results(), sample.number))
    return verdict(held == wanted, wanted.total(), len({result[0] for result in wanted}))


if __name__ == "__main__":
    sys.exit(command.main(bench))
