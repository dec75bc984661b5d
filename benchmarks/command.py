"""What is behind `python -m benchmarks.NAME`: options from the parameters of a function, one JSON object, an exit code.

A parameter that is annotated with words is an option, as in `skyray bench`, or an argument if it has no default; one
that is a tuple takes values separated by commas. The report says whether it counts (`exact`), and is printed with where
it comes from.
"""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

#: Is told what is going on, a sentence at a time.
Tell = Callable[[str], None]
ROOT = Path(__file__).parents[1]
#: Updates, matches or answers of an independent computation that are compared at least, and subscriptions they are of.
FEWEST_COMPARED, FEWEST_SUBSCRIPTIONS = 1_000, 500


def main(measure: Callable[..., dict[str, Any]], compares: bool = True) -> int:
    """Measure as the command line says, and print; 1 if the report does not count.

    Without `compares` it measures nothing, and its report says nothing of being right.
    """
    described = (sys.modules[measure.__module__].__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(description=described, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    for each in signature(measure, eval_str=True).parameters.values():
        if get_origin(each.annotation) is Annotated:
            plain, said = get_args(each.annotation)
            how = {
                "type": _reader(plain),
                "help": said.replace("%", "%%"),
            }  # argparse fills in what follows a percent sign
            if each.default is Parameter.empty:
                parser.add_argument(each.name, **how)
            else:
                parser.add_argument(f"--{each.name.replace('_', '-')}", default=each.default, **how)
    parser.add_argument("--json", action="store_true", help="print JSON, as always")
    options = vars(parser.parse_args())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # what was started ends, and folders go
    del options["json"]
    report = measure(**options, tell=say)
    print(json.dumps({"made_by": provenance(), **report}, indent=1))
    return 0 if not compares or all(report.get(what, True) for what in ("exact", "flat", "worked")) else 1


def _reader(plain: Any) -> Callable[[str], Any]:
    """What makes a value of an option's text; of `int | None` that is the first, and a tuple has parts of one type."""
    part = next(iter(get_args(plain)), plain)
    if get_origin(plain) is tuple:
        return lambda text: tuple(part(word) for word in text.split(",") if word)
    return part


def verdict(same: bool, compared: int, subscriptions: int) -> dict[str, Any]:
    """Whether a figure counts (`exact`): all of so many expected updates, of so many subscriptions, were the `same`."""
    enough = compared >= FEWEST_COMPARED and subscriptions >= FEWEST_SUBSCRIPTIONS
    report = {"exact": bool(same) and enough, "compared": compared, "compared_subscriptions": subscriptions}
    if not enough:
        report["warning"] = (
            f"only {compared:,} expected of {subscriptions:,} subscriptions were compared: a figure counts from "
            f"{FEWEST_COMPARED:,} of {FEWEST_SUBSCRIPTIONS:,} on; take more subscriptions or messages"
        )
    return report


def say(sentence: str) -> None:
    """On standard error, where it is in no report's way."""
    print(sentence, file=sys.stderr, flush=True)


def provenance() -> dict[str, Any]:
    """Where a figure comes from."""
    # where things lie on this machine is nobody's business
    program, *words = sys.argv
    path = Path(program)
    name = path.parent.name if path.stem == "__main__" else path.name
    command = shlex.join([name, *(Path(word).name if os.path.isabs(word) else word for word in words)])
    load = list(os.getloadavg())
    return {"commit": commit_of(ROOT), "command": command, "cores": os.cpu_count() or 1, "load_average": load}


def commit_of(checkout: Path) -> str | None:
    """The commit of a checkout, with `+` if files differ from it; None outside one."""
    git = ["git", "-C", str(checkout), "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(git, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
