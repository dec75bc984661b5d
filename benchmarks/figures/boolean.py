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

import resource
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import psutil

from benchmarks.figures.sweeps import Asked, Page, Report, all_exact, beside, column, panels_of
from benchmarks.peers import PEERS
from benchmarks.workload import PLAIN_BOOLEAN, REGIONS, TEXTS, BooleanRecipe
from matching.boolean.engines.lfilter import LFilter
from matching.boolean.engines.mbr_trie import MbrTrie
from matching.kinds import KINDS

_BOOLEAN = KINDS.named("boolean")
_NAMES = tuple(_BOOLEAN.engines)
_SIZES = (10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000)
#: Words of a message: the paper's short and long ones.
_LENGTHS = {"short": (6, 10, 15, 20), "long": (100, 300, 600, 1000)}
#: Messages timed: long ones cost fifty times as much to make and to match.
_MESSAGES = {"short": 6_000, "long": 600}
#: A round of a slow engine stops after so long.
_MOST_S = 1.5
_CHECKED = (5_000, 6_000)
_PAPER = ("mbr_trie", "pt_quadtree", "lfilter")
_OPPONENTS = ("lfilter", "rt_tree", "ir_tree", "inverted_list")
_PROBING = ("cheapest", "probe_token_set", "probe_trie")
#: Ways of filtering and verifying that are forced on `lfilter` (figure choice).
_WAYS = (("trie", "cheapest"), ("quadtree", "direct"), ("quadtree", "prune"))
_USA = BooleanRecipe(stop_words=False, keywords=(1, 6), regions="small")
#: No larger size is begun if it would need more of the free memory than this.
_MOST_MEMORY = 0.8


def _measure(
    asked: Asked,
    names: Sequence[str],
    recipe: BooleanRecipe,
    size: int | None = None,
    changes: bool = False,
    made: dict[str, Any] | None = None,
) -> Report:
    """A workload by this recipe, with the peers among the engines."""
    text = "long" if recipe.words[0] >= TEXTS["long"][0] else "short"
    load = asked.bench(
        size, engines=made or {**asked.kind.engines, **PEERS}, recipe=recipe,
        messages=asked.messages or _MESSAGES[text], sample=_CHECKED[0], most_checked=_CHECKED[1],
    )  # fmt: skip
    return beside(load, names, asked.tell, most_s=_MOST_S, changes=changes)


def _among(asked: Asked, *wanted: str) -> tuple[str, ...]:
    """The engines asked for, else the default and those of `wanted`."""
    return asked.engines or (_NAMES[0], *(name for name in wanted if name != _NAMES[0]))


def _four_ways(asked: Asked, names: Sequence[str], recipe: BooleanRecipe, made: dict[str, Any] | None = None) -> Report:
    """Time against the length of messages; points and ranges, short and long."""
    panels, rows = [], []
    for shape in ("point", "range"):
        for text, lengths in _LENGTHS.items():
            mine = []
            for length in lengths:
                asked.tell(f"{shape} messages of {length} words")
                mine.append(_measure(asked, names, recipe._replace(shape=shape, words=(length, length)), made=made))
            series = column(mine, names, "us_per_message")
            panels.append({"title": f"{text} {shape} messages", "x": list(lengths), "series": series, **_PANEL})
            rows += mine
    return {"x_label": "words of a message", "x": [], "panels": panels, "exact": all_exact(rows), "rows": rows}


_PANEL = {"y_label": "microseconds a message", "log": (False, True)}


def _lengths(wanted: Sequence[str], recipe: BooleanRecipe, asked: Asked) -> Report:
    return _four_ways(asked, _among(asked, *wanted), recipe)


def _probing(asked: Asked) -> Report:
    """Ways of probing: the engine is the same but for its option."""
    return _four_ways(asked, _PROBING, PLAIN_BOOLEAN, {way: partial(MbrTrie, strategy=way) for way in _PROBING})


def _choice(asked: Asked) -> Report:
    """`lfilter` as it chooses, its two parts, and each way of filtering and verifying forced upon it."""
    made = {name: asked.kind.engines[name] for name in _PAPER}
    made |= {f"{by}, {way}": partial(LFilter, filter_by=by, verify_by=way) for by, way in _WAYS}
    report = _four_ways(asked, tuple(made), PLAIN_BOOLEAN, made)
    for shape in ("point", "range"):
        of_shape = {name: recipe._replace(shape=shape) for name, recipe in _BY_REGION.items()}
        mine = [_measure(asked, tuple(made), recipe, made=made) for recipe in of_shape.values()]
        groups = column(mine, tuple(made), "us_per_message")
        title = f"short {shape} messages, by regions"
        report["panels"].append({**_PANEL, "title": title, "x": list(of_shape), "groups": groups})
        report["rows"] += mine
    report["exact"] = all_exact(report["rows"])
    for row in report["rows"]:
        took = {name: result["us_per_message"] for name, result in row["engines"].items()}
        row["of_the_better_part"] = min(took[name] for name in _PAPER[:2]) / took["lfilter"]
        row["of_the_best_way"] = min(took.values()) / took["lfilter"]
    return report


def _growing(asked: Asked, measure: Callable[[int], list[Report]], panels: Callable[[list[Report]], list]) -> Report:
    """Measure size after size until the next would not fit into memory; says why it stopped."""
    done, rows, why = [], [], ""
    for size in (size for size in _SIZES if size <= max(asked.subscriptions, _SIZES[0])):
        if done:
            need = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 * size / done[-1]
            free = psutil.virtual_memory().available + psutil.Process().memory_info().rss
            if need > _MOST_MEMORY * free:
                why = f"{size:,} subscriptions left out: about {need / 1e9:.1f} GB needed, {free / 1e9:.1f} GB free"
                asked.tell(why)
                break
        asked.tell(f"{size:,} subscriptions")
        rows += measure(size)
        done.append(size)
    return {"x_label": "subscriptions", "x": done, "panels": panels(rows), "exact": all_exact(rows), "stopped": why,
            "rows": rows}  # fmt: skip


def _by_size(labels: dict[str, tuple[str, bool]], changes: bool, asked: Asked) -> Report:
    names = _among(asked, *_NAMES)
    return _growing(
        asked, lambda size: [_measure(asked, names, PLAIN_BOOLEAN, size, changes)],
        lambda rows: panels_of(rows, names, labels, x_log=True),
    )  # fmt: skip


def _scalability(asked: Asked) -> Report:
    """One engine; a line a length of message."""
    engine = asked.engines[0] if asked.engines else "lfilter"
    shown = [(shape, text, length) for shape in ("point", "range") for text in _LENGTHS for length in _LENGTHS[text]]

    def measure(size: int) -> list[Report]:
        recipes = (PLAIN_BOOLEAN._replace(shape=shape, words=(length, length)) for shape, _, length in shown)
        return [_measure(asked, (engine,), recipe, size) for recipe in recipes]

    def panels(rows: list[Report]) -> list[Report]:
        lines = {
            each: [row["engines"][engine]["us_per_message"] for row in rows[at :: len(shown)]]
            for at, each in enumerate(shown)
        }
        return [
            {
                "title": f"{engine}, {text} {shape} messages",
                "y_label": _PANEL["y_label"],
                "log": (True, True),
                "series": {f"{length} words": lines[shape, text, length] for length in _LENGTHS[text]},
            }
            for shape in ("point", "range")
            for text in _LENGTHS
        ]

    return _growing(asked, measure, panels)


def _by_recipe(asked: Asked, recipes: dict[Any, BooleanRecipe], title: str = "workload") -> list[Report]:
    """A row for each recipe."""
    rows = []
    for value, recipe in recipes.items():
        asked.tell(f"{title}: {value}")
        rows.append(_measure(asked, _among(asked, *_NAMES), recipe))
    return rows


def _by_shape(label: str, recipes: dict[Any, BooleanRecipe], asked: Asked) -> Report:
    """Time against one property of the workload, for point and range messages; lines for numbers, bars for names."""
    panels, rows = [], []
    drawn = "series" if isinstance(next(iter(recipes)), int) else "groups"
    for shape in ("point", "range"):
        title, of_shape = f"{shape} messages", {x: recipe._replace(shape=shape) for x, recipe in recipes.items()}
        mine = _by_recipe(asked, of_shape, title)
        panels.append({**_PANEL, drawn: column(mine, tuple(mine[0]["engines"]), "us_per_message"), "title": title})
        rows += mine
    return {"x_label": label, "x": list(recipes), "panels": panels, "exact": all_exact(rows), "rows": rows}


_BY_REGION = {name: PLAIN_BOOLEAN._replace(regions=name) for name in REGIONS}
#: Up to so many: words are drawn one by one, and hardly a message has six that were.
_BY_KEYWORDS = {n: PLAIN_BOOLEAN._replace(keywords=(1, n)) for n in range(1, 7)}


def _grouped(
    label: str, recipes: dict[Any, BooleanRecipe], labels: dict[str, tuple[str, bool]], asked: Asked
) -> Report:
    """Bars against the names of recipes, a panel a figure."""
    rows = _by_recipe(asked, recipes)
    names = tuple(rows[0]["engines"])
    panels = [
        {"y_label": y_label, "log": (False, log), "groups": column(rows, names, key)}
        for y_label, (key, log) in labels.items()
    ]
    return {"x_label": label, "x": list(recipes), "panels": panels, "exact": all_exact(rows), "rows": rows}


def _workloads(asked: Asked) -> Report:
    plain = PLAIN_BOOLEAN
    recipes: dict[Any, BooleanRecipe] = {"default": plain}
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
    labels = {_PANEL["y_label"]: ("us_per_message", True), "candidates a match": ("candidates_per_match", True)}
    return _grouped("workload", recipes, labels, asked)


_GROWTH = {
    "microseconds a message": ("us_per_message", True),
    "candidates a match": ("candidates_per_match", True),
    "bytes a subscription": ("bytes_per_subscription", False),
}
_CHANGES = {"subscribe a second": ("subscribe_per_s", True), "unsubscribe a second": ("unsubscribe_per_s", True)}
_MEMORY = {"bytes a subscription": ("bytes_per_subscription", False)}

PAGE = Page(
    _BOOLEAN,
    {
        "probing": _probing,
        "lengths": partial(_lengths, _PAPER, PLAIN_BOOLEAN),
        "opponents": partial(_lengths, _OPPONENTS, PLAIN_BOOLEAN),
        "opponents-usa": partial(_lengths, _OPPONENTS, _USA),
        "choice": _choice,
        "scalability": _scalability,
        "subscriptions": partial(_by_size, _GROWTH, False),
        "updates": partial(_by_size, _CHANGES, True),
        "keywords": partial(_by_shape, "keywords at most", _BY_KEYWORDS),
        "regions": partial(_by_shape, "regions", _BY_REGION),
        "memory": partial(_grouped, "regions", _BY_REGION, _MEMORY),
        "workloads": _workloads,
    },
    check_engine=lambda name: replace(_BOOLEAN, engines={**_BOOLEAN.engines, **PEERS}).engine(name),
)
