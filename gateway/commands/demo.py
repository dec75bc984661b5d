"""`skyray demo`: the whole pipeline in a minute or two, on real places, verified at the end.

Places -> ETL (Spark) -> subscriptions -> topology (Ray) -> some results to look at -> verification against the oracle.
It does nothing that the other commands do not do: `etl.py`, `subscriptions.py`, `run.py` and `verify.py` beside this
file.
"""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.commands.etl import run_etl_shown
from gateway.commands.verify import verify_shown
from gateway.shell.options import Command, Json, example
from gateway.shell.per_kind import WORDS
from gateway.shell.places import ATTRIBUTES, check_places, write_places
from gateway.shell.terminal import Terminal, cell
from matching.errors import ConfigError
from matching.extras import require
from matching.kinds import KINDS
from topology.settings import RunConfig

SEED = 7
#: Small enough that the window slides and results change, large enough for ten good answers.
WINDOW = "count:10000"
BATCH = 2000
#: Shares of the subscriptions that have a circle, or a radius around their point, and conditions on attributes.
CIRCLE_SHARE, WHERE_SHARE = 0.25, 0.25

app = typer.Typer()


@app.command(cls=Command, epilog=example("skyray demo --out runs/demo"))
def demo(
    out: Annotated[Path, typer.Option(help="Work folder; an earlier demo in it is replaced.")] = Path("runs/demo"),
    min_population: Annotated[int, typer.Option(help="Smallest town: 15000, 5000, 1000 or 500.")] = 15000,
    per_kind: Annotated[int, typer.Option(min=1, help=f"Subscriptions of each kind{WORDS['fewer']}.")] = 20_000,
    sample: Annotated[int, typer.Option(min=1, help="Subscriptions of each kind to verify.")] = 200,
    json: Json = False,
) -> int:
    """Match the world's towns against tens of thousands of subscriptions and check the answer.

    Writes the places, runs the ETL on Spark, makes subscriptions, runs the topology on Ray and verifies a sample
    against the oracle. Takes a minute or two, and a few more where the kernels have to be compiled first.
    """
    return run_demo(Terminal(json, in_lines=True), out, min_population, per_kind, sample)


class Demo:
    """A demo with a work folder, the seconds of its steps, and a verdict at its end.

    Parameters
    ----------
    out : Path
        Work folder.
    command : str
        That makes it, `skyray demo`.

    Attributes
    ----------
    seconds : dict of str to float
        Of the steps so far.
    """

    def __init__(self, terminal: Terminal, out: Path, command: str):
        self.terminal, self.out, self.seconds = terminal, out, dict[str, float]()
        self._command = command
        self.mark = f".{command.replace(' ', '-')}"

    def clear_folder(self) -> None:
        """Make the work folder empty; only one that this demo made earlier, finished or not, is touched.

        Raises
        ------
        ConfigError
            If the folder holds anything else.
        """
        out, mark = self.out, self.out / self.mark
        if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not mark.is_file())):
            raise ConfigError(f"{out} holds something that is no earlier demo; name another folder with --out")
        if out.is_dir():
            shutil.rmtree(out)
        out.mkdir(parents=True)
        mark.write_text(f"made by `{self._command}`, which will replace this folder\n")

    @contextmanager
    def step(self, name: str, title: str) -> Iterator[None]:
        """A step of the demo, with a line when it begins."""
        self.terminal.note(f"{title} ...")
        began = time.monotonic()
        yield
        self.seconds[name] = round(time.monotonic() - began, 2)

    def judge(self, run: Path, sample: int, answer: dict[str, Any], render: Callable[[Any], None]) -> int:
        """Compare a run with the oracle, and print the answer; 0 only if it is exact, and `answer` does not say no."""
        with self.step("verify", f"checking {sample:,} subscriptions of each kind against the oracle"):
            verdict = verify_shown(self.terminal, run, sample, SEED)
        more = {"verify": verdict.as_json(), "seconds": self.seconds, "out": self.out}
        payload = {"exact": verdict.exact} | answer | more

        def render_all(shown: Any) -> None:
            render(shown)
            shown.print(verdict.render(), markup=False)
            spent = ", ".join(f"{name} {value:.0f} s" for name, value in self.seconds.items())
            shown.print(f"{sum(self.seconds.values()):.0f} s in all: {spent}; everything is in {cell(self.out)}")

        self.terminal.answer(payload, render_all)
        return 0 if verdict.exact and payload["exact"] else 1


def run_demo(terminal: Terminal, out: Path, min_population: int, per_kind: int, sample: int) -> int:
    """Run everything; 0 only if the verification says exact.

    Raises
    ------
    ConfigError
        If the machine lacks something, with the remedy; before any work is done.
    """
    from gateway.commands.run_summary import print_ending
    from gateway.commands.running import run_shown
    from gateway.subscriptions.generate import generate_subscriptions

    check_places(min_population)
    require("spark", "the demo")
    require("ray", "the demo")
    _check_machine(out)
    demo = Demo(terminal, out, "skyray demo")
    demo.clear_folder()
    raw, etl = out / "places.jsonl", out / "etl"
    with demo.step("places", "writing the world's towns"):
        count = write_places(raw, min_population)
    with demo.step("etl", f"cleaning {count:,} messages with Spark"):
        manifest = run_etl_shown(terminal, {"inputs": (str(raw),), "out": str(etl), "attribute": ATTRIBUTES})
    counts = {kind.name: max(1, per_kind // kind.recipe.share) for kind in KINDS.run}
    files = {kind: out / f"{kind}.jsonl" for kind in counts}
    with demo.step("subscriptions", f"making {sum(counts.values()):,} subscriptions"):
        for kind, many in counts.items():
            # The demo's digest is compared from one version to the next, so its subscriptions stay what they are.
            around = CIRCLE_SHARE if {"circle", "radius_m"} & set(KINDS.named(kind).shapes) else 0.0
            shares: dict[str, Any] = {"circle_share": around, "where_share": WHERE_SHARE}
            generate_subscriptions(etl, kind, many, SEED, files[kind], max_frequency=1.0, **shares)
    inputs: dict[str, Any] = {"messages": etl, "subscriptions": tuple(files.values()), "out": out / "run"}
    with demo.step("run", "matching on Ray"):
        report = run_shown(terminal, RunConfig(**inputs, window=WINDOW, batch=str(BATCH), executor="ray"))
    messages = {name: manifest[name] for name in ("read", "kept", "duplicates", "rejected")}
    answer = {"messages": messages, "run": report}
    return demo.judge(out / "run", min(sample, per_kind), answer, lambda shown: print_ending(shown, report))


def _check_machine(out: Path) -> None:
    from gateway.shell.doctor import examine

    faults = [finding for finding in examine(out) if finding.state == "fail"]
    if faults:
        raise ConfigError("; ".join(f"{fault.name}: {fault.found}: {fault.remedy}" for fault in faults))
