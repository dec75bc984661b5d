"""A live stream that dies before any operation of its disk, and is started again, ends as one that nothing disturbs.

Killed, or together with the machine, which loses what was not forced to disk; also while it resumes; also with another
number of delivery bolts afterwards. Histories are made by `tests.support.killed_streams`.
"""

import functools
from collections import Counter

import pytest

from tests.support.killed_streams import given_lines, lives, number_of, parts_of, spread, undisturbed

pytestmark = pytest.mark.fault

#: Whether the stream starts with words, updates that end a part, sessions, and delivery bolts of its lives, in turn.
STORIES = {
    "one bolt, then two": (True, 1, 1, (1, 2)),
    "parts now and then": (True, 130, 1, (1,)),
    "no words, two sessions": (False, 1, 2, (2, 1)),
    "two bolts, part by part": (True, 1, 1, (2,)),
    "two bolts, one part": (False, 10**6, 2, (2, 2, 1)),
}
KILL, STOP = False, True


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """Makes the histories of a story: a function of operations and deaths, and what an undisturbed stream leaves."""

    @functools.cache
    def made(name):
        words, rows, sessions, tasks = STORIES[name]
        folder = tmp_path_factory.mktemp("story")
        given = given_lines(folder, words)
        with parts_of(rows):
            whole = undisturbed(given, folder / "whole", sessions, tasks)

        def history(tmp_path, *numbers, **more):
            with parts_of(rows):
                return lives(given, whole, tmp_path, numbers, sessions=sessions, delivery_bolts=tasks, **more)

        return whole, history

    return made


def live_through(history, tmp_path, histories, **more):
    """Live through histories of operations and deaths; counts what they died before."""
    rows, deaths = 0, Counter()
    for place, (numbers, stops) in enumerate(histories):
        tmp_path.mkdir(exist_ok=True)
        try:
            lived = history(tmp_path / str(place), *numbers, stops=stops, **more)
        except BaseException as error:
            error.add_note(f"dies before operations {numbers}, the machine with it: {stops}")
            raise
        assert lived.deaths, f"nothing died before operation {numbers[0]}"
        rows += lived.rows
        deaths.update(lived.deaths)
    assert rows >= 1_000, f"{rows} updates in all: too few to lose one"
    return deaths


@pytest.mark.parametrize(
    ("name", "begin"), [("one bolt, then two", 0), ("no words, two sessions", 8)], ids=["words", "none"]
)
def test_live_stream_that_dies_before_some_operations_ends_as_if_undisturbed(story, tmp_path, name, begin):
    whole, history = story(name)
    chosen = spread(whole)[begin::24]
    histories = [((number,), (number % 3 == 0,)) for number in chosen]
    histories += [((number, number % 40), (KILL, number % 2 == 0)) for number in chosen[1::2]]
    behind = number_of(whole, r"rename .*/epoch-\d+\.json", "sync out/checkpoints$", nth=1)
    histories += [((number,), (KILL,)) for number in (behind, behind + 1)]  # its parts wait for their names
    assert live_through(history, tmp_path, histories).total() >= len(histories)


def test_live_stream_killed_before_its_log_had_a_name_on_disk_keeps_it_when_the_machine_stops(story, tmp_path):
    whole, history = story("parts now and then")
    number = number_of(whole, "create .*/log$", "sync .*/log$", "sync out/journal$")
    deaths = live_through(
        history, tmp_path, [((number, second), (KILL, STOP)) for second in (60, 90, 120)], verified=True
    )
    assert deaths["sync out/journal"] == 3 and deaths.total() == 6


def test_live_stream_killed_before_a_part_had_its_name_on_disk_keeps_it_when_the_machine_stops(story, tmp_path):
    """No other part is named before the machine stops, but a checkpoint that relies on this one is made."""
    whole, history = story("parts now and then")
    number = number_of(whole, r"rename .*/part-00000\.", "sync out/updates$")
    histories = [((number, second), (KILL, STOP)) for second in (75, 90, 105)]
    deaths = live_through(history, tmp_path, histories, verified=True)
    assert deaths["sync out/updates"] == 3 and deaths.total() == 6


def test_live_stream_killed_before_a_manifest_had_its_name_on_disk_keeps_boundaries_whole(story, tmp_path):
    """The parts of two delivery bolts get their names together, or none of them does."""
    whole, history = story("two bolts, part by part")
    number = number_of(whole, r"rename .*/epoch-\d+\.json", "sync out/checkpoints$", nth=2)
    deaths = live_through(history, tmp_path, [((number, second), (KILL, STOP)) for second in (2, 3, 4)], verified=True)
    assert deaths["sync out/checkpoints"] >= 3 and deaths.total() == 6


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("stops", [(KILL,), (STOP,)], ids=["killed", "stopped"])
@pytest.mark.parametrize("name", STORIES)
def test_live_stream_that_dies_before_any_operation_ends_as_if_undisturbed(story, tmp_path, name, stops):
    whole, history = story(name)
    for luck in (None, 1):  # of a stop: all is lost, or some
        numbers = range(0 if luck is None else 1, len(whole.operations), 2)
        deaths = live_through(history, tmp_path / str(luck), [((number,), stops) for number in numbers], luck=luck)
        assert deaths.total() == len(numbers) > 100


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("name", STORIES)
def test_live_stream_that_dies_again_while_it_resumes_ends_as_if_undisturbed(story, tmp_path, name):
    whole, history = story(name)
    ways = [(KILL, STOP), (STOP, KILL), (KILL, KILL), (STOP, STOP)]
    seconds = [(number, second) for place, number in enumerate(spread(whole)) for second in range(place % 11, 60, 11)]
    histories = [(numbers, ways[place % 4]) for place, numbers in enumerate(seconds)]
    assert live_through(history, tmp_path, histories).total() > 1.5 * len(histories)


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("name", STORIES)
def test_live_stream_that_dies_while_a_thread_writes_its_checkpoint_ends_as_if_undisturbed(story, tmp_path, name):
    _, history = story(name)
    histories = [((number, number % 60), (KILL, number % 2 == 0)) for number in range(0, 120, 3)]
    assert live_through(history, tmp_path, histories, seed=None).total() > 60
