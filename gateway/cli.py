"""The command line, called by `gateway.entry`. Each command is a file of `gateway.commands`; here they become one app.

A command reads its options, imports what it needs only then (so that `skyray --help` answers at once), calls the
project and prints its answer.

Exit codes are in `gateway.shell.exit_codes`: 1 an answer that is no (not exact, a fault found), those of
`matching.errors`, and those of signals. An error of the operating system is 6 if a file system could not be written
to (`_UNWRITABLE`), else 4.
"""

import contextlib
import errno
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from typer.exceptions import TyperException

from gateway.commands import (
    backup,
    bench,
    config,
    convert,
    demo,
    doctor,
    etl,
    explain,
    feed,
    feed_demo,
    keys,
    live,
    loadtest,
    match,
    plan,
    preview,
    run,
    scale,
    serve,
    show,
    subscriptions,
    topology,
    verify,
    version,
)
from gateway.shell.interrupts import Interrupts, run_interruptible
from gateway.shell.options import Group
from gateway.shell.packages import check_packages
from gateway.shell.terminal import fail, remedy_of
from matching.errors import DeliveryError, EngineError, InputError, TopologyError

#: Error numbers of a file system that cannot be written to; any other is taken for an error of reading.
_UNWRITABLE = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG))
#: A file system with less room is full.
_LEAST_BYTES = 2**20

app = typer.Typer(
    cls=Group,
    help="Publish/subscribe for streams of geo-tagged text. Start with `skyray demo`.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def skyray(
    version_of: Annotated[
        bool | None,
        typer.Option(
            "--version", callback=version.print_version, is_eager=True, help="Print the version of Skyray, and exit."
        ),
    ] = None,
) -> None:
    """Options before the name of a command."""


for command in (
    *(demo, feed_demo, etl, feed, subscriptions, run, scale, live, serve, keys, backup, convert, show, explain, match),
    *(preview, verify, bench, loadtest, plan, doctor, config, topology, version),
):
    app.add_typer(command.app)


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
