"""Figures of the CIQ paper by its printed forms: evaluations, text relevances and, in rounds, times.

    python -m benchmarks.evaluations [--subscriptions 20000] [--figures alpha,k] [--half-life 200000] [--rounds 7] > F

Definition 7 counts an *evaluation* where lemma 1 cannot skip a subscription. A *text relevance* is what finding that
out costs in a block that lemma 3 does not skip. Both are counts, which do not depend on the machine; the paper's
figures are times. Behind the messages that are counted every engine must have the results of the bulk routine
(`benchmarks.lasting.best_messages`), all of them. A run fails, too, where a mechanism of CIQ never works: cells,
buckets or blocks. That BIF skips no block is said, and is a finding.

A half-life of the paper has 20,000 messages. What its results began with it does not say: `--half-life` is the number
of messages within a half-life, of which as many have gone before, and 200,000 at least. Nor does it say how wide a
bucket is.
"""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from resource import RUSAGE_SELF, getrusage
from time import perf_counter
from typing import Annotated, Any, NamedTuple

import numpy as np
import psutil

from benchmarks import command
from benchmarks.cases import FADED, make_case
from benchmarks.command import Tell, verdict
from benchmarks.harness import MOST_S, Running
from benchmarks.lasting import LastingBench
from benchmarks.stopwatch import in_turns, medians
from benchmarks.workload import MESSAGES_PER_S, TopkRecipe, changed
from matching.cumulative.results import CumulativeRows
from matching.kind_table import Kind
from matching.kinds import KINDS
from matching.model import SubscriptionTable
from papers.ciq.celled_lists import ASSOCIATIONS, MOST_BUCKETS
from papers.ciq.ciq_paper import BifPaper, CiqHPaper, CiqPaper, IflPaper

_DECAY = KINDS.named("decay")
_K = _DECAY.recipe.k
_PRINTED: Mapping[str, type[CiqPaper]] = {form.name: form for form in (CiqPaper, CiqHPaper, BifPaper, IflPaper)}
#: What 16 buckets hold, and more or fewer of them likewise.
_RANGE = CiqPaper.buckets * CiqPaper.width
#: What a figure may vary in printed forms, not in the workload; the first two in those with cells alone.
_FORMS = ("buckets", "width", "block")
#: Name of a figure to its values and what each changes. Where alpha is the same for all, 16 buckets are as wide as what
#: can be in them, as whoever knows alpha would have them.
FIGURES: Mapping[str, Mapping[str, dict[str, Any]]] = {
    "standard": {"": {}},
    "keywords": {str(n): {"keywords": (n, n)} for n in (1, 3, 5)},
    "alpha": {
        str(alpha): {"alpha": (alpha, alpha), "width": alpha / (1.0 - alpha) / 15.0}
        for alpha in (0.1, 0.3, 0.5, 0.7, 0.9)
    },
    "k": {str(k): {"k": (k, k)} for k in (5, 20, 50)},
    "fading": {str(times): {"times": times} for times in (0.25, 1.0, 4.0, 20.0)},
    "history": {str(messages): {"within": messages} for messages in (20_000, 200_000, 2_000_000)},
    "insertion": {"": {}},
    "block": {str(size): {"block": size} for size in (1, 32, 128, 512, 1_024, 4_096)},
    "buckets": {str(count): {"buckets": count, "width": _RANGE / count} for count in (1, 4, 16, 64)},
    "width": {str(width): {"width": width} for width in (0.0625, 0.25, 0.5, 0.6, 0.75, 1.0, 2.0)},
}
#: Arrays of `papers.ciq.celled_lists` that are inverted files.
_POSTINGS = ("index", "lists", "blocks", "seq", "free")
#: A place asks for all of its words.
_WHOLE_TEXT = 1_000, 1_000
#: Messages before newcomers, and newcomers that are inserted in one call.
_BEFORE_NEWCOMERS, _TOGETHER = 100, 1_000


class Asked(NamedTuple):
    """What a run is asked for; see `bench`."""

    subscriptions: int
    messages: int
    engines: tuple[str, ...]
    half_life: int
    alpha: float | None
    block: int
    lifetime: int
    rounds: int
    seed: int
    messages_from: str | None
    subscriptions_from: str | None
    kept: str | None
    tell: Tell

    def kind(self, **forms: Any) -> Kind:
        """The kind with printed forms of these parameters."""
        shared = {"block": self.block, "longest": self.lifetime} | forms
        engines = dict(_DECAY.engines)
        for name, form in _PRINTED.items():
            # forms without cells have one bucket, whatever the others have
            own = shared if form.depth else {**shared, "buckets": form.buckets}
            engines[name] = type(name, (form,), own)
        return replace(_DECAY, engines=engines)

    def bench(self, within: int | None = None, times: float = 1.0, **recipe: Any) -> LastingBench:
        """The case of a figure: messages `within` a half-life, so many `times`, and properties of the subscriptions."""
        within = within or self.half_life
        if self.alpha is not None:
            recipe = {"alpha": (self.alpha, self.alpha)} | recipe
        if self.subscriptions_from is not None:
            recipe = {"keywords": _WHOLE_TEXT} | recipe
        case = make_case(
            _DECAY, self.subscriptions, self.messages, rounds=max(1, self.rounds), seed=self.seed,
            half_life_s=times * within / MESSAGES_PER_S, history=max(FADED, within),
            recipe=TopkRecipe(**{"k": _K} | recipe),
            messages_from=self.messages_from, subscriptions_from=self.subscriptions_from,
        )  # fmt: skip
        return LastingBench(case, max(1, self.rounds), self.kept)


def _rows(figure: str, asked: Asked) -> Iterator[dict[str, Any]]:
    made: LastingBench | None = None
    for value, changes in FIGURES[figure].items():
        forms = {name: changes[name] for name in _FORMS if name in changes}
        kind, names = asked.kind(**forms), asked.engines
        if figure in _FORMS:
            names = tuple(name for name in names if name in _PRINTED and _has(_PRINTED[name], figure))
        if made is None or figure not in _FORMS:  # else the workload is the same
            made = asked.bench(**{name: value for name, value in changes.items() if name not in forms})
        made.kind, made.case = kind, made.case._replace(kind=kind)
        measured = _inserted(made, names, asked) if figure == "insertion" else _counted(made, names, asked)
        for name, row in measured.items():
            asked.tell(f"{figure} {value}: {name}, exact: {row['exact']}")
        yield {"figure": figure, "x": value, "workload": made.workload, "engines": measured}


def _has(form: type[CiqPaper], figure: str) -> bool:
    """Whether a printed form has what a figure varies."""
    return form.bounded and (figure not in _FORMS[:2] or form.depth > 0)


def _counted(made: LastingBench, names: Sequence[str], asked: Asked) -> dict[str, dict[str, Any]]:
    """What the checked messages cost each engine, and in rounds how long others take."""
    rows, built = {}, {}
    for name in names:
        running = made.build(name)
        for _ in made._take(running, made.checked, math.inf):
            pass
        same, compared, new = made.compare_results(running)
        rows[name] = _counts(running, made.checked) | verdict(same, new, asked.subscriptions)
        memory = made.memory(running)
        rows[name] |= {"compared_results": compared} | memory | _apart(memory["bytes_per_subscription"], asked)
        if asked.rounds:
            built[name] = running
    if built:
        timed = in_turns(names, asked.rounds, lambda name, turn: made.time(built[name], turn, MOST_S, changes=False))
        for name, rounds in timed.items():
            rows[name] |= {key: value for key, value in medians(rounds).items() if key.startswith(("us_", "messages_"))}
    return rows


def _apart(engine_bytes: float, asked: Asked) -> dict[str, float]:
    """Bytes a subscription of this process without an engine, the only one, and without files mapped; and its peak."""
    memory, peak = psutil.Process().memory_info(), 1024 * getrusage(RUSAGE_SELF).ru_maxrss
    own = (memory.rss - memory.shared) / asked.subscriptions - engine_bytes
    return {"bytes_apart": own, "peak_bytes": peak / asked.subscriptions}


def _counts(running: Running, messages: int) -> dict[str, Any]:
    """Counts a message, and what of the printed mechanisms has worked."""
    engine = running.operator.engine
    scanned, verified, matched = (engine.counters / messages).tolist()
    row = {"text_relevances_per_message": verified, "scanned_per_message": scanned, "matched_per_message": matched}
    row["changing_share"] = matched / len(engine)
    if isinstance(engine, CiqPaper):
        row |= {f"{name}_per_message": count / messages for name, count in engine.survivors().items()}
        v, idle = engine.lists.view, []
        live = np.flatnonzero(v.slot[: int(v.used[ASSOCIATIONS])] >= 0)
        in_bucket = np.bincount(v.where[live] % MOST_BUCKETS, minlength=MOST_BUCKETS)[: engine.buckets]
        row["associations"] = engine.lists.associations / len(engine)
        size, all_bytes = engine.lists.arrays(), sum(array.nbytes for array in engine.arrays().values())
        # the global table, with results, and those of cells: all but postings
        row["query_table_share"] = 1.0 - sum(size[name].nbytes for name in _POSTINGS) / all_bytes
        row["buckets_used"] = int(np.count_nonzero(in_bucket))
        row["fullest_bucket_share"] = float(in_bucket.max() / max(1, in_bucket.sum()))
        if engine.depth and row["associations"] <= 1.0:
            idle.append("cells")
        if engine.buckets > 1 and row["buckets_used"] == 1:
            idle.append("buckets")
        if engine.bounded and not engine.walked[1]:
            idle.append("blocks")
        row["idle"] = idle
    return row


def _inserted(made: LastingBench, names: Sequence[str], asked: Asked) -> dict[str, dict[str, Any]]:
    """What newcomers with results of the past cost: associations by algorithm 2, and in rounds time."""
    end, last = made.case.filled + _BEFORE_NEWCOMERS, made.case.filled + made.checked
    built = {name: made.build(name) for name in names}
    for running in built.values():
        for _ in made._take(running, _BEFORE_NEWCOMERS, math.inf):
            pass
    newcomers = changed(made.case.fresh, at=np.full(len(made.case.fresh), end))
    parts: list[tuple[SubscriptionTable, CumulativeRows]] = []
    for first in range(0, len(newcomers), _TOGETHER):
        table = newcomers.take(np.arange(first, min(first + _TOGETHER, len(newcomers))))
        parts.append((table, made.bulk(0, end, table)))
    before = {name: _associations(running) for name, running in built.items()}

    def one(name: str, turn: int) -> dict[str, float]:
        begun = perf_counter()
        built[name].operator.engine.insert(*parts[turn])
        return {"us_per_insertion": 1e6 * (perf_counter() - begun) / len(parts[turn][0])}

    timed, rows = in_turns(names, len(parts), one), {}
    expected = [made.bulk(end, last, *part) for part in parts]
    for name, running in built.items():
        added = (_associations(running) - before[name]) / len(newcomers)
        for _ in made._take(running, made.checked - _BEFORE_NEWCOMERS, math.inf):
            pass
        same, compared, new = made.compare_results(running)
        for (table, _), wanted in zip(parts, expected, strict=True):
            held = made._held(running, table.number)
            same = same and np.array_equal(held.seq, wanted.seq) and np.array_equal(held.score, wanted.key)
            compared, new = compared + len(held), new + int(np.count_nonzero(wanted.seq >= end))
        rows[name] = {"associations_per_newcomer": added, "newcomers": len(newcomers)}
        rows[name] |= verdict(same, new, asked.subscriptions + len(newcomers)) | {"compared_results": compared}
        engine = running.operator.engine
        # algorithm 2 divides the root for some newcomers, or it has not run
        rows[name]["idle"] = ["cells"] if getattr(engine, "depth", 0) and added <= 1.0 else []
        rows[name] |= medians(timed[name]) if asked.rounds else {}
    return rows


def _associations(running: Running) -> int:
    """Associations of an engine that has them, else of each subscription one."""
    return getattr(getattr(running.operator.engine, "lists", None), "associations", len(running.operator))


def bench(
    subscriptions: Annotated[int, "live from the start"] = 20_000,
    messages: Annotated[int, "timed in all rounds together"] = 700,
    engines: Annotated[tuple[str, ...], "of decay"] = tuple(_PRINTED),
    figures: Annotated[tuple[str, ...], "what is varied"] = tuple(FIGURES),
    half_life: Annotated[int, "messages within a half-life; the paper's are 20,000"] = 20_000,
    alpha: Annotated[float | None, "the same for all subscriptions; by default random, as in the paper"] = None,
    block: Annotated[int, "postings of a block; the paper's 1,024 for tweets, 128 for places"] = CiqPaper.block,
    lifetime: Annotated[int, "messages in the life of a subscription: as many as the paper has subscriptions, "
                             "10,000,000 for tweets, 1,000,000 for places"] = CiqPaper.longest,
    rounds: Annotated[int, "of each engine in turn, timed; none: counts alone"] = 0,
    seed: Annotated[int, "of the workload"] = 0,
    messages_from: Annotated[str | None, "resample the messages of this output folder of `skyray etl`"] = None,
    subscriptions_from: Annotated[str | None, "let subscriptions take after the texts of another such folder"] = None,
    kept: Annotated[str | None, "folder that keeps the results of the history for runs of the same workload"] = None,
    tell: Tell = print,
) -> dict[str, Any]:  # fmt: skip
    """Every figure's values, and what a message costs each engine."""
    asked = Asked(
        subscriptions, messages, engines, half_life, alpha, block, lifetime, rounds, seed, messages_from,
        subscriptions_from, kept, tell,
    )  # fmt: skip
    rows = [row for name in figures for row in _rows(name, asked)]
    each = [engine for row in rows for engine in row["engines"].values()]
    report = {"kind": "decay", "half_life_messages": half_life, "block": block, "lifetime": lifetime, "rows": rows}
    report["never_worked"] = _idle_in_all(rows)
    report["exact"] = all(engine["exact"] for engine in each)
    return report | {"worked": not [name for name in report["never_worked"] if not name.startswith("bif_paper")]}


def _idle_in_all(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Engines and mechanisms that were idle in every row."""
    idle: dict[str, set[str]] = {}
    for name, engine in ((name, engine) for row in rows for name, engine in row["engines"].items()):
        if "idle" in engine:
            idle[name] = idle.get(name, set(engine["idle"])) & set(engine["idle"])
    return sorted(f"{name}: {mechanism}" for name, mechanisms in idle.items() for mechanism in mechanisms)


if __name__ == "__main__":
    from benchmarks import evaluations

    sys.exit(command.main(evaluations.bench))
