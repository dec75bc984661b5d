"""The command line, called by `gateway.entry`. Each command is a file of `gateway.commands`; here they become one app.

The file of a command is imported when the command is named, so `skyray --help` answers at once.

Exit codes are in `gateway.shell.exit_codes`: 1 an answer that is no (not exact, a fault found), those of
`matching.errors`, and those of signals. An error of the operating system is 6 if a file system could not be written
to (`_UNWRITABLE`), else 4.
"""

import contextlib
import errno
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand
from typer.exceptions import TyperException

from gateway.shell.groups import Group
from gateway.shell.interrupts import Interrupts, run_interruptible
from gateway.shell.packages import check_packages, version_of
from gateway.shell.terminal import fail, remedy_of, say
from matching.errors import DeliveryError, EngineError, InputError, TopologyError

#: Error numbers of a file system that cannot be written to; any other is taken for an error of reading.
_UNWRITABLE = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG))
#: A file system with less room is full.
_LEAST_BYTES = 2**20

#: Name of each command -> its line in the list of commands, which is the first sentence of its help.
COMMANDS: Mapping[str, str] = {
    "demo": "Match the world's towns against tens of thousands of subscriptions and check the answer.",
    "feed-demo": "Write files, stream them with Spark into a running topology, and check what came out.",
    "etl": "Clean raw messages and build their vocabulary with Spark.",
    "feed": "Clean raw messages as they come, and feed them to a running stream with Spark.",
    "subscriptions": "Subscription files.",
    "run": "Match a stream of messages against subscriptions.",
    "scale": "Continue a run with other numbers of tasks; its updates stay the same, each once.",
    "live": "Match messages as they come on standard input, and write updates to standard output at once.",
    "serve": "Serve a live stream over HTTP: publish messages, subscribe, and follow updates.",
    "keys": "API keys of `skyray serve`.",
    "backup": "Copy the folder of a stream or run, so that the copy can be resumed, and check the copy.",
    "prune": "Remove the oldest messages and updates of a stream that does not run.",
    "convert": "Write the folder of a stream that cut texts into words otherwise, with the words of this release.",
    "show": "Show results or updates: message, time, place, distance, words found, text and score.",
    "explain": "Say why a message is in the result of a subscription, or why not: words, score, and better messages.",
    "match": "Say which subscriptions a message would reach, and why not the others.",
    "preview": "Say how often subscriptions would have matched in the past, and which condition leaves out most.",
    "verify": "Check a run, or a live stream while it runs, against the oracle, over all its messages and boundaries.",
    "bench": "Time the engines of a kind beside each other, checked against the oracle first. Needs a checkout.",
    "loadtest": "Publish generated messages at a set rate and report throughput and latency from publish to update.",
    "plan": "Size a topology by measured costs: query bolts, cores, memory, what bounds the rate, and what to change.",
    "doctor": "Check Java, cores, memory, shared memory, disk and packages; print the remedy for each fault.",
    "config": "Settings.",
    "topology": "What a run consists of.",
    "version": "Print the versions of Skyray and of what it stands on.",
}


class _Commands(Mapping[str, Any]):
    """The commands by name; looking one up imports its file, iterating over the names does not."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            if name not in COMMANDS:
                raise KeyError(name)
            module = import_module(f"gateway.commands.{name.replace('-', '_')}")
            group = typer.main.get_group(module.app)
            self._made[name] = group if group.name else group.commands[name]
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class _Root(Group):
    """`skyray` itself. A list of commands, in its help or for a shell that completes, imports none of them."""

    def __init__(self, **options: Any):
        super().__init__(**options)
        self.commands = _Commands()  # type: ignore[assignment]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help page."""
        self._list_commands()
        super().format_help(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """The commands and options that may follow."""
        self._list_commands()
        return super().shell_complete(ctx, incomplete)

    def _list_commands(self) -> None:
        self.commands = {name: TyperCommand(name=name, callback=None, help=line) for name, line in COMMANDS.items()}


app = typer.Typer(
    cls=_Root,
    help="Publish/subscribe for streams of geo-tagged text. Start with `skyray demo`.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def print_version(wanted: bool | None) -> None:
    """`skyray --version`: one line, as scripts expect it."""
    if wanted:
        say(f"skyray {version_of('skyray')}")
        raise typer.Exit


@app.callback()
def skyray(
    version: Annotated[
        bool | None,
        typer.Option("--version", callback=print_version, is_eager=True, help="Print the version of Skyray, and exit."),
    ] = None,
) -> None:
    """Options before the name of a command."""


def spread(arguments: Sequence[str], option: str = "--subscriptions") -> list[str]:
    """`--subscriptions A B` as `--subscriptions A --subscriptions B`, the form that the parser knows."""
    spread_out: list[str] = []
    following = 0  # values since the option
    listing = False
    for argument in arguments:
        if listing and not argument.startswith("-"):
            if following:
                spread_out.append(option)
            following += 1
        else:
            listing, following = argument == option, 0
        spread_out.append(argument)
    return spread_out


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is returned, and every expected error is one line on standard error."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] in (["run"], ["match"], ["live"], ["serve"]) or given[:2] == ["topology", "show"]:
        given = spread(given)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    return run_interruptible(lambda interrupts: _run_command(given, interrupts))


def full_places(given: Sequence[str]) -> str:
    """Paths among the arguments, the present folder and that of temporary files, as far as their file systems are full.

    The system does not say to which file it could not write; "" if none of these is full.
    """
    paths = [Path(one.rpartition("=")[2]) for one in given if os.sep in one]
    full = []
    for path in (*paths, Path.cwd(), Path(tempfile.gettempdir())):
        with contextlib.suppress(OSError, ValueError):
            there = next(one for one in (path.absolute(), *path.absolute().parents) if one.exists())
            if os.statvfs(there).f_bavail * os.statvfs(there).f_frsize < _LEAST_BYTES:
                full.append(str(path))
    return ", ".join(dict.fromkeys(full))


def _run_command(given: list[str], interrupts: Interrupts) -> int:
    """Run a command and report its error; returns the exit code."""

    def report(message: str, details: bool = False) -> None:
        if interrupts.came is None:  # an error after an interruption is caused by it
            fail(message, details)

    try:
        check_packages()
        return int(typer.main.get_command(app).main(given, prog_name="skyray", standalone_mode=False) or 0)
    except EngineError as error:
        report(str(error), details=error.exit_code in (EngineError.exit_code, TopologyError.exit_code))
        return error.exit_code
    except TyperException as error:
        if message := error.format_message():  # empty when the help was printed instead
            report(f"{message} Try `skyray --help`.")
        return error.exit_code
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - or the interpreter complains while it exits
        return 141
    except OSError as error:
        unwritable = error.errno in _UNWRITABLE
        do = remedy_of(error) if unwritable else "check the path and its permissions"
        where = error.filename or (full_places(given) if unwritable else "") or "system"
        report(f"{where}: {error.strerror or error}; {do}")
        return (DeliveryError if unwritable else InputError).exit_code
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # Typer and Rich exit upon a broken pipe
            return 141
        return ended.code if isinstance(ended.code, int) else 1


if __name__ == "__main__":
    sys.exit(main())
