"""Rows of a list of which some were read or checked together, in columns, and the others singly."""

from collections.abc import Iterator, Sequence


def runs(rows: Sequence[int], count: int) -> Iterator[tuple[int, int, int]]:
    """All of so many rows in their order: first row, last one (exclusive), and the place of the first in `rows`.

    `rows` are those that are in columns, ascending. Any other comes by itself, with the place -1.
    """
    row = place = 0
    while row < count:
        stop = place
        while stop < len(rows) and rows[stop] - row == stop - place:
            stop += 1
        if stop > place:
            yield row, row + stop - place, place
            row, place = row + stop - place, stop
        else:
            yield row, row + 1, -1
            row += 1
