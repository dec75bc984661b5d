"""What signatures save and cost: the cuckoo filter by itself, and each sort of signature over growing workloads.

    python -m benchmarks.signatures [--kind boolean|skyline] [--subscriptions N,N] [--filters N,N] [--tasks 16] ...

Parts of the world, signatures and the copies that distribution bolts have of them are driven directly. Subscriptions
are placed by router `location`, by which alone a message is sent once, to the owner of its place. The optimum is a
message sent only if a subscription matches it, or is one that it is a candidate of, by an index that is held against
the definition in plain Python. A signature that estimates is lossy, and how many of these messages it loses is told;
all others must lose none of 1,000 or more (`benchmarks.verdict`).
"""

import sys
from itertools import product
from time import perf_counter, thread_time
from typing import Annotated, Any

import numpy as np

from benchmarks import command, workload
from benchmarks.command import Tell
from benchmarks.stopwatch import medians
from benchmarks.verdict import verdict
from benchmarks.workload import WORLD, BooleanRecipe, changed
from distribution.location import LocationRouter
from distribution.signatures.claims import claims_of
from distribution.signatures.cuckoo import CuckooFilter
from distribution.signatures.signature import QuerySignature, SignatureBoard, SignatureSpec
from distribution.signatures.warmup import warmup
from matching.boolean.engines.cell_term import CellTerm
from matching.model import ANY_KEYWORD, BOOLEAN, SKYLINE, MessageBatch, SubscriptionTable
from matching.naive import boolean_match, common_terms, messages_of, skyline_scores, subscriptions_of

_BATCH = 5_000
#: Messages that subscriptions take after; others are routed.
_SOURCE = 100_000
#: How many messages and subscriptions plain Python looks at.
_CHECKED = (200, 500)

TEXT = SignatureSpec(WORLD)
MINWISE = TEXT._replace(text_filter="minwise", most=32)
#: Name to what it consists of. A run has 6 levels; 32 rows of 16 tasks are the paper's 512.
KINDS: dict[str, SignatureSpec] = {
    "spatial: bitmap": TEXT._replace(text=False),
    "spatial: cuckoo": TEXT._replace(text=False, spatial_filter="cuckoo"),
    **{f"text: cuckoo, {levels} levels": TEXT._replace(levels=levels) for levels in (0, 3, 6, 8, 10)},
    "text: cuckoo, 6 levels, rate 0.01": TEXT._replace(rate=0.01),
    "text: min-wise without loss, 3 levels": TEXT._replace(levels=3, text_filter="minwise"),
    "text: min-wise without loss, 32 merged": MINWISE,
    "text: min-wise estimated, 32 merged": MINWISE._replace(text_filter="approximate"),
    "text: min-wise as printed, 32 merged": MINWISE._replace(text_filter="printed"),
}
#: Kind to regions to recipe; the regions of `paper` are then sized as `benchmarks.workload` does for skylines.
WORKLOADS = {
    "boolean": {"small": BooleanRecipe(regions="small"), "mixed": BooleanRecipe()},
    "skyline": {"paper": BooleanRecipe(stop_words=False), "city": BooleanRecipe(stop_words=False, regions="city")},
}


def filter_speed(items: int, rate: float, rounds: int = 5) -> dict[str, Any]:
    """A filter that is filled to 95 %, in batches: medians of thread time, and false positives beside the formula."""
    rng, turns = np.random.default_rng(1), []
    members = rng.permutation(np.unique(rng.integers(0, 2**40, items)))
    strangers = rng.integers(2**41, 2**42, 1_000_000)
    for _ in range(rounds):
        made, row = CuckooFilter(members.size, rate), {}
        made.words[:] = 0  # the pages are there before the clock runs
        for step in ("insert", "contains", "delete"):
            if step == "delete":
                row |= {"load": made.load, "bits_per_item": made.nbytes * 8 / members.size}
                row |= {"false_positives": made.contains(strangers).mean(), "formula": made.expected_rate}
            begun = thread_time()
            answer = getattr(made, step)(members)
            row[f"{step}_per_s"] = members.size / (thread_time() - begun)
            assert step == "delete" or np.sum(answer) == members.size, "a filter that loses members is no filter"
        turns.append(row)
    return {"items": members.size, "rate": rate, **medians(turns)}


def draw(kind: str, regions: str, count: int, messages: int, seed: int) -> tuple[SubscriptionTable, MessageBatch]:
    """Subscriptions, and messages of the same draw that none of them takes after."""
    recipe = WORKLOADS[kind][regions]
    drawn = workload.make_messages(_SOURCE + messages, seed, recipe=recipe)
    source = workload.Messages(drawn.batch.take(np.arange(_SOURCE)), drawn.idf)
    table = workload.boolean_subscriptions(source, count, seed, recipe=recipe)
    if regions == "paper":
        table = workload.sized_regions(table, seed)
    if kind == "skyline":
        table = changed(table, kind=np.full(count, SKYLINE, np.int8))
    return table, drawn.batch.take(np.arange(_SOURCE, _SOURCE + messages))


def _batches(messages: MessageBatch) -> list[tuple[int, MessageBatch]]:
    """The first row of each, and its messages."""
    rows = np.split(np.arange(len(messages)), range(_BATCH, len(messages), _BATCH))
    return [(each[0], messages.take(each)) for each in rows]


def optimum(table: SubscriptionTable, messages: MessageBatch) -> tuple[np.ndarray, int, bool]:
    """Which messages are of use to a subscription, to how many subscriptions, and whether plain Python agrees."""
    # a candidate of a skyline is what would match it, if it were boolean and content with any keyword
    loose = np.where(table.kind == SKYLINE, ANY_KEYWORD, table.match).astype(np.int8)
    index, found, wanted = CellTerm(WORLD), set(), set()
    index.insert(changed(table, kind=np.full_like(table.kind, BOOLEAN), match=loose))
    useful, useful_to = np.zeros(len(messages), np.bool_), np.zeros(len(table), np.bool_)
    for first, part in _batches(messages):
        hits = index.match(part)
        row, number = first + hits.row, hits.number
        useful[row], useful_to[number] = True, True
        few = (row < _CHECKED[0]) & (number < _CHECKED[1])
        found |= set(zip(row[few].tolist(), number[few].tolist(), strict=True))
    some = list(messages_of(messages.take(np.arange(min(_CHECKED[0], len(messages))))))
    for one in subscriptions_of(table.take(np.flatnonzero(table.number < _CHECKED[1]))):
        for row, message in enumerate(some):
            candidate = common_terms(one, message) and skyline_scores(one, message)
            if candidate if one.kind == SKYLINE else boolean_match(one, message):
                wanted.add((row, one.number))
    return useful, int(useful_to.sum()), found == wanted


def beside(
    table: SubscriptionTable, messages: MessageBatch, tasks: int, best: tuple[np.ndarray, int, bool], tell: Tell
) -> dict[str, Any]:
    """Send every message its ways by each sort of signature: `held` copies of subscriptions, and `results` by name.

    `exact` says of one that nothing of `best`, the optimum, was lost and enough was compared (`benchmarks.verdict`).
    """
    useful, subscribers, same = best
    parts, results = _batches(messages), {}
    router = LocationRouter(tasks, WORLD, messages.x[:20_000], messages.y[:20_000])
    domains = [router.domain_of(task) for task in range(tasks)]
    held = [table.take(np.flatnonzero(router.held_by(table, task))) for task in range(tasks)]
    for name, spec in KINDS.items():
        tell(f"{len(table):,} subscriptions, {tasks} query bolts, {name}")
        board, build_s = SignatureBoard(spec, domains), 0.0
        for task, mine in enumerate(held):
            signature, claims = QuerySignature(spec, domains[task], task), claims_of(mine)
            begun = perf_counter()
            signature.change(claims, claims.take(np.zeros(0, np.int64)))
            patch = signature.patch(0, noted=True)
            build_s += perf_counter() - begun
            assert patch is not None, "a patch is due where something was noted"
            board.apply(patch)
        sent, begun = np.zeros(len(messages), np.bool_), perf_counter()
        for (first, part), task in product(parts, range(tasks)):
            rows = router.rows_for(int(table.kind[0]), part, task)
            assert rows is not None
            sent[first + board.wanted(part, rows, task)] = True
        asked_s, lost = perf_counter() - begun, int(np.count_nonzero(useful & ~sent))
        results[name] = {
            **verdict(same and lost == 0, int(useful.sum()), subscribers),
            "lost_share": lost / max(1, useful.sum()),
            "let_through_per_message": float(sent.mean()),
            "false_positive_share": float((sent & ~useful).sum() / max(1, sent.sum())),
            "bytes": sum(replica.nbytes for replica in board.replicas),
            "build_s": build_s,
            "us_per_message": asked_s / len(messages) * 1e6,
        }
    return {"held": sum(map(len, held)), "optimum_per_message": float(useful.mean()), "results": results}


def bench(
    kind: Annotated[str, "of the subscriptions: boolean or skyline"] = "boolean",
    subscriptions: Annotated[tuple[int, ...], "how many, one after the other"] = (20_000, 200_000, 1_000_000),
    filters: Annotated[tuple[int, ...], "items of the cuckoo filters"] = (1_000_000, 10_000_000),
    messages: Annotated[int, "that are routed"] = 50_000,
    tasks: Annotated[tuple[int, ...], "query bolts, one number after the other"] = (16,),
    seed: Annotated[int, "of the workload"] = 0,
    tell: Tell = print,
) -> dict[str, Any]:
    """Filters by themselves and signatures beside each other; exact if what should lose nothing lost nothing."""
    warmup()
    speeds = [filter_speed(items, rate) for items, rate in product(filters, (0.01, 0.001))]
    workloads: list[dict[str, Any]] = []
    for count, regions in product(subscriptions, WORKLOADS[kind]):
        table, batch = draw(kind, regions, count, messages, seed)
        row, best = {"kind": kind, "subscriptions": count, "regions": regions, "seed": seed}, optimum(table, batch)
        workloads += [row | {"query_bolts": each} | beside(table, batch, each, best, tell) for each in tasks]
    every = [each for row in workloads for each in row["results"].items()]
    exact = all(figures["exact"] or KINDS[name].loses for name, figures in every)
    return {"exact": exact, "messages": messages, "filters": speeds, "workloads": workloads}


if __name__ == "__main__":
    sys.exit(command.main(bench))
