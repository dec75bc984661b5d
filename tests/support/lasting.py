"""Lasting results held against the oracle, and an index that looks at every pair: what is left of others unpruned."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from benchmarks.driving import Tasks, kind_of
from matching.cumulative.engine import CumulativeEngine
from matching.cumulative.results import POOL_FULL, offer
from matching.decay.operator import DecayOperator
from matching.decay.scores import key_of, length_of, lift, relevance, text_relevance
from matching.filters import message_passes
from matching.geo.sphere import distance_to, point_of
from matching.half_life import DecayParameters
from matching.knn.operator import KnnOperator
from matching.naive_rows import tally
from matching.space import Space
from tests.support.worlds import World

OPERATORS = {"decay": DecayOperator, "knn": KnnOperator}


class EveryPair(CumulativeEngine):
    """Offers every message to every subscription with which it shares a keyword.

    fading : Fading, optional    without it keys are distances
    """

    name = "every_pair"

    def __init__(self, space: Space, fading: DecayParameters | None = None):
        super().__init__(space)
        self.fading = fading

    def _post(self, slots):
        pass

    def _unpost(self, slots):
        pass

    def _scan(self, batch, first_row):
        c = self.subscriptions.columns
        live = self.subscriptions.live_slots()
        keywords = [c.terms[c.term_start[slot] : c.term_start[slot] + c.term_count[slot]].tolist() for slot in live]
        for row in range(first_row, len(batch)):
            cut = slice(batch.term_offsets[row], batch.term_offsets[row + 1])
            terms = batch.terms[cut]
            said = set(terms.tolist())
            for slot, words in zip(live, keywords, strict=True):
                if not said.isdisjoint(words):
                    key = self._key(c, slot, batch, row, terms, cut)
                    passes = message_passes(self.filters, slot, batch, row)
                    if passes and offer(c.threshold, c.k, self.best.view, slot, batch.seq[row], key) == POOL_FULL:
                        return row
        return len(batch)

    def _key(self, c, slot, batch, row, terms, cut):
        place = point_of(batch, row)
        if self.fading is None:
            return -distance_to(place, c.x[slot], c.y[slot], c.z[slot])
        length = length_of(batch.counts, cut.start, cut.stop)
        text = text_relevance(c, slot, terms, batch.counts[cut], length, self.fading)
        return key_of(relevance(c, slot, place, text), lift(batch.event_time_us[row], self.fading))


def differences(
    world: World,
    kind: str,
    engine: Any,
    count: int = 1,
    saved: bool = False,
    inspect: Callable[[Any], None] = lambda engine: None,
) -> list[str]:
    """What is missing or extra, in words; empty when the engine agrees with the oracle.

    count : int            tasks
    saved : bool           now and then they are saved and gone on with
    inspect : callable     shown the engine of the first task now and then
    """
    made = kind_of(kind, engine, operator=OPERATORS[kind])
    tasks = Tasks(made, world.space, world.window, count, fading=world.fading)
    expected, expected_results = world.expected()
    told = []
    for number, (boundary, messages, changes) in enumerate(world.batches):
        got = tally(tasks.process(boundary, messages, changes.added, changes.removed).updates)
        if got != expected[number]:
            missing, extra = expected[number] - got, got - expected[number]
            told.append(f"batch {number}: missing {list(missing)[:3]}, extra {list(extra)[:3]}")
        if number % 6 == 3:
            inspect(tasks.operator.engine)
        if saved and number % 3 == 1:
            tasks.go_on(1 + number % 2)
    results = Counter(row[:4] for row in tasks.results())
    if results != expected_results:
        told.append(f"results: missing {expected_results - results}, extra {results - expected_results}")
    return told
