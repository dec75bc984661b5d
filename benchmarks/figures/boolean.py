"""Figures for `boolean`, drawn from this machine: `skyray bench boolean --figure NAME`.

The evaluation of Yu, Li and Feng, "A Cost-based Method for Location-Aware Publish/Subscribe Services", CIKM 2015:

    probing         ways of probing inside engine `mbr_trie`                                            (figure 7)
    lengths         mbr_trie, pt_quadtree, lfilter and the default against the length of messages       (figure 8)
    opponents       lfilter beside rt_tree, inverted_list and the default                               (figure 9)
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
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import psutil

from benchmarks.cases import make_case
from benchmarks.figures.drawing import pyplot, write
from benchmarks.harness import Bench
from benchmarks.peers import PEERS
from benchmarks.workload import PLAIN_BOOLEAN, REGIONS, TEXTS, BooleanRecipe
from matching.boolean.engines.mbr_trie import MbrTrie
from matching.errors import ConfigError
from matching.kind_table import Kind
from matching.kinds import KINDS
from matching.warmup import warm_engine

Tell = Callable[[str], None]

_BOOLEAN = KINDS.named("boolean")
_NAMES = tuple(_BOOLEAN.engines)
_SIZES = (10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000)
#: Words of a message: the paper's short and long ones.
_LENGTHS = {"short": (6, 10, 15, 20), "long": (100, 300, 600, 1000)}
#: Messages timed: long ones cost fifty times as much to make and to match.
_MESSAGES = {"short": 6_000, "long": 600}
_ROUNDS = 3
#: A round of a slow engine stops after so long.
_MOST_S = 1.5
_CHECKED = (5_000, 2_000)
_PAPER = ("mbr_trie", "pt_quadtree", "lfilter")
_OPPONENTS = ("lfilter", "rt_tree", "inverted_list")
_PROBING = ("cheapest", "probe_token_set", "probe_trie")
_USA = BooleanRecipe(stop_words=False, keywords=(1, 6), regions="small")
#: No larger size is begun if it would need more of the free memory than this.
_MOST_MEMORY = 0.8


class Task(NamedTuple):
    """What a figure is asked for.

    messages : int or None       timed messages; None leaves it to the figure
    engines : tuple of str       empty leaves them to the figure
    messages_from : str or None  ETL output directory
    """

    subscriptions: int
    messages: int | None
    engines: tuple[str, ...]
    seed: int
    messages_from: str | None
    tell: Tell

    def bench(
        self, recipe: BooleanRecipe, subscriptions: int | None = None, text: str = "short", kind: Kind | None = None
    ) -> Bench:
        """A workload by this recipe."""
        count = (self.messages or _MESSAGES[text]) * _ROUNDS
        size, of_kind = subscriptions or self.subscriptions, kind or _with_peers()
        source = self.messages_from
        case = make_case(of_kind, size, count, None, _ROUNDS, self.seed, recipe=recipe, messages_from=source)
        return Bench(case, _ROUNDS, sample=_CHECKED[0], checked=_CHECKED[1])

    def among(self, *wanted: str) -> tuple[str, ...]:
        """The engines asked for, else the default and those of `wanted`."""
        return self.engines or (_NAMES[0], *(name for name in wanted if name != _NAMES[0]))


def _with_peers() -> Kind:
    """The kind with the peers among its engines."""
    return replace(_BOOLEAN, engines={**_BOOLEAN.engines, **PEERS})


def figure(
    name: str,
    out: Path,
    subscriptions: int = 100_000,
    window: int | None = None,
    messages: int | None = None,
    engines: Sequence[str] | None = None,
    seed: int = 0,
    messages_from: str | None = None,
    on_progress: Tell | None = None,
) -> dict[str, Any]:
    """Measure and draw a figure; writes `boolean-NAME.json` and `boolean-NAME.png` into `out`.

    Raises
    ------
    ConfigError
        For a name nobody knows, an engine that is not there, a window, or if matplotlib is not installed.
    """
    if name not in FIGURES:
        raise ConfigError(f"figure {name!r}: choose one of {', '.join(FIGURES)}")
    if window is not None:
        raise ConfigError("boolean subscriptions have no window: leave --window out")
    for engine in engines or ():
        _with_peers().engine(engine)
        if engine in PEERS and (missing := PEERS[engine].absence()):
            raise ConfigError(f"{engine}: {missing.reason}. Install it: {missing.install}")
    draw_with = pyplot()
    tell = on_progress or (lambda _: None)
    tell("compiling kernels")
    for engine in engines or _NAMES:
        if engine in _NAMES:
            warm_engine(_BOOLEAN, engine)
    task = Task(subscriptions, messages, tuple(engines or ()), seed, messages_from, tell)
    report = {"figure": name, **FIGURES[name](task)}
    if report["x_label"] != "subscriptions":
        report["over"] = f"{subscriptions:,} subscriptions"
    write(draw_with, report, out / f"boolean-{name}")
    tell(f"written: {out}/boolean-{name}.json and .png")
    return report


def _beside(task: Task, load: Bench, names: Sequence[str], changes: bool = False) -> dict[str, Any]:
    """Build, check, and time in turns: medians of every figure by engine."""
    measured: dict[str, dict[str, Any]] = {}
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    with ExitStack() as running:
        built = {}
        for name in names:
            built[name] = load.build(name)
            running.callback(built[name].close)
            measured[name] = load.check(built[name]) | load.memory(built[name])
        for turn in range(load.rounds):
            for name, engine in built.items():
                rows[name].append(load.time(engine, turn, _MOST_S, changes))
    for name, turns in rows.items():
        measured[name] |= {key: median(turn[key] for turn in turns) for key in turns[0]}
        if "verified_per_message" in turns[0]:
            # without a match nothing can be said per match
            found = measured[name]["matched_per_message"] or None
            measured[name]["candidates_per_match"] = found and measured[name]["verified_per_message"] / found
        row = measured[name]
        task.tell(f"  {name}: {row['us_per_message']:,.1f} us, exact: {row['exact']}, {row['compared']:,} compared")
    return {"workload": load.workload, "engines": measured}


def _column(rows: Sequence[dict[str, Any]], names: Sequence[str], key: str) -> dict[str, list[Any]]:
    """Name to one value a row; engines that have none at all are left out."""
    series = {name: [row["engines"][name].get(key) for row in rows] for name in names}
    return {name: values for name, values in series.items() if any(value is not None for value in values)}


def _all_exact(rows: Sequence[dict[str, Any]]) -> bool:
    return all(result["exact"] for row in rows for result in row["engines"].values())


def _four_ways(task: Task, recipe: BooleanRecipe, names: Sequence[str], kind: Kind | None = None) -> dict[str, Any]:
    """Time against the length of messages; points and ranges, short and long."""
    panels, rows = [], []
    for shape in ("point", "range"):
        for text, lengths in _LENGTHS.items():
            mine = []
            for length in lengths:
                task.tell(f"{shape} messages of {length} words")
                load = task.bench(recipe._replace(shape=shape, words=(length, length)), text=text, kind=kind)
                mine.append(_beside(task, load, names))
            panels.append(
                {
                    "title": f"{text} {shape} messages",
                    "x": list(lengths),
                    "y_label": "microseconds a message",
                    "log": (False, True),
                    "series": _column(mine, names, "us_per_message"),
                }
            )
            rows += mine
    return {"x_label": "words of a message", "x": [], "panels": panels, "exact": _all_exact(rows), "rows": rows}


def _lengths(wanted: Sequence[str], recipe: BooleanRecipe, task: Task) -> dict[str, Any]:
    return _four_ways(task, recipe, task.among(*wanted))


def _probing(task: Task) -> dict[str, Any]:
    """Ways of probing: the engine is the same but for its option."""
    ways = {way: partial(MbrTrie, strategy=way) for way in _PROBING}
    return _four_ways(task, PLAIN_BOOLEAN, _PROBING, replace(_BOOLEAN, engines=ways))


def _sizes(task: Task) -> list[int]:
    return [size for size in _SIZES if size <= max(task.subscriptions, _SIZES[0])]


def _growing(task: Task, measure: Callable[[int], dict[str, Any]]) -> tuple[list[int], list[dict[str, Any]], str]:
    """Measure size after size until the next would not fit into memory; returns sizes, rows, and why it stopped."""
    done, rows = [], []
    for size in _sizes(task):
        if done:
            need = _peak_bytes() * size / done[-1]
            free = psutil.virtual_memory().available + psutil.Process().memory_info().rss
            if need > _MOST_MEMORY * free:
                why = f"{size:,} subscriptions left out: about {need / 1e9:.1f} GB needed, {free / 1e9:.1f} GB free"
                task.tell(why)
                return done, rows, why
        task.tell(f"{size:,} subscriptions")
        rows.append(measure(size))
        done.append(size)
    return done, rows, ""


def _peak_bytes() -> int:
    """The most this process has held so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _lines(rows: Sequence[dict[str, Any]], names: Sequence[str], labels: dict[str, tuple[str, bool]], x_log: bool):
    """A panel of lines for each label: (key, whether y is logarithmic)."""
    made = (
        {"y_label": label, "log": (x_log, log), "series": _column(rows, names, key)}
        for label, (key, log) in labels.items()
    )
    return [panel for panel in made if panel["series"]]


def _subscriptions(task: Task) -> dict[str, Any]:
    names = task.among(*_NAMES)

    def measure(size: int) -> dict[str, Any]:
        load = task.bench(PLAIN_BOOLEAN, size)
        return _beside(task, load, names)

    sizes, rows, stopped = _growing(task, measure)
    labels = {
        "microseconds a message": ("us_per_message", True),
        "candidates a match": ("candidates_per_match", True),
        "bytes a subscription": ("bytes_per_subscription", False),
    }
    panels = _lines(rows, names, labels, x_log=True)
    return {"x_label": "subscriptions", "x": sizes, "panels": panels, "exact": _all_exact(rows), "stopped": stopped,
            "rows": rows}  # fmt: skip


def _updates(task: Task) -> dict[str, Any]:
    names = task.among(*_NAMES)

    def measure(size: int) -> dict[str, Any]:
        load = task.bench(PLAIN_BOOLEAN, size)
        return _beside(task, load, names, changes=True)

    sizes, rows, stopped = _growing(task, measure)
    labels = {"subscribe a second": ("subscribe_per_s", True), "unsubscribe a second": ("unsubscribe_per_s", True)}
    panels = _lines(rows, names, labels, x_log=True)
    return {"x_label": "subscriptions", "x": sizes, "panels": panels, "exact": _all_exact(rows), "stopped": stopped,
            "rows": rows}  # fmt: skip


def _scalability(task: Task) -> dict[str, Any]:
    """One engine; a line a length of message."""
    engine = task.engines[0] if task.engines else next(reversed(task.among("lfilter")))
    measured: dict[tuple[str, int], list[Any]] = {
        (shape, length): []
        for shape in ("point", "range")
        for lengths in _LENGTHS.values()
        for length in lengths
    }  # fmt: skip

    def measure(size: int) -> dict[str, Any]:
        rows = []
        for shape, length in measured:
            text = "short" if length in _LENGTHS["short"] else "long"
            load = task.bench(PLAIN_BOOLEAN._replace(shape=shape, words=(length, length)), size, text)
            rows.append(_beside(task, load, (engine,)))
            measured[shape, length].append(rows[-1]["engines"][engine]["us_per_message"])
        return {"sizes": rows}

    sizes, steps, stopped = _growing(task, measure)
    rows = [row for step in steps for row in step["sizes"]]
    panels = [
        {
            "title": f"{engine}, {text} {shape} messages",
            "y_label": "microseconds a message",
            "log": (True, True),
            "series": {f"{length} words": measured[shape, length] for length in lengths},
        }
        for shape in ("point", "range")
        for text, lengths in _LENGTHS.items()
    ]
    return {"x_label": "subscriptions", "x": sizes, "panels": panels, "exact": _all_exact(rows), "stopped": stopped,
            "rows": rows}  # fmt: skip


def _by_recipe(task: Task, recipes: dict[Any, BooleanRecipe], **panel: Any) -> tuple[Any, list[dict[str, Any]]]:
    """Time against one property of the workload."""
    names, rows = task.among(*_NAMES), []
    for value, recipe in recipes.items():
        task.tell(f"{panel.get('title', 'workload')}: {value}")
        load = task.bench(recipe, text="long" if recipe.words == TEXTS["long"] else "short")
        rows.append(_beside(task, load, names))
    drawn = _column(rows, names, "us_per_message")
    return {
        **panel,
        "y_label": "microseconds a message",
        "series" if isinstance(next(iter(recipes)), int) else "groups": drawn,
    }, rows


def _keywords(task: Task) -> dict[str, Any]:
    panels, rows = [], []
    for shape in ("point", "range"):
        recipes = {n: PLAIN_BOOLEAN._replace(keywords=(n, n), shape=shape) for n in range(1, 7)}
        panel, mine = _by_recipe(task, recipes, title=f"{shape} messages", log=(False, True))
        panels.append(panel)
        rows += mine
    return {"x_label": "keywords", "x": list(range(1, 7)), "panels": panels, "exact": _all_exact(rows), "rows": rows}


def _regions(task: Task) -> dict[str, Any]:
    panels, rows = [], []
    for shape in ("point", "range"):
        recipes = {name: PLAIN_BOOLEAN._replace(regions=name, shape=shape) for name in REGIONS}
        panel, mine = _by_recipe(task, recipes, title=f"{shape} messages", log=(False, True))
        panels.append(panel)
        rows += mine
    return {"x_label": "regions", "x": list(REGIONS), "panels": panels, "exact": _all_exact(rows), "rows": rows}


def _memory(task: Task) -> dict[str, Any]:
    recipes = {name: PLAIN_BOOLEAN._replace(regions=name) for name in REGIONS}
    panel, rows = _by_recipe(task, recipes, log=(False, False))
    panel |= {
        "y_label": "bytes a subscription",
        "groups": _column(rows, tuple(rows[0]["engines"]), "bytes_per_subscription"),
    }
    return {"x_label": "regions", "x": list(REGIONS), "panels": [panel], "exact": _all_exact(rows), "rows": rows}


def _workloads(task: Task) -> dict[str, Any]:
    plain, words = PLAIN_BOOLEAN, TEXTS["long"]
    recipes: dict[Any, BooleanRecipe] = {"default": plain}
    if task.messages_from is None:
        recipes |= {
            "no stop words": plain._replace(stop_words=False),
            "places spread evenly": plain._replace(places="uniform"),
            "long texts": plain._replace(words=words),
        }
    recipes |= {
        "range messages": plain._replace(shape="range"),
        "one keyword": plain._replace(keywords=(1, 1)),
        **{f"{name} regions": plain._replace(regions=name) for name in REGIONS if name != plain.regions},
    }
    panel, rows = _by_recipe(task, recipes, log=(False, True))
    names = tuple(rows[0]["engines"])
    candidates = {"y_label": "candidates a match", "log": (False, True)}
    panels = [panel, candidates | {"groups": _column(rows, names, "candidates_per_match")}]
    return {"x_label": "workload", "x": list(recipes), "panels": panels, "exact": _all_exact(rows), "rows": rows}


FIGURES: dict[str, Callable[[Task], dict[str, Any]]] = {
    "probing": _probing,
    "lengths": partial(_lengths, _PAPER, PLAIN_BOOLEAN),
    "opponents": partial(_lengths, _OPPONENTS, PLAIN_BOOLEAN),
    "opponents-usa": partial(_lengths, _OPPONENTS, _USA),
    "scalability": _scalability,
    "subscriptions": _subscriptions,
    "keywords": _keywords,
    "regions": _regions,
    "memory": _memory,
    "updates": _updates,
    "workloads": _workloads,
}
