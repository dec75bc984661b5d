"""When a subscription is told: the teller over a real log of updates and file, against a plain model, by a clock of the
test. Processes are killed before and after each step is stored, and clocks change."""

import json
import sqlite3
from collections import Counter
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.live.update_listener import MessageText
from gateway.serve.registry import Registry
from gateway.serve.released import RANKS
from gateway.serve.update_log import UpdateLog
from gateway.serve.update_parts import BEGINNING, Parts
from gateway.sinks import telling
from gateway.sinks.telling import Teller
from gateway.sinks.told_store import TELLING_SCHEMA, load_telling, store_step, told_after
from matching.telling import TellingRule, next_time, telling_of
from tests.support.releasing import RawUpdate, released_of

#: A Sunday on which clocks in Berlin go forward at 02:00, and one on which they go back at 03:00.
FORWARD, BACK = (datetime(2026, month, day, tzinfo=UTC).timestamp() for month, day in ((3, 29), (10, 25)))
TEXTS = ["old house", "old house with garden", "new flat", "garden", "old house by the sea", ""]


class World:
    """A stream, whose process may be killed; `now` is the clock."""

    def __init__(self, folder, tells, now=FORWARD):
        self.now, self.released, self.path = now, [], folder / f"told-{now}-{id(tells)}.sqlite"
        self.path.unlink(missing_ok=True)
        self.tells = dict(tells)
        connection = sqlite3.connect(self.path)
        connection.executescript(TELLING_SCHEMA)
        connection.close()
        self.folder = folder
        self.start()

    def start(self):
        """A new process: what was released is released again, as much as it likes before the first step."""
        ends = []
        self.log = UpdateLog(Parts(self.folder / "no updates", ends, self.texts))
        self.registry: Any = Registry()
        self.registry.last = {name: SimpleNamespace(number=0, at=0, owner="") for name in self.tells}
        self.registry.get = self.registry.last.get
        self.registry.tells = {name: tell for name, tell in self.tells.items() if tell}
        self.connection = sqlite3.connect(self.path, isolation_level=None)
        saved = load_telling(self.connection)
        before, self.logged = saved.position, len(self.released)
        self.teller = Teller(
            self.log, self.registry, str.split, self.logged - 1, before, BEGINNING, saved.clock_s, saved.standings,
            saved.overrides, lambda: self.now,
        )  # fmt: skip
        self.again = 0

    def texts(self, seqs):
        return {seq: MessageText(f"m{seq}", self.released[seq][1], 0.0, 0.0) for seq in seqs}

    def release(self, names, text="old house", change="match"):
        self.released.append((names, text, change))
        self.catch_up()

    def catch_up(self, count=10**9):
        """Release what was released before, up to so many boundaries."""
        while self.log.head.boundary < len(self.released) - 1 and count:
            seq = self.log.head.boundary + 1
            names, _, change = self.released[seq]
            updates = (RawUpdate(name, RANKS[change], seq, seq, None) for name in names)
            self.log.append([released_of(seq, updates)] if names else [], seq)
            count -= 1

    def step(self, kill=None):
        """One step; `kill` it before or after what it decides is stored. Returns whether it decided anything."""
        step = self.teller.step(self.teller.position)
        if step is None:
            return False
        if kill != "before":
            self.connection.execute("BEGIN")
            store_step(step)(self.connection)
            self.connection.execute("COMMIT")
        if kill:
            self.connection.close()
            self.start()
        else:
            self.teller.take(step)
        return True

    def run(self):
        self.catch_up()
        for _ in range(1_000):
            before = self.teller.position
            if not self.step() and self.teller.position == before:
                return
        raise AssertionError("there is always more to tell")

    def told(self):
        """Tellings: subscription, window, seqs, when."""
        found = []
        for _, one in told_after(0, 10**6)(self.connection):
            head, rows = json.loads(one.head), [json.loads(line) for line in one.rows.splitlines()]
            assert head["count"] == len(rows) + head.get("left_out", 0)
            found.append((one.told_id, one.subscription_id, head["window"], [row["seq"] for row in rows], one.told_s))
        return found


def seqs_of(told, name):
    return [seq for _, one, _, seqs, _ in told if one == name for seq in seqs]


ZONES = st.sampled_from(
    ["UTC", "Europe/Berlin", "America/St_Johns", "Pacific/Apia", "Australia/Lord_Howe", "Asia/Tokyo"]
)
CLOCKS = st.sampled_from(["00:00", "02:30", "03:00", "08:00", "23:59"])


def moments(zone, time, first_s, last_s):
    """When a wall clock has come to a time first, on each of its days, by a look at it every minute. A day that is left
    out (Apia had one) has none."""
    hour, minute = map(int, time.split(":"))
    found, known, shown = [], set(), None
    for at_s in range(int(first_s), int(last_s) + 60, 60):
        before, shown = shown, datetime.fromtimestamp(at_s, ZoneInfo(zone)).replace(tzinfo=None)
        for day in {shown.date(), (before or shown).date()}:
            moment = datetime.combine(day, datetime.min.time()).replace(hour=hour, minute=minute)
            if before is not None and before < moment <= shown and day not in known:
                known.add(day)
                found.append(at_s)
    return found


MOMENTS = st.sampled_from([FORWARD, BACK, 1325203200.0])


@given(ZONES, st.lists(CLOCKS, min_size=1, max_size=3), st.integers(0, 3 * 1440), MOMENTS)
@settings(max_examples=40, deadline=None)
def test_next_time_is_the_first_minute_at_which_a_wall_clock_has_come_to_it(zone, times, minutes, begin):
    after_s = begin - 86_400 + 60 * minutes
    wanted = [int(time[:2]) * 3600 + int(time[3:]) * 60 for time in times]
    found = [one for time in times for one in moments(zone, time, after_s - 2 * 86_400, after_s + 3 * 86_400)]
    assert next_time(wanted, zone, after_s) == min(one for one in found if one > after_s)


@given(ZONES, CLOCKS, CLOCKS, st.integers(0, 3 * 1440), MOMENTS)
@settings(max_examples=40, deadline=None)
def test_quiet_hours_are_from_one_time_to_the_first_other_one_behind_it(zone, begins, ends, minutes, begin):
    now_s = begin - 86_400 + 60 * minutes
    found = telling_of({"quiet": [begins, ends], "zone": zone})
    if begins == ends:
        assert isinstance(found, str)
        return
    assert isinstance(found, TellingRule)
    around = now_s - 3 * 86_400, now_s + 4 * 86_400
    begun_s = max(one for one in moments(zone, begins, *around) if one <= now_s)
    end_s = min(one for one in moments(zone, ends, *around) if one > begun_s)
    assert found.quiet_until(now_s) == (end_s if now_s < end_s else None)


class Model:
    """What is to be told, one subscription, as plainly as it can be said: a list of what waits."""

    def __init__(self, tell):
        given = telling_of(tell)
        assert isinstance(given, TellingRule)
        self.tell, self.waits, self.due, self.told, self.hour, self.count, self.recent = given, [], None, [], -1, 0, []

    def look(self, now):
        if self.waits and self.due is not None and self.due <= now:
            if self.tell.quiet and (end := self.tell.quiet_until(now)) is not None:
                self.due = end
                return
            seqs = [seq for seq, text, change in self.waits if self.is_new(text, change)]
            if seqs:
                self.told.append((True, seqs))
            self.waits, self.due = [], None

    def come(self, seq, text, change, now):
        if int(now // 3600) != self.hour:
            self.hour, self.count = int(now // 3600), 0
        until = None
        if not self.waits:
            until = self.tell.holds_until(now, self.count)
        if self.waits or until is not None or self.tell.paused:
            if not self.waits:
                self.due = None if self.tell.paused else until
            self.waits.append((seq, text, change))
        elif self.is_new(text, change):
            self.count += 1
            self.told.append((False, [seq]))

    def is_new(self, text, change):
        if not self.tell.similar:
            return True
        words = set(text.split())
        for other in self.recent:
            union = len(words | other)
            if change == "leave" or (len(words & other) / union if union else 1.0) >= self.tell.similar:
                return False
        if change == "leave":
            return False
        self.recent = [*self.recent, words][-100:]
        return True


TELLS = [
    {"at": ["08:00"], "zone": "Europe/Berlin"},
    {"at": ["02:30", "14:00", "03:15"], "zone": "Europe/Berlin"},
    {"quiet": ["22:00", "07:00"], "zone": "America/New_York"},
    {"quiet": ["01:30", "02:30"], "zone": "Europe/Berlin", "most_an_hour": 2},
    {"most_an_hour": 3},
    {"similar": 0.6},
    {"similar": 1.0, "at": ["00:00", "12:00"]},
    {"paused": True},
    None,
]
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), st.sampled_from([1, 30, 600, 1800, 3600, 4 * 3600, 26 * 3600])),
        st.tuples(st.just("update"), st.tuples(st.sampled_from(TEXTS), st.sampled_from(["match", "enter", "leave"]))),
    ),
    max_size=40,
)


@given(st.integers(0, len(TELLS) - 1), OPERATIONS, st.sampled_from([FORWARD, BACK]))
@settings(max_examples=150, deadline=None)
def test_what_is_told_is_as_the_model_has_it(tmp_path_factory, number, operations, begin):
    world = World(tmp_path_factory.mktemp("told"), {"s": TELLS[number], "other": None}, begin)
    model = None if TELLS[number] is None else Model(TELLS[number])
    world.run()
    for what, value in operations:
        if what == "wait":
            for _ in range(value // 600 or 1):  # the server looks all the time
                world.now += min(value, 600)
                world.run()
                if model:
                    model.look(world.now)
        else:
            text, change = value
            world.release(["s", "other"], text, change)
            world.run()
            if model:
                model.come(len(world.released) - 1, text, change, world.now)
    told = world.told()
    if model is None:
        assert not told and world.teller.position == world.log.head
        return
    assert [(window is not None, seqs) for _, _, window, seqs, _ in told] == model.told
    assert len({told_id for told_id, *_ in told}) == len(told)


KILLS = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), st.sampled_from([1, 600, 3600, 5 * 3600, 26 * 3600])),
        st.tuples(st.just("update"), st.sampled_from(TEXTS)),
        st.tuples(st.just("kill"), st.sampled_from(["idle", "before", "after", "half"])),
        st.tuples(st.just("set back"), st.sampled_from([30, 1800, 3600])),
    ),
    max_size=60,
)


@given(KILLS, st.sampled_from([FORWARD, BACK]))
@settings(max_examples=150, deadline=None)
def test_kills_and_clocks_that_are_set_repeat_nothing_and_lose_nothing(tmp_path_factory, operations, begin):
    tells = {f"s{number}": tell for number, tell in enumerate(TELLS) if tell and not tell.get("similar")}
    world = World(tmp_path_factory.mktemp("told"), tells, begin)
    for what, value in operations:
        if what == "wait":
            world.now += value
        elif what == "set back":
            world.now -= value
        elif what == "update":
            world.release(list(tells), value)
        elif value == "idle":
            world.connection.close()
            world.start()
        elif value == "half":
            world.connection.close()
            world.start()
            world.catch_up(len(world.released) // 2)
            world.step()
            world.catch_up()
        else:
            world.step(value)
            continue
        world.step()
    for _ in range(6):  # quiet hours end
        world.now += 20 * 3600
        world.run()
    told, every = world.told(), list(range(len(world.released)))
    assert len({told_id for told_id, *_ in told}) == len(told)
    for name, tell in tells.items():
        assert seqs_of(told, name) == ([] if tell.get("paused") else every), name
        windows = [window for _, one, window, _, _ in told if one == name and window]
        assert len(set(windows)) == len(windows), "one digest a window"
    paused = next(name for name, tell in tells.items() if tell.get("paused"))
    assert world.teller.standings[paused].held == len(every) if every else True


def test_update_that_came_before_a_crash_is_in_the_digest_that_became_due_meanwhile(tmp_path):
    world = World(tmp_path, {"s": {"at": ["08:00"]}}, FORWARD + 7.99 * 3600)
    world.run()
    world.release(["s"])
    world.run()
    world.release(["s"])  # logged, and not seen by the teller when the process dies
    world.connection.close()
    world.now = FORWARD + 8.5 * 3600
    world.start()
    assert not world.step() and not world.told(), "nothing is told before all that was logged is there again"
    world.run()
    world.release(["s"])
    world.run()
    assert [(window, seqs) for _, _, window, seqs, _ in world.told()] == [("2026-03-29T08:00:00+00:00", [0, 1])]
    world.now += 86_400
    world.run()
    assert [seqs for *_, seqs, _ in world.told()] == [[0, 1], [2]]


def test_digest_of_a_day_on_which_a_time_is_left_out_or_comes_twice_is_told_once(tmp_path):
    for begin, moments in ((FORWARD, 24), (BACK, 24)):
        world = World(tmp_path, {"s": {"at": ["02:30"], "zone": "Europe/Berlin"}}, begin - 3600)
        for _ in range(4 * moments):
            world.release(["s"])
            world.run()
            world.now += 900
        world.run()
        told = world.told()
        assert Counter(window for _, _, window, _, _ in told).total() == 1, told
        assert told[0][2] == ("2026-03-29T03:30:00+02:00" if begin == FORWARD else "2026-10-25T02:30:00+02:00")


def test_change_of_a_setting_takes_what_is_held_with_it_and_leaves_no_gap(tmp_path):
    world = World(tmp_path, {"s": {"paused": True}})
    world.run()
    for _ in range(3):
        world.release(["s"])
    world.run()
    world.teller.change("s", 0, {"at": ["12:00"]})
    world.run()
    assert not world.told() and world.teller.standings["s"].due_s == FORWARD + 12 * 3600
    world.release(["s"])
    world.run()
    world.teller.change("s", 0, {})  # told as its updates come, by whoever reads the log
    world.run()
    assert [seqs for *_, seqs, _ in world.told()] == [[0, 1, 2, 3]]
    before = world.teller.position
    world.release(["s"])
    world.run()
    assert world.teller.position > before and not world.teller.tells("s", world.teller.position)
    assert len(world.told()) == 1


def test_messages_that_were_told_before_a_kill_are_still_compared_with(tmp_path):
    world = World(tmp_path, {"s": {"similar": 0.9}})
    for turn, text in enumerate(["old house", "new flat", "house old", "flat new", "flat old"]):
        world.release(["s"], text)
        world.run()
        world.connection.close()
        world.start()
        world.run()
        assert seqs_of(world.told(), "s") == [[0], [0, 1], [0, 1], [0, 1], [0, 1, 4]][turn]


def test_digest_keeps_the_last_updates_and_counts_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(telling, "MOST_TOLD", 5)
    world = World(tmp_path, {"s": {"at": ["12:00"]}})
    for _ in range(12):
        world.release(["s"])
        world.run()
    world.now += 86_400
    world.run()
    ((_, _, _, seqs, _),) = world.told()
    assert seqs == [7, 8, 9, 10, 11]


@pytest.mark.parametrize(
    ("tell", "what"),
    [
        ("daily", "must be an object"), ({"hour": 3}, "'hour'"), ({"at": "8:00"}, "at"), ({"at": ["24:00"]}, "at"),
        ({"at": ["08:00"] * 97}, "at"), ({"at": 8}, "at"), ({"zone": "Europe/Berlim"}, "zone"), ({"zone": 1}, "zone"),
        ({"zone": "../etc/passwd"}, "zone"), ({"quiet": ["22:00"]}, "quiet"), ({"quiet": ["07:00", "07:00"]}, "quiet"),
        ({"most_an_hour": -1}, "most_an_hour"), ({"most_an_hour": True}, "most_an_hour"), ({"similar": 1.5}, "similar"),
        ({"similar": 0}, "similar"), ({"paused": "yes"}, "paused"), ({"at": ["08:00"], "most_an_hour": 3}, "beside"),
    ],
)  # fmt: skip
def test_what_is_no_tell_is_refused_with_what_is_wrong(tell, what):
    found = telling_of(tell)
    assert isinstance(found, str) and what in found


def test_similarity_is_that_of_sets_however_it_is_computed():
    sets = [frozenset(text.split()) for text in TEXTS] + [frozenset("abcdefghij"), frozenset("abcdefghi")]
    for least in (0.1, 1 / 3, 0.5, 0.6, 0.9, 1.0):
        for one in sets:
            for other in sets:
                union = len(one | other)
                assert telling.are_similar(one, other, least) == ((len(one & other) / union if union else 1) >= least)
