"""`skyray version`: what is installed here, Skyray and the libraries that results depend on."""

import importlib.metadata
import platform

import typer

from gateway.shell.options import Command, Json, example
from gateway.shell.terminal import Terminal, say

#: Shown beside Skyray and Python.
FOUNDATIONS = ("ray", "pyspark", "numba", "numpy", "pyarrow")

app = typer.Typer()


@app.command(cls=Command, epilog=example("skyray version --json"))
def version(json: Json = False) -> int:
    """Print the versions of Skyray and of what it stands on."""
    found = {"skyray": _version("skyray"), "python": platform.python_version()}
    found |= {name: _version(name) for name in FOUNDATIONS}
    Terminal(json).answer(
        found, lambda console: console.print("\n".join(f"{name} {number}" for name, number in found.items()))
    )
    return 0


def print_version(wanted: bool | None) -> None:
    """`skyray --version`: one line, as scripts expect it."""
    if wanted:
        say(f"skyray {_version('skyray')}")
        raise typer.Exit


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
