"""Turns, and where the time of an operator goes in them: its index, what it keeps, its updates, refills, the window.

Methods get clocks on the very objects of a benchmark and nowhere else; a few calls a batch, so that they cost nothing
that shows.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from statistics import median
from time import perf_counter
from typing import Any, TypeVar

from matching.operator import KindOperator, WindowIndex

Name = TypeVar("Name")

#: Part, path to an object, methods. What runs inside a refill counts as refill, whatever it calls.
_CLOCKED = (
    ("index", "operator.engine", ("match", "set_thresholds", "withdraw")),
    ("index", "operator.replicas.engine", ("match",)),
    ("index", "operator.engine.subscriptions", ("match", "withdraw", "release")),
    ("kept", "operator.buffers", ("close", "offer", "expire", "due", "results", "raise_threshold", "clear")),
    ("kept", "operator.engine", ("apply", "forget")),
    ("updates", "operator", ("result_updates",)),
    ("refills", "operator", ("_request", "answer")),
    ("refills", "window_index", ("answer",)),
    ("window", "window_index", ("store", "load")),
)


def in_turns(names: Iterable[Name], rounds: int, measure: Callable[[Name, int], Any]) -> dict[Name, list[Any]]:
    """What each says of its turns, A B A B: a slow minute of the machine hits all alike."""
    turns: dict[Name, list[Any]] = {name: [] for name in names}
    for turn in range(rounds):
        for name, mine in turns.items():
            mine.append(measure(name, turn))
    return turns


def medians(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """The median of each figure over the rows that have it."""
    figures = dict.fromkeys(figure for row in rows for figure in row)
    return {figure: median(row[figure] for row in rows if figure in row) for figure in figures}


class Stopwatch:
    """Wall-clock `seconds` by part of an operator and its window index, if there is one, since they were built.

    A part that runs inside another stops the other's clock, save that a refill keeps all that it calls.
    """

    def __init__(self, operator: KindOperator, window_index: WindowIndex | None = None):
        self.operator, self.window_index = operator, window_index
        self.seconds: dict[str, float] = {}
        self._running, self._since = "", 0.0
        for part, path, methods in _CLOCKED:
            try:
                owner = attrgetter(path)(self)
            except AttributeError:  # not every operator has every part
                continue
            for method in methods:
                if hasattr(owner, method):
                    self.seconds[part] = 0.0
                    setattr(owner, method, self._clock(part)(getattr(owner, method)))

    @contextmanager
    def _clock(self, part: str) -> Iterator[None]:
        """Lets the clock of a part run while a call lasts, and then the one that ran before."""
        around = self._running
        self._switch(around if around == "refills" else part)
        try:
            yield
        finally:
            self._switch(around)

    def _switch(self, part: str) -> None:
        now = perf_counter()
        if self._running:
            self.seconds[self._running] += now - self._since
        self._running, self._since = part, now
