"""Names of parts sort as updates are applied, and half a number is not read."""

import pytest

from matching.part_names import PartName, whole_parts


@pytest.mark.parametrize("name", [PartName(3), PartName(3, 1, 4), PartName(0, 0, 2, "jsonl")])
def test_name_of_a_part_is_read_back(name):
    assert PartName.of(name.text) == name


def test_parts_of_a_last_number_whose_first_task_is_missing_are_left_out():
    first, last = [PartName(0, task, 3).text for task in range(3)], [PartName(1, task, 3).text for task in (2, 1)]
    assert [part.text for part in whole_parts([*last, *first])] == first
    whole = [*last, PartName(1, 0, 3).text, *first]
    assert [part.text for part in whole_parts(whole)] == sorted(whole)
    assert whole_parts([]) == []
