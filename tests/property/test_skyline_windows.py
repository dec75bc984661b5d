"""Window indexes under any sequence of batches and restores, asked as of any boundary: all must equal plain Python."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from matching.errors import EngineError
from matching.model import UNKNOWN_TERM, MessageBatch, concatenate
from matching.operator import WindowQuery
from matching.skyline.window import SkylineQueries, SkylineWindow
from matching.window import NO_FLOOR, Boundary
from papers.skyline.mf_rtree import CLEANING, MfRtree
from papers.skyline.tree import TreeWindow
from tests.support.skyline_invariants import check
from tests.support.skyline_streams import SPACE, WINDOWS, Model, Step

PLACES = st.integers(-2, 2).map(float)
TERMS = st.frozensets(st.integers(0, 6), max_size=4)
WANTED = st.sets(st.integers(0, 7) | st.just(UNKNOWN_TERM))
OBJECTS = st.integers(0, 5)
ARRIVAL = st.tuples(OBJECTS, PLACES, PLACES, TERMS, st.integers(0, 6), st.sampled_from([0.0, 0.0, 0.5]))


class AnyWindow(RuleBasedStateMachine):
    """All indexes through one history; a batch is a few arrivals of objects, so versions follow each other."""

    @initialize(
        cleaning=st.sampled_from(CLEANING), bounded=st.booleans(), kept=st.integers(0, 3), objects=st.booleans()
    )
    def begin(self, cleaning, bounded, kept, objects):
        """Empty windows, of which trees may be told who speaks."""
        self.options = {"mf_rtree": {"cleaning": cleaning, "bounded": bounded}}
        self.options["mf_rtree_paper"] = {"cleaning": cleaning}
        self.windows: dict[str, SkylineWindow] = {
            name: window(SPACE, kept, **self.options.get(name, {})) for name, window in WINDOWS.items()
        }
        self.model = Model()
        self.batches: list[MessageBatch] = []
        self.latest: dict[int, int] = {}
        self.kept, self.objects = kept, objects
        self.known, self.forgotten = [Boundary(-1, 0, -1, NO_FLOOR)], [Boundary(-1, 0, -1, NO_FLOOR + 1)]
        self.number, self.seq, self.floor = 0, 0, NO_FLOOR
        self.flow(0, [4, 12])

    @rule(
        arrivals=st.lists(ARRIVAL, max_size=6),
        copies=st.sampled_from([1, 1, 1, 25]),
        deleted=st.sets(OBJECTS, max_size=2),
        again=st.sets(st.integers(0, 40), max_size=2),
        window=st.sampled_from([10**6, 40, 5]),
    )
    def store(self, arrivals, copies, deleted, again, window):
        """A batch: new objects, moves, new words, deletions, expiry; 25 copies fill leaves until they split."""
        arrivals = [
            (who + 10 * copy, x + copy / 8, y, *rest)
            for copy in range(copies)
            for who, x, y, *rest in arrivals
        ]  # fmt: skip
        self.take(arrivals, deleted, again, window)

    @rule(seed=st.integers(0, 2**32 - 1), sizes=st.lists(st.sampled_from([0, 4, 12]), min_size=2, max_size=5))
    def flow(self, seed, sizes):
        """Some batches at random, of a stream in which much happens."""
        rng = np.random.default_rng(seed)
        for size in sizes:
            places, sides = rng.integers(-2, 3, (size, 2)).astype(float), rng.choice([0.0, 0.0, 0.5], size)
            who, late = rng.integers(0, 6, size), rng.integers(0, 7, size)
            terms = [frozenset(rng.choice(7, rng.integers(0, 5), replace=False).tolist()) for _ in range(size)]
            arrivals = list(zip(who.tolist(), *places.T.tolist(), terms, late.tolist(), sides.tolist(), strict=True))
            deleted, again = set(rng.integers(0, 18, 2).tolist()), set(rng.integers(0, max(1, self.seq), 2).tolist())
            self.take(arrivals, deleted, again, int(rng.choice([6, 20])))

    def take(self, arrivals, deleted, again, window):
        """Have all store a batch, and compare all of the window as of every boundary known.

        An object may speak twice in a batch, and what has ended, expired or never been may be named once more.
        """
        first, ended, rows = self.seq, [], []
        for who in deleted:
            if who in self.latest:
                ended.append(self.latest.pop(who))
        for who, *rest in arrivals:
            if who in self.latest:
                ended.append(self.latest[who])
            self.latest[who] = self.seq
            rows.append((self.seq, who, *rest))
            self.seq += 1
        ended += [seq for seq in again if seq in self.model.ended or seq >= self.seq]
        self.floor = max(self.floor, self.seq - 1 - window)
        messages, objects = batch_of(rows)
        self.batches.append(messages)
        boundary = Boundary(self.number, first, self.seq - 1, self.floor)
        self.number += 1
        self.known = [*self.known, boundary]
        self.forgotten += self.known[: -1 - self.kept]
        self.known = self.known[-1 - self.kept :]
        for index in self.windows.values():
            self.give(index, boundary, messages, np.array(ended, np.int64), objects)
        self.model.store(Step(boundary, messages, np.array(ended, np.int64), objects))
        self.compare((-9.0, -9.0, 9.0, 9.0), set(range(7)))

    def give(self, index: SkylineWindow, boundary, messages, ended, objects) -> None:
        """Have an index store a batch."""
        if isinstance(index, TreeWindow) and self.objects:
            index.store(boundary, messages, ended, objects)
        else:
            index.store(boundary, messages, ended)

    @rule(west=PLACES, south=PLACES, width=st.integers(0, 4), height=st.integers(0, 4), terms=WANTED)
    def ask(self, west, south, width, height, terms):
        """Candidates of one query."""
        self.compare((west, south, west + width, south + height), terms)

    def compare(self, region, terms):
        """Candidates from every index as of every boundary known; answers are alike too."""
        queries = query_of(region, terms)
        for as_of in self.known:
            wanted = self.model.candidates(list(region), sorted(terms), as_of)
            answers = set()
            for name, index in self.windows.items():
                assert index.known == self.known
                got = index.candidates(queries, as_of)
                rows = list(zip(*(column.tolist() for column in got[1:]), strict=True))
                assert rows == wanted, (name, as_of)
                answer = index.answer(WindowQuery(as_of, as_of.number, queries))
                answers.add(tuple(column.tobytes() for column in answer))
            assert len(answers) == 1

    @rule(which=st.integers(0, 10**6))
    def ask_what_nobody_knows(self, which):
        """Boundaries that are forgotten or have never been are refused, and so are batches out of turn."""
        queries, nothing = query_of((-2.0, -2.0, 2.0, 2.0), {1, 2}), np.zeros(0, np.int64)
        last = self.known[-1]
        unknown = [
            self.forgotten[which % len(self.forgotten)],
            last._replace(number=last.number + 1),
            last._replace(floor=last.floor - 1),
        ]
        early = Boundary(self.number, self.seq, self.seq, self.floor)
        late = Boundary(self.number + 1, self.seq, self.seq, self.floor)
        old, objects = batch_of([(self.seq - 1, 0, 0.0, 0.0, {1}, 0, 0.0)])
        for index in self.windows.values():
            for boundary in unknown:
                with pytest.raises(EngineError, match="are retained"):
                    index.candidates(queries, boundary)
                with pytest.raises(EngineError, match="are retained"):
                    index.answer(WindowQuery(boundary, boundary.number, queries))
            if self.number:
                with pytest.raises(EngineError, match="must ascend"):
                    self.give(index, early, old, nothing, objects)
                with pytest.raises(EngineError, match="cannot follow"):
                    self.give(index, late, *batch_of([])[:1], nothing, nothing)

    @precondition(lambda self: not self.objects)
    @rule()
    def restore(self):
        """Every index anew, from what lives at the last boundary: of those before it knows nothing."""
        everything = concatenate(self.batches)
        alive = everything.take(np.flatnonzero(np.isin(everything.seq, list(self.model.live))))
        for name in self.windows:
            self.windows[name] = WINDOWS[name](SPACE, self.kept, **self.options.get(name, {}))
            self.windows[name].load(self.known[-1], alive)
        self.forgotten += self.known[:-1]
        self.known = self.known[-1:]

    @rule()
    def clean(self):
        """The whole memo tree cleaned: nothing obsolete is left, and nothing to remember of it."""
        tree = self.windows["mf_rtree"]
        assert isinstance(tree, MfRtree)
        tree.clean()
        assert tree.mf.memo.meta[0] == 0 and len(tree.log) == np.count_nonzero(tree._place >= 0)

    @invariant()
    def holds_together(self):
        """What must hold inside."""
        live = len(self.model.live) if hasattr(self, "windows") and self.number else 0
        for index in getattr(self, "windows", {}).values():
            assert len(index) == live  # type: ignore[arg-type]
            if isinstance(index, TreeWindow):
                check(index)


def batch_of(rows: list[tuple]) -> tuple[MessageBatch, np.ndarray]:
    """Messages and their objects from (seq, object, lon, lat, terms, by how much the life is behind, half a side)."""
    seq = np.array([row[0] for row in rows], np.int64)
    objects = np.array([row[1] for row in rows], np.int64)
    lon, lat = np.array([row[2] for row in rows], np.float64), np.array([row[3] for row in rows], np.float64)
    life = seq - np.array([row[5] for row in rows], np.int64)
    side = np.array([row[6] for row in rows], np.float64)
    texts = [sorted(row[4]) for row in rows]
    offsets = np.concatenate([[0], np.cumsum([len(text) for text in texts])]).astype(np.int64)
    terms = np.array([term for text in texts for term in text], np.int32)
    batch = MessageBatch(
        seq, lon, lat, lon - side, lat - side, lon + side, lat + side, life, offsets, terms,
        np.ones(terms.size, np.float32),
    )  # fmt: skip
    return batch, objects


def query_of(region: tuple[float, float, float, float], terms: set[int]) -> SkylineQueries:
    """One query."""
    return SkylineQueries(np.array([region]), np.array([0, len(terms)]), np.array(sorted(terms), np.int32))


TestAnyWindow = AnyWindow.TestCase
TestAnyWindow.settings = settings(max_examples=60, stateful_step_count=15, deadline=None, derandomize=True)
