"""What outlives a full collection is not visited again; cycles among it are freed once many clients have gone."""

import gc
import weakref

import pytest

from gateway.serve.garbage import _ENDED, Garbage


class Node:
    """In a cycle with itself."""

    def __init__(self):
        self.me = self


@pytest.fixture
def garbage():
    with Garbage() as one:
        yield one
    assert gc.get_freeze_count() == 0
    gc.collect()


def test_what_outlives_a_full_collection_is_left_alone_until_many_streams_have_ended(garbage):
    node = Node()
    seen = weakref.ref(node)
    garbage.settle()
    assert gc.get_freeze_count() > 10_000 and garbage.whole == 0
    del node
    gc.collect()  # as Python begins one by itself
    assert seen() is not None, "it was visited"
    garbage.look(_ENDED - 1)
    assert seen() is not None and garbage.whole == 0
    garbage.look(_ENDED)
    assert seen() is None and garbage.whole == 1
    garbage.look(_ENDED + 1)
    assert garbage.whole == 1


def test_what_is_loaded_is_frozen_without_a_visit(garbage):
    runs = []
    gc.callbacks.append(lambda phase, info: runs.append(phase))
    try:
        with pytest.raises(KeyError), garbage.loading():
            loaded = [Node() for _ in range(10_000)]
            assert not runs and not gc.isenabled()
            raise KeyError
        assert not runs and gc.isenabled() and gc.get_freeze_count() > len(loaded)
        seen = weakref.ref(loaded.pop())
        garbage.settle()
        assert seen() is not None, "it was visited"
        garbage.look(_ENDED)
        assert seen() is None
    finally:
        gc.callbacks.pop()


def test_cycles_that_are_new_are_freed_as_ever(garbage):
    garbage.settle()
    seen = weakref.ref(Node())
    gc.collect()
    assert seen() is None
