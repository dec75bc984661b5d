"""Warm-up compiles every boolean kernel, and what runs later compiles nothing more."""

import importlib
import pkgutil

import numba
import numpy as np
import pytest

import matching.boolean
from benchmarks.workload import boolean_subscriptions, make_messages
from matching.boolean.stream import BooleanStream
from matching.model import BOOLEAN, Removals, SubscriptionTable, empty
from matching.registry import factory, names
from matching.slots import as_input
from matching.warmup import warmup
from matching.window import NO_FLOOR, Boundary
from tests.unit.boolean_tables import SPACE, no_removals

pytestmark = pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="the compiler is switched off")  # type: ignore[attr-defined]


def kernels() -> dict:
    """Every compiled function of the boolean engines, by name."""
    modules = [f"matching.boolean.{found.name}" for found in pkgutil.iter_modules(matching.boolean.__path__)]
    found = {}
    for name in [*modules, "matching.slots"]:
        for attribute, value in vars(importlib.import_module(name)).items():
            if hasattr(value, "py_func") and value.py_func.__module__ == name:
                found[f"{name}.{attribute}"] = value
    return found


def test_kernels_have_the_flags_of_the_house():
    assert len(kernels()) > 30
    for name, kernel in kernels().items():
        assert kernel.targetoptions.get("nogil") is True, name
        assert not set(kernel.targetoptions) & {"fastmath", "parallel"}, name
        assert type(kernel._cache).__name__ != "NullCache", name


def test_warmup_leaves_nothing_to_compile():
    warmup({"boolean": names("boolean")})
    before = {name: len(kernel.signatures) for name, kernel in kernels().items()}
    # A kernel that only kernels call has no signature of its own when its caller comes from the cache.
    called = {name for name, count in before.items() if count}
    assert {f"matching.boolean.{kernel}" for kernel in ("cell_match.match", "blocks.repack", "rows._compact")} <= called
    assert len(called) > 15
    messages = make_messages(400, 8)
    subscriptions = boolean_subscriptions(messages, 3_000, 8)
    frozen = {name: as_input(column, column.dtype.type) for name, column in subscriptions._asdict().items()}
    for name in names("boolean"):
        stream = BooleanStream(factory("boolean", name)(SPACE))
        stream.process(Boundary(0, 0, 399, NO_FLOOR), messages.batch, SubscriptionTable(**frozen), no_removals())
        later = type(messages.batch)(*(as_input(column, column.dtype.type) for column in messages.batch))
        later = type(later)(**{**later._asdict(), "seq": later.seq + 400, "east": later.east + 1.0})
        gone = np.arange(0, 3_000, 2)
        leave = Removals(as_input(gone, np.int64), np.full(1_500, BOOLEAN, np.int8), np.full(1_500, 600))
        assert len(stream.process(Boundary(1, 400, 799, NO_FLOOR), later, empty(SubscriptionTable), leave)) > 0
        stream.restore({key: as_input(value, value.dtype.type) for key, value in stream.snapshot().items()})
        stream.engine.remove(np.arange(1, 3_000, 2))
    after = {name: len(kernel.signatures) for name, kernel in kernels().items()}
    assert after == before, {name: (before[name], after[name]) for name in after if after[name] != before[name]}
