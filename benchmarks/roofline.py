"""Rooflines of the two kernels that take most of a mixed message: how near they are to what the machine can do.

    python -m benchmarks.roofline [--topk 150000] [--decay 100000] > roofline.json

`topk` (engine `skype`, with its result buffers) and `decay` (`keyword_blocks`) are measured over the standard workload,
after their updates have been compared with the oracle, and beside them what their work would take at least:

    postings   scanned ones, each at the time of the same bound over postings in the first cache, or of reading its
               bytes from memory, whichever is longer
    lines      cache lines that a candidate and a changed result lie in, anywhere in memory, each at the time of one of
               many reads that do not wait for each other

A kernel cannot take less than the sum, unless what it reads is in a cache by chance; `attained` is that sum's share of
the measured time. The time of one read that waits for another is there for comparison: kernels ask for lines ahead so
as not to pay it. After Williams, Waterman, Patterson, "Roofline" (CACM 2009), with reads of single lines as a roof of
its own.
"""

import sys
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Annotated, Any, NamedTuple

import numpy as np
from numba import njit

from benchmarks import command
from benchmarks.cases import make_case
from benchmarks.command import Tell
from benchmarks.harness import time_beside
from benchmarks.lasting import bench_of
from matching.decay.engines import block_search
from matching.kinds import KINDS
from matching.topk.engines.skype_bounds import bound_l2

_LINE_BYTES = 64
#: Many times the caches of a large server processor.
_BYTES, _LINES_READ = 1 << 30, 1 << 22
_TURNS = 7
#: Postings that lie in the first cache together, and how often a turn goes over them.
_NEAR, _AGAIN = 512, 4_000


class Layout(NamedTuple):
    """How a kernel's work lies in memory.

    columns : tuple of str    of its lists, that every scanned posting is read from
    candidate_lines : int     of a candidate for the exact score: what else its posting says, its row, its terms
    result_lines : int        of a result that changes: where it is, its entries, the subscription's postings
    """

    columns: tuple[str, ...]
    candidate_lines: int
    result_lines: int


#: `skype`: slot, signature; the row of a subscription; its terms. Of a result start, count, oldest, class; scores,
#: seqs, dominators; what its three postings have for a threshold.
#: `keyword_blocks`: slot; the row; its terms. Of a result its row; entries; the levels of its three postings.
LAYOUTS: Mapping[str, Layout] = {
    "topk": Layout(("x", "y", "slope", "base", "own", "rest"), 4, 10),
    "decay": Layout(("x", "y", "level", "text_slope", "rest", "signature"), 3, 6),
}
_ENGINES = {"topk": "skype", "decay": "keyword_blocks"}


@njit(cache=True, nogil=True, fastmath=True)
def _sum(values):
    total = np.float32(0.0)
    for value in values:
        total += value
    return total


@njit(cache=True, nogil=True)
def _gather(values, at):
    """Of reads that do not wait for each other."""
    total = np.int64(0)
    for place in at:
        total += values[place]
    return total


@njit(cache=True, nogil=True)
def _follow(after, count):
    """Of reads each of which says where the next one is."""
    at = np.int64(0)
    for _ in range(count):
        at = after[at]
    return at


@njit(cache=True, nogil=True)
def _bound_topk(columns, passed, again):
    x, y, slope, base, own, rest = columns
    half = np.float32(0.5)
    for _ in range(again):
        bound_l2(x, y, slope, base, own, rest, 0, x.shape[0], half, half, half, half, passed)
    return passed[0]


@njit(cache=True, nogil=True)
def _bound_decay(v, size, passed, out, again):
    found = 0
    half = np.float32(0.5)
    for _ in range(again):
        for start in range(0, size, passed.shape[0]):
            found += block_search.bound_postings(
                v, start, start + passed.shape[0], half, half, np.float32(0.0), np.float32(1e9), half, half,
                np.uint32(0), passed, out, 0,
            )  # fmt: skip
    return found


def machine() -> dict[str, float]:
    """What memory gives one core: bytes in a row, and lines anywhere, in nanoseconds."""
    lines = _BYTES // _LINE_BYTES
    values = np.zeros(_BYTES // 4, np.float32)
    rng = np.random.default_rng(0)
    at = rng.integers(0, lines, _LINES_READ) * (_LINE_BYTES // 8)
    # a single cycle through all lines, so that no read is foreseen and none comes twice
    order = rng.permutation(lines)
    after = values.view(np.int64)
    after[order * (_LINE_BYTES // 8)] = np.roll(order, -1) * (_LINE_BYTES // 8)
    return {
        "ns_a_byte_in_a_row": 1e9 * _best(lambda: _sum(values)) / _BYTES,
        "ns_a_line_together": 1e9 * _best(lambda: _gather(after, at)) / _LINES_READ,
        "ns_a_line_by_itself": 1e9 * _best(lambda: _follow(after, _LINES_READ)) / _LINES_READ,
    }


def _best(work: Callable[[], Any]) -> float:
    """Seconds of the fastest turn, since a roof is what nothing disturbs."""
    work()
    took = []
    for _ in range(_TURNS):
        began = perf_counter()
        work()
        took.append(perf_counter() - began)
    return min(took)


def _ns_near(kind: str, view: Any, columns: tuple[str, ...]) -> float:
    """Nanoseconds of a posting's bound where all columns are in the first cache."""
    if kind == "topk":
        size = min(_NEAR, view.x.shape[0])
        near = tuple(getattr(view, name)[:size].copy() for name in columns)
        passed = np.zeros(size, np.uint8)
        return 1e9 * _best(lambda: _bound_topk(near, passed, _AGAIN)) / (size * _AGAIN)
    size = min(_NEAR, view.x.shape[0]) // block_search.BLOCK * block_search.BLOCK
    passed, out = np.zeros(block_search.BLOCK, np.uint8), np.zeros(block_search.BLOCK, np.int32)
    return 1e9 * _best(lambda: _bound_decay(view, size, passed, out, _AGAIN)) / (size * _AGAIN)


def placed(
    kind: str, us: float, counts: Mapping[str, float], posting_bytes: int, ns_near: float, roofs: Mapping[str, float]
) -> dict[str, float]:
    """A kernel under the roofs.

    us : float           a message, measured
    counts : mapping     of a message, as `Bench.time` says them
    """
    layout = LAYOUTS[kind]
    reading = posting_bytes * roofs["ns_a_byte_in_a_row"]
    postings = counts["scanned_per_message"] * max(ns_near, reading) / 1e3
    lines = (
        counts["verified_per_message"] * layout.candidate_lines + counts["matched_per_message"] * layout.result_lines
    )
    together = lines * roofs["ns_a_line_together"] / 1e3
    return {
        "us_per_message": us,
        "us_postings": postings,
        "us_lines": together,
        "us_lines_each_by_itself": lines * roofs["ns_a_line_by_itself"] / 1e3,
        "attained": (postings + together) / us,
        "bytes_scanned": counts["scanned_per_message"] * posting_bytes,
        "lines": lines,
        "ns_a_posting_in_cache": ns_near,
        "ns_a_posting_from_memory": reading,
    }


def bench(
    topk: Annotated[int, "subscriptions of topk, over a window of 100,000"] = 150_000,
    decay: Annotated[int, "subscriptions of decay"] = 100_000,
    messages_from: Annotated[str | None, "resample the messages of this output folder of `skyray etl`"] = None,
    rounds: Annotated[int, "turns of 1,000 messages"] = 7,
    seed: Annotated[int, "of the workload"] = 0,
    tell: Tell = print,
) -> dict[str, Any]:
    """The roofs of the machine, and where both kernels are under them."""
    roofs = machine()
    tell(", ".join(f"{name}: {value:.2f}" for name, value in roofs.items()))
    kernels: dict[str, Any] = {}
    for name, count in (("topk", topk), ("decay", decay)):
        kind, layout = KINDS.named(name), LAYOUTS[name]
        case = make_case(kind, count, rounds * 1_000, rounds=rounds, seed=seed, messages_from=messages_from)
        made = bench_of(case, rounds)
        (found,) = time_beside(made, [_ENGINES[name]], tell, changes=False).values()
        view = made.build(_ENGINES[name]).operator.engine.lists.view
        posting_bytes = sum(getattr(view, column).itemsize for column in layout.columns)
        near = _ns_near(name, view, layout.columns)
        kernels[name] = {
            "engine": _ENGINES[name],
            "subscriptions": count,
            **{key: found[key] for key in ("exact", "compared", "compared_subscriptions")},
            **{key: found[key] for key in ("scanned_per_message", "verified_per_message", "matched_per_message")},
            **placed(name, found["us_per_message"], found, posting_bytes, near, roofs),
        }
        tell(
            f"{name}: {found['us_per_message']:.1f} us a message, {kernels[name]['attained']:.0%} of it under the roofs"
        )
    return {
        "machine": roofs,
        "kernels": kernels,
        "exact": all(kernel["exact"] for kernel in kernels.values()),
        "compared": min(kernel["compared"] for kernel in kernels.values()),
    }


if __name__ == "__main__":
    from benchmarks import roofline

    sys.exit(command.main(roofline.bench))
