"""The window indexes beside each other: refills in bulk and in ones, messages stored and expired, bytes.

    python -m benchmarks.window [--subscriptions N] [--window N] [--indexes A,B] [--out FILE]

Every index holds the same window; it is first held, on 500 subscriptions, against the best K of all messages
(`benchmarks.checker`). Then the indexes are timed in turns. `bulk` asks for many subscriptions at once, as when they
are all registered; `single` asks for one at a time; `stream` stores batch after batch (as many messages expire) and
asks for a few subscriptions after each, as a running topology does. Medians over the turns. Read on in
`matching.topk.window`.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.checker import Words, eligible
from benchmarks.provenance import provenance
from benchmarks.verdict import verdict
from benchmarks.workload import PLAIN, WORLD, make_messages, topk_subscriptions
from matching.kind import Question, Share
from matching.kinds import KINDS
from matching.model import MessageBatch, SubscriptionTable, take_ragged
from matching.topk import thresholds
from matching.topk.window import WindowAnswers, WindowQueries
from matching.window import Boundary

RESULTS = Path(__file__).parent / "results"
#: Subscriptions whose answers are checked.
_CHECKED = 500
_TOPK = KINDS.named("topk")
_NOBODY = np.zeros(0, np.int64)
#: The rule's tables take milliseconds to make: once, not inside what is timed.
_RULE = thresholds.rule()


def bench(
    subscriptions: int = 20_000,
    window: int = 1_000_000,
    *,
    bulk: int = 5_000,
    singles: int = 200,
    batches: int = 20,
    batch: int = 5_000,
    refills_a_batch: int = 5,
    rounds: int = 3,
    seed: int = 0,
    indexes: Sequence[str] | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Measure window indexes on one synthetic workload.

    Parameters
    ----------
    subscriptions, window : int      drawn; messages the window holds
    bulk, singles : int              rows of the large question, and small questions, a round
    batches, batch : int             batches stored a round, messages in each
    refills_a_batch : int            rows asked for after each
    rounds, seed : int
    indexes : sequence of str        all by default
    on_progress : callable           told what is going on, a sentence at a time

    Returns
    -------
    dict    `workload`, `made_by`, and `results`: one dict an index
    """
    tell = on_progress or (lambda _: None)
    tell("making the workload")
    made = make_messages(window + rounds * batches * batch, seed)
    messages, table = made.batch, topk_subscriptions(made, subscriptions, seed, PLAIN)
    held = messages.take(np.arange(window))
    full = Boundary(0, 0, window - 1, -1)
    chosen = {name: _TOPK.window(name) for name in indexes or _TOPK.windows}
    checked, words = np.linspace(0, subscriptions - 1, min(_CHECKED, subscriptions)).astype(np.int64), Words.of(held)
    filled: dict[str, Share] = {}
    running: dict[str, Share] = {}
    figures: dict[str, dict[str, Any]] = {}
    for name, kind in chosen.items():
        tell(f"loading and checking {name}")
        _warm(kind, messages, table)
        running[name] = kind(WORLD, 1)
        running[name].load(full, held)
        begun = perf_counter()
        filled[name] = kind(WORLD, 1)
        filled[name].load(full, held)
        load_us = (perf_counter() - begun) / window * 1e6
        answers = filled[name].answer(_question(table, checked, full))
        figures[name] = {
            "index": name,
            **_checked(answers, held, words, table.take(checked)),
            "load_us_a_message": load_us,
            "bytes_a_message": filled[name].size_bytes() / window,
        }
    times: dict[str, list[dict[str, float]]] = {name: [] for name in chosen}
    rng = np.random.default_rng([seed, 5])
    for turn in range(rounds):
        many = np.sort(rng.choice(subscriptions, min(bulk, subscriptions), replace=False))
        some = rng.integers(0, subscriptions, singles)
        few = rng.integers(0, subscriptions, (batches, refills_a_batch))
        for name in chosen:
            tell(f"turn {turn + 1} of {rounds}: {name}")
            times[name].append(_turn(filled[name], running[name], messages, table, full, many, some, few, turn, batch))
    for name, turns in times.items():
        figures[name] |= {figure: median(turn[figure] for turn in turns) for figure in turns[0]}
        figures[name]["stream_bytes_a_message"] = running[name].size_bytes() / window
    workload = {
        "subscriptions": subscriptions, "window": window, "rank": int(_RULE.ranks(table.k[:1])[0]),
        "bulk": bulk, "singles": singles, "batches": batches, "batch": batch, "refills_a_batch": refills_a_batch,
        "rounds": rounds, "seed": seed,
    }  # fmt: skip
    return {"workload": workload, "made_by": provenance(), "results": [*figures.values()]}


def _warm(kind: type[Share], messages: MessageBatch, table: SubscriptionTable) -> None:
    """Compile, or load from the cache, every kernel of an index."""
    index = kind(WORLD, 1)
    for number in range(2):
        boundary = Boundary(number, number * 100, number * 100 + 99, -1)
        index.store(boundary, messages.take(np.arange(number * 100, number * 100 + 100)), _NOBODY)
        for rows in (1, 200):
            index.answer(_question(table, np.zeros(rows, np.int64), boundary))


def _turn(filled, running, messages, table, full, many, some, few, turn, batch) -> dict[str, float]:
    """One index, once through everything."""
    begun = perf_counter()
    filled.answer(_question(table, many, full))
    bulk_s, begun = perf_counter() - begun, perf_counter()
    for row in some:
        filled.answer(_question(table, np.array([row]), full))
    single_s = perf_counter() - begun
    store_s = stream_s = 0.0
    for step, rows in enumerate(few):
        number = turn * few.shape[0] + step + 1
        first = full.last_seq + 1 + (number - 1) * batch
        boundary = Boundary(number, first, first + batch - 1, first + batch - 1 - (full.last_seq + 1))
        part = messages.take(np.arange(first, first + batch))
        begun = perf_counter()
        running.store(boundary, part, _NOBODY)
        stored = perf_counter()
        running.answer(_question(table, rows, boundary))
        store_s, stream_s = store_s + stored - begun, stream_s + perf_counter() - begun
    # what is left unindexed would have to be indexed one day: ask so much that it is, and count that as storing
    begun = perf_counter()
    running.answer(_question(table, many[:1].repeat(200), boundary))
    settle_s = perf_counter() - begun
    begun = perf_counter()
    running.answer(_question(table, many[:1].repeat(200), boundary))
    settle_s -= perf_counter() - begun
    stored_messages = few.shape[0] * batch
    return {
        "bulk_us_a_query": bulk_s / many.size * 1e6,
        "single_us_a_query": single_s / some.size * 1e6,
        "store_us_a_message": (store_s + max(0.0, settle_s)) / stored_messages * 1e6,
        "stream_us_a_message": (stream_s + max(0.0, settle_s)) / stored_messages * 1e6,
    }


def _question(table: SubscriptionTable, rows: np.ndarray, as_of: Boundary) -> Question:
    offsets, picked = take_ragged(table.term_offsets, rows)
    ranks = _RULE.ranks(table.k[rows])
    columns = (table.number[rows], table.x[rows], table.y[rows], table.alpha[rows])
    return Question(as_of, -1, WindowQueries(*columns, ranks, offsets, table.terms[picked], table.weights[picked]))


def _checked(answers: WindowAnswers, messages: MessageBatch, words: Words, table: SubscriptionTable) -> dict[str, Any]:
    """Whether each row was told exactly the best of all messages, ties at the cut included; `benchmarks.verdict`."""
    same, compared = True, 0
    for r in range(len(table)):
        there = eligible(messages, words, table, r, WORLD.max_distance)
        rank = int(answers.rank[r])
        bar = np.partition(there.score, -rank)[-rank] if there.score.size >= rank else -np.inf
        wanted = set(messages.seq[there.row[there.score >= bar]])
        mine = slice(answers.offsets[r], answers.offsets[r + 1])
        same = same and answers.threshold[r] == bar and set(answers.seq[mine]) == wanted
        compared += len(wanted)
    return verdict(bool(same), compared, len(table))


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns 1 if a figure does not count."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.window", description="Time the window indexes.")
    for name, default in (("subscriptions", 20_000), ("window", 1_000_000), ("bulk", 5_000), ("singles", 200)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, default in (("batches", 20), ("batch", 5_000), ("refills-a-batch", 5), ("rounds", 3), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--indexes", type=lambda text: text.split(","), help="names separated by commas")
    parser.add_argument("--out", type=Path, help="file of results (benchmarks/results/window-WINDOW.json)")
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = vars(parser.parse_args(given))
    out = options.pop("out") or RESULTS / f"window-{options['window']}.json"
    report = bench(**options, on_progress=_say)
    out.write_text(json.dumps(report, indent=1) + "\n")
    sys.stdout.write(json.dumps(report, indent=1) + "\n")
    return 0 if all(result["exact"] for result in report["results"]) else 1


def _say(sentence: str) -> None:
    sys.stderr.write(sentence + "\n")


if __name__ == "__main__":
    sys.exit(main())
