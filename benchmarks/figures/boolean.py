"""Figures for `boolean`, drawn from this machine: `skyray bench boolean --figure NAME`.

Yu, Li and Feng, "A Cost-based Method for Location-Aware Publish/Subscribe Services", CIKM 2015, and our own:

    lengths         the default, lfilter, its parts and its opponents against the words of a message      (figures 8, 9)
    opponents-usa   the same with 1 to 6 keywords, no stop words and small regions, as of shops with titles  (figure 10)
    places          lfilter, the paper's and their opponents by length; points and ranges, uniform and clustered
    choice          lfilter as it chooses, beside its parts, each way forced upon it, and ways of probing     (figure 7)
    printed         the printed LFilter and its parts beside ours and their opponents, keywords drawn as the paper
                    draws them, against the number of subscriptions, up to --subscriptions  (figures 8, 9, 11, table 1)
    subscriptions   against the number of subscriptions, up to --subscriptions
    workloads       the default workload with one thing changed at a time
    searches        saved searches, with conditions and shapes, against their number, up to --subscriptions

The first three are for point and range messages, short and long.
"""

from collections.abc import Mapping
from functools import partial
from itertools import product
from typing import Any

from benchmarks.figures.sweeps import BYTES, CHANGES, TIME, Asked, Page, Sweep, sweep, up_to
from benchmarks.harness import Bench
from benchmarks.workload import PLAIN_BOOLEAN, REGIONS, SHAPES, TEXTS, BooleanRecipe
from matching.kinds import KINDS
from papers.lfilter.lfilter import LFilter
from papers.lfilter.lfilter_paper import LFilterPaper
from papers.lfilter.mbr_trie import MbrTrie

_BOOLEAN = KINDS.named("boolean")
_SIZES = (10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000)
#: Words of a message: the paper's short and long ones.
_LENGTHS = {"short": (6, 10, 15, 20), "long": (100, 300, 600, 1000)}
#: Of a figure that is small: the fewest words that are there, and those from which on the paper's claims hold.
_FEW_LENGTHS = (3, 10, 30, 100, 300, 1000)
_DEFAULT, _PARTS = next(iter(_BOOLEAN.engines)), ("mbr_trie", "pt_quadtree")
_OPPONENTS = ("lfilter", "lfilter_paper", "rt_tree", "rtpp_tree", "ir_tree", "inverted_list")
#: The first is `lfilter` as it chooses, by which the others are measured; turns tell them apart that are hardly so.
_WAYS = {
    **{name: _BOOLEAN.engines[name] for name in ("lfilter", "lfilter_paper", *_PARTS)},
    "trie, cheapest": partial(LFilter, filter_by="trie", verify_by="cheapest"),
    "quadtree, direct": partial(LFilter, filter_by="quadtree", verify_by="direct"),
    "quadtree, prune": partial(LFilter, filter_by="quadtree", verify_by="prune"),
    "mbr_trie, probe_token_set": partial(MbrTrie, strategy="probe_token_set"),
    "mbr_trie, probe_trie": partial(MbrTrie, strategy="probe_trie"),
}
_CHOICE = {"engines": _WAYS, "rounds": 7}
_PRINTED = {
    "lfilter_paper": LFilterPaper,
    "mbr_trie_paper": partial(LFilterPaper, by="trie"),
    "pt_quadtree_paper": partial(LFilterPaper, by="quadtree"),
    **{name: _BOOLEAN.engines[name] for name in ("lfilter", *_PARTS, "rtpp_tree", "ir_tree")},
}
#: The paper's numbers, and a tenth; its keywords, and of its messages short ones and those that its text speaks of.
_PRINTED_SIZES, _TWITTER = (
    (200_000, 600_000, 2_000_000, 6_000_000, 10_000_000),
    BooleanRecipe(stop_words=False, tokens="frequent"),
)
_PRINTED_LENGTHS = (10, 600)
_USA = BooleanRecipe(stop_words=False, keywords=(1, 6), regions="small")
_REGIONS = {name: {"regions": name} for name in REGIONS}
#: What is changed of the default workload.
_WORKLOADS = {
    "default": {},
    "no stop words": {"stop_words": False},
    "places spread evenly": {"places": "uniform"},
    "long texts": {"words": TEXTS["long"]},
    "range messages": {"shape": "range"},
    "1 keyword": {"keywords": (1, 1)},
    "1 to 6 keywords": {"keywords": (1, 6)},
    **{f"{name} regions": changed for name, changed in _REGIONS.items() if name != PLAIN_BOOLEAN.regions},
}
#: Saved searches, and those of the largest portals.
_SEARCHES, _SEARCH_ENGINES = (100_000, 300_000, 1_000_000, 4_600_000), (_DEFAULT, "lfilter", "inverted_list")
_SHOWN = TIME | {"candidates a match": "candidates_per_match"} | BYTES
#: Of saved searches; a candidate has the keywords and meets the box, and its program decides.
_SHOWN_OF_SEARCHES = TIME | {
    "candidates a match": "candidates_per_match",
    "bytes a search without ids and rings": "bytes_of_all_else",
    "ms of a message alone, 99 of 100": "alone_p99_ms",
}
#: A round of a slow engine stops after so long: there are many.
_MOST_S = 1.5


def _bench(asked: Asked, recipe: BooleanRecipe, **given: Any) -> Bench:
    """A case of a recipe; long messages, which cost fifty times as much to match, are a tenth as many.

    With fewer, what is timed is how the caches fill again behind the engine before, and nothing that a run would see.
    """
    messages = -(-asked.messages // (10 if recipe.words[0] >= TEXTS["long"][0] else 1))
    return asked.bench(recipe=recipe, messages=messages, checked=6_000, **given)


def _recipes(
    label: str,
    changed: Mapping[Any, dict[str, Any]],
    recipe: BooleanRecipe = PLAIN_BOOLEAN,
    rounds: int = 0,
    **how: Any,
) -> Sweep:
    """Against a property of the workload, by what its values change of a recipe."""

    def load(asked: Asked, value: Any) -> Bench:
        return _bench(asked, recipe._replace(**changed[value]), rounds=rounds or asked.rounds)

    return sweep(label, tuple(changed), load, most_s=_MOST_S, **how)


def _by_length(recipe: BooleanRecipe, **how: Any) -> list[Sweep]:
    """Against the length of messages; points and ranges, short and long."""
    return [
        _recipes("words of a message", {n: {"words": (n, n)} for n in lengths}, recipe._replace(shape=shape),
                 title=f"{text} {shape} messages", **how)
        for shape, (text, lengths) in product(SHAPES, _LENGTHS.items())
    ]  # fmt: skip


def _printed(shape: str, words: int, asked: Asked, size: int) -> Bench:
    """A case of the paper's recipe."""
    return _bench(asked, _TWITTER._replace(shape=shape, words=(words, words)), subscriptions=size)


def figures() -> dict[str, list[Sweep]]:
    """Name to rows."""
    by_region = [
        _recipes("regions", _REGIONS, PLAIN_BOOLEAN._replace(shape=shape), title=f"short {shape} messages, by regions",
                 **_CHOICE)
        for shape in SHAPES
    ]  # fmt: skip
    return {
        "lengths": _by_length(PLAIN_BOOLEAN, engines=(_DEFAULT, *_PARTS, *_OPPONENTS)),
        "opponents-usa": _by_length(_USA, engines=(_DEFAULT, *_OPPONENTS)),
        "places": [
            _recipes("words of a message", {n: {"words": (n, n)} for n in _FEW_LENGTHS},
                     PLAIN_BOOLEAN._replace(shape=shape, places=places),
                     title=f"{shape} messages, places {places}", engines=(*_OPPONENTS, *_PARTS))
            for shape, places in product(SHAPES, ("clustered", "uniform"))
        ],
        "choice": _by_length(PLAIN_BOOLEAN, **_CHOICE) + by_region,
        "printed": [
            sweep("subscriptions", up_to(_PRINTED_SIZES, _PRINTED_SIZES[0]), partial(_printed, shape, words),
                  _SHOWN, f"{shape} messages of {words} words", _PRINTED, most_s=_MOST_S)
            for shape, words in product(SHAPES, _PRINTED_LENGTHS)
        ],
        "subscriptions": [
            sweep("subscriptions", up_to(_SIZES, _SIZES[0]),
                  lambda asked, size: _bench(asked, PLAIN_BOOLEAN, subscriptions=size),
                  _SHOWN | CHANGES, changes=True, most_s=_MOST_S)
        ],
        "workloads": [_recipes("workload", _WORKLOADS, metrics=_SHOWN)],
        "searches": [
            sweep("searches", up_to(_SEARCHES, _SEARCHES[0]),
                  lambda asked, size: _bench(asked, BooleanRecipe.parse("saved-searches"), subscriptions=size),
                  _SHOWN_OF_SEARCHES, engines=_SEARCH_ENGINES, most_s=_MOST_S)
        ],
    }  # fmt: skip


PAGE = Page(_BOOLEAN, figures(), messages=30_000)
