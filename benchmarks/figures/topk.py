"""Figures of the kind the papers show, drawn from this machine: `skyray bench topk --figure NAME`.

    subscriptions, k, alpha, keywords, window     time of a message against one property of the workload
    thresholds-mixed     refills, buffers and time of the threshold rules over three windows; k is 1, 10 and 100 of a
                         third each; what hits and refills take, the constants of `matching.topk.thresholds_cost` go by
    thresholds           the same rules against k, against the window and against the number of subscriptions
    pruning              what each rule of engine `skype` and of `skype_paper` earns, by leaving it out; and leaves so
                         small that Lemma 6 of the paper skips cells
    streams              streams that an index may break down on: is every engine exact, and how fast

`--messages-from ETL` has all but the last of real messages.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from pandas import DataFrame

from benchmarks.cases import STREAMS, make_case, make_stream
from benchmarks.command import Tell
from benchmarks.figures.sweeps import TIME, Asked, Page, Report, by, sweep, up_to
from benchmarks.harness import Bench, Running, time_beside
from benchmarks.workload import PLAIN, TopkRecipe, changed
from matching.errors import ConfigError
from matching.kinds import KINDS
from matching.topk.engines.skype import Pruning, Skype
from matching.topk.thresholds import RULES
from papers.skype.skype_paper import PaperRules, SkypePaper, SkypePaperTrees

_TOPK = KINDS.named("topk")
_SIZES = (100_000, 200_000, 500_000, 1_000_000, 2_000_000, 5_000_000)
_NUMBERS, _WINDOWS = (1, 2, 3, 4, 5), (10_000, 30_000, 100_000, 300_000, 1_000_000)
_ALPHAS = {alpha: TopkRecipe(alpha=(alpha, alpha)) for alpha in (0.1, 0.3, 0.5, 0.7, 0.9)} | {"uniform": PLAIN}
#: Of streams: long enough for whole batches, so that no engine tells changes oftener than another.
_MOST_STREAM_S, _MOST_STREAM = 15.0, 20_000
#: Of threshold rules: for how many windows the stream runs on; the first does not count, thresholds settle in it.
_WINDOWS_OF_RULES, _ROUNDS_A_WINDOW = 3, 4
_K_OF_RULES = (1, 10, 100)
_OF_RULES = TIME | {"refills a message": "refills_per_message", "entries a buffer": "entries_per_buffer"}
_COUNTED = TIME | {"postings a message": "scanned_per_message", "pairs a message": "verified_per_message"}
_COUNTED |= {"cells skipped, share": "cells_skipped_share"}
#: Engine `skype` with all rules and without each of them; then the paper's likewise, and over a tree for each keyword.
_WAYS = {"all": Pruning()}
_WAYS |= {f"no {rule}": Pruning()._replace(**{rule: False}) for rule, on in Pruning()._asdict().items() if on is True}
_PRUNING: dict[str, Any] = {name: partial(Skype, pruning=pruning) for name, pruning in _WAYS.items()}
_PRUNING |= {"skype_paper": SkypePaper}
_PRUNING |= {
    f"skype_paper without {rule}": partial(SkypePaper, rules=PaperRules()._replace(**{rule: False}))
    for rule in PaperRules._fields
}
_PRUNING |= {"skype_paper_trees": SkypePaperTrees}
_PRUNING |= {f"skype_paper_leaf_{leaf}": partial(SkypePaper, leaf=leaf) for leaf in (1_024, 64)}
_sweep = partial(sweep, engines=("skype", "skype_paper", "skype_paper_trees", "l2_scan", "ciq", "inverted_file"))


def _rule_case(asked: Asked, ks: Sequence[int] = _K_OF_RULES) -> Bench:
    """Rules over the same stream; of each k as many subscriptions."""
    rounds, size = _WINDOWS_OF_RULES * _ROUNDS_A_WINDOW, asked.subscriptions
    case = make_case(_TOPK, size, _WINDOWS_OF_RULES * asked.window, asked.window, rounds, asked.seed,
                     messages_from=asked.messages_from)  # fmt: skip
    drawn = np.random.default_rng([asked.seed, 11]).permutation(np.arange(size) % len(ks))
    table = changed(case.table, k=np.array(ks, np.int32)[drawn])
    case = case._replace(table=table, facts=case.facts | {"k": list(ks), "windows": _WINDOWS_OF_RULES})
    return Bench(case, rounds, options={name: {"threshold_rule": name} for name in RULES})


def _shares(of: str) -> Any:
    """A quarter, a half and the whole of what is asked for."""
    return lambda asked: [getattr(asked, of) // part for part in (4, 2, 1)]


def _buffers(running: Running) -> Report:
    buffers, held = running.operator.buffers, running.operator.buffers.describe()
    size_bytes = sum(array.nbytes for array in buffers.arrays().values())
    return {
        "entries_per_buffer": held["entries"] / max(1, held["buffers"]),
        "buffer_bytes_per_subscription": size_bytes / len(running.operator),
        "learned": running.operator.rule.describe(),
    }


def _rules(load: Bench, names: Sequence[str], tell: Tell, **how: Any) -> dict[str, Report]:
    """Time all of them the whole rounds, however slow; and what a refill and a hit in the buffers take."""
    measured = time_beside(load, names, tell, _buffers, _ROUNDS_A_WINDOW, **how | {"most_s": math.inf})
    for rule in measured.values():
        rounds = DataFrame(rule["rounds"])
        rule["updates_timed"] = round((rounds["updates_per_message"] * rounds["messages_timed"]).sum())
        # what settles comes in bursts: times are medians, but how often something comes is counted over all rounds
        rule |= rounds[_ROUNDS_A_WINDOW:].filter(regex="^(refills|matched|share)").mean().to_dict()
        refills_us, kept_us = (rule["us_per_message"] * rule[f"share_{part}"] for part in ("refills", "kept"))
        rule["us_per_refill"] = refills_us / (rule["refills_per_message"] or math.inf)
        rule["ns_per_hit"] = 1e3 * kept_us / rule["matched_per_message"]
    return agreed(measured)


def agreed(rules: dict[str, Report]) -> dict[str, Report]:
    """None is exact unless all tell the same number of updates."""
    same = len({rule["updates_timed"] for rule in rules.values()}) == 1
    return {name: rule | {"exact": rule["exact"] and same} for name, rule in rules.items()}


def _stream(asked: Asked, name: str) -> Bench:
    """A stream over a window of as many messages as there are subscriptions."""
    if asked.messages_from is not None:
        raise ConfigError("figure streams is of made up messages: leave --messages-from out")
    size = min(asked.subscriptions, _MOST_STREAM)
    case = make_stream(name, size, size, asked.messages * asked.rounds, asked.seed)
    return Bench(case._replace(facts=case.facts | {"subscriptions": size}), asked.rounds)


def _cells_skipped(running: Running) -> Report:
    """The share of pairs of message and cell that Lemma 6 skips, if it skips any."""
    engine = running.operator.engine
    counted = engine.counters() if isinstance(engine, SkypePaper) else {}
    return {"cells_skipped_share": counted["cells"] / counted["nodes"]} if counted.get("cells") else {}


_of_rules = partial(sweep, metrics=_OF_RULES, engines=RULES, turns=_rules)

PAGE = Page(
    _TOPK,
    {
        "subscriptions": [_sweep("subscriptions", up_to(_SIZES, _SIZES[1]), by("subscriptions"))],
        "k": [_sweep("k", (5, 10, 20, 50, 100), lambda asked, k: asked.bench(recipe=TopkRecipe(k=(k, k))))],
        "alpha": [_sweep("alpha", tuple(_ALPHAS), lambda asked, alpha: asked.bench(recipe=_ALPHAS[alpha]))],
        "keywords": [_sweep("keywords", _NUMBERS, lambda asked, n: asked.bench(recipe=TopkRecipe(keywords=(n, n))))],
        "window": [_sweep("messages in the window", up_to(_WINDOWS, 100_000, "window"), by("window"))],
        "thresholds-mixed": [_of_rules("threshold rule", ("",), lambda asked, _: _rule_case(asked))],
        "thresholds": [
            _of_rules("k", (1, 10, 50), lambda asked, k: _rule_case(asked, (k,))),
            _of_rules("messages in the window", _shares("window"),
                      lambda asked, size: _rule_case(asked._replace(window=size))),
            _of_rules("subscriptions", _shares("subscriptions"),
                      lambda asked, size: _rule_case(asked._replace(subscriptions=size))),
        ],
        "pruning": [
            sweep("rules", metrics=_COUNTED, engines=_PRUNING, turns=partial(time_beside, told=_cells_skipped))
        ],
        "streams": [_sweep("stream", tuple(STREAMS), _stream, most_s=_MOST_STREAM_S)],
    },
    messages=6_000,
)  # fmt: skip
