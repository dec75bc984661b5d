"""Every message is stored by all copies of its part, and every window query goes to one task of each part."""

from collections import Counter

import numpy as np
import pytest

from bolts.copies import WindowTasks

SEQ = np.arange(100, dtype=np.int64)


@pytest.mark.parametrize(("tasks", "parts"), [(1, 1), (4, 1), (4, 4), (5, 2), (7, 3), (2, 9)], ids=str)
def test_window_tasks_asked_store_every_message_once_and_take_turns(tasks, parts):
    window = WindowTasks.of(tasks, parts)
    asked = Counter()
    for home in range(3):
        for request in range(60):
            of_request = window.answering(home, request)
            assert [window.part_of(task) for task in of_request] == list(range(window.parts))
            assert (np.sum([window.stores(task, SEQ) for task in of_request], 0) == 1).all()
            asked.update(of_request)
    assert asked.keys() == set(range(tasks)) and sum(asked.values()) == 180 * window.parts
    of_part = [[asked[task] for task in range(tasks) if window.part_of(task) == part] for part in range(window.parts)]
    assert all(max(counts) - min(counts) <= 3 for counts in of_part), "copies share the queries"


@pytest.mark.parametrize(("tasks", "parts"), [(4, 1), (5, 2), (3, 3)], ids=str)
def test_window_tasks_that_save_have_every_message_once(tasks, parts):
    window = WindowTasks.of(tasks, parts)
    saved = [window.stores(task, SEQ) for task in range(tasks) if window.saves(task)]
    assert (np.sum(saved, 0) == 1).all()
