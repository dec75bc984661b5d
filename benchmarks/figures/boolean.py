"""Figures for `boolean`, drawn from this machine: `skyray bench boolean --figure NAME`.

The evaluation of Yu, Li and Feng, "A Cost-based Method for Location-Aware Publish/Subscribe Services", CIKM 2015:

    probing         ways of probing inside engine `mbr_trie`                                            (figure 7)
    lengths         mbr_trie, pt_quadtree, lfilter and the default against the length of messages       (figure 8)
    opponents       lfilter beside rt_tree, ir_tree, inverted_list and the default                      (figure 9)
    choice          lfilter as it chooses, beside its parts and each way forced upon it
    opponents-usa   the same with 1 to 6 keywords, no stop words and small regions, as of shops with titles  (figure 10)
    scalability     lfilter against the number of subscriptions, at several lengths                     (figure 11)

each for point and range messages, short (6 to 20 words) and long ones (100 to 1,000). And our own:

    subscriptions   time, candidates and bytes against the number of subscriptions, up to --subscriptions or memory
    keywords, regions     time against keywords and sizes of regions, for point and range messages
    memory, updates       bytes and building by sizes of regions; coming and leaving against the number of subscriptions
    workloads       stop words, places, texts, messages, regions: the default workload with one thing changed at a time

Answers are checked against the oracle before anything is measured; engines take turns; figures are medians. A figure is
written as JSON and as PNG. Read on in `benchmarks.harness`.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks.figures.sweeps import Asked, Page, Part, Report, Sweep, sweep, up_to
from benchmarks.workload import PLAIN_BOOLEAN, REGIONS, SHAPES, TEXTS, BooleanRecipe
from matching.boolean.engines.lfilter import LFilter
from matching.boolean.engines.mbr_trie import MbrTrie
from matching.kinds import KINDS

_BOOLEAN = KINDS.named("boolean")
_NAMES = tuple(_BOOLEAN.engines)
_SIZES = (10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000)
#: Words of a message: the paper's short and long ones.
_LENGTHS = {"short": (6, 10, 15, 20), "long": (100, 300, 600, 1000)}
#: Messages of a turn: long ones cost fifty times as much to match. Too few, and what is timed is how the caches fill
#: again behind the engine before: dearer the more an engine has, and nothing that a run would see.
_MESSAGES = {"short": 30_000, "long": 3_000}
#: Turns where ways within a few per cent of each other are told apart.
_CLOSE = 7
#: A round of a slow engine stops after so long.
_MOST_S = 1.5
_CHECKED = (5_000, 6_000)
_PAPER = ("mbr_trie", "pt_quadtree", "lfilter")
_OPPONENTS = ("lfilter", "rt_tree", "ir_tree", "inverted_list")
_PROBING = ("cheapest", "probe_token_set", "probe_trie")
#: Ways of filtering and verifying that are forced on `lfilter` (figure choice).
_WAYS = (("trie", "cheapest"), ("quadtree", "direct"), ("quadtree", "prune"))
_USA = BooleanRecipe(stop_words=False, keywords=(1, 6), regions="small")

_US = {"microseconds a message": "us_per_message"}
_CANDIDATES = {"candidates a match": "candidates_per_match"}
_BYTES = {"bytes a subscription": "bytes_per_subscription"}
_CHANGES = {"subscribe a second": "subscribe_per_s", "unsubscribe a second": "unsubscribe_per_s"}
_BY_REGION = {name: PLAIN_BOOLEAN._replace(regions=name) for name in REGIONS}
#: Up to so many: words are drawn one by one, and hardly a message has six that were.
_BY_KEYWORDS = {n: PLAIN_BOOLEAN._replace(keywords=(1, n)) for n in range(1, 7)}


def _of(recipe: BooleanRecipe) -> dict[str, Any]:
    """What a recipe sets of `Asked.bench`."""
    text = "long" if recipe.words[0] >= TEXTS["long"][0] else "short"
    sample, checked = _CHECKED
    return {"recipe": recipe, "messages_by_default": _MESSAGES[text], "sample": sample, "most_checked": checked}


def _by_length(recipe: BooleanRecipe) -> list[Part]:
    """Against the length of messages; points and ranges, short and long."""

    def of(shape: str) -> Callable[[int], dict[str, Any]]:
        return lambda length: _of(recipe._replace(shape=shape, words=(length, length)))

    return [Part(_LENGTHS[text], of(shape), f"{text} {shape} messages") for shape in SHAPES for text in _LENGTHS]


def _by_shape(recipes: Mapping[Any, BooleanRecipe], title: str = "{} messages") -> list[Part]:
    """Against one property of the workload, for point and range messages; lines for numbers, bars for names."""
    values = tuple(recipes)

    def of(shape: str) -> Callable[[Any], dict[str, Any]]:
        return lambda value: _of(recipes[value]._replace(shape=shape))

    return [Part(values, of(shape), title.format(shape), named=isinstance(values[0], str)) for shape in SHAPES]


def _by_size(shape: str, text: str) -> Part:
    """Against the number of subscriptions; a line a length of message."""
    lines = {f"{n} words": _of(PLAIN_BOOLEAN._replace(shape=shape, words=(n, n))) for n in _LENGTHS[text]}
    sizes = up_to(_SIZES, _SIZES[0])
    return Part(sizes, lambda size: {"subscriptions": size}, f"{text} {shape} messages", log=True, lines=lines)


def _compared_ways(ways: Mapping[str, Report]) -> Report:
    """How much longer `lfilter` takes than the better of its parts, and than the best way."""
    took = {name: way["us_per_message"] for name, way in ways.items()}
    better = min(took[name] for name in _PAPER[:2])
    return {"of_the_better_part": better / took["lfilter"], "of_the_best_way": min(took.values()) / took["lfilter"]}


def _among(wanted: Sequence[str]) -> tuple[str, ...]:
    """The default and those of `wanted`."""
    return (_NAMES[0], *(name for name in wanted if name != _NAMES[0]))


def _grown(metrics: Mapping[str, str], changes: bool = False) -> Sweep:
    """Engines against the number of subscriptions, as far as there is memory."""
    return sweep(
        "subscriptions", up_to(_SIZES, _SIZES[0]), lambda size: {**_of(PLAIN_BOOLEAN), "subscriptions": size},
        log=True, metrics=metrics, engines=_NAMES, changes=changes, growing=True, most_s=_MOST_S,
    )  # fmt: skip


def _named(label: str, recipes: Mapping[str, BooleanRecipe], metrics: Mapping[str, str]) -> Sweep:
    """Bars against the names of recipes, a panel a figure."""
    given = {name: _of(recipe) for name, recipe in recipes.items()}
    return sweep(label, tuple(given), given.__getitem__, named=True, metrics=metrics, engines=_NAMES, most_s=_MOST_S)


def _workloads(asked: Asked) -> Report:
    plain = PLAIN_BOOLEAN
    recipes = {"default": plain}
    if asked.messages_from is None:
        recipes |= {
            "no stop words": plain._replace(stop_words=False),
            "places spread evenly": plain._replace(places="uniform"),
            "long texts": plain._replace(words=TEXTS["long"]),
        }
    recipes |= {
        "range messages": plain._replace(shape="range"),
        "one keyword": plain._replace(keywords=(1, 1)),
        **{f"{name} regions": recipe for name, recipe in _BY_REGION.items() if name != plain.regions},
    }
    return _named("workload", recipes, _US | _CANDIDATES).measure(asked)


def figures() -> Mapping[str, Sweep | Callable[[Asked], Report]]:
    """Name to row."""
    words = partial(Sweep, "words of a message", metrics=_US, most_s=_MOST_S)
    ways = {f"{by}, {way}": partial(LFilter, filter_by=by, verify_by=way) for by, way in _WAYS}
    by_region = _by_shape(_BY_REGION, "short {} messages, by regions")
    return {
        "probing": words(_by_length(PLAIN_BOOLEAN), made={way: partial(MbrTrie, strategy=way) for way in _PROBING}),
        "lengths": words(_by_length(PLAIN_BOOLEAN), engines=_among(_PAPER)),
        "opponents": words(_by_length(PLAIN_BOOLEAN), engines=_among(_OPPONENTS)),
        "opponents-usa": words(_by_length(_USA), engines=_among(_OPPONENTS)),
        "choice": words(
            _by_length(PLAIN_BOOLEAN) + by_region, rounds=_CLOSE, compared=_compared_ways,
            made={name: _BOOLEAN.engines[name] for name in _PAPER} | ways,
        ),
        "scalability": Sweep(
            "subscriptions", [_by_size(shape, text) for shape in SHAPES for text in _LENGTHS], _US,
            engines=("lfilter",), growing=True, most_s=_MOST_S,
        ),
        "subscriptions": _grown(_US | _CANDIDATES | _BYTES),
        "updates": _grown(_CHANGES, changes=True),
        "keywords": Sweep("keywords at most", _by_shape(_BY_KEYWORDS), _US, engines=_NAMES, most_s=_MOST_S),
        "regions": Sweep("regions", _by_shape(_BY_REGION), _US, engines=_NAMES, most_s=_MOST_S),
        "memory": _named("regions", _BY_REGION, _BYTES),
        "workloads": _workloads,
    }  # fmt: skip


PAGE = Page(_BOOLEAN, figures())
