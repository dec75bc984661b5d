"""A kind of subscription that exists in this file alone, run by a production code that has never heard of it.

`earliest` asks for the k lowest seqs alive at a boundary that share a keyword and lie with their centre inside a closed
region. Versions are messages like any other, every score is 0, and it starts from the window. Its room keeps at most k
and whether there may be more, so every expiry asks the window: the protocol of questions is at work all the time.
"""

from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from matching.kind import Kind, Matched, Recipe, Room, Share, Step, Work
from matching.kinds import KINDS
from matching.model import (
    ENTER,
    LEAVE,
    Float64,
    Int32,
    Int64,
    ResultBatch,
    SubscriptionTable,
    UpdateBatch,
    concatenate,
    empty,
    take_ragged,
)
from matching.naive import tally
from matching.pending import Lacking, News, Pending
from matching.slots import SlotMap
from matching.state import Lists, State
from tests.skyline_topologies import SkylineMessages, SkylineWorld, router_of
from tests.skyline_worlds import SPACE
from tests.skyline_worlds import Recipe as WorldRecipe
from tests.worlds import Collector, WorldChanges
from topology.core.local import pause_local, run_local
from topology.core.runner import run_ray
from topology.wiring import wire

CODE = len(KINDS)


# ------------------------------------------------------------------------------------------------------- the kind


class Pairs(NamedTuple):
    """Who meets what: `slot` is a number in what travels, and a slot at home."""

    slot: Int64
    seq: Int64
    life: Int64


class Rows(NamedTuple):
    """What subscriptions ask of the window."""

    region: Float64
    k: Int32
    term_offsets: Int64
    terms: Int32


class Answer(NamedTuple):
    """The k lowest of each row, and how many there are."""

    k: Int32
    offsets: Int64
    seq: Int64
    life: Int64
    count: Int64


def eligible(region, terms, messages) -> np.ndarray:
    """Rows of the messages that share a term and have their centre in the region."""
    lon, lat = (messages.west + messages.east) / 2.0, (messages.south + messages.north) / 2.0
    inside = (region[0] <= lon) & (lon <= region[2]) & (region[1] <= lat) & (lat <= region[3])
    hits = np.concatenate([[0], np.cumsum(np.isin(messages.terms, terms))])
    return np.flatnonzero(inside & (hits[messages.term_offsets[1:]] > hits[messages.term_offsets[:-1]]))


class EarliestShare(Share):
    name = "list"

    def __init__(self, space, kept_boundaries=0):
        self.kept_boundaries, self.known, self.messages = kept_boundaries, [], []

    @property
    def stored_through(self):
        return self.known[-1].number if self.known else -1

    def store(self, boundary, messages, ended):
        self.known = [*self.known, boundary][-1 - self.kept_boundaries :]
        self.messages = [each for each in [*self.messages, messages] if np.any(each.life > self.known[0].floor)]

    def load(self, boundary, messages):
        self.store(boundary, messages, np.zeros(0, np.int64))

    def answer(self, question):
        as_of, rows = question.as_of, question.rows
        assert as_of in self.known
        offsets, seqs, lives, counts = [0], [], [], []
        for row in range(rows.k.shape[0]):
            terms = rows.terms[rows.term_offsets[row] : rows.term_offsets[row + 1]]
            met = [each.take(eligible(rows.region[row], terms, each)) for each in self.messages]
            seq = np.concatenate([np.zeros(0, np.int64), *(each.seq for each in met)])
            life = np.concatenate([np.zeros(0, np.int64), *(each.life for each in met)])
            alive = np.flatnonzero((seq <= as_of.last_seq) & (life > as_of.floor))
            first = alive[np.argsort(seq[alive])][: rows.k[row]]
            offsets.append(offsets[-1] + first.shape[0])
            seqs.append(seq[first])
            lives.append(life[first])
            counts.append(alive.shape[0])
        nothing = [np.zeros(0, np.int64)]
        columns = np.concatenate(nothing + seqs), np.concatenate(nothing + lives)
        return Answer(rows.k, np.array(offsets, np.int64), *columns, np.array(counts, np.int64))

    @classmethod
    def merge(cls, parts):
        k, rows = parts[0].k, range(parts[0].k.shape[0])
        offsets, kept = [0], []
        for row in rows:
            mine = [(seq, life) for part in parts for seq, life in zip(*held(part, row), strict=True)]
            kept += sorted(mine)[: k[row]]
            offsets.append(len(kept))
        seq, life = (np.array([pair[column] for pair in kept], np.int64) for column in range(2))
        return Answer(k, np.array(offsets, np.int64), seq, life, sum(part.count for part in parts))

    def size_bytes(self):
        return sum(column.nbytes for each in self.messages for column in each)


def held(answer, row):
    """Seqs and lives of one row."""
    span = slice(answer.offsets[row], answer.offsets[row + 1])
    return answer.seq[span].tolist(), answer.life[span].tolist()


class EarliestRoom(Room):
    def __init__(self, engine, site):
        self.site, self.pending, self.slots = site, Pending(self), SlotMap()
        self.table: SubscriptionTable = empty(SubscriptionTable)  # every subscription there has been, row by row
        self.row, self.home = {}, {}  # by slot
        self.kept, self.more = {}, {}  # by slot, of those at home here: [(seq, life)]; whether others may be alive

    def __len__(self):
        return len(self.slots)

    @property
    def complete_through(self):
        return self.pending.complete_through

    def holds(self, numbers):
        return self.slots.find(numbers) >= 0

    def match(self, turn):
        gone = self.slots.find(turn.removed.number)
        staying = np.flatnonzero(turn.held & ~np.isin(turn.added.number, turn.removed.number))
        fresh = self._insert(turn.added.take(staying), turn.home[staying])
        found: list[list] = [[] for _ in range(self.site.tasks)]
        for slot, row in self.row.items():
            if slot not in gone:
                met = turn.messages.take(eligible(*self._asks(row), turn.messages))
                alive = met.life > turn.boundary.floor
                pairs = zip(met.seq[alive].tolist(), met.life[alive].tolist(), strict=True)
                found[self.home[slot]] += [(int(self.slots.number[slot]), *pair) for pair in pairs]
        columns = [Pairs(*(np.array([pair[i] for pair in each], np.int64) for i in range(3))) for each in found]
        leaving = gone[gone >= 0]
        mine = [slot for slot in leaving.tolist() if self.home[slot] == self.site.task]
        for slot in set(leaving.tolist()) - set(mine):
            self._forget(slot)
        own = turn.boundary, columns[self.site.task], mine, [slot for slot in fresh if slot in self.kept]
        return Matched(own, tuple(columns))

    def close(self, mine, found):
        boundary, own, leaving, fresh = mine
        pairs = Pairs(*(np.concatenate(column) for column in zip(own, *found, strict=True)))
        offers = pairs._replace(slot=self.slots.find(pairs.slot))
        news, past = News(boundary, offers, np.array(leaving, np.int32)), self.pending.closed
        self.pending.closed = boundary
        waits = self.pending.waits.copy()
        self.pending.put_by(news.of(waits))
        waits[fresh] = True
        slots = np.array([slot for slot in self.kept if not waits[slot]], np.int32)
        updates, lacking = self.lead(past, news.of(~waits), slots)
        asking = np.concatenate([lacking.slots, np.array(fresh, np.int32)]).astype(np.int32)
        asks = ()
        if asking.size:
            asks = (self.pending.pend(boundary, asking, [*lacking.before, *([] for _ in fresh)]),)
        return Step(updates, asks, work=Work(matched=pairs.seq.shape[0]))

    def lead(self, past, news, slots):
        told, lacking, before_lacking = [empty(UpdateBatch)], [], []
        for slot in slots.tolist():
            before = self.kept[slot]
            if slot in news.leaving:
                told.append(self._tell(news.boundary, slot, before, []))
                self._forget(slot)
                continue
            alive = [pair for pair in before if pair[1] > news.boundary.floor]
            if len(alive) < len(before) and self.more[slot]:
                lacking.append(slot)
                before_lacking.append(before)
                continue
            at = np.flatnonzero((news.offers.slot == slot) & (news.offers.life > news.boundary.floor))
            coming = sorted(zip(news.offers.seq[at].tolist(), news.offers.life[at].tolist(), strict=True))
            k = int(self.table.k[self.row[slot]])
            self.more[slot] = self.more[slot] or len(alive) + len(coming) > k
            self.kept[slot] = (alive + coming)[:k]
            told.append(self._tell(news.boundary, slot, before, self.kept[slot]))
        return concatenate(told), Lacking(np.array(lacking, np.int32), before_lacking)

    def answer(self, request, body):
        updates, asks, _ = self.pending.install(request, body)
        return Step(concatenate(updates), tuple(asks))

    def question(self, slots):
        rows = [self.row[slot] for slot in slots.tolist()]
        table = self.table.take(np.array(rows))
        return Rows(table.region, table.k, table.term_offsets, table.terms)

    def refill(self, slots, body, as_of):
        for row, slot in enumerate(slots.tolist()):
            self.kept[slot] = list(zip(*held(body, row), strict=True))
            self.more[slot] = bool(body.count[row] > body.k[row])

    def tell(self, boundary, slots, before):
        pairs = zip(slots.tolist(), before, strict=True)
        return concatenate(
            [empty(UpdateBatch), *(self._tell(boundary, slot, was, self.kept[slot]) for slot, was in pairs)]
        )

    def results(self):
        rows = [
            (self.slots.number[slot], rank, seq)
            for slot, kept in self.kept.items()
            for rank, (seq, _) in enumerate(kept, 1)
        ]
        number, rank, seq = np.array(rows, np.int64).reshape(-1, 3).T
        return ResultBatch(number, rank.astype(np.int32), seq, np.zeros(len(rows)))

    def report(self):
        return {"asked": self.pending.asked}

    def arrays(self):
        return {"number": self.slots.number, "terms": self.table.terms}

    def state(self):
        slots = list(self.kept)
        state = State.of(self.table.take(np.array([self.row[slot] for slot in slots], np.int64)))
        state.rows["more"] = np.array([self.more[slot] for slot in slots], np.bool_)
        offsets = np.cumsum([0, *(len(self.kept[slot]) for slot in slots)])
        pairs = np.array([pair for slot in slots for pair in self.kept[slot]], np.int64).reshape(-1, 2)
        state.lists["kept"] = Lists(offsets, {"seq": pairs[:, 0], "life": pairs[:, 1]})
        return state

    def restore(self, boundary, state, home, held):
        rows = np.flatnonzero(held)
        state = state.take(rows)
        kept = state.lists["kept"]
        for row, slot in enumerate(self._insert(state.table, home[rows])):
            if slot in self.kept:
                span = slice(kept.offsets[row], kept.offsets[row + 1])
                columns = (kept.columns[name][span].tolist() for name in ("seq", "life"))
                self.kept[slot], self.more[slot] = list(zip(*columns, strict=True)), bool(state.rows["more"][row])
        self.pending.start_at(boundary)

    def _insert(self, table, home):
        slots, first = self.slots.insert(table.number).tolist(), len(self.table)
        self.table = concatenate([self.table, table])
        self.pending.ensure_slots(self.slots.capacity)
        for row, slot in enumerate(slots):
            self.row[slot], self.home[slot] = first + row, int(home[row])
            if home[row] == self.site.task:
                self.kept[slot], self.more[slot] = [], False
        return slots

    def _asks(self, row):
        _, picked = take_ragged(self.table.term_offsets, np.array([row]))
        return self.table.region[row], self.table.terms[picked]

    def _forget(self, slot):
        self.slots.remove(self.slots.number[[slot]])
        for column in (self.row, self.home, self.kept, self.more):
            column.pop(slot, None)

    def _tell(self, boundary, slot, before, after):
        left, came = sorted(set(before) - set(after)), sorted(set(after) - set(before))
        n, number = len(left) + len(came), self.slots.number[slot]
        seqs = np.array([seq for seq, _ in left + came], np.int64)
        change = np.array([LEAVE] * len(left) + [ENTER] * len(came), np.int8)
        return UpdateBatch(np.full(n, boundary.last_seq), np.full(n, number), seqs, change, np.zeros(n))


EARLIEST = Kind(
    CODE,
    "earliest",
    "region",
    EarliestRoom,
    fields=("k",),
    engines={"plain": id},  # it needs none
    windows={"list": EarliestShare},
    recipe=Recipe("none", k=(1, 3), side=0.1),
)


# ----------------------------------------------------------------------------------------------------- the oracle


def expected(world) -> tuple[Counter, Counter]:
    """Every update, and the results at the end, from the definition alone."""
    said, asking, before, updates = [], {}, {}, Counter()
    for turn in world.turns:
        said += [row for row in zip(*in_words(turn.messages), strict=True)]
        asking |= {row[0]: row for row in subscribed(turn.changes.added)}
        for number in turn.changes.removed.number.tolist():
            asking.pop(number, None)
        after = {}
        for number, (_, (west, south, east, north), k, wanted) in asking.items():
            after[number] = [
                seq
                for seq, life, lon, lat, terms in said
                if life > turn.boundary.floor and west <= lon <= east and south <= lat <= north and terms & wanted
            ][:k]
        for number in before.keys() | after.keys():
            was, now = set(before.get(number, ())), set(after.get(number, ()))
            for change, seqs in ((LEAVE, was - now), (ENTER, now - was)):
                updates += Counter((turn.boundary.last_seq, number, seq, change, 0.0) for seq in seqs)
        before = after
    return updates, Counter((number, rank, seq) for number, seqs in before.items() for rank, seq in enumerate(seqs, 1))


def in_words(messages):
    """Columns of plain values: seq, life, centre, set of terms."""
    cuts = messages.term_offsets.tolist()
    terms = [set(messages.terms[a:b].tolist()) for a, b in zip(cuts, cuts[1:], strict=False)]
    lon, lat = ((messages.west + messages.east) / 2.0).tolist(), ((messages.south + messages.north) / 2.0).tolist()
    return messages.seq.tolist(), messages.life.tolist(), lon, lat, terms


def subscribed(table):
    """(number, region, k, set of terms) of each row that is of this kind."""
    cuts = table.term_offsets.tolist()
    for row in np.flatnonzero(table.kind == CODE).tolist():
        wanted = set(table.terms[cuts[row] : cuts[row + 1]].tolist())
        yield int(table.number[row]), tuple(table.region[row].tolist()), int(table.k[row]), wanted


# ------------------------------------------------------------------------------------------------------ the tests


class EarliestWorld(SkylineWorld):
    """Objects that speak often, and subscriptions of this kind among those of the others that have regions."""

    def __init__(self, seed: int, kinds: tuple[int, ...] = (CODE,), window: str = "count:30"):
        super().__init__(
            WorldRecipe(window, batches=14, batch=7, subscriptions=40, terms=4, objects=20, late=9, churn=0.8), seed
        )
        rng, kind_of = np.random.default_rng([seed, 6]), {}
        for place, turn in enumerate(self.turns):
            added, removed = turn.changes.added, turn.changes.removed
            kind = rng.choice(kinds, len(added)).astype(np.int8)
            kind_of |= dict(zip(added.number.tolist(), kind.tolist(), strict=True))
            k = np.where(kind == CODE, rng.integers(1, 4, len(added)), 0).astype(np.int32)
            columns: Any = added._asdict() | {"kind": kind, "k": k}
            gone = removed._replace(kind=np.array([kind_of[number] for number in removed.number.tolist()], np.int8))
            changes = turn.changes._replace(added=SubscriptionTable(**columns), removed=gone)
            self.turns[place] = turn._replace(changes=changes)
        self.batches = [(turn.boundary, turn.messages, turn.changes) for turn in self.turns]


class Saving(Collector):
    """Keeps what it was told over a pause."""

    def state(self):
        updates = concatenate(self.updates)._asdict()
        return {"closed": np.array([self.closed, self.acknowledged]), "late": np.array([self.late]), **updates}

    def restore(self, saved):
        mine = saved.single("delivery")
        self.updates = [UpdateBatch(*(mine[name] for name in UpdateBatch._fields))]
        self.closed, self.acknowledged = map(int, mine["closed"])
        self.inputs = type(self.inputs)({"updates": self.tasks, "ids": 1}, first=saved.number + 1)
        self.complete, self.late = [saved.number] * self.tasks, int(mine["late"][0])


def plan_of(world, router: str, query: int, tuples: int = 2, distribution: int = 2):
    kinds = KINDS.plus(EARLIEST)
    placed = router_of(router, query, 5)
    placed.traits = kinds.traits
    return wire(
        SkylineMessages(world), WorldChanges(world), placed, SPACE, world.window, Saving(4), kinds=kinds,
        tuple_bolts=tuples, distribution_bolts=distribution,
    )  # fmt: skip


def check(world, report, late: bool = True) -> int:
    """Hold a run against the definition; returns what tasks found for each other."""
    figures = report.components["delivery"].tasks[0].figures
    mine = {number for turn in world.turns for number, *_ in subscribed(turn.changes.added)}
    told = Counter({row: n for row, n in tally_of(figures["updates"]).items() if row[1] in mine})
    wanted, results = expected(world)
    assert sum(wanted.values()) > 200, "a world in which little happens proves little"
    assert told == wanted, f"missing {list(wanted - told)[:3]}, extra {list(told - wanted)[:3]}"
    assert Counter(row for row in zip(*figures["results"][:3], strict=True) if row[0] in mine) == results
    assert figures["complete_through"] == len(world.turns) - 1 and (figures["late"] > 0 or not late)
    tasks = report.components["query"].tasks
    assert sum(task.figures["rooms"]["earliest"]["asked"] for task in tasks) > 0
    return sum(task.figures["found_sent"].get("earliest", 0) for task in tasks)


def tally_of(columns) -> Counter:
    dtypes = (np.int64, np.int64, np.int64, np.int8, np.float64)
    return tally(UpdateBatch(*(np.array(column, dtype) for column, dtype in zip(columns, dtypes, strict=True))))


@pytest.mark.parametrize("window", ["count:30", "time:25"])
@pytest.mark.parametrize("router", ["hashing", "location"])
def test_sixth_kind_in_one_process_equals_its_definition(router, window):
    sent = sum(
        check(world, run_local(plan_of(world, router, 4), seed=seed))
        for seed, world in ((seed, EarliestWorld(seed, window=window)) for seed in range(4))
    )
    assert (sent > 0) == (router == "location"), "where several bolts hold one, its home is told"


def test_sixth_kind_beside_the_others_equals_its_definition():
    world = EarliestWorld(9, kinds=(CODE, CODE, KINDS.named("boolean").code, KINDS.named("skyline").code))
    check(world, run_local(plan_of(world, "location", 3), seed=9))


@pytest.mark.parametrize("router", ["hashing", "location"])
def test_sixth_kind_goes_on_from_what_was_saved(router):
    world = EarliestWorld(3)
    for after, tasks in ((4, (4, 2, 2)), (9, (2, 3, 1))):
        saved = pause_local(plan_of(world, router, 3), after, seed=after)
        check(world, run_local(plan_of(world, "location", *tasks), seed=after, resume=saved))


@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize("router", ["hashing", "location"])
def test_sixth_kind_on_ray_equals_its_definition(router):
    world = EarliestWorld(2)
    check(world, run_ray(plan_of(world, router, 3)))


def test_sixth_kind_that_forgets_what_came_meanwhile_is_found_out(monkeypatch):
    monkeypatch.setattr(Pending, "put_by", lambda self, news: None)
    with pytest.raises(AssertionError, match="missing"):
        for seed in range(4):
            world = EarliestWorld(seed)
            check(world, run_local(plan_of(world, "location", 4), seed=seed))


def test_sixth_kind_is_known_to_no_production_file():
    root = Path(__file__).parents[2]
    folders = ("matching", "bolts", "distribution", "topology", "spouts", "gateway")
    files = [path for folder in folders for path in (root / folder).rglob("*.py")]
    assert len(files) > 100 and not [path for path in files if "earliest" in path.read_text().lower()]
