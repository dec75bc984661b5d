"""`skyray demo`: the whole pipeline in a minute or two, on real places, verified at the end.

Places -> ETL (Spark) -> subscriptions -> topology (Ray) -> a handful of updates to look at -> verification against the
oracle. It does nothing that the other commands do not do.
"""

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.commands.etl import run_etl_shown
from gateway.commands.run import run_shown
from gateway.commands.verify import verify_shown
from gateway.shell.places import ATTRIBUTES, check_places, write_places
from gateway.shell.progress import print_summary
from gateway.shell.terminal import Terminal, shortened, table
from matching.errors import ConfigError
from matching.extras import require

if TYPE_CHECKING:
    from gateway.runs.reader import Run

#: File that identifies a demo's work folder.
MARK = ".skyray-demo"
SEED = 7
#: Small enough that the window slides and results change, large enough for ten good answers.
WINDOW = "count:10000"
BATCH = 2000
#: Shares of the subscriptions that have a circle, or a radius around their point, and conditions on attributes.
CIRCLE_SHARE, WHERE_SHARE = 0.25, 0.25
#: Updates shown of each kind; candidates that they are chosen from.
SHOWN, CANDIDATES = 4, 800
LONGEST_TEXT = 36


def run_demo(terminal: Terminal, out: Path, min_population: int, per_kind: int, sample: int) -> int:
    """Run everything; 0 only if the verification says exact.

    Raises
    ------
    ConfigError
        If the machine lacks something, with the remedy; before any work is done.
    """
    from gateway.runs.reader import Run
    from matching.kinds import KINDS
    from topology.settings import RunConfig

    check_places(min_population)
    require("spark", "the demo")
    require("ray", "the demo")
    _check_machine(out)
    clear_folder(out, MARK, "skyray demo")
    seconds: dict[str, float] = {}
    raw, etl_dir, run_dir = out / "places.jsonl", out / "etl", out / "run"
    with _timed(terminal, seconds, "places", "writing the world's towns"):
        count = write_places(raw, min_population)
    with _timed(terminal, seconds, "etl", f"cleaning {count:,} messages with Spark"):
        manifest = run_etl_shown(terminal, {"inputs": (str(raw),), "out": str(etl_dir), "attribute": ATTRIBUTES})
    files = {kind.name: out / f"{kind.name}.jsonl" for kind in KINDS.run}
    counts = {kind.name: max(1, per_kind // kind.recipe.share) for kind in KINDS.run}
    with _timed(terminal, seconds, "subscriptions", f"making {sum(counts.values()):,} subscriptions"):
        _generate(etl_dir, files, counts)
    config = RunConfig(
        messages=etl_dir,
        subscriptions=tuple(files.values()),
        out=run_dir,
        window=WINDOW,
        batch=str(BATCH),
        executor="ray",
    )
    with _timed(terminal, seconds, "run", "matching on Ray"):
        report = run_shown(terminal, config)
    run = Run(run_dir)
    examples = sample_updates(run, SHOWN)
    with _timed(terminal, seconds, "verify", f"checking {sample:,} subscriptions of each kind against the oracle"):
        verdict = verify_shown(terminal, run_dir, min(sample, per_kind), SEED)
    payload = {
        "exact": verdict.exact,
        "messages": {name: manifest[name] for name in ("read", "kept", "duplicates", "rejected")},
        "run": report,
        "examples": examples,
        "verify": verdict.as_json(),
        "seconds": {name: round(value, 2) for name, value in seconds.items()},
        "out": out,
    }
    terminal.answer(payload, lambda shown: _print(shown, payload, verdict, run))
    return 0 if verdict.exact else 1


def _check_machine(out: Path) -> None:
    from gateway.shell.doctor import examine

    faults = [finding for finding in examine(out) if finding.state == "fail"]
    if faults:
        raise ConfigError("; ".join(f"{fault.name}: {fault.found}: {fault.remedy}" for fault in faults))


def clear_folder(out: Path, mark: str, command: str) -> None:
    """Make the work folder of a demo empty; only one that an earlier one made, finished or not, is touched.

    Parameters
    ----------
    out : Path
    mark : str
        File that identifies the work folder of this demo.
    command : str
        That makes it.

    Raises
    ------
    ConfigError
        If the folder holds anything else.
    """
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not (out / mark).is_file())):
        raise ConfigError(f"{out} holds something that is no earlier demo; name another folder with --out")
    if out.is_dir():
        shutil.rmtree(out)
    out.mkdir(parents=True)
    (out / mark).write_text(f"made by `{command}`, which will replace this folder\n")


def _generate(etl_dir: Path, files: Mapping[str, Path], counts: Mapping[str, int]) -> None:
    from gateway.subscriptions.generate import generate_subscriptions
    from matching.kinds import KINDS

    for kind, count in counts.items():
        # The demo's digest is compared from one version to the next, so its subscriptions stay what they are.
        around = CIRCLE_SHARE if {"circle", "radius_m"} & set(KINDS.named(kind).shapes) else 0.0
        generate_subscriptions(
            etl_dir, kind, count, SEED, files[kind], max_frequency=1.0, circle_share=around, where_share=WHERE_SHARE
        )


@contextmanager
def _timed(terminal: Terminal, seconds: dict[str, float], name: str, title: str) -> Iterator[None]:
    terminal.note(f"{title} ...")
    began = time.monotonic()
    yield
    seconds[name] = time.monotonic() - began


def sample_updates(run: "Run", count: int) -> list[dict[str, Any]]:
    """`count` updates of each kind that show something: several words in common, spread over the run.

    Of each kind the change that its recipe names is shown.

    Returns
    -------
    list of dict
        `kind`, `change`, `as_of`, `subscription_id`, `keywords`, `text`, `common` (keywords in the text), `distance_km`
        (None for a region), `score`, `score_shown` (as `skyray show` prints it).

    Notes
    -----
    Reads the updates once and some hundred messages of each kind: O(updates), a second for a million.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    from gateway.runs.showing import score_shown

    updates, ids = run.updates(), pa.array(run.changes.names.strings(), pa.string())
    chosen: list[dict[str, Any]] = []
    for kind in run.kinds.run:
        mine = pc.field("subscription_id").isin(ids.filter(pa.array(run.changes.table.kind == kind.code)))
        rows = updates.filter((pc.field("change") == kind.recipe.shown) & mine)
        candidates = rows.take(list(range(0, len(rows), max(1, len(rows) // CANDIDATES)))).to_pylist()
        known = run.known({row["subscription_id"] for row in candidates})
        described = [_described(row) | {"score_shown": score_shown(row, run)} for row in run.join(candidates, known)]
        described.sort(key=_dullness)  # stable: the earlier of equals first
        chosen += sorted(_unlike(described, count), key=lambda row: row["as_of"])
    return chosen


def _described(row: dict[str, Any]) -> dict[str, Any]:
    names = ("kind", "change", "as_of", "subscription_id", "text", "distance_km", "score")
    keywords = list(row["subscription"].words)
    return {name: row[name] for name in names} | {"keywords": keywords, "common": row["words"]}


def _dullness(row: dict[str, Any]) -> tuple[int, float]:
    """Sort key of the most telling rows: whole words in common, a place other than its own, and near."""
    words = sum(len(word) > 2 and word.isascii() for word in row["common"])
    distance = row["distance_km"]
    own_place = distance is not None and distance < 1
    return (0 if own_place else -min(words, 3), distance or 0.0)


def _unlike(rows: Sequence[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """The first `count` rows that have neither message nor word in common with one before."""
    seen: set[str] = set()
    kept = []
    for row in rows:
        words_seen = {row["text"], *row["common"]}
        if not words_seen & seen and len(kept) < count:
            seen |= words_seen
            kept.append(row)
    return kept


def _print(out: Any, payload: dict[str, Any], verdict: Any, run: "Run") -> None:
    from gateway.runs.showing import legend

    headings = ("kind", "words found", "message", "km", "score")
    rows = [
        (
            row["kind"],
            f"{' '.join(row['common'])} ({len(row['common'])} of {len(row['keywords'])})",
            shortened(row["text"], LONGEST_TEXT),
            "in region" if row["distance_km"] is None else f"{row['distance_km']:,.0f}",
            row["score_shown"],
        )
        for row in payload["examples"]
    ]
    out.print(table(headings, rows, right=(3, 4), title="Some of the updates"))
    for line in legend(run, [kind.name for kind in run.kinds.run]):
        out.print(line, markup=False)
    print_summary(out, payload["run"])
    out.print(verdict.render(), markup=False)
    spent = ", ".join(f"{name} {value:.0f} s" for name, value in payload["seconds"].items())
    out.print(f"{sum(payload['seconds'].values()):.0f} s in all: {spent}; everything is in {payload['out']}")
