"""The clock of parts: what it names is there."""

from operator import attrgetter

import pytest

from benchmarks.stopwatch import _CLOCKED, Stopwatch
from matching.kinds import KINDS
from matching.local_engine import LocalEngine
from matching.operator import OperatorContext
from matching.window import Window
from tests.support.any_kind import FADING
from tests.support.worlds import SPACE


def owners(path: str):
    """The objects at a path, of every kind that has it; top-k with replicas."""
    replicated = OperatorContext(SPACE, Window("count", 10), replicates=True)
    for kind in KINDS.run:
        alone = LocalEngine([kind], SPACE, Window("count", 10), fading=FADING)
        operators = [alone.operator, kind.make_operator(replicated)] if kind.replicated else [alone.operator]
        for operator in operators:
            watch = Stopwatch(operator, alone.window_index if kind.windowed else None)
            try:
                yield attrgetter(path)(watch)
            except AttributeError:
                continue


@pytest.mark.parametrize(("path", "methods"), [(path, methods) for _, path, methods in _CLOCKED])
def test_stopwatch_clocks_only_methods_that_some_kind_has(path, methods):
    found = list(owners(path))
    assert [method for method in methods if not any(hasattr(owner, method) for owner in found)] == []


def test_stopwatch_clocks_updates_of_every_kind_that_refills():
    for kind in KINDS.run:
        if kind.windowed:
            alone = LocalEngine([kind], SPACE, Window("count", 10))
            assert "updates" in Stopwatch(alone.operator, alone.window_index).seconds, kind.name
