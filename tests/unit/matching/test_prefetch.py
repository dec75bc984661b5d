"""Asking for memory ahead, with the compiler switched off."""

from matching.storage.prefetch import prefetch


def test_prefetch_without_the_compiler_does_nothing():
    assert prefetch([1, 2], 5) is None
