"""The exit codes of all commands, and whether the same command may be run again: for `--help` and job systems.

`docs/cli.md` has the same table. `gateway.cli` returns them; those of errors are in `matching.errors`.
"""

from typing import NamedTuple


class ExitCode(NamedTuple):
    """An exit code. `again`: whether the same `skyray run --resume auto` may succeed without any change to it."""

    code: int
    meaning: str
    again: bool


CODES = (
    ExitCode(0, "done", False),
    ExitCode(1, "done but the answer is no", False),
    ExitCode(2, "wrong use or setting", False),
    ExitCode(3, "topology or its Ray failed", True),
    ExitCode(4, "input missing, unreadable, or without one usable row", False),
    ExitCode(5, "damaged checkpoint", False),
    ExitCode(6, "output cannot be written (disk full, read-only, no such folder)", True),
    ExitCode(7, "overload", False),
    ExitCode(8, "shadowed package", False),
    ExitCode(9, "another process writes to the folder", True),
    ExitCode(75, "a receiver of --to lacks updates", True),
    ExitCode(130, "interrupted", True),
    ExitCode(141, "reader gone", True),
    ExitCode(143, "terminated", True),
)

#: By kill -9, or by the system for want of memory: the process itself returns nothing.
KILLED = 137

ENDING = f"Exit codes: {', '.join(f'{one.code} {one.meaning}' for one in CODES)}."
AGAIN = (
    f"Worth running again as it is, with --resume auto: {', '.join(str(one.code) for one in CODES if one.again)}, "
    f"and {KILLED} (killed)."
)
