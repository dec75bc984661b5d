"""Updates of the past: from memory, from parts, from a checkpoint; the same ids everywhere."""

import asyncio
import json
import random
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from msgspec.json import decode, encode

from bolts.names import IdColumn
from bolts.publishing import UpdatePublisher
from gateway.client.rows import Results
from gateway.live.in_flight import InFlight
from gateway.live.update_listener import MessageText
from gateway.serve.event_forms import LINES
from gateway.serve.hub import Hub, Interest
from gateway.serve.questions import Questions
from gateway.serve.registry import Ended, Registered, Registry
from gateway.serve.released import Released
from gateway.serve.releasing import Releaser
from gateway.serve.standing import results_at
from gateway.serve.update_log import UpdateLog
from gateway.serve.update_parts import BEGINNING, Parts, PartsMissing, Place, Position, saved_updates
from matching.model import CHANGES, Names, UpdateBatch
from matching.part_names import ListedPart
from tests.support.releasing import published, updates_of, write_part
from tests.support.writing import await_
from topology.core.checkpoint.storage import Output, list_path, publish

ENDS = list(range(9, 1_000, 10))


def texts(seqs):
    return {seq: MessageText(f"m{seq}", "text", 1.0, 2.0) for seq in seqs}


def rows_of(count, seed=1):
    """Updates: as_of, id, seq, change, score; no two of one id, message and change at a boundary."""
    rng, found = random.Random(seed), {}
    while len(found) < count:
        seq, change = rng.randrange(1_000), rng.choice(("match", "enter", "leave"))
        as_of = seq if change == "match" else ENDS[min(seq // 10 + rng.randrange(3), 99)]
        name = f"s{rng.randrange(30)}"
        found[(as_of // 10, name, seq, change)] = (
            as_of,
            name,
            seq,
            change,
            None if change == "match" else rng.random(),
        )
    return list(found.values())


def batch_of(rows):
    """Updates as delivery has them."""
    frame = published(rows, 0, -1)
    every = sorted({row[1] for row in rows_of(200)})
    number = np.array([every.index(name) for name in np.array(frame.names.strings())[frame.who]], np.int64)
    return UpdateBatch(frame.as_of, number, frame.seq, frame.change, frame.score)


def updates_in(found):
    return [update for one in found for update in updates_of(one, None, texts, None)]


def released(frames):
    """What is released of some frames: encoded updates in order."""
    found = []
    releaser = Releaser(InFlight(3), ENDS, lambda: 999, lambda boundaries, through: found.extend(boundaries))
    for frame in frames:
        releaser.take(frame)
    assert releaser.failure is None
    return updates_in(found)


def expected(rows):
    order = ("leave", "match", "enter")
    return [
        (name, change, seq)
        for _, name, seq, change, _ in sorted(rows, key=lambda row: (row[0] // 10, row[1], order.index(row[3]), row[2]))
    ]


def test_releaser_order_and_ids_depend_on_neither_order_of_arrival_nor_incarnation():
    rows = rows_of(2_000)
    first = released([published(rows, 0, 999)])
    shuffled = rows[:]
    random.Random(2).shuffle(shuffled)
    parts = [published(shuffled[place : place + 50], 0, -1) for place in range(0, 2_000, 50)]
    assert released([*parts, published([], 0, 999)]) == first
    until = 499
    early = [row for row in shuffled if row[0] <= until or random.Random(str(row)).random() < 0.3]
    again = [row for row in shuffled if row[0] > 199]  # the checkpoint was at 199
    frames = [published(early, 0, until), published(early[:10], 0, until), published(again, 1, 199)]
    assert released([*frames, published(rows[:20], 0, 999), published([], 1, 999)]) == first
    assert [one.subscription_id for one in first] == [name for name, _, _ in expected(rows)]
    assert len({one.position for one in first}) == 2_000


def test_releaser_holds_a_boundary_until_the_watermark_has_reached_it():
    rows = [(19, "a", 12, "enter", 0.5), (29, "a", 21, "enter", 0.5)]
    late = (19, "b", 11, "enter", 0.5)
    found = []
    releaser = Releaser(InFlight(3), ENDS, lambda: 999, lambda boundaries, through: found.append((boundaries, through)))
    releaser.take(published(rows, 0, 9))
    assert found == [([], 9)]
    releaser.take(published([late], 0, 19))
    (boundary,) = found[-1][0]
    assert [one.position for one in updates_in([boundary])] == ["19-0", "19-1"] and found[-1][1] == 19
    assert [one.subscription_id for one in updates_in([boundary])] == ["a", "b"]


def test_releaser_holds_a_boundary_until_its_messages_are_on_disk():
    found, durable = [], [9]
    releaser = Releaser(
        InFlight(3), ENDS, lambda: durable[0], lambda boundaries, through: found.append((boundaries, through))
    )
    releaser.take(published([(19, "a", 12, "enter", 0.5)], 0, 29))
    assert found == [([], 9)]
    durable[0] = 19
    releaser.settle()
    (boundary,) = found[-1][0]
    assert boundary.boundary.tolist() == [19] and found[-1][1] == 19
    durable[0] = 49
    releaser.settle()
    assert found[-1] == ([], 29) and releaser.reached(0) == 29


@pytest.mark.parametrize("durable", [999, 9])
def test_releaser_waits_for_frames_of_an_older_incarnation_that_a_checkpoint_covers(durable):
    """They were sent before the checkpoint, and read after the first frame of the incarnation that begins from it."""
    rows, found, disk = rows_of(400), [], [durable]
    releaser = Releaser(InFlight(3), ENDS, lambda: disk[0], lambda boundaries, through: found.extend(boundaries))
    parts = [[row for row in rows if first <= row[0] < first + 100] for first in range(0, 1_000, 100)]
    extra = parts[3][:5]  # of boundaries behind the checkpoint, and dropped
    releaser.take(published(parts[0], 4, 99))
    second = [published(part, 5, 100 * place + 99, 299) for place, part in enumerate(parts[3:], start=3)]
    taking = threading.Thread(target=lambda: [releaser.take(frame) for frame in second])
    taking.start()
    releaser.take(published(parts[1], 4, 199))
    releaser.take(published(parts[2] + extra, 4, 299))
    taking.join(20)
    releaser.take(published(parts[9], 4, 999))
    assert not taking.is_alive() and releaser.failure is None and releaser.reached(5) == durable
    disk[0] = 999
    releaser.settle()
    assert releaser.reached(5) == 999
    assert updates_in(found) == released([published(rows, 0, 999)])


def test_releaser_of_an_incarnation_that_ends_at_once_waits_for_the_one_before(tmp_path):
    """Nothing of the first incarnation is read when the second begins, from a checkpoint that the first has made."""
    rows, found = rows_of(200), []
    with Releaser(InFlight(3), ENDS, lambda: 999, lambda boundaries, through: found.extend(boundaries)) as one:
        one.resume(199)
        first, second = (UpdatePublisher(one.address, incarnation) for incarnation in (0, 1))
        first.since, second.since = 199, 499
        ids = IdColumn("subscription")
        ids.append(Names.of(sorted({row[1] for row in rows})))
        for publisher, low, high in ((second, 500, 999), (first, 200, 499)):
            publisher.add(batch_of([row for row in rows if low <= row[0] <= high]))
            publisher.publish(high, ids)
        await_(lambda: one.released >= 999)
        first.close()
        second.close()
    assert updates_in(found) == released([published([row for row in rows if row[0] >= 200], 0, 999)])


def read(parts, until, only=None, most=70):
    found, position = [], BEGINNING
    while position.boundary < until or position.index < 2**62:
        updates, position = parts.read_after(position, until, only, most)
        found += updates
    return found


@pytest.mark.parametrize("tasks", [1, 3])
def test_parts_give_what_was_released_from_any_place(tmp_path, tasks):
    rows = rows_of(2_000)
    first = released([published(rows, 0, 999)])
    cuts = (0, 300, 310, 720, 1_000)
    for number, (begin, end) in enumerate(zip(cuts, cuts[1:], strict=False)):
        write_part(tmp_path / "updates", number, [row for row in rows if begin <= row[0] < end], tasks)
    parts = Parts(tmp_path / "updates", ENDS, texts)
    assert read(parts, 999) == first and parts.last_boundary() == 999
    assert read(parts, 499) == [one for one in first if int(one.position.split("-")[0]) <= 499]
    assert read(parts, 999, {"s1", "s7"}) == [one for one in first if one.subscription_id in ("s1", "s7")]
    for place in range(0, 2_000, 37):
        position = Position(*map(int, first[place].position.split("-")))
        assert parts.read_after(position, 999, None, 5)[0] == first[place + 1 : place + 6]
    assert parts.count_of(499) == sum(row[0] // 10 == 49 for row in rows)


def test_parts_that_are_gone_are_noticed(tmp_path):
    rows = rows_of(500)
    for number in range(4):
        write_part(tmp_path / "updates", number, [row for row in rows if row[0] // 250 == number])
    parts = Parts(tmp_path / "updates", ENDS, texts)
    last = Position(249, 2**62)
    (tmp_path / "updates" / "part-00001.parquet").unlink()
    with pytest.raises(PartsMissing) as missing:
        parts.read_after(last, 999)
    assert 500 <= missing.value.boundary < 520
    found, _ = parts.read_after(Position(missing.value.boundary - 1, 0), 999, None, 5)
    assert len(found) == 5


def test_history_goes_on_from_a_checkpoint_whose_updates_no_part_has(tmp_path):
    rows = rows_of(1_000)
    first = released([published(rows, 0, 999)])
    write_part(tmp_path / "updates", 0, [row for row in rows if row[0] < 500])
    kept = [row for row in rows if 500 <= row[0] < 800]
    names = Names.of([row[1] for row in kept])
    saved = {"sink:subscription_id_offsets": names.offsets, "sink:subscription_id_data": names.data}
    ids = Names.of([f"m{row[2]}" for row in kept])
    saved |= {"sink:message_id_offsets": ids.offsets, "sink:message_id_data": ids.data}
    saved |= {"sink:change": np.array([CHANGES.index(row[3]) for row in kept])}
    saved |= {"sink:seq": np.array([row[2] for row in kept]), "sink:as_of": np.array([row[0] for row in kept])}
    saved |= {"sink:score": np.array([np.nan if row[4] is None else row[4] for row in kept])}
    saved |= {"boundary": np.array([[81, 800, 809, 0]], np.int64)}
    history = UpdateLog(Parts(tmp_path / "updates", ENDS, texts))
    assert history.resume(saved) == 809 and history.floor == 499 and history.head == (809, 0)
    found, position = [], BEGINNING
    while position < history.head:
        more, position = history.read_after(position)
        found += more
    assert found == [one for one in first if int(one.position.split("-")[0]) < 800]
    assert len(saved_updates({"boundary": saved["boundary"]}, -1, ENDS).boundary) == 0


def test_history_of_which_all_is_in_parts_is_read_to_its_head(tmp_path):
    rows = rows_of(300)
    write_part(tmp_path / "updates", 0, rows)
    parts = Parts(tmp_path / "updates", ENDS, texts)
    history = UpdateLog(parts)
    boundary = max(row[0] // 10 for row in rows) * 10 + 9
    assert history.resume({"boundary": np.array([[99, 0, boundary, 0]], np.int64)}) == boundary
    assert history.head == (boundary, sum(row[0] // 10 * 10 + 9 == boundary for row in rows))

    async def polled(position):
        return await Hub(history, None, lambda: 1_000).poll(LINES, Interest(), position, 0.0, 10**6)

    lines = [json.loads(line) for line in asyncio.run(polled(BEGINNING)).splitlines()]
    assert len(lines) == 301 and lines[-1] == {"progress": {"id": history.head.text, "through": boundary}}
    (line,) = asyncio.run(polled(history.head)).splitlines()
    assert json.loads(line) == lines[-1]


def test_history_drops_from_memory_only_what_the_parts_have():
    rows = rows_of(1_000)
    found = []
    releaser = Releaser(InFlight(3), ENDS, lambda: 999, lambda boundaries, through: found.extend(boundaries))
    for first in range(0, 1_000, 50):
        releaser.take(published([row for row in rows if first <= row[0] < first + 50], 0, first + 49))
    assert len(found) == 20
    history = UpdateLog(Parts(Path("nowhere"), ENDS, texts), most_bytes=sum(one.size_bytes for one in found) // 5)
    history.append(found, 999)
    assert history.full
    history.trim(-1)
    assert history.floor == -1 and len(history.read_after(BEGINNING, 10**6)[0]) == 1_000
    history.trim(499)
    assert history.floor == 499
    assert len(history.read_after(Position(500, 0), 10**6)[0]) == sum(row[0] > 499 for row in rows)
    history.trim(999)
    assert 0 < len(history.read_after(Position(history.floor + 1, 0), 10**6)[0]) <= 100 and not history.full


def listed(folder, *names):
    """Add parts to the list of their folder, as the coordinator does."""
    for name in names:
        table = pq.read_table(folder / name)
        facts = ListedPart.of((folder / name).read_bytes(), len(table), max(table["as_of"].to_pylist()))
        publish(Output(str(folder / name), str(folder / name), facts._asdict()))


def polled(history, position, most=10**6):
    async def answer():
        return await Hub(history, None, lambda: 1_000).poll(LINES, Interest(), position, 0.0, most)

    return [json.loads(line) for line in asyncio.run(answer()).splitlines()]


NAMES = [f"part-{number:05d}.parquet" for number in range(4)]


def history_of_four_parts(tmp_path):
    """All released updates, and the history of a stream that resumes behind them."""
    rows, updates = rows_of(500), tmp_path / "updates"
    for number in range(4):
        write_part(updates, number, [row for row in rows if row[0] // 250 == number])
    listed(updates, *NAMES)

    def resumed():
        history = UpdateLog(Parts(updates, ENDS, texts))
        assert history.resume({"boundary": np.array([[99, 990, 999, 0]], np.int64)}) == 999
        return history

    return [json.loads(one.data) for one in released([published(rows, 0, 999)])], updates, resumed


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("harm", ["removed", "flipped", "cut", "emptied"])
def test_client_is_told_of_each_part_that_is_lost_and_gets_all_others(tmp_path, number, harm):
    everything, updates, resumed = history_of_four_parts(tmp_path)
    path = updates / NAMES[number]
    data = bytearray(path.read_bytes())
    if harm == "removed":
        path.unlink()
    elif harm == "flipped":
        data[len(data) // 3] ^= 4
        path.write_bytes(data)
    else:
        path.write_bytes(data[: -100 if harm == "cut" else 0])
    for most in (10**6, 1):
        history, found, position = resumed(), [], BEGINNING
        while not found or position < history.head:
            found += polled(history, position, most)
            position = Position.of(found[-1]["progress"]["id"])
        gaps = [one["gap"] for one in found if "gap" in one]
        assert [gap["reason"] for gap in gaps] == ["lost"]
        assert [one for one in found if "change" in one] == [one for one in everything if one["as_of"] // 250 != number]
        after, before = (int(gaps[0][name].rsplit("-", 1)[0]) for name in ("after", "before"))
        assert after < 250 * number + 10 and 250 * (number + 1) - 10 <= before <= 250 * (number + 1) + 10


@pytest.mark.parametrize("number", [None, 0, 2])
def test_results_say_that_rows_may_be_missing_where_files_of_updates_are_lost(tmp_path, number):
    _, updates, resumed = history_of_four_parts(tmp_path)
    if number is not None:
        (updates / NAMES[number]).unlink()
    history, names = resumed(), [f"s{number}" for number in range(30)]
    registry = Registry()
    registry.last.update(dict.fromkeys(names, Ended("knn", "")))

    async def results():
        hub, turn = Hub(history, registry, lambda: 1_000), Questions().turn("a", "results")
        return [one async for one in results_at(hub, registry, None, names, history.head, turn)]

    found = asyncio.run(results())
    assert found and {one.get("gap", {}).get("reason") for one in found} == {None if number is None else "lost"}
    if number is not None:
        assert all(int(one["gap"]["before"].partition("-")[0]) // 250 == number + 1 for one in found)
    assert {decode(encode(one), type=Results).gap is None for one in found} == {number is None}


def test_parts_of_an_earlier_release_without_a_list_are_read_and_a_torn_line_of_the_list_says_nothing(tmp_path):
    everything, updates, resumed = history_of_four_parts(tmp_path)
    whole = list_path(updates).read_bytes()
    for left in (b"", whole[:-5], b"\xff" + whole):
        list_path(updates).write_bytes(left)
        found = polled(resumed(), BEGINNING)
        assert found[:-1] == everything and "progress" in found[-1]


class _Needs:
    """`Asking`, of subscriptions whose results have at most 3 messages."""

    def needs(self, one, last_seq):
        return one.at, 3

    def words_of(self, one, text):
        return []

    def kilometres(self, one, lon, lat):
        return None


def standing_stream(seed):
    """Updates of results of at most 3 messages each, and what is in each at every boundary; s3 was replaced at 500."""
    rng, inside, rows, books = random.Random(seed), {f"s{n}": [] for n in range(6)}, [], []
    for end in ENDS:
        for name, mine in inside.items():
            if name == "s3" and end == 509:
                rows += [(end, name, seq, "leave", 0.5) for seq in mine]
                mine.clear()
            for seq in rng.sample(range(end - 9, end + 1), rng.randrange(3) if name != "s4" or end < 60 else 0):
                if len(mine) == 3:
                    rows.append((end, name, mine.pop(0), "leave", 0.5))
                mine.append(seq)
                rows.append((end, name, seq, "enter", seq / 7))
        books.append({name: set(mine) for name, mine in inside.items()})
    # what enters and leaves at one boundary is no update
    count = Counter((row[0], row[1], row[2]) for row in rows)
    return [row for row in rows if count[row[:3]] == 1], books


@pytest.mark.parametrize("parts", [0, 4])
def test_results_are_read_from_the_newest_update_on_until_they_are_whole(tmp_path, parts):
    rows, books = standing_stream(7)
    found = []
    releaser = Releaser(InFlight(3), ENDS, lambda: 999, lambda boundaries, through: found.extend(boundaries))
    for end in ENDS:
        releaser.take(published([row for row in rows if row[0] == end], 0, end))
    for number in range(parts):
        write_part(tmp_path / "updates", number, [row for row in rows if row[0] // 200 == number])
    listed(tmp_path / "updates", *NAMES[:parts])
    log = UpdateLog(Parts(tmp_path / "updates", ENDS, texts), most_bytes=0)
    log.append(found, 999)
    log.trim(799 if parts else -1)
    registry = Registry()
    for name in books[0]:
        at = 500 if name == "s3" else 0
        registry.last[name] = Registered(0, name, "knn", b"{}", at, None, "", b"")
    read = []
    rows_of = Released.rows_of
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Released, "rows_of", lambda one, *more: read.append(one) or rows_of(one, *more))

        async def results(name, until):
            hub, turn = Hub(log, registry, lambda: 1_000), Questions().turn("a", "results")
            return [one async for one in results_at(hub, registry, _Needs(), [name], until, turn)]

        for place in (0, 3, 49, 50, 51, 78, 79, 80, 99):
            for name in books[0]:
                (one,) = asyncio.run(results(name, Position(ENDS[place], 2**62)))
                assert {row["seq"] for row in one["results"]} == books[place][name], (name, place)
                assert one.get("gap") is None and {row["text"] for row in one["results"]} <= {"text"}
        read.clear()
        asyncio.run(results("s1", log.head))
        assert 0 < len(read) < 20, "the last few boundaries"
        read.clear()
        asyncio.run(results("s4", log.head))
        assert len(read) >= (20 if parts else 90), "one to which nothing comes any more is read far back"
        read.clear()
        registry.last["s4"] = Ended("knn", "", 0, 999)
        assert asyncio.run(results("s4", log.head)) == [] and not read, "of one that has ended nothing is left"
        registry.last["s4"] = Ended("knn", "", 985, 1_001)
        assert asyncio.run(results("s4", log.head)) == [] and len(read) < 5, "it ends at a later boundary"
        read.clear()
        registry.last["new"] = Registered(1, "new", "knn", b"{}", 1_000, None, "", b"", 1_000)
        assert asyncio.run(results("new", log.head))[0]["results"] == [] and not read, "it begins at a later boundary"


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("harm", ["removed", "flipped"])
def test_newest_first_reads_all_parts_but_the_lost_one_and_says_which(tmp_path, number, harm):
    everything, updates, resumed = history_of_four_parts(tmp_path)
    path = updates / NAMES[number]
    data = bytearray(path.read_bytes())
    path.unlink()
    if harm == "flipped":
        data[len(data) // 3] ^= 4
        path.write_bytes(data)
    log, lost, found = resumed(), [], []
    names = ["s1", "s7"]
    for one, rows in log.newest_first(Position(899, 2**62), 0, names, lambda *gap: lost.append(gap)):
        facts = one.facts(rows)
        assert [row["as_of"] // 10 for row in facts] == sorted(row["as_of"] // 10 for row in facts)
        found = facts + found
    wanted = [row for row in everything if row["subscription_id"] in names and row["as_of"] < 900]
    wanted = [row for row in wanted if row["as_of"] // 250 != number]
    assert found == [{name: row[name] for name in found[0]} for row in wanted] and len(found) > 10
    ((after, before),) = lost
    assert after.boundary < number * 250 + 10 and number * 250 < before <= number * 250 + 260
    assert after == BEGINNING or everything[-1]["id"] != after.text in {row["id"] for row in everything}
    lost.clear()
    later = [one for one, _ in log.newest_first(log.head, 750, names, lambda *gap: lost.append(gap))]
    assert len(later) == 1 and len(lost) == (number == 3), "what is older is not read"


def test_log_is_read_by_threads_while_it_grows_and_is_trimmed(tmp_path):
    rows, folder = rows_of(2_000), tmp_path / "updates"
    for number in range(20):
        write_part(folder, number, [row for row in rows if row[0] // 50 == number])
    found = []
    releaser = Releaser(InFlight(3), ENDS, lambda: 999, lambda boundaries, through: found.extend(boundaries))
    for end in ENDS:
        releaser.take(published([row for row in rows if row[0] // 10 == end // 10], 0, end))
    whole = updates_in(found)
    log = UpdateLog(Parts(folder, ENDS, texts), most_bytes=20_000)
    read, problems = [[] for _ in range(3)], []

    def follow(mine, most):
        try:
            position = BEGINNING
            while len(mine) < len(whole):
                some, position = log.read_after(position, most)
                mine += some
                assert log.is_end(position) or some
                place = log.place(position, Place(BEGINNING, 0))
                assert place is not None and place.updates == len(mine)
        except BaseException as error:
            problems.append(error)

    threads = [
        threading.Thread(target=follow, args=(mine, most)) for mine, most in zip(read, (7, 37, 5_000), strict=True)
    ]
    for thread in threads:
        thread.start()
    for one in found:
        log.append([one], int(one.boundary[-1]))
        log.trim(int(one.boundary[-1]) // 50 * 50 - 1)
    log.append([], 999)
    for thread in threads:
        thread.join(60)
    assert not problems and log.floor > 0 and log.updates == 2_000
    assert [mine == whole for mine in read] == [True] * 3
