"""Operators of several tasks whose answers come late, in any order, while routers withhold messages: exact, not early.

A small stand-in for the topology: what a task does next is drawn at random, so that tasks match ahead of what they have
closed, the window is held by two who store and answer at their own pace, answers overtake each other and batches,
subscriptions leave while they wait, and run short again on the way.
"""

from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from benchmarks.driving import ENGINES, FADING, kind_of, rows_at, rows_of
from matching.cumulative import living
from matching.errors import EngineError
from matching.kind_table import Kind
from matching.kinds import KINDS
from matching.model import LEAVE, NO_MESSAGES, MessageBatch, UpdateBatch
from matching.naive import meets, topk_score
from matching.naive_rows import messages_of, subscriptions_of, tally
from matching.operator import (
    OperatorContext,
    OperatorInput,
    OperatorOutput,
    Relax,
    Thresholds,
    WindowQuery,
    WindowRequest,
)
from matching.refill import RefillCoordinator
from matching.topk.thresholds_cost import CostRule
from tests.support.any_kind import Recipe, expected, make_turns, window_of, without_text
from tests.support.any_kind import Turn as Batch
from tests.support.worlds import SPACE

#: Among how many the messages are dealt out.
_WINDOW_TASKS = 2
WINDOWED = [(kind, engine) for kind, engine in ENGINES if KINDS.named(kind).windowed]
OF_OBJECTS = KINDS.of_objects()
RECIPES = {
    "count": Recipe(sizes=(0, 5, 12), batches=16),
    "time_with_late_messages": Recipe("time:60", 16, (8,), late=20),
    "without_times": Recipe("time:60", 16, (8,), late=20, untimed=0.5),
    "short_window": Recipe("count:9", 24, (1, 4), objects=6, arrivals=3, departures=4),
    "wordless": Recipe("count:30", 14, (6,), first=12, arrivals=8, departures=8, wordless=0.5),
    "many_come_and_go": Recipe("count:30", 14, (6,), first=25, arrivals=15, departures=18),
}
#: Streams of objects, whose members end early in most batches.
RECIPES_OF_OBJECTS = {
    "few": Recipe("living", 16, (0, 5, 12), objects=12, deletes=0.2),
    "many": Recipe("living", 16, (8,), objects=60, deletes=0.4),
    "short_window": Recipe("count:9", 24, (1, 4), objects=6, arrivals=3, departures=4, deletes=0.1),
    "many_come_and_go": Recipe("living", 14, (6,), first=25, arrivals=15, departures=18, objects=20, deletes=0.2),
    "wordless": Recipe("living", 14, (6,), first=12, arrivals=8, departures=8, wordless=0.5, deletes=0.2),
}


@pytest.fixture(autouse=True)
def refills_are_cheap(monkeypatch):
    """Else buffers would be so long, beside windows as small as these, that hardly anybody would ever run short."""
    monkeypatch.setattr(CostRule, "_REQUEST", 0.0)
    monkeypatch.setattr(CostRule, "_OF_WINDOW", 1.0)


class Seen(NamedTuple):
    """How often things happened that are worth a test."""

    defer: int = 0
    early: int = 0
    again: int = 0
    ended: int = 0
    more: int = 0

    def plus(self, other: "Seen") -> "Seen":
        return Seen(*(a + b for a, b in zip(self, other, strict=True)))


class Watched(RefillCoordinator):
    """Counts what it goes through."""

    def __init__(self, leader, resuming):
        super().__init__(leader, resuming)
        self.seen = Seen()

    def install(self, request, body):
        as_of, closed = self._refills[request].as_of.number, self.closed.number
        ended = sum(int(np.isin(self.slots_of(request), news.leaving).sum()) for news in self._deferred)
        installed = super().install(request, body)
        if installed is None:
            self.seen = self.seen.plus(Seen(early=1))
        else:
            more = sum(ask.query.more for ask in installed[1])
            self.seen = self.seen.plus(Seen(closed - as_of, 0, len(installed[1]) - more, ended, more))
        return installed


class Router:
    """Keeps back from each task what reaches no threshold there, as far as it has been told of these."""

    def __init__(self, tasks: int):
        self.tasks, self.routed, self.kept_back = tasks, -1, 0
        self.known: dict[int, tuple[Any, float, int]] = {}  # number -> subscription, threshold, version

    def route(self, batch: Batch) -> list[np.ndarray]:
        """Take the changes of a batch, and say which rows go to each task."""
        self.known |= {one.number: (one, -np.inf, 0) for one in subscriptions_of(batch.added)}
        for number in batch.removed.number.tolist():
            self.known.pop(number, None)
        rows: list[list[int]] = [[] for _ in range(self.tasks)]
        replaced = dict(zip(batch.ended.seq.tolist(), messages_of(batch.ended), strict=True))
        previous = batch.messages.previous_seq.tolist() or [-1] * len(batch.messages)
        for row, (message, before) in enumerate(zip(messages_of(batch.messages), previous, strict=True)):
            pair = [message, replaced[before]] if before in replaced else [message]
            for task in range(self.tasks):
                if any(
                    number % self.tasks == task and any(self._wanted(*each, one) for one in pair)
                    for number, each in self.known.items()
                ):
                    rows[task].append(row)
        if len(batch.messages.previous_seq):  # all versions of an object go together
            who = batch.extras.object_id
            names = [{who[row] for row in mine} for mine in rows]
            rows = [[row for row, name in enumerate(who) if name in mine] for mine in names]
        self.routed = batch.boundary.number
        self.kept_back += len(batch.messages) * self.tasks - sum(map(len, rows))
        return [np.array(mine, np.int64) for mine in rows]

    def relax(self, asked: Relax) -> int:
        """Forget thresholds; returns the last batch that was routed by them."""
        for number, version in zip(asked.number.tolist(), asked.version.tolist(), strict=True):
            if number in self.known:
                self.known[number] = (self.known[number][0], -np.inf, version)
        return self.routed

    def learn(self, raised: Thresholds) -> None:
        for number, version, threshold in zip(*(column.tolist() for column in raised), strict=True):
            if number in self.known and version >= self.known[number][2]:
                self.known[number] = (self.known[number][0], threshold, version)

    @staticmethod
    def _wanted(one, threshold: float, version: int, message) -> bool:
        return meets(one, message) and topk_score(one, message, SPACE.max_distance) >= threshold


class Run:
    """Tasks over a stream.

    shared: every task holds every subscription and matches its own share of the messages; else each task holds its own.
    routed: a router keeps messages back, and must be relaxed.
    """

    def __init__(
        self,
        kind: Kind,
        recipe: Recipe,
        seed: int,
        tasks: int = 2,
        shared: bool = False,
        routed: bool = False,
        rule: str = "cost",
        watch: type[RefillCoordinator] = Watched,
    ):
        batches = make_turns(kind, seed, recipe)
        self.rng, self.batches, self.tasks, self.shared = np.random.default_rng(seed), batches, tasks, shared
        window, options, self.objects = window_of(recipe), {"threshold_rule": rule}, recipe.deletes is not None
        context = OperatorContext(
            SPACE, window, 0, tasks, relaxes=routed, options=options, fading=FADING, objects=self.objects,
            window_tasks=_WINDOW_TASKS,
        )  # fmt: skip
        self.operators: list[Any] = [kind.make_operator(replace(context, task=task)) for task in range(tasks)]
        for operator in self.operators:
            operator.refills = watch(operator, operator.refills.resuming)
        self.kind = kind
        self.window_indexes = [kind.make_window(SPACE, None, len(batches), FADING) for _ in range(_WINDOW_TASKS)]
        self.router = Router(tasks) if routed else None
        self.parts: list[list[np.ndarray]] = []
        self.found: dict[tuple[int, int], dict[int, Any]] = defaultdict(dict)  # (home, batch) -> by whom, what
        self.mine: dict[tuple[int, int], Any] = {}
        self.matched, self.closed = [0] * tasks, [0] * tasks
        self.asks: list[
            tuple[int, WindowRequest, dict[int, Any]]
        ] = []  # task, what it asks, and what each share has answered
        self.relaxes: list[tuple[int, Relax]] = []
        self.relaxed: list[tuple[int, int, int]] = []
        self.raised: list[Thresholds] = []
        self.told: list[list[UpdateBatch]] = [[] for _ in range(tasks)]
        self.complete = [-1] * tasks

    def steps(self) -> list[tuple]:
        """What can be done next."""
        last, can = len(self.batches), []
        can += [
            (self._store, window_index)
            for window_index in self.window_indexes
            if window_index.stored_through + 1 < last
        ]
        if self.router is not None and len(self.parts) < min(last, max(self.matched) + 3):
            can.append((self._route,))
        for task in range(self.tasks):
            number = self.matched[task]
            if number < last and number < self.closed[task] + 3 and (self.router is None or number < len(self.parts)):
                can.append((self._match, task))
            if self.closed[task] < self.matched[task] and len(self.found[task, self.closed[task]]) == self.tasks:
                can.append((self._close, task))
        for asked in self.asks:
            missing = [number for number in range(_WINDOW_TASKS) if number not in asked[2]]
            can += [(self._answer_part, *asked, number) for number in missing if self._knows(number, asked[1].query)]
            can += [] if missing else [(self._answer, *asked)]
        can += [(self._relax, *each) for each in self.relaxes] + [(self._relaxed, *each) for each in self.relaxed]
        return can + [(self._raise, each) for each in self.raised]

    def run(self) -> None:
        while can := self.steps():
            what, *who = can[int(self.rng.integers(len(can)))]
            what(*who)
            for task, operator in enumerate(self.operators):
                assert operator.watermark >= self.complete[task], "nobody takes back what it has said"
                self.complete[task] = operator.watermark
        assert not self.asks and not self.relaxes and not self.relaxed

    @property
    def seen(self) -> Seen:
        total = Seen()
        for operator in self.operators:
            total = total.plus(operator.refills.seen)
        return total

    def _store(self, window_index: Any) -> None:
        batch = self.batches[window_index.stored_through + 1]
        mine = rows_at(batch.messages.seq, self.window_indexes.index(window_index), _WINDOW_TASKS)
        window_index.store(batch.boundary, batch.messages.take(mine), self._ended(batch).seq)

    def _route(self) -> None:
        assert self.router is not None
        self.parts.append(self.router.route(self.batches[len(self.parts)]))

    def _match(self, task: int) -> None:
        number = self.matched[task]
        batch = self.batches[number]
        messages, ended, added = batch.messages, self._ended(batch), batch.added
        if self.shared:
            messages, ended = (each.take(rows_at(each.seq, task, self.tasks)) for each in (messages, ended))
        else:
            added = added.take(rows_at(added.number, task, self.tasks))
        if self.router is not None:
            messages = messages.take(self.parts[number][task])
        home, held = added.number % self.tasks, np.ones(len(added), np.bool_)
        turn = OperatorInput(batch.boundary, messages, ended, added, home, held, batch.removed)
        matched = self.operators[task].match(turn)
        self.mine[task, number] = matched.own_hits
        for other in range(self.tasks):
            self.found[other, number][task] = (
                matched.hits_by_home[other] if matched.hits_by_home and other != task else None
            )
        self.matched[task] += 1

    def _ended(self, batch: Batch) -> MessageBatch:
        return batch.ended if self.kind.needs_ended or self.objects else NO_MESSAGES

    def _close(self, task: int) -> None:
        number = self.closed[task]
        found = [each for each in self.found.pop((task, number)).values() if each is not None]
        self.closed[task] += 1
        self._follow(task, self.operators[task].close(self.mine.pop((task, number)), found if self.shared else []))

    def _answer_part(self, task: int, ask: WindowRequest, parts: dict[int, Any], number: int) -> None:
        parts[number] = self.window_indexes[number].answer(ask.query)

    def _answer(self, task: int, ask: WindowRequest, parts: dict[int, Any]) -> None:
        self.asks = [each for each in self.asks if each[1] is not ask]
        self._follow(task, self.operators[task].answer(ask.request, self.window_indexes[0].merge(list(parts.values()))))

    def _relax(self, task: int, asked: Relax) -> None:
        assert self.router is not None
        self.relaxes = [each for each in self.relaxes if each[1] is not asked]
        self.relaxed.append((task, asked.request, self.router.relax(asked)))

    def _relaxed(self, task: int, request: int, last_batch: int) -> None:
        self.relaxed.remove((task, request, last_batch))
        self.asks.append((task, self.operators[task].relaxed(request, last_batch), {}))

    def _raise(self, raised: Thresholds) -> None:
        assert self.router is not None
        self.raised = [each for each in self.raised if each is not raised]
        self.router.learn(raised)

    def _knows(self, number: int, query: WindowQuery) -> bool:
        return max(query.as_of.number, query.up_to) <= self.window_indexes[number].stored_through

    def _follow(self, task: int, step: OperatorOutput) -> None:
        if len(step.updates):
            first = int(step.updates.as_of.min())
            latest = max(b.boundary.number for b in self.batches if b.boundary.last_seq == first)
            assert latest > self.complete[task], "told after the end"
            self.told[task].append(step.updates)
        self.asks += [(task, ask, {}) for ask in step.window_requests]
        self.relaxes += [(task, relax) for relax in step.relaxes]
        if self.router is not None and step.raised.number.size:
            self.raised.append(step.raised)


def check(run: Run, recipe: Recipe) -> int:
    """Hold a run against the oracle; returns how many updates there were."""
    run.run()
    wanted, results = expected(run.batches, window_of(recipe), run.objects)
    objects = [name for batch in run.batches for name in batch.extras.object_id or ()]
    told: Counter = Counter()
    for task, updates in enumerate(run.told):
        at: dict[int, tuple[int, bool]] = {}
        held: set[tuple[int, int]] = set()
        boundaries = Counter(batch.boundary.last_seq for batch in run.batches)
        for batch in updates:
            told += tally(batch)
            for as_of, number, seq, change, _ in rows_of(batch):
                assert number % run.tasks == task, "told by who is not its home"
                what = objects[seq] if run.objects else seq
                assert ((number, what) in held) == (change == LEAVE), "applied in order, updates make sense"
                (held.remove if change == LEAVE else held.add)((number, what))
                # a batch without messages ends at the seq of the one before
                place = (as_of, change != LEAVE and boundaries[as_of] == 1)
                assert at.get(number, place) <= place, "boundary by boundary, leaves before enters"
                at[number] = place
    everything: Counter = Counter()
    for each in wanted:
        everything += each
    assert told == everything, f"missing {list(everything - told)[:3]}, extra {list(told - everything)[:3]}"
    rows = sorted(row[:4] for operator in run.operators for row in rows_of(operator.results()))
    assert rows == [tuple(row[:4]) for row in without_text(results)]
    for operator in run.operators:
        pending = operator.refills
        assert operator.watermark == len(run.batches) - 1
        assert not pending and not pending.waits.any() and not pending._deferred and not pending._early
    return sum(told.values())


def check_all(kind: Kind, recipe: Recipe, seeds: range, **options: Any) -> Seen:
    """Several runs; returns what has happened in them. The options are those of `Run`."""
    seen, told = Seen(), 0
    for seed in seeds:
        run = Run(kind, recipe, seed, **options)
        told += check(run, recipe)
        seen = seen.plus(run.seen)
        if run.router is not None:
            assert run.router.kept_back > 0, "a router that keeps nothing back tests nothing"
    assert told > 60 * len(seeds) / 4, "runs in which nothing happens prove nothing"
    return seen


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("engine", WINDOWED, ids="-".join)
def test_rooms_answered_late_tell_what_the_oracle_tells(engine, recipe):
    seen = check_all(kind_of(*engine), recipe, range(4))
    assert seen.defer > 30 and seen.ended > 0, "nothing was late"
    assert (seen.more > 0) == (engine[0] == "topk"), "batches of which the answer did not speak"


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("engine", [each for each in WINDOWED if each[0] == "skyline"], ids="-".join)
def test_skyline_rooms_that_find_for_each_other_and_are_answered_late_equal_oracle(engine, recipe):
    seen = check_all(kind_of(*engine), recipe, range(4), tasks=3, shared=True)
    assert seen.defer > 30 and seen.ended > 0, "nothing was late"


@pytest.mark.parametrize("recipe", RECIPES_OF_OBJECTS.values(), ids=RECIPES_OF_OBJECTS)
@pytest.mark.parametrize("kind", ["topk", "decay", "knn", "skyline"])
def test_rooms_of_objects_answered_late_tell_what_the_oracle_tells(kind, recipe, monkeypatch):
    """With no more entries than are wanted, so that most that end early are missed."""
    monkeypatch.setattr(living, "spare", lambda k: k.astype(np.int32))
    monkeypatch.setattr(living, "wanted", lambda k: k)
    seen = check_all(OF_OBJECTS.named(kind), recipe, range(4), rule="sma")
    assert seen.defer > 20, "nothing was late"


@pytest.mark.parametrize("recipe", RECIPES_OF_OBJECTS.values(), ids=RECIPES_OF_OBJECTS)
def test_topk_rooms_of_objects_whose_router_keeps_messages_back_equal_oracle(recipe):
    seen = check_all(OF_OBJECTS.named("topk"), recipe, range(10), routed=True, rule="sma")
    assert seen.early > 0 or recipe.wordless, "no answer came before its time"


@pytest.mark.parametrize("rule", ["cost", "sma"])
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("engine", KINDS.named("topk").engines)
def test_topk_rooms_whose_router_keeps_messages_back_equal_oracle(engine, recipe, rule):
    seen = check_all(kind_of("topk", engine), recipe, range(4), routed=True, rule=rule)
    # every message meets those without keywords, and hardly one is kept back
    assert (seen.early > 0 or recipe.wordless) and seen.ended > 0, "no answer came before its time"


@pytest.mark.parametrize(
    ("kind", "recipe", "options"),
    [
        ("topk", Recipe("count:25", 40, (5,), objects=0, first=0, departures=0), {"rule": "sma"}),
        ("topk", Recipe("count:25", 40, (5,), objects=0, first=0, departures=0), {"rule": "sma", "routed": True}),
        ("skyline", Recipe("count:60", 40, (6,), objects=10, departures=0, never=0.0), {"shared": True}),
    ],
    ids=["topk", "topk_routed", "skyline"],
)
def test_rooms_answered_late_run_short_again_on_the_way(kind, recipe, options):
    """What is led through batches that were put by has to ask again."""
    assert check_all(kind_of(kind), recipe, range(3), **options).again > 3


class NeverReplays(RefillCoordinator):
    """Broken: takes an answer for the present."""

    def defer(self, news):
        pass


class ForgetsWhoLeft(RefillCoordinator):
    """Broken: whoever leaves while it waits is led on."""

    def defer(self, news):
        super().defer(news._replace(leaving=news.leaving[:0]))


class BelievesWhatWasPutBy(RefillCoordinator):
    """Broken: what routers have kept back is not taken from the answer."""

    def install(self, request, body):
        later = body._replace(seq=np.where(body.after == 1, -1, body.seq))
        return super().install(request, later)


@pytest.mark.parametrize("broken", [NeverReplays, ForgetsWhoLeft, BelievesWhatWasPutBy])
def test_pending_broken_on_purpose_is_found_out(broken):
    routed = broken is BelievesWhatWasPutBy
    for seed in range(5):
        run = Run(KINDS.named("topk"), RECIPES["many_come_and_go"], seed, routed=routed, rule="sma", watch=broken)
        try:
            check(run, RECIPES["many_come_and_go"])
        except (AssertionError, EngineError, KeyError, IndexError):
            return
    pytest.fail(f"{broken.__name__} went unnoticed")
