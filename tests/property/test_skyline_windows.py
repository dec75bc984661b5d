"""Any history of a window: arrivals, moves, ends, expiry, restores; every index must equal plain Python."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from matching.model import MessageBatch
from matching.naive import Message, Subscription, messages_of, skyline_scores
from matching.skyline.mf_rtree import CLEANING, MfRtree
from matching.skyline.window import SkylineQueries
from matching.skyline.windows import TREES
from matching.window import NO_FLOOR, Boundary
from tests.unit.skyline_invariants import check
from topology.core.frames import decode, encode

PLACES = st.integers(-2, 2).map(float)
TERMS = st.frozensets(st.integers(0, 6), max_size=4)
SIDES = st.integers(0, 4)
OBJECTS = st.integers(0, 5)


class AnyWindow(RuleBasedStateMachine):
    """All indexes through one history; a batch is a few arrivals of objects, so versions follow each other."""

    @initialize(cleaning=st.sampled_from(CLEANING), bounded=st.booleans())
    def begin(self, cleaning, bounded):
        """Empty windows."""
        self.options = {"cleaning": cleaning, "bounded": bounded}
        self.windows = {name: tree(**(self.options if tree is MfRtree else {})) for name, tree in TREES.items()}
        self.live: dict[int, Message] = {}
        self.latest: dict[int, int] = {}
        self.number, self.seq, self.floor = 0, 0, NO_FLOOR

    @rule(
        arrivals=st.lists(st.tuples(OBJECTS, PLACES, PLACES, TERMS, st.integers(0, 6)), max_size=6),
        copies=st.sampled_from([1, 1, 1, 25]),
        deleted=st.sets(OBJECTS, max_size=2),
        window=st.sampled_from([10**6, 40, 5]),
    )
    def store(self, arrivals, copies, deleted, window):
        """A batch: new objects, moves, new words, deletions, expiry; 25 copies fill leaves until they split."""
        arrivals = [
            (who + 10 * copy, x + copy / 8, y, terms, late)
            for copy in range(copies)
            for who, x, y, terms, late in arrivals
        ]
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
        self.floor = max(self.floor, self.seq - 1 - window)
        messages, objects = batch_of(rows)
        boundary = Boundary(self.number, first, self.seq - 1, self.floor)
        self.number += 1
        for index in self.windows.values():
            index.store(boundary, messages, np.array(ended, np.int64), objects)
        self.live |= {message.seq: message for message in messages_of(messages)}
        for seq in ended:
            self.live.pop(seq, None)
        self.live = {seq: message for seq, message in self.live.items() if message.life > self.floor}

    @rule(
        west=PLACES, south=PLACES, width=st.integers(0, 4), height=st.integers(0, 4), terms=st.sets(st.integers(0, 7))
    )
    def ask(self, west, south, width, height, terms):
        """Candidates of one query, from every index."""
        region = (west, south, west + width, south + height)
        query = Subscription(0, 0, 0, 0.0, 0.0, region, 0, 0.0, dict.fromkeys(sorted(terms), 1.0))
        wanted = []
        for seq, message in sorted(self.live.items()):
            scores = skyline_scores(query, message) if terms & set(message.weights) else None
            if scores is not None:
                wanted.append((seq, message.life, *scores))
        queries = SkylineQueries(
            np.array([region]), np.array([0, len(terms)]), np.array(sorted(terms), np.int32)
        )  # fmt: skip
        for name, index in self.windows.items():
            got = index.candidates(queries)
            rows = list(zip(*(column.tolist() for column in got[1:]), strict=True))
            assert rows == wanted, name

    @rule()
    def restore(self):
        """Every index anew from what it would write to a file."""
        for name, index in self.windows.items():
            arrays = decode(encode({"state": "window"}, index.arrays()))[1]
            self.windows[name] = TREES[name].from_arrays(arrays, **(self.options if name == "mf_rtree" else {}))

    @rule()
    def clean(self):
        """The whole memo tree cleaned: nothing obsolete is left, and nothing to remember of it."""
        tree = self.windows["mf_rtree"]
        assert isinstance(tree, MfRtree)
        tree.clean()
        assert tree.mf.memo.meta[0] == 0 and len(tree.log) == len(tree)

    @invariant()
    def holds_together(self):
        """What must hold inside."""
        for index in getattr(self, "windows", {}).values():
            assert len(index) == len(self.live)
            check(index)


def batch_of(rows: list[tuple]) -> tuple[MessageBatch, np.ndarray]:
    """Messages and their objects from (seq, object, lon, lat, terms, by how much the life is behind)."""
    seq = np.array([row[0] for row in rows], np.int64)
    objects = np.array([row[1] for row in rows], np.int64)
    lon, lat = np.array([row[2] for row in rows], np.float64), np.array([row[3] for row in rows], np.float64)
    life = seq - np.array([row[5] for row in rows], np.int64)
    texts = [sorted(row[4]) for row in rows]
    offsets = np.concatenate([[0], np.cumsum([len(text) for text in texts])]).astype(np.int64)
    terms = np.array([term for text in texts for term in text], np.int32)
    return MessageBatch(
        seq, lon, lat, lon, lat, lon, lat, life, offsets, terms, np.ones(terms.size, np.float32)
    ), objects  # fmt: skip


TestAnyWindow = AnyWindow.TestCase
TestAnyWindow.settings = settings(max_examples=60, stateful_step_count=15, deadline=None)
