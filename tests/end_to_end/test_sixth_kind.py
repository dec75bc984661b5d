"""A kind of subscription that exists in this file alone, run by a production code that has never heard of it.

`earliest` asks for the k lowest seqs alive at a boundary that share a keyword and lie with their centre inside a closed
region. Versions are messages like any other, every score is 0, and it starts from the window. Its operator keeps at
most k and whether there may be more, so every expiry queries the window: the refill protocol is at work all the time.
"""

import itertools
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
import pytest

from gateway.load.loadtest import load_plan
from gateway.load.pace import Pace
from gateway.subscriptions.generate import generate_subscriptions
from matching.errors import ConfigError
from matching.kind_table import Kind, Recipe
from matching.kinds import KINDS
from matching.model import (
    ENTER,
    LEAVE,
    Int32,
    Int64,
    ResultBatch,
    SubscriptionTable,
    UpdateBatch,
    concatenate,
    empty,
)
from matching.naive_rows import tally
from matching.operator import NO_SEQS, Matched, OperatorOutput, Windowed, WindowIndex
from matching.refill import BatchDelta, RefillCoordinator, RefillNeeded
from matching.storage.state import RaggedColumns, State
from tests.support.covering import tiered
from tests.support.etl_folder import random_rows, write_etl
from tests.support.skyline_topologies import SkylineMessages, SkylineWorld, router_of
from tests.support.skyline_worlds import SPACE
from tests.support.skyline_worlds import Recipe as WorldRecipe
from tests.support.worlds import Collector, WorldChanges
from topology.core.executors.local import pause_local, run_local
from topology.core.executors.ray import run_ray
from topology.settings import RunConfig
from topology.wiring import build_plan, wire

CODE = len(KINDS)


# ------------------------------------------------------------------------------------------------------- the kind


class Pairs(NamedTuple):
    """Who meets what; the number of a subscription is its slot, too."""

    slot: Int64
    seq: Int64
    life: Int64

    @classmethod
    def of(cls, rows: list[tuple]) -> "Pairs":
        return cls(*np.array(rows, np.int64).reshape(-1, 3).T.copy())


class Answer(NamedTuple):
    """The lowest of each row, at most k (`row` in the place of a slot), and how many there are."""

    k: Int32
    lowest: Pairs
    count: Int64


def eligible(region, terms, messages, boundary) -> list[tuple[int, int]]:
    """(seq, life) of messages alive at a boundary that share a term and have their centre in the region."""
    lon, lat = (messages.west + messages.east) / 2.0, (messages.south + messages.north) / 2.0
    inside = (region[0] <= lon) & (lon <= region[2]) & (region[1] <= lat) & (lat <= region[3])
    alive = (messages.life > boundary.floor) & (messages.seq <= boundary.last_seq)
    hits = np.concatenate([[0], np.cumsum(np.isin(messages.terms, terms))])
    chosen = inside & alive & (hits[messages.term_offsets[1:]] > hits[messages.term_offsets[:-1]])
    return list(zip(messages.seq[chosen].tolist(), messages.life[chosen].tolist(), strict=True))


class EarliestShare(WindowIndex):
    name = "list"

    def __init__(self, space, kept_boundaries=0):
        self.kept_boundaries, self.known, self.messages = kept_boundaries, [], []

    @property
    def stored_through(self):
        return self.known[-1].number if self.known else -1

    def store(self, boundary, messages, ended=NO_SEQS):
        self.known = [*self.known, boundary][-1 - self.kept_boundaries :]
        self.messages = [each for each in [*self.messages, messages] if np.any(each.life > self.known[0].floor)]

    load = store

    def answer(self, query):
        rows, lowest, count = query.rows, [], []
        assert query.as_of in self.known
        for row, k in enumerate(rows.k.tolist()):
            terms = rows.terms[rows.term_offsets[row] : rows.term_offsets[row + 1]]
            met = [pair for each in self.messages for pair in eligible(rows.region[row], terms, each, query.as_of)]
            lowest += [(row, *pair) for pair in sorted(met)[:k]]
            count.append(len(met))
        return Answer(rows.k, Pairs.of(lowest), np.array(count, np.int64))

    @classmethod
    def merge(cls, parts):
        pairs = sorted(
            pair for part in parts for pair in zip(*(column.tolist() for column in part.lowest), strict=True)
        )
        lowest = [pair for row, k in enumerate(parts[0].k.tolist()) for pair in [p for p in pairs if p[0] == row][:k]]
        return Answer(parts[0].k, Pairs.of(lowest), sum(part.count for part in parts))

    @classmethod
    def split(cls, answer, rows):
        cuts, parts = np.cumsum([0, *rows]), []
        for first, last in itertools.pairwise(cuts.tolist()):
            slot, seq, life = answer.lowest
            mine = (first <= slot) & (slot < last)
            parts.append(
                Answer(answer.k[first:last], Pairs(slot[mine] - first, seq[mine], life[mine]), answer.count[first:last])
            )
        return parts

    def size_bytes(self):
        return sum(column.nbytes for each in self.messages for column in each)


class Held:
    """A subscription: its row, its home, and there what is kept of it: [(seq, life)], and whether more may be alive."""

    def __init__(self, row, home):
        self.row, self.home, self.kept, self.more = row, home, [], False


class EarliestOperator(Windowed):
    def __init__(self, engine, site):
        self.site, self.pending, self.held = site, RefillCoordinator(self), {}

    def __len__(self):
        return len(self.held)

    @property
    def watermark(self):
        return self.pending.watermark

    def contains(self, numbers):
        return np.isin(numbers, list(self.held))

    def match(self, turn):
        rows = np.flatnonzero(turn.assigned & ~np.isin(turn.added.number, turn.removed.number))
        fresh = self._insert(turn.added.take(rows), turn.home[rows])
        gone = [number for number in turn.removed.number.tolist() if number in self.held]
        found = [[] for _ in range(self.site.tasks)]
        for number, held in self.held.items():
            if number not in gone:
                met = eligible(held.row.region[0], held.row.terms, turn.messages, turn.boundary)
                found[held.home] += [(number, *pair) for pair in met]
        leaving = [number for number in gone if self.held[number].home == self.site.task]
        for number in set(gone) - set(leaving):
            del self.held[number]
        per_home = tuple(map(Pairs.of, found))
        return Matched((turn.boundary, per_home[self.site.task], np.array(leaving, np.int32), fresh), per_home)

    def close(self, mine, found):
        boundary, own, leaving, fresh = mine
        offers = Pairs(*(np.concatenate(column) for column in zip(own, *found, strict=True)))
        news, past = BatchDelta(boundary, offers, leaving), self.pending.closed
        self.pending.closed = boundary
        self.pending.defer(news.of(self.pending.waits))
        apart = self.pending.waits.copy()
        apart[fresh] = True
        slots = np.array([slot for slot in self._at_home() if not apart[slot]], np.int32)
        updates, lacking = self.advance(past, news.of(~apart), slots)
        asking, before = np.concatenate([lacking.slots, fresh]), [*lacking.before, *([] for _ in fresh)]
        asks = (self.pending.begin(boundary, asking, before),) if asking.size else ()
        return OperatorOutput(updates, asks)

    def advance(self, past, news, slots):
        told, lacking, before = [], [], []
        for slot in slots.tolist():
            held = self.held[slot]
            alive = [pair for pair in held.kept if pair[1] > news.boundary.floor]
            if slot in news.leaving:
                told.append(self._tell(news.boundary, slot, held.kept, []))
                del self.held[slot]
            elif len(alive) < len(held.kept) and held.more:
                lacking.append(slot)
                before.append(held.kept)
            else:
                at = (news.offers.slot == slot) & (news.offers.life > news.boundary.floor)
                coming = sorted(zip(news.offers.seq[at].tolist(), news.offers.life[at].tolist(), strict=True))
                was, k = held.kept, int(held.row.k[0])
                held.more, held.kept = held.more or len(alive + coming) > k, (alive + coming)[:k]
                told.append(self._tell(news.boundary, slot, was, held.kept))
        return concatenate([empty(UpdateBatch), *told]), RefillNeeded(np.array(lacking, np.int32), before)

    def answer(self, request, body):
        installed = self.pending.install(request, body)
        assert installed is not None, "nothing is relaxed, so no answer is early"
        return OperatorOutput(concatenate(installed[0]), tuple(installed[1]))

    def query(self, slots):
        return concatenate([self.held[slot].row for slot in slots.tolist()])

    def refill(self, slots, body, as_of):
        for row, slot in enumerate(slots.tolist()):
            mine = body.lowest.slot == row
            self.held[slot].kept = list(
                zip(body.lowest.seq[mine].tolist(), body.lowest.life[mine].tolist(), strict=True)
            )
            self.held[slot].more = bool(body.count[row] > body.k[row])

    def result_updates(self, boundary, slots, before):
        pairs = zip(slots.tolist(), before, strict=True)
        return concatenate([self._tell(boundary, slot, was, self.held[slot].kept) for slot, was in pairs])

    def results(self):
        kept = [(number, self.held[number].kept) for number in self._at_home()]
        rows = [(number, rank, seq) for number, pairs in kept for rank, (seq, _) in enumerate(pairs, 1)]
        number, rank, seq = Pairs.of(rows)
        return ResultBatch(number, rank.astype(np.int32), seq, np.zeros(len(rows)))

    def arrays(self):
        return {"waits": self.pending.waits}

    def state(self):
        mine = [self.held[number] for number in self._at_home()]
        state = State.of(concatenate([empty(SubscriptionTable), *(held.row for held in mine)]))
        state.rows["more"] = np.array([held.more for held in mine], np.bool_)
        pairs = Pairs.of([(0, *pair) for held in mine for pair in held.kept])
        offsets = np.cumsum([0, *(len(held.kept) for held in mine)])
        state.lists["kept"] = RaggedColumns(offsets, {"seq": pairs.seq, "life": pairs.life})
        return state

    def restore(self, boundary, state, home, held):
        state, home = state.take(np.flatnonzero(held)), home[held]
        self._insert(state.table, home)
        cuts, columns = state.lists["kept"]
        for row, number in enumerate(state.rows["number"].tolist()):
            if home[row] == self.site.task:
                pairs = (columns[name][cuts[row] : cuts[row + 1]].tolist() for name in ("seq", "life"))
                self.held[number].kept = list(zip(*pairs, strict=True))
                self.held[number].more = bool(state.rows["more"][row])
        self.pending.start_at(boundary)

    def _at_home(self):
        return [number for number, held in self.held.items() if held.home == self.site.task]

    def _insert(self, table, home):
        """Take rows; returns who of them is at home here."""
        numbers = table.number.tolist()
        self.held |= {n: Held(table.take(np.array([row])), int(home[row])) for row, n in enumerate(numbers)}
        self.pending.ensure_slots(max(numbers, default=-1) + 1)
        return table.number[home == self.site.task].astype(np.int32)

    def _tell(self, boundary, number, before, after):
        left, came = sorted(set(before) - set(after)), sorted(set(after) - set(before))
        n, seqs = len(left + came), np.array([seq for seq, _ in left + came], np.int64)
        change = np.array([LEAVE] * len(left) + [ENTER] * len(came), np.int8)
        return UpdateBatch(np.full(n, boundary.last_seq), np.full(n, number), seqs, change, np.zeros(n))


EARLIEST = Kind(
    CODE, "earliest", "region", EarliestOperator, fields=("k",), engines={"plain": id}, windows={"list": EarliestShare}
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
    assert sum(task.figures["answered"]["earliest"] for task in report.components["tuples"].tasks) > 0
    return sum(task.figures["hits_sent"].get("earliest", 0) for task in report.components["query"].tasks)


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
@pytest.mark.parametrize("router", tiered(["location", "hashing"], 2))
@pytest.mark.wide
def test_sixth_kind_on_ray_equals_its_definition(router):
    world = EarliestWorld(2)
    check(world, run_ray(plan_of(world, router, 3)))


def test_sixth_kind_that_forgets_what_came_meanwhile_is_found_out(monkeypatch):
    monkeypatch.setattr(RefillCoordinator, "defer", lambda self, news: None)
    with pytest.raises(AssertionError, match="missing"):
        for seed in range(4):
            world = EarliestWorld(seed)
            check(world, run_local(plan_of(world, "location", 4), seed=seed))


def test_sixth_kind_is_known_to_no_production_file():
    root = Path(__file__).parents[2]
    folders = ("compiling", "matching", "papers", "baselines", "bolts", "distribution", "topology", "spouts", "gateway")
    files = [path for folder in folders for path in (root / folder).rglob("*.py")]
    assert len(files) > 100 and not [path for path in files if "earliest" in path.read_text().lower()]


# -- the whole way: made by its recipe, read from a file, run, told; and in load tests

MORE = KINDS.plus(replace(EARLIEST, recipe=Recipe("none", k=(1, 4), side=0.9)))


@pytest.fixture(scope="module")
def etl(tmp_path_factory):
    return write_etl(tmp_path_factory.mktemp("sixth") / "etl", random_rows(240))


def run_files(etl, files, out, router):
    config = RunConfig(
        messages=etl, subscriptions=tuple(files), out=out, window="count:60", batch="20", world="earth", router=router,
        query_bolts=3, checkpoint_every=0, executor="local",
    )  # fmt: skip
    out.mkdir()
    report = run_local(build_plan(config, kinds=MORE))
    told = report.components["delivery"].tasks[0].figures
    return told["digest"], report.components["subscriptions"].tasks[0].figures


def test_kind_handed_in_is_made_read_run_and_told(etl, tmp_path):
    files = []
    for kind, share in (("earliest", 0.7), ("boolean", 0.5)):
        files.append(tmp_path / f"{kind}.jsonl")
        generate_subscriptions(
            etl, kind, 30, 4, files[-1], region_share=share, until_share=0.3, kinds=MORE, max_frequency=1.0
        )
    with files[0].open("a") as file:
        row = json.loads(files[0].read_text().splitlines()[0])
        file.write(json.dumps(row | {"subscription_id": "no k", "k": None}) + "\n")
        file.write(json.dumps(row | {"subscription_id": "idle", "kind": "knn"}) + "\n")
    runs = {router: run_files(etl, files, tmp_path / router, router) for router in ("hashing", "location")}
    assert runs["hashing"][0] == runs["location"][0]
    figures = runs["location"][1]
    assert figures["by_kind"] == {"boolean": 30, "topk": 0, "decay": 0, "knn": 0, "skyline": 0, "earliest": 30}
    assert figures["rejected_by_reason"] == {"bad_k": 1, "wrong_place": 1}
    reasons = [json.loads(line)["what"] for line in (tmp_path / "location" / "rejected.jsonl").read_text().splitlines()]
    assert any("knn and earliest need one" in what for what in reasons)
    rows = pq.read_table(tmp_path / "location" / "updates").to_pylist()
    told = {(row["subscription_id"].split("-")[0], row["change"]) for row in rows}
    assert told == {("earliest", "enter"), ("earliest", "leave"), ("boolean", "match")}


def test_kind_handed_in_is_a_load_of_load_tests():
    digests = set()
    for router in ("hashing", "location"):
        counts = {"earliest": 20, "boolean": 40}
        plan = load_plan(Pace(1e6, 600, 100), counts, "count:300", 2, router, kinds=MORE)
        report = run_local(plan)
        assert report.components["delivery"].tasks[0].figures["updates"]["enter"] > 20
        digests.add(report.components["delivery"].tasks[0].figures["digest"])
    assert len(digests) == 1
    with pytest.raises(ConfigError, match="of kind earliest, .* or --count earliest=0"):
        load_plan(Pace(1e6, 600, 100), {"earliest": 1}, "count:300", 2, "keyword", kinds=MORE)
