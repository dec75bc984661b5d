"""What the commands do once their options are read: call one function of the project, show its answer.

Everything heavy (Ray, Spark, the kernels) is imported inside the function that needs it.
"""

import importlib.metadata
import logging
import platform
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from gateway.terminal import Terminal, table
from matching.errors import ConfigError, InputError

if TYPE_CHECKING:
    from topology.settings import RunConfig

#: Shown by `skyray version`.
FOUNDATIONS = ("ray", "pyspark", "numba", "numpy", "pyarrow")


def etl_messages(terminal: Terminal, options: Mapping[str, Any]) -> int:
    """`skyray etl`."""
    manifest = run_etl_shown(terminal, options)
    terminal.answer(manifest, lambda out: print_manifest(out, manifest, Path(options["out"])))
    return 0


def run_etl_shown(terminal: Terminal, options: Mapping[str, Any]) -> dict[str, Any]:
    """Run the ETL with its stages shown; returns the manifest."""
    from spark_etl.job import EtlOptions, run_etl

    # An interrupt cuts its connection to Java, of which it would tell at length, by its own logger and by the root's.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(lambda record: "py4j" not in record.pathname)
    with terminal.steps("etl") as show:

        def on_progress(progress: Any) -> None:
            show(f"{progress.stage} ({progress.number} of {progress.of})")

        return run_etl(EtlOptions(**options), on_progress=on_progress)


def print_manifest(out: Any, manifest: Mapping[str, Any], folder: Path) -> None:
    """Counts of an ETL run for people: read = kept + duplicates + rejected."""
    rows = [(name, manifest[name]) for name in ("read", "kept", "duplicates")]
    rows += [(f"rejected: {reason}", count) for reason, count in manifest["rejected_by_reason"].items()]
    rows += [("without time", manifest["null_times"]), ("without terms", manifest["messages_without_terms"])]
    rows.append(("terms in the vocabulary", manifest["vocabulary_size"]))
    out.print(table(("messages", "count"), rows, right=(1,)))
    out.print(f"written to {folder}")


def generate(
    terminal: Terminal, messages: Path, kind: str, count: int, out: Path, seed: int, options: Mapping[str, Any]
) -> int:
    """`skyray subscriptions generate`."""
    from matching.kinds import KINDS

    if kind not in KINDS:
        raise ConfigError(f"--kind {kind}: choose one of {', '.join(KINDS.names)}")
    from gateway.generate import generate_subscriptions

    payload = generate_subscriptions(messages, kind, count, seed, out, **options)
    terminal.answer(payload, lambda shown: shown.print(f"{count:,} {kind} subscriptions written to {out}"))
    return 0


def run_topology(terminal: Terminal, config: "RunConfig") -> int:
    """`skyray run`."""
    from gateway.live import print_summary

    report = run_shown(terminal, config)
    terminal.answer(report, lambda out: print_summary(out, report))
    return 0


def run_shown(terminal: Terminal, config: "RunConfig") -> dict[str, Any]:
    """Run a topology with its components shown; returns the report."""
    from gateway.live import live_run
    from topology import running

    with live_run(terminal, batches_of(config)) as on_progress:
        return running.run(config, on_progress=on_progress)


def batches_of(config: "RunConfig") -> int | None:
    """How many batches the stream has, None while the ETL still writes."""
    kept = kept_messages(config.messages)
    if kept is None or config.follow:
        return None
    return -(-min(kept, config.limit or kept) // config.batch)


def kept_messages(etl_dir: Path) -> int | None:
    """How many messages an ETL folder holds by its manifest; None without a readable one."""
    import msgspec

    try:
        return int(msgspec.json.decode((etl_dir / "manifest.json").read_bytes())["kept"])
    except (OSError, KeyError, TypeError, msgspec.DecodeError):
        return None


def verify_against_oracle(terminal: Terminal, run_dir: Path, sample: int | None, seed: int) -> int:
    """`skyray verify`: 0 only if exact."""
    report = verify_shown(terminal, run_dir, sample, seed)
    terminal.answer(report.as_json(), lambda out: out.print(report.render()))
    return 0 if report.exact else 1


def verify_shown(terminal: Terminal, run_dir: Path, sample: int | None, seed: int) -> Any:
    """Verify a run with its progress shown; `sample` None checks everything."""
    from gateway.verify import verify_run

    if not run_dir.is_dir():
        raise InputError("no_run", f"{run_dir} is no folder; name the --out of a finished `skyray run`")
    with terminal.steps("verify") as on_progress:
        return verify_run(run_dir, sample=sample, all=sample is None, seed=seed, on_progress=on_progress)


def run_bench(
    terminal: Terminal,
    runner: ModuleType,
    kind: str,
    subscriptions: int,
    seed: int,
    options: dict[str, Any],
    progress: bool | None = None,
) -> int:
    """`skyray bench`: 1 if an engine was not exact; `progress` as in `Terminal.steps`, False for none in lines."""
    if "engines" in options:
        options["engines"] = [name for name in options["engines"].split(",") if name]
    with terminal.steps(f"bench {kind}", in_lines=progress) as on_progress:
        report = runner.bench(kind, subscriptions, seed=seed, on_progress=on_progress, **options)
    if "figure" in report:
        terminal.answer(report, lambda console: console.print(*_figure_tables(report)))
        return 0 if report["exact"] else 1
    engines = report["results"]
    # rounds one by one and the memory after them are for scripts
    shown = (name for result in engines for name, value in result.items() if not isinstance(value, list | dict))
    figures = dict.fromkeys(name for name in shown if name != "engine")
    headings = ("figure", *(result["engine"] for result in engines))
    rows = [[name, *(result.get(name) for result in engines)] for name in figures]
    notes = [f"{one['name']}: {one['reason']}. Install it: {one['install']}" for one in report.get("absent", [])]
    terminal.answer(
        report, lambda out: out.print(table(headings, rows, right=range(1, len(headings))), *notes, markup=False)
    )
    return 0 if all(result["exact"] for result in report["results"]) else 1


def _figure_tables(report: dict[str, Any]) -> list[Any]:
    """A table for each panel of a figure."""
    tables = []
    for panel in report["panels"]:
        columns = panel.get("series") or panel.get("groups") or {panel["y_label"]: list(panel["bars"].values())}
        names = list(panel["bars"]) if "bars" in panel else panel.get("x", report["x"])
        rows = [[str(name), *(values[place] for values in columns.values())] for place, name in enumerate(names)]
        title = f"{panel['title']}, " if "title" in panel else ""
        heading = f"{title}{report['x_label']}: {panel['y_label']}"
        tables.append(table((heading, *columns), rows, right=range(1, len(columns) + 1)))
    return tables


def run_loadtest(terminal: Terminal, options: dict[str, Any], out: Path | None) -> int:
    """`skyray loadtest`: one run at a set rate; 1 if the rate was not kept."""
    from gateway.loadtest import load_test, render, write_report

    with terminal.steps("loadtest") as on_progress:
        report = load_test(
            **options, on_progress=lambda now: on_progress(f"{now.published:,} batches, {now.in_flight} in flight")
        )
    if out is not None:
        write_report(report, out)
    terminal.answer(report, lambda console: console.print(render(report), highlight=False))
    return 0 if report["kept_up"] else 1


def show_topology(terminal: Terminal, options: Mapping[str, Any], file: Path | None) -> int:
    """`skyray topology show`: with messages and subscriptions the very plan of a run, else the same without data."""
    from topology.settings import collect, load_config

    stand_ins = {"messages": Path("MESSAGES"), "subscriptions": [Path("SUBSCRIPTIONS")], "out": Path("OUT")}
    values, _ = collect(options, file)
    missing = {name: value for name, value in stand_ins.items() if name not in values}
    config = load_config({**missing, **options}, file)
    plan = _plan_without_data(config) if missing.keys() & {"messages", "subscriptions"} else _plan(config)
    terminal.answer(plan.describe(), lambda out: out.print(plan.render(), markup=False))
    return 0


def _plan(config: "RunConfig") -> Any:
    from topology.wiring import build_plan

    return build_plan(config)


def _plan_without_data(config: "RunConfig") -> Any:
    """The components and edges of a run whose data is not there yet; nothing is read."""
    import numpy as np

    from bolts.delivery import DeliveryBolt
    from matching.space import EARTH, Space
    from matching.text import Vocabulary
    from matching.window import Window
    from spouts.parquet import ParquetSpout
    from spouts.subscriptions import SubscriptionSpout
    from topology.wiring import router_of, wire

    space, window, nowhere = Space(*EARTH), Window.parse(config.window), np.zeros(0)
    return wire(
        ParquetSpout(config.messages, window, space, config.batch),
        SubscriptionSpout(config.subscriptions, Vocabulary([], [], [], [], 0), space),
        router_of(config, space, load=(nowhere, nowhere)),
        space,
        window,
        DeliveryBolt(str(config.out), window, config.credits),
        engines=config.engine,
        window_indexes=config.window_index,
        distribution_bolts=config.distribution_bolts,
        tuple_bolts=config.tuple_bolts,
        aggregation_bolts=config.aggregation_bolts,
        credits=config.credits,
    )


def versions() -> dict[str, str]:
    """Skyray, Python, and the libraries that results depend on."""
    found = {"skyray": _version("skyray"), "python": platform.python_version()}
    return found | {name: _version(name) for name in FOUNDATIONS}


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
