"""`skyray config show`: every setting of a run and where its value comes from."""

import typer

from gateway.shell.options import Command, ConfigFile, Group, Json, example
from gateway.shell.terminal import Terminal, table

app = typer.Typer(cls=Group, name="config", help="Settings.", no_args_is_help=True)


@app.command(cls=Command, epilog=example("skyray config show --json"))
def show(config: ConfigFile = None, json: Json = False) -> int:
    """Print every setting of a run, its value, and where the value comes from."""
    from topology.settings import show_config

    rows = show_config({}, config)
    headings = ("setting", "value", "origin", "meaning")
    cells = [[row[heading] for heading in headings] for row in rows]
    Terminal(json).answer({"settings": rows}, lambda console: console.print(table(headings, cells)))
    return 0
