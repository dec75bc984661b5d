"""`skyray version`: what is installed here, Skyray and the libraries that results depend on."""

import platform

import typer

from gateway.shell.options import Command, Json, example
from gateway.shell.packages import version_of
from gateway.shell.terminal import Terminal

#: Shown beside Skyray and Python.
FOUNDATIONS = ("ray", "pyspark", "numba", "numpy", "pyarrow")

app = typer.Typer()


@app.command(cls=Command, epilog=example("skyray version --json"))
def version(json: Json = False) -> int:
    """Print the versions of Skyray and of what it stands on."""
    found = {"skyray": version_of("skyray"), "python": platform.python_version()}
    found |= {name: version_of(name) for name in FOUNDATIONS}
    Terminal(json).answer(
        found, lambda console: console.print("\n".join(f"{name} {number}" for name, number in found.items()))
    )
    return 0
