"""Figures for `boolean`, drawn from this machine: `skyray bench boolean --figure NAME`.

The evaluation of Yu, Li and Feng, "A Cost-based Method for Location-Aware Publish/Subscribe Services", CIKM 2015:

    lengths         the default, lfilter, its parts and its opponents against the words of a message     (figures 8, 9)
    opponents-usa   the same of opponents with 1 to 6 keywords, no stop words and small regions, as of shops with titles
                                                                                                         (figure 10)
    choice          lfilter as it chooses, beside its parts, each way forced upon it, and ways of probing (figure 7)

each for point and range messages, short (6 to 20 words) and long ones (100 to 1,000, a tenth as many). And our own:

    subscriptions   time, candidates, bytes, coming and leaving against the number of subscriptions, up to
                    --subscriptions or memory                                                            (figure 11)
    workloads       time, candidates and bytes of the default workload with one thing changed at a time

Read on in `benchmarks.harness`, which checks and times.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

from benchmarks.figures.sweeps import BYTES, CHANGES, TIME, Asked, Page, Sweep, sweep, up_to
from benchmarks.harness import Bench
from benchmarks.workload import PLAIN_BOOLEAN, REGIONS, SHAPES, TEXTS, BooleanRecipe
from matching.boolean.engines.lfilter import LFilter
from matching.boolean.engines.mbr_trie import MbrTrie
from matching.kinds import KINDS

_BOOLEAN = KINDS.named("boolean")
_SIZES = (10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000)
#: Words of a message: the paper's short and long ones.
_LENGTHS = {"short": (6, 10, 15, 20), "long": (100, 300, 600, 1000)}
#: Turns where ways within a few per cent of each other are told apart.
_CLOSE = 7
_PARTS = ("mbr_trie", "pt_quadtree")
_OPPONENTS = ("lfilter", "rt_tree", "ir_tree", "inverted_list")
_USA = BooleanRecipe(stop_words=False, keywords=(1, 6), regions="small")
_CANDIDATES = {"candidates a match": "candidates_per_match"}
#: One thing changed at a time: of messages that are drawn, and of any.
_DRAWN = {
    "no stop words": PLAIN_BOOLEAN._replace(stop_words=False),
    "places spread evenly": PLAIN_BOOLEAN._replace(places="uniform"),
    "long texts": PLAIN_BOOLEAN._replace(words=TEXTS["long"]),
}
_BY_REGION = {name: PLAIN_BOOLEAN._replace(regions=name) for name in REGIONS}
_ANY = {
    "default": PLAIN_BOOLEAN,
    "range messages": PLAIN_BOOLEAN._replace(shape="range"),
    "1 keyword": PLAIN_BOOLEAN._replace(keywords=(1, 1)),
    "1 to 6 keywords": PLAIN_BOOLEAN._replace(keywords=(1, 6)),
    **{f"{name} regions": recipe for name, recipe in _BY_REGION.items() if recipe != PLAIN_BOOLEAN},
}
# a round of a slow engine stops soon: there are many
_sweep = partial(sweep, most_s=1.5)


def _bench(asked: Asked, recipe: BooleanRecipe, **given: Any) -> Bench:
    """A case of a recipe; long messages cost fifty times as much to match, and are a tenth as many.

    Fewer, and what is timed is how the caches fill again behind the engine before, which nothing that a run would see.
    """
    fewer = 10 if recipe.words[0] >= TEXTS["long"][0] else 1
    return asked.bench(recipe=recipe, messages=max(1, asked.messages // fewer), checked=6_000, **given)


def _over(label: str, recipes: Mapping[Any, BooleanRecipe], title: str, rounds: int | None = None, **how: Any) -> Sweep:
    """Against one property of the workload."""

    def load(asked: Asked, value: Any) -> Bench:
        return _bench(asked, recipes[value], rounds=rounds or asked.rounds)

    return _sweep(label, tuple(recipes), load, title=title, **how)


def _by_length(recipe: BooleanRecipe, **how: Any) -> list[Sweep]:
    """Against the length of messages; points and ranges, short and long."""
    return [
        _over("words of a message", {n: recipe._replace(shape=shape, words=(n, n)) for n in lengths},
              f"{text} {shape} messages", **how)
        for shape, (text, lengths) in product(SHAPES, _LENGTHS.items())
    ]  # fmt: skip


def _choice() -> list[Sweep]:
    """The first is `lfilter` as it chooses, to which the others are set."""
    made = {name: _BOOLEAN.engines[name] for name in ("lfilter", *_PARTS)}
    for by, way in (("trie", "cheapest"), ("quadtree", "direct"), ("quadtree", "prune")):
        made[f"{by}, {way}"] = partial(LFilter, filter_by=by, verify_by=way)
    for way in ("probe_token_set", "probe_trie"):
        made[f"mbr_trie, {way}"] = partial(MbrTrie, strategy=way)
    regions = [
        _over("regions", {name: recipe._replace(shape=shape) for name, recipe in _BY_REGION.items()},
              f"short {shape} messages, by regions", _CLOSE, engines=made)
        for shape in SHAPES
    ]  # fmt: skip
    return _by_length(PLAIN_BOOLEAN, rounds=_CLOSE, engines=made) + regions


def _workloads(asked: Asked) -> Sequence[str]:
    return (*_ANY, *(_DRAWN if asked.messages_from is None else ()))


def figures() -> dict[str, list[Sweep]]:
    """Name to rows."""
    default = next(iter(_BOOLEAN.engines))
    return {
        "lengths": _by_length(PLAIN_BOOLEAN, engines=(default, *_PARTS, *_OPPONENTS)),
        "opponents-usa": _by_length(_USA, engines=(default, *_OPPONENTS)),
        "choice": _choice(),
        "subscriptions": [
            _sweep("subscriptions", up_to(_SIZES, _SIZES[0]),
                   lambda asked, n: _bench(asked, PLAIN_BOOLEAN, subscriptions=n),
                   TIME | _CANDIDATES | BYTES | CHANGES, changes=True)
        ],
        "workloads": [
            _sweep("workload", _workloads, lambda asked, name: _bench(asked, (_ANY | _DRAWN)[name]),
                   TIME | _CANDIDATES | BYTES)
        ],
    }  # fmt: skip


PAGE = Page(_BOOLEAN, figures(), messages=30_000)
