"""Where the time of one message goes in `cell_term`: the phases of `matching.boolean.engines.cell_match`, timed and
counted.

`python -m benchmarks.profiles.boolean_phases --subscriptions 1000000` prints JSON. No counter of the processor is
needed: the messages are matched up to the first phase, then up to the second and so on, in turns, and a phase takes
what it adds. Beside the time stand the cache lines a message touches, counted from what the phases write down. Memory
by itself is measured by `benchmarks.profiles.memory_limits`. Times are of the processor, so that somebody else's turn
on the core does not count.
"""

import argparse
import json
import sys
from statistics import median
from time import thread_time

import numpy as np
from numba import njit

from benchmarks.cases import make_case
from benchmarks.harness import Bench
from matching.boolean.engine import Messages
from matching.boolean.engines.blocks import MORE
from matching.boolean.engines.cell_match import (
    TABLE,
    find_cuts,
    find_runs,
    longer,
    look_up,
    on_lattice,
    runs_of,
    verify,
    walk,
)
from matching.boolean.engines.cell_term import CellTerm
from matching.kinds import KINDS

PHASES = ("look_up", "find_cuts", "find_runs", "walk", "verify")
#: What is counted of all messages; lines are cache lines of 64 bytes, each counted once a message.
COUNTS = (
    "blocks", "buckets", "runs", "postings", "candidates", "matches",
    "block_lines", "cut_lines", "box_lines", "link_lines", "keyword_lines",
)  # fmt: skip
_ROUNDS = 7


@njit(cache=True, nogil=True)
def _match_up_to(phases, messages, blocks, columns, west, south, steps_per_degree, seen, slots, counts, counting):
    """Match every message, but only the first `phases` phases; what is counted goes to counts (int64[11])."""
    which, candidates, table = np.empty(64, np.int64), np.empty(4096, np.int64), np.full(TABLE, -1, np.int32)
    first, last = np.empty(512, np.int64), np.empty(512, np.int64)
    level, cut = np.empty(512, np.int64), np.empty(512, np.int64)
    for row in range(messages.west.shape[0]):
        _, left, bottom, right, top = on_lattice(messages, row, west, south, steps_per_degree)
        which = longer(which, messages.term_offsets[row + 1] - messages.term_offsets[row])
        terms = look_up(messages, row, blocks, which)
        counts[0] += terms
        if phases == 1:
            continue
        room = runs_of(left, bottom, right, top, blocks, which, terms)
        first, last, level, cut = longer(first, room), longer(last, room), longer(level, room), longer(cut, room)
        buckets = find_cuts(left, bottom, right, top, blocks, which, terms, first, last, level, cut)
        counts[1] += buckets
        if counting:
            for i in range(buckets):
                counts[7] += cut[i] >= 0
        if phases == 2:
            continue
        runs, length = find_runs(blocks, buckets, first, last, level, cut)
        counts[2] += runs
        counts[3] += length
        if counting:
            counts[6] += 3 * (messages.term_offsets[row + 1] - messages.term_offsets[row])
            for i in range(runs):
                counts[8] += ((last[i] - 1) >> 3) - (first[i] >> 3) + 1
        if phases == 3:
            continue
        candidates = longer(candidates, length + 1)
        count = walk(left, bottom, right, top, blocks, runs, first, last, level, candidates)
        counts[4] += count
        if counting:
            line = np.int64(-1)
            for i in range(count):
                counts[9] += candidates[i] >> 4 != line
                line = candidates[i] >> 4
                link = blocks.link[candidates[i] >> 1]
                if link & MORE:
                    # Where the keywords begin, and the keywords themselves.
                    counts[10] += 2
        if phases == 4:
            continue
        slots = longer(slots, count + 1)
        counts[5] += verify(messages, row, blocks, columns, count, candidates, table, seen, slots, 0)


def profile(subscriptions: int, messages: int | None = None, rounds: int = _ROUNDS, seed: int = 0) -> dict:
    """Nanoseconds and lines of a message, phase by phase; medians over the rounds."""
    made = Bench(make_case(KINDS.named("boolean"), subscriptions, messages, None, rounds, seed), rounds)
    engine = made.build(CellTerm.name).room.engine
    assert isinstance(engine, CellTerm)
    batch = made.messages_after(made.case.timed)
    count = len(batch)
    view, slots = Messages.of(batch), np.empty(1 << 16, np.int32)
    frame = (engine.space.west, engine.space.south, engine._steps_per_degree)

    def run(phases: int, counts: np.ndarray, counting: bool = False) -> None:
        _match_up_to(
            phases, view, engine._blocks(), engine.subscriptions.columns, *frame, engine._seen, slots, counts, counting
        )  # fmt: skip

    counts = np.zeros(len(COUNTS), np.int64)
    run(len(PHASES), counts, True)
    seconds = {name: [] for name in (*PHASES, "match")}
    for _ in range(rounds):
        before = 0.0
        for phases, name in enumerate(PHASES, 1):
            begun = thread_time()
            run(phases, np.zeros(len(COUNTS), np.int64))
            took = thread_time() - begun
            seconds[name].append(took - before)
            before = took
        begun = thread_time()
        hits = engine.match(batch)
        seconds["match"].append(thread_time() - begun)
    assert hits.matched == counts[COUNTS.index("matches")]
    ns = {name: median(values) / count * 1e9 for name, values in seconds.items()}
    whole = ns.pop("match")
    ns["hits"] = whole - sum(ns.values())
    return {
        "workload": made.workload,
        "match_ns": whole,
        "phase_ns": ns,
        "phase_share": {name: value / whole for name, value in ns.items()},
        "per_message": {name: value / count for name, value in zip(COUNTS, counts.tolist(), strict=True)},
        "state_mib": sum(array.nbytes for array in engine.arrays().values()) / 2**20,
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profiles.boolean_phases", description=__doc__)
    parser.add_argument("--subscriptions", type=int, default=1_000_000)
    parser.add_argument("--messages", type=int)
    options = parser.parse_args()
    sys.stdout.write(json.dumps(profile(options.subscriptions, options.messages), indent=2) + "\n")


if __name__ == "__main__":
    main()
