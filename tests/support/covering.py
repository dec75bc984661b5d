"""Settings in few rows, and which of many cases a commit waits for."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest


def pairwise(settings: dict[str, tuple], seed: int = 0) -> list[dict]:
    """Rows in which every two values of different settings occur together, greedily few; the same for the same seed.

    A row begins with a pair that is missing; then setting by setting, in random order, it takes the value that brings
    most missing pairs.
    """
    rng = np.random.default_rng(seed)
    names = sorted(settings)
    values = [(name, place) for name in names for place in range(len(settings[name]))]
    missing = {pair for pair in itertools.combinations(values, 2) if pair[0][0] != pair[1][0]}
    chosen = []
    while missing:
        row = dict(min(missing))
        for name in rng.permutation([name for name in names if name not in row]).tolist():
            gains = [
                sum(_pair((name, place), other) in missing for other in row.items())
                for place in range(len(settings[name]))
            ]
            best = np.flatnonzero(np.array(gains) == max(gains))
            row[name] = int(rng.choice(best))
        missing -= {_pair(*pair) for pair in itertools.combinations(row.items(), 2)}
        chosen.append({name: settings[name][row[name]] for name in settings})
    return chosen


def tiered(cases: Iterable[Any], one_in: int, first: int = 0, plain: dict[str, Any] | None = None) -> list[Any]:
    """Cases for `parametrize`: a commit waits for one in so many; of the others a third are `wide`, the rest `long`.

    Those that a commit waits for have the `plain` values; where that changes one, the case as it was is `long`.
    """
    cases = list(cases)
    others = [number for number in range(len(cases)) if number % one_in != first]
    ways = pytest.mark.wide, pytest.mark.long, pytest.mark.long
    marks = {number: ways[place % 3] for place, number in enumerate(others)}
    made = []
    for number, case in enumerate(cases):
        if number in marks:
            made.append(_marked(case, marks[number]))
        elif plain and case | plain != case:
            made += [case | plain, _marked(case, pytest.mark.long)]
        else:
            made.append(case)
    return made


def sampled(rows: Sequence[tuple[int, ...]]) -> set[int]:
    """Which rows of a matrix stand for all of it: few that have every value of every axis.

    Parameters
    ----------
    rows : sequence of tuple of int
        The position of a row on each axis. Of a full matrix of two axes the rows taken are a diagonal: each value of
        the longer axis, an engine say, meets one value of the other, and its neighbour meets the next one.
    """
    axes = range(len(rows[0]) if rows else 0)
    longest = max((len({row[axis] for row in rows}) for axis in axes), default=1)
    taken = {number for number, row in enumerate(rows) if sum(row) % longest == 0}
    for axis in axes:
        covered = {rows[number][axis] for number in taken}
        for number, row in enumerate(rows):
            if row[axis] not in covered:
                covered.add(row[axis])
                taken.add(number)
    return taken


def _marked(case: Any, mark: Any) -> Any:
    if hasattr(case, "marks"):  # of `pytest.param`
        return pytest.param(*case.values, id=case.id, marks=[*case.marks, mark])
    return pytest.param(case, marks=mark)


def _pair(one: tuple[str, int], other: tuple[str, int]) -> tuple:
    return (one, other) if one < other else (other, one)
