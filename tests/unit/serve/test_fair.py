"""Room is shared so that a newcomer finds some, and names take turns."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.serve.fair import FairQueue, Room


def test_room_one_caller_alone_gets_half_and_a_newcomer_finds_some():
    room = Room(100)
    while room.has("greedy", 1):
        room.take("greedy", 1)
    assert room.used == (50,)
    for number in range(20):
        while room.has(f"greedy {number}", 1):
            room.take(f"greedy {number}", 1)
    assert room.used[0] < 100
    room = Room(1_000)
    for number in range(3):
        while room.has(f"greedy {number}", 100):
            room.take(f"greedy {number}", 100)
    assert room.has("polite", 10) and not room.has("greedy 0", 100)


def test_room_bounds_each_of_its_amounts_also_while_it_is_empty():
    room = Room(10, 100)
    assert room.has("a", 5, 50) and not room.has("a", 6, 1) and not room.has("a", 1, 51)
    room.take("a", 1, 40)
    assert not room.has("a", 1, 11) and room.has("a", 1, 10) and not room.has("b", 1, 31) and room.has("b", 1, 30)
    room.give_back("a", 1, 40)
    assert room.used == (0, 0) and not room._of


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 40))))
def test_room_never_has_more_than_it_may(asked):
    room, taken = Room(100), []
    for caller, amount in asked:
        if room.has(caller, amount):
            room.take(caller, amount)
            taken.append((caller, amount))
        assert room.used[0] == sum(more for _, more in taken) <= 99
    for one in taken:
        room.give_back(*one)
    assert room.used == (0,) and not room._of


def test_queue_names_take_turns_and_items_of_a_name_keep_their_order():
    queue: FairQueue[str] = FairQueue()
    for item in ("a1", "a2", "a3", "b1", "c1", "c2"):
        queue.put(item[0], item)
    assert sorted(queue) == ["a1", "a2", "a3", "b1", "c1", "c2"]
    found = [queue.take() for _ in range(2)]
    queue.put("a", "a0", first=True)
    queue.put("d", "d1")
    found += [queue.take() for _ in range(6)]
    assert found == ["a1", "b1", "c1", "a0", "d1", "c2", "a2", "a3"] and not queue
