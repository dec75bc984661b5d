"""Output of commands: one JSON object for scripts, tables for people, progress on a terminal.

Standard output carries the answer and nothing else; progress and errors go to standard error. Colours follow
`NO_COLOR`. Rich is imported when a person is there to see it, which keeps `skyray --help` quick.

Ids, texts and names of files come from outside, and may have control characters or direction marks: `shown` makes such
characters visible, here and nowhere else. Commands write through this module alone.
"""

import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from errno import EACCES, ENOENT, ENOTDIR, EPERM, EROFS
from pathlib import Path
from time import monotonic
from typing import IO, TYPE_CHECKING, Any, TypeVar

from matching.errors import DeliveryError

if TYPE_CHECKING:
    from rich.console import Console

Item = TypeVar("Item")

#: Characters that a terminal obeys, that break lines, turn the direction of text, or are half of one; but not the end
#: of a line, which JSON escapes by itself.
_OBEYED = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff\U000e0000-\U000e007f]"
)
#: Width of tables when the output is no terminal, so that lines are not folded in files and pipes.
PIPED_WIDTH = 160
#: Longest time that written lines stay buffered.
FLUSH_S = 0.1
#: Seconds between two lines of progress without a terminal.
LINE_S = 5.0


class Terminal:
    """Where a command writes.

    Parameters
    ----------
    as_json : bool
        Print one JSON object, and neither tables nor drawn progress.
    in_lines : bool
        Where standard error is no terminal, a plain line for each stage of long work, with the seconds so far.
    """

    def __init__(self, as_json: bool = False, in_lines: bool = False):
        self.as_json = as_json
        self.in_lines = in_lines and not sys.stderr.isatty()
        self._begun, self._said = monotonic(), ""

    @property
    def watched(self) -> bool:
        """Whether progress is worth drawing: a person sees standard error and wants no JSON."""
        return not self.as_json and sys.stderr.isatty()

    def answer(self, payload: dict[str, Any], render: Callable[["Console"], None]) -> None:
        """Print the command's result: `payload` as JSON, or whatever `render` draws."""
        if self.as_json:
            sys.stdout.write(as_json(payload) + "\n")
            sys.stdout.flush()
        else:
            render(console())

    def stream(self, payload: dict[str, Any], lines: Callable[[int], Iterator[str]]) -> None:
        """The same for an answer that may be long: `payload` may have iterators in place of lists, and `lines` makes
        lines of visible characters, that many cells wide; what has come is printed."""
        if not self.as_json:
            write_lines(lines(console().width))
            return
        for piece in flushed(json_pieces(payload)):
            sys.stdout.write(piece)
        sys.stdout.write("\n")
        sys.stdout.flush()

    def note(self, text: str) -> None:
        """A line of progress, on a terminal."""
        if self.in_lines:
            self.line(text)
        elif self.watched:
            console(errors=True).print(shown(text), highlight=False)

    def line(self, text: str) -> None:
        """A plain line of progress on standard error, with the seconds since the command began; not the last again."""
        if text != self._said:
            sys.stderr.write(f"{monotonic() - self._begun:7.1f} s  {shown(text)}\n")
            sys.stderr.flush()
        self._said = text

    @contextmanager
    def steps(self, title: str, in_lines: bool | None = False) -> Iterator[Callable[..., None]]:
        """A spinner with the name of the stage; yields the callback that takes stage names and figures.

        Parameters
        ----------
        in_lines : bool or None
            A plain line a step instead, with the seconds so far, so that the log of a run that was killed says where it
            was; None: where standard error is no terminal.
        """
        if in_lines or self.in_lines or (in_lines is None and not sys.stderr.isatty()):
            yield lambda *stage, **figures: self.line(_sentence(title, stage, figures))
        elif self.watched:
            with console(errors=True).status(f"{title} ...") as status:
                yield lambda *stage, **figures: status.update(shown(_sentence(title, stage, figures)))
        else:
            yield lambda *_args, **_figures: None

    @contextmanager
    def progress(self, title: str, unit: str) -> Iterator[Callable[..., None]]:
        """A bar with the time left where a person watches; elsewhere a plain line on standard error now and then.

        Yields the callback, `show(done, total, **figures)`. A command that is over within `LINE_S` writes no line, and
        where standard error is a terminal and standard output JSON nothing is shown.
        """
        if self.watched:
            from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

            columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
            with Progress(*columns, console=console(errors=True), transient=True) as bar:
                task = bar.add_task(f"{title} ...", total=None)
                yield lambda done, total, **figures: bar.update(
                    task, completed=done, total=total, description=_sentence(title, (), figures)
                )
        elif sys.stderr.isatty():
            yield lambda *_args, **_figures: None
        else:
            yield _lines(title, unit)


def _lines(title: str, unit: str) -> Callable[..., None]:
    """A callback that writes a line every `LINE_S`, with the time left at the pace so far."""
    begun = written = monotonic()

    def show(done: int, total: int, **figures: Any) -> None:
        nonlocal written
        now = monotonic()
        if now - written < LINE_S:
            return
        written, share = now, done / total if total else 1.0
        left = f", about {(now - begun) * (1.0 - share) / share:,.0f} s left" if share else ""
        part = f"{done:,} of {total:,} {unit} ({share:.0%}){left}; {_sentence('', (), figures)[2:]}"
        sys.stderr.write(f"{now - begun:7.1f} s  {title}: {part.removesuffix('; ')}\n")
        sys.stderr.flush()

    return show


def _sentence(title: str, stage: Sequence[Any], figures: dict[str, Any]) -> str:
    """The stage and its figures in one line."""
    words = [str(part) for part in stage if isinstance(part, str | int | float)]
    words += [f"{name.replace('_', ' ')} {value:,}" for name, value in figures.items()]
    return " ".join([f"{title}:", *words])


def shown(text: str, lines: bool = False) -> str:
    """Text from outside as it may stand on one line of a terminal: what a terminal would obey is spelt out.

    Parameters
    ----------
    lines : bool
        Keep the ends of lines: the text was put together here, of parts that have been made visible.
    """
    text = _OBEYED.sub(lambda found: _spelt(found[0]), text)
    return text if lines else text.replace("\n", "\\n")


def as_json(payload: Any) -> str:
    """JSON on one line, in which characters that a terminal obeys are escaped too: the value is the same."""
    return _OBEYED.sub(_json_escape, json.dumps(plain(payload), ensure_ascii=False, allow_nan=False))


def json_pieces(payload: Any) -> Iterator[str]:
    """The same text, piece by piece: iterators stand for lists, and are read as far as what they give is taken."""
    if isinstance(payload, Iterator):
        parts = (("", part) for part in payload)
        opening, closing = "[", "]"
    elif isinstance(payload, dict) and any(isinstance(part, Iterator) for part in payload.values()):
        parts = ((f"{as_json(str(name))}: ", part) for name, part in payload.items())
        opening, closing = "{", "}"
    else:
        yield as_json(payload)
        return
    yield opening
    for number, (name, part) in enumerate(parts):
        yield f"{', ' if number else ''}{name}"
        yield from json_pieces(part)
    yield closing


def flushed(items: Iterable[Item]) -> Iterator[Item]:
    """Things that are written to standard output one by one, which is flushed often enough for a terminal."""
    due = 0.0
    for item in items:
        yield item
        if monotonic() >= due:
            sys.stdout.flush()
            due = monotonic() + FLUSH_S
    sys.stdout.flush()


def _json_escape(found: re.Match[str]) -> str:
    return json.dumps(found[0])[1:-1] if found[0] > "\x7f" else f"\\u{ord(found[0]):04x}"


def _spelt(character: str) -> str:
    named = {"\t": "\\t", "\r": "\\r"}
    code = ord(character)
    wide = "\\x{:02x}" if code < 0x100 else "\\u{:04x}" if code < 0x10000 else "\\U{:08x}"
    return named.get(character) or wide.format(code)


def say(line: str) -> None:
    """One line of an answer that comes line by line, of parts that have been made visible."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def write_lines(lines: Iterable[str]) -> None:
    """Lines of an answer that may be long, of parts that have been made visible."""
    for line in flushed(lines):
        sys.stdout.write(f"{line}\n")


def say_checkpoint(text: str | None) -> None:
    """Say on standard error up to where a live stream is read that has not ended; nothing for an empty text."""
    if text:
        console(errors=True).print(text)


def console(errors: bool = False) -> "Console":
    """A rich console on standard output or error: text is no markup, and never obeyed."""
    from rich.console import Console

    class Showing(Console):
        def render_str(self, text: str, **options: Any) -> Any:
            return super().render_str(shown(text, lines=True), **options)

    stream = sys.stderr if errors else sys.stdout
    width = None if stream.isatty() else PIPED_WIDTH
    return Showing(stderr=errors, width=width, highlight=False, markup=False, emoji=False)


class writing_to:  # noqa: N801 - a block, as `contextlib.suppress`; as a generator it would take thrice as long
    """A block in which the system's errors are about output: they become DeliveryError, with what to do."""

    def __init__(self, path: Path):
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        # a broken pipe is no fault of the output: the reader has closed it
        if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
            where, why = error.filename or self._path, error.strerror or error
            raise DeliveryError(f"{where}: cannot be written ({why}); {remedy_of(error)}") from error


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """A new file that gets its name when the block has ended well. Raises DeliveryError if it cannot be written."""
    partial = path.with_name(f".{path.name}.tmp")
    try:
        with partial.open("wb") as file:
            yield file
        os.replace(partial, path)
    except OSError as error:
        raise DeliveryError(f"{path}: cannot be written ({error.strerror or error}); {remedy_of(error)}") from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def remedy_of(error: OSError) -> str:
    """What to do about output that the system refuses."""
    if error.errno in (ENOENT, ENOTDIR):
        return "make its folder first, or name another place"
    if error.errno in (EACCES, EPERM, EROFS):
        return "check its permissions, or name another place"
    return "free space or name another place"


def fail(message: str, details: bool = False) -> None:
    """Say what went wrong in one line on standard error; with `details`, what stands behind its first line as well.

    A failed component quotes its traceback there: of use where the program is to blame, noise where the input is.
    """
    first, *rest = message.strip().splitlines() or [""]
    if not any(line.startswith("Traceback") for line in rest):
        first, rest = " ".join([first, *map(str.strip, rest)]), []
    sys.stderr.write(f"error: {shown(first)}\n" + "".join(f"  {shown(line)}\n" for line in rest if details))
    sys.stderr.flush()


def table(
    headings: Sequence[str], rows: Sequence[Sequence[Any]], right: Sequence[int] = (), title: str = "", gap: int = 3
):
    """A table for people; columns named in `right` are right-aligned figures, `gap` spaces are between columns."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False, padding=(0, gap // 2, 0, (gap - 1) // 2))
    drawn.title = Text(shown(title)) if title else None
    for position, heading in enumerate(headings):
        drawn.add_column(Text(shown(heading)), justify="right" if position in right else "left")
    for row in rows:  # Text, not markup: brackets in a message are no instructions
        drawn.add_row(*(Text(cell(value)) for value in row))
    return drawn


def cell(value: Any) -> str:
    """A value as people read it, on one line."""
    return shown(_worded(value))


def shortened(value: Any, longest: int = 48) -> str:
    """The beginning of a value, on one line."""
    text = " ".join(str(value).split())
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _worded(value: Any) -> str:
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
