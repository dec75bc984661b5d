"""A command that does not end in time is ended, and the test says where each of its threads stood."""

import pytest

from tests.support.processes import Command

#: Holds the interpreter's lock for good, so that no thread of its own could say anything.
STUCK = """
import ctypes, sys
print("here", flush=True)
def deep_within():
    ctypes.PyDLL(None).pause()
deep_within()
"""


def test_command_that_does_not_end_says_where_it_stands():
    with Command([], script=STUCK) as command:
        command.await_(lambda: "here" in command.read()[0])
        with pytest.raises(AssertionError, match="had not ended after 0.2 s(.|\n)*in deep_within"):
            command.finish(0.2)
