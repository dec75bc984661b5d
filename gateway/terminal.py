"""How commands talk: one JSON object for scripts, tables for people, progress drawn when somebody watches.

Standard output carries the answer and nothing else; progress and errors go to standard error. Colours follow
`NO_COLOR`. Rich is imported when a person is there to see it, which keeps `skyray --help` quick.
"""

import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

#: Width of tables when the output is no terminal, so that lines are not folded in files and pipes.
PIPED_WIDTH = 160


class Terminal:
    """Where a command writes.

    Parameters
    ----------
    as_json : bool
        Print one JSON object, and neither tables nor drawn progress.
    """

    def __init__(self, as_json: bool = False):
        self.as_json = as_json

    @property
    def watched(self) -> bool:
        """Whether progress is worth drawing: a person sees standard error and wants no JSON."""
        return not self.as_json and sys.stderr.isatty()

    def answer(self, payload: dict[str, Any], render: Callable[["Console"], None]) -> None:
        """Print the command's result: `payload` as JSON, or whatever `render` draws."""
        if self.as_json:
            sys.stdout.write(json.dumps(plain(payload), ensure_ascii=False, allow_nan=False) + "\n")
            sys.stdout.flush()
        else:
            render(console())

    def note(self, text: str) -> None:
        """A line about what goes on, for people who watch."""
        if self.watched:
            console(errors=True).print(text, highlight=False)

    @contextmanager
    def steps(self, title: str, in_lines: bool | None = False) -> Iterator[Callable[..., None]]:
        """A spinner with the name of the stage; yields the callback that takes stage names and figures.

        Parameters
        ----------
        title : str
        in_lines : bool or None
            A plain line a step instead, with the seconds so far, so that the log of a run that was killed says where it
            was; None: where standard error is no terminal.
        """
        if in_lines or (in_lines is None and not sys.stderr.isatty()):
            begun = monotonic()

            def write(*stage: Any, **figures: Any) -> None:
                sys.stderr.write(f"{monotonic() - begun:7.1f} s  {_sentence(title, stage, figures)}\n")
                sys.stderr.flush()

            yield write
        elif self.watched:
            with console(errors=True).status(f"{title} ...") as status:
                yield lambda *stage, **figures: status.update(_sentence(title, stage, figures))
        else:
            yield lambda *_args, **_figures: None


def _sentence(title: str, stage: Sequence[Any], figures: dict[str, Any]) -> str:
    """What is going on, in one line."""
    words = [str(part) for part in stage if isinstance(part, str | int | float)]
    words += [f"{name.replace('_', ' ')} {value:,}" for name, value in figures.items()]
    return " ".join([f"{title}:", *words])


def console(errors: bool = False) -> "Console":
    """A rich console on standard output or error."""
    from rich.console import Console

    stream = sys.stderr if errors else sys.stdout
    return Console(stderr=errors, width=None if stream.isatty() else PIPED_WIDTH, highlight=False)


def fail(message: str, details: bool = False) -> None:
    """Say what went wrong in one line on standard error; with `details`, what stands behind its first line as well.

    A failed component quotes its traceback there: of use where the program is to blame, noise where the input is.
    """
    first, *rest = message.strip().splitlines() or [""]
    if not any(line.startswith("Traceback") for line in rest):
        first, rest = " ".join([first, *map(str.strip, rest)]), []
    sys.stderr.write(f"error: {first}\n" + "".join(f"  {line}\n" for line in rest if details))
    sys.stderr.flush()


def table(headings: Sequence[str], rows: Sequence[Sequence[Any]], right: Sequence[int] = (), title: str = ""):
    """A table for people; columns named in `right` are right-aligned figures."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left", pad_edge=False)
    for position, heading in enumerate(headings):
        drawn.add_column(heading, justify="right" if position in right else "left")
    for row in rows:  # Text, not markup: brackets in a message are no instructions
        drawn.add_row(*(Text(cell(value)) for value in row))
    return drawn


def cell(value: Any) -> str:
    """A value as people read it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    if isinstance(value, dict):
        return ", ".join(f"{name}={part}" for name, part in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return str(value)


def plain(value: Any) -> Any:
    """JSON-ready copy: paths as text, arrays' numbers as Python's, NaN and infinities as null."""
    if isinstance(value, dict):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(part) for part in value]
    if hasattr(value, "tolist"):  # numpy array or scalar
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Path):
        return str(value)
    return value
