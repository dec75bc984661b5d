"""`skyray config show`: every setting of every command, and where its value comes from."""

from collections.abc import Iterator
from typing import Any

import typer

from gateway.shell.groups import Group
from gateway.shell.options import Command, Json, as_typed, example
from gateway.shell.settings import SECTIONS
from gateway.shell.terminal import Terminal, table
from topology.given import Given
from topology.settings import RunConfig, load_config

app = typer.Typer(cls=Group, name="config", help="Settings.", no_args_is_help=True)


class _OfAll(Command):
    """A command that takes the settings of all commands."""

    def places(self, ctx: Any) -> dict[tuple[str, str], Any]:
        """Section and name of every setting -> the option of the first command that has it."""
        found: dict[tuple[str, str], Any] = {}
        for command in _commands(ctx.find_root()):
            found = dict(command.settings) | found
        return found


@app.command(cls=_OfAll, epilog=example("skyray config show --set stream.window=count:50000"))
def show(context: typer.Context, json: Json = False) -> int:
    """Print every setting, its value, where the value comes from, the commands that read it, and its meaning.

    A setting is written as --set SECTION.NAME=VALUE on the command line, as SKYRAY_SECTION__NAME in the environment, or
    as NAME = VALUE below [SECTION] in skyray.toml or the file of --config. The command line wins, then the environment.
    """
    rows = list(_rows(context))
    headings = ("setting", "value", "origin", "commands", "meaning")
    cells = [[row[heading] for heading in headings] for row in rows]
    Terminal(json).answer({"settings": rows}, lambda console: console.print(table(headings, cells)))
    return 0


def _rows(context: Any) -> Iterator[dict[str, Any]]:
    given = context.meta["skyray.settings"]
    readers: dict[tuple[str, str], dict[str, Any]] = {}
    for command in _commands(context.find_root()):
        for place, option in command.settings.items():
            readers.setdefault(place, {})[command.callback.__module__.rpartition(".")[2].replace("_", "-")] = option
    order = [*SECTIONS, *sorted({section for section, _ in readers})]
    of_run = Given({"messages": ".", "subscriptions": ["."], "out": "."})
    for place in sorted(readers, key=lambda place: order.index(place[0])):
        option = next(iter(readers[place].values()))
        value, origin = option.default, "default"
        if place in given:
            value = option.process_value(context, as_typed(option, place, given[place]))
            origin = given[place].origin
            if "run" in readers[place] and place[1] in RunConfig.model_fields:
                of_run[place[1]], of_run.origins[place[1]] = value, origin
        yield {
            "setting": ".".join(place),
            "value": value,
            "origin": origin,
            "commands": ", ".join(readers[place]),
            "meaning": option.help,
        }
    load_config(of_run)  # refuses what its types alone let through


def _commands(root: Any) -> Iterator[Any]:
    """Every command with its options made."""
    waiting = list(root.command.commands.values())
    for command in waiting:
        waiting += getattr(command, "commands", {}).values()
        if isinstance(command, Command):
            command.get_params(root)
            yield command
