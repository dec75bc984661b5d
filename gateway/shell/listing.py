"""Lists that may be long, as lines: printed as their rows come, and as wide as the terminal.

The first rows say how wide columns are, so that nothing waits for the last. What is too much for one line goes to a
second one.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

from gateway.shell.terminal import cell

#: Rows that say how wide the columns are.
SAMPLE = 100
#: Spaces between columns, and before what is on the second line.
GAP, INDENT = 2, "    "
#: Least width in characters of the last column; a narrower one moves to a second line.
LEAST_TEXT = 24
_BETWEEN = " " * GAP


def listing(
    headings: Sequence[str],
    rows: Iterable[Sequence[Any]],
    width: int,
    right: Sequence[str] = (),
    below: Sequence[str] = (),
) -> Iterator[str]:
    """Rows as lines that fit; nothing where there are none.

    Parameters
    ----------
    headings : sequence of str
        The last column takes what is left of the line, and is cut where that is too little. The others are whole.
    width : int
        Cells of a line.
    right : sequence of str
        Headings of figures.
    below : sequence of str
        Headings of columns that go to a second line if they do not fit on the first, in the order in which they do.
    """
    coming = iter(rows)
    first = [[cell(value) for value in row] for row in islice(coming, SAMPLE)]
    if not first:
        return
    widths = [max(cells(text) for text in column) for column in zip(headings, *first, strict=True)]
    least = [*widths[:-1], min(widths[-1], LEAST_TEXT)]
    above = list(range(len(headings)))
    under: list[int] = []
    for name in below:
        if sum(least[at] + GAP for at in above) - GAP <= width:
            break
        above.remove(headings.index(name))
        under.append(headings.index(name))
    under.sort()
    aligned = {headings.index(name) for name in right}

    def lines(row: Sequence[str]) -> Iterator[str]:
        parts = [_padded(row[at], widths[at], at in aligned) for at in above]
        yield fitted(_BETWEEN.join(parts).rstrip(), width)
        if under:
            yield fitted((INDENT + _BETWEEN.join(row[at] for at in under if row[at])).rstrip(), width)

    yield from lines(headings)
    yield "─" * min(width, max(sum(widths[at] + GAP for at in above) - GAP, 20))
    for row in chain(first, ([cell(value) for value in row] for row in coming)):
        yield from lines(row)


def cells(text: str) -> int:
    """How many cells of a terminal a text takes: a Chinese character takes two."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def fitted(text: str, width: int) -> str:
    """The beginning of a text, at most this many cells."""
    from rich.cells import set_cell_size

    return text if cells(text) <= width else set_cell_size(text, max(0, width - 1)).rstrip() + "…"


def _padded(text: str, width: int, right: bool) -> str:
    spaces = " " * max(0, width - cells(text))
    return spaces + text if right else text + spaces
