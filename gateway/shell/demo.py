"""`skyray demo`: the whole pipeline in a minute or two, on real places, verified at the end.

Places -> ETL (Spark) -> subscriptions -> topology (Ray) -> a handful of updates to look at -> verification against
the oracle. It does nothing that the other commands do not do; read on in `gateway.commands` for those.
"""

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gateway.commands.etl import run_etl_shown
from gateway.commands.run import run_shown
from gateway.commands.verify import verify_shown
from gateway.runs.distance import distance_km
from gateway.shell.places import check_places, write_places
from gateway.shell.progress import print_summary
from gateway.shell.terminal import Terminal, shortened, table
from matching.errors import ConfigError

#: File that identifies a demo's work folder.
MARK = ".skyray-demo"
SEED = 7
#: Small enough that the window slides and results change, large enough for ten good answers.
WINDOW = "count:10000"
BATCH = 2000
#: How many updates of each kind are shown, out of how many.
SHOWN, CANDIDATES = 4, 800
LONGEST_TEXT = 36


def run_demo(terminal: Terminal, out: Path, min_population: int, per_kind: int, sample: int) -> int:
    """Run everything; 0 only if the verification says exact.

    Raises
    ------
    ConfigError
        If the machine lacks something, with the remedy; before any work is done.
    """
    from matching.kinds import KINDS
    from topology.settings import RunConfig

    check_places(min_population)
    _check_machine(out)
    _clear(out)
    seconds: dict[str, float] = {}
    raw, etl_dir, run_dir = out / "places.jsonl", out / "etl", out / "run"
    with _timed(terminal, seconds, "places", "writing the world's towns"):
        count = write_places(raw, min_population)
    with _timed(terminal, seconds, "etl", f"cleaning {count:,} messages with Spark"):
        manifest = run_etl_shown(terminal, {"inputs": (str(raw),), "out": str(etl_dir)})
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
    shown = {files[kind.name]: kind.recipe.shown for kind in KINDS.run}
    examples = sample_updates(run_dir, etl_dir, shown, SHOWN)
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
    terminal.answer(payload, lambda shown: _print(shown, payload, verdict))
    return 0 if verdict.exact else 1


def _check_machine(out: Path) -> None:
    from gateway.shell.doctor import examine

    faults = [finding for finding in examine(out) if finding.state == "fail"]
    if faults:
        raise ConfigError("; ".join(f"{fault.name}: {fault.found}: {fault.remedy}" for fault in faults))


def _clear(out: Path) -> None:
    """Make the work folder empty; only one that an earlier demo made, finished or not, is touched.

    Raises
    ------
    ConfigError
        If the folder holds anything else.
    """
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not (out / MARK).is_file())):
        raise ConfigError(f"{out} holds something that is no earlier demo; name another folder with --out")
    if out.is_dir():
        shutil.rmtree(out)
    out.mkdir(parents=True)
    (out / MARK).write_text("made by `skyray demo`, which will replace this folder\n")


def _generate(etl_dir: Path, files: Mapping[str, Path], counts: Mapping[str, int]) -> None:
    from gateway.subscriptions.generate import generate_subscriptions

    for kind, count in counts.items():
        # The demo's digest is compared from one version to the next, so its subscriptions stay what they were.
        generate_subscriptions(etl_dir, kind, count, SEED, files[kind], max_frequency=1.0)


@contextmanager
def _timed(terminal: Terminal, seconds: dict[str, float], name: str, title: str) -> Iterator[None]:
    terminal.note(f"{title} ...")
    began = time.monotonic()
    yield
    seconds[name] = time.monotonic() - began


def sample_updates(run_dir: Path, etl_dir: Path, files: Mapping[Path, str], count: int) -> list[dict[str, Any]]:
    """A few updates of each kind that show something: several words in common, spread over the run.

    Parameters
    ----------
    run_dir, etl_dir : path
    files : mapping of path to str
        The subscriptions of each kind, and which change of theirs is shown.
    count : int
        How many of each kind.

    Returns
    -------
    list of dict
        `kind`, `change`, `as_of`, `subscription_id`, `keywords`, `text`, `common` (keywords in the text), `distance_km`
        (None for a region), `score`.

    Notes
    -----
    Reads the updates once and the texts of a few hundred messages: O(updates), a second for a million.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    updates = ds.dataset(run_dir / "updates", format="parquet").to_table()
    chosen: list[dict[str, Any]] = []
    for file, change in files.items():
        subscriptions = _subscriptions(file)
        mine = pc.field("subscription_id").isin(pa.array(list(subscriptions)))
        rows = updates.filter((pc.field("change").cast(pa.string()) == change) & mine)
        if rows.num_rows == 0:
            continue
        step = max(1, rows.num_rows // CANDIDATES)
        candidates = rows.take(list(range(0, rows.num_rows, step))).to_pylist()
        messages = _messages(etl_dir, [row["seq"] for row in candidates])
        described = [_describe(row, subscriptions[row["subscription_id"]], messages[row["seq"]]) for row in candidates]
        described.sort(key=_dullness)  # stable: the earlier of equals first
        chosen += sorted(_unlike(described, count), key=lambda row: row["as_of"])
    return chosen


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


def _subscriptions(file: Path) -> dict[str, dict[str, Any]]:
    import msgspec

    rows = (msgspec.json.decode(line) for line in file.read_bytes().splitlines())
    return {row["subscription_id"]: row for row in rows}


def _messages(etl_dir: Path, seqs: Sequence[int]) -> dict[int, dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    wanted = pc.field("seq").isin(pa.array(sorted(set(seqs)), pa.int64()))
    columns = ["seq", "lon", "lat", "text"]
    table_ = ds.dataset(etl_dir / "messages", format="parquet").to_table(columns=columns, filter=wanted)
    return {row["seq"]: row for row in table_.to_pylist()}


def _describe(update: dict[str, Any], subscription: dict[str, Any], message: dict[str, Any]) -> dict[str, Any]:
    from matching.text import tokenise

    keywords = subscription["keywords"]
    words = [keywords] if isinstance(keywords, str) else list(keywords)
    there = set(tokenise(message["text"]))
    distance = None
    if "region" not in subscription:
        distance = distance_km(subscription["lon"], subscription["lat"], message["lon"], message["lat"])
    return {
        "kind": subscription["kind"],
        "change": update["change"],
        "as_of": update["as_of"],
        "subscription_id": update["subscription_id"],
        "keywords": words,
        "text": message["text"],
        "common": [word for word in words if there.issuperset(tokenise(word))],
        "distance_km": distance,
        "score": update["score"],
    }


def _print(out: Any, payload: dict[str, Any], verdict: Any) -> None:
    headings = ("kind", "words found", "message", "km", "score")
    rows = [
        (
            row["kind"],
            f"{' '.join(row['common'])} ({len(row['common'])} of {len(row['keywords'])})",
            shortened(row["text"], LONGEST_TEXT),
            "in region" if row["distance_km"] is None else f"{row['distance_km']:,.0f}",
            row["score"],
        )
        for row in payload["examples"]
    ]
    out.print(table(headings, rows, right=(3, 4), title="Some of the updates"))
    print_summary(out, payload["run"])
    out.print(verdict.render(), markup=False)
    spent = ", ".join(f"{name} {value:.0f} s" for name, value in payload["seconds"].items())
    out.print(f"{sum(payload['seconds'].values()):.0f} s in all: {spent}; everything is in {payload['out']}")
