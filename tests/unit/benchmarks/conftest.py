"""Small workloads have little to compare: here a figure counts on what it would be too little for elsewhere."""

import pytest

from benchmarks import command


@pytest.fixture(autouse=True)
def little_is_enough(monkeypatch):
    """Lowers what a figure counts from; a test of that begins with `monkeypatch.undo()`."""
    monkeypatch.setattr(command, "FEWEST_COMPARED", 0)
    monkeypatch.setattr(command, "FEWEST_SUBSCRIPTIONS", 0)
