"""The cell-term index: which regions with keywords a message meets, by postings at (level, cell, rarest keyword).

A message looks, for each of its terms, into one bucket for each level in use, and walks the postings there with one
subtraction each (`matching.storage.cells`). A posting carries the subscription's box on a lattice and its
second keyword, so a subscription is touched only where lattice coordinates are equal or where it has a third keyword.
Hash collisions and rounding cost work and never decide: a posting counts only in the block of its own term and at its
own level, and what the lattice leaves open is compared in degrees.

The plain form of the idea (an open-addressing table over the three-part key, a chain of slots behind each) pays a cache
miss for each key and each candidate; this one keeps a bucket's postings side by side.

The default engine of `boolean` (`matching.boolean.engines.cell_term`) is this index over its subscriptions, and a
`skyline` finds candidates by one over its keywords (`matching.skyline.subscriptions`).
"""

import numpy as np

from matching.errors import EngineError
from matching.model import Int32, Int64
from matching.space import Space
from matching.storage.cell_blocks import Blocks, append, describe, remove_entry, repack, slot_of
from matching.storage.cell_map import MOST_WORDS, enter_postings
from matching.storage.cell_match import STAGES, Sieve, match
from matching.storage.cells import LATTICE_STEPS
from matching.storage.marks import NO_MARKS, Marker
from matching.storage.region_messages import Messages
from matching.storage.region_subscriptions import RegionSubscriptions
from matching.storage.slots import SlotMap, as_input, grown

#: Pools are packed anew when this fraction of them is abandoned.
_MOST_ABANDONED = 0.25


class CellTermIndex:
    """An index over rows of regions and keywords; see the module.

    Parameters
    ----------
    space : Space                 world box; decides how the world is cut up, never what matches
    rows : RegionSubscriptions    regions and keywords by slot; owned by the caller
    owner : str                   what errors call it

    Attributes
    ----------
    stages : int64[STAGES]        pairs that survived each stage of all matches with marks (`cell_match.Sieve`)
    """

    def __init__(self, space: Space, rows: RegionSubscriptions, owner: str):
        self.space, self.subscriptions, self._owner = space, rows, owner
        self._marker: Marker | None = None
        self.stages = np.zeros(STAGES, np.int64)
        self._mark = NO_MARKS
        self._steps_per_degree = LATTICE_STEPS / max(space.east - space.west, space.north - space.south)
        self._terms = SlotMap()
        self._head = np.zeros((0, 8), np.int32)
        self._finest = np.zeros(0, np.int8)
        self._box = np.zeros(0, np.uint64)
        self._link = np.zeros(0, np.int64)
        self._cuts = np.zeros(0, np.int32)
        self._used = np.zeros(4, np.int64)
        self._map = np.zeros(1, np.uint64)
        self._withdrawn = 0  # since the map was built, which still has their cells
        self._seen = np.zeros(0, np.uint8)

    def _blocks(self) -> Blocks:
        pools = (self._box, self._link, self._cuts, self._used)
        return Blocks(self._terms.index, self._terms.number, self._head, self._finest, *pools)

    def _describe(self, slots: Int32):
        """Postings of these slots: term int32[m], box uint64[m], link int64[m]."""
        most = 2 * slots.shape[0]
        term, box, link = np.empty(most, np.int32), np.empty(most, np.uint64), np.empty(most, np.int64)
        frame = (self.space.west, self.space.south, self._steps_per_degree)
        count = describe(as_input(slots, np.int32), self.subscriptions.columns, *frame, term, box, link)
        return term[:count], box[:count], link[:count]

    def insert(self, slots: Int32) -> None:
        """Enter rows that have just been written. Amortised O(n + terms)."""
        term, box, link = self._describe(slots)
        mark = NO_MARKS if self._marker is None else self._marker.of_slots(_slots_of(link))
        order = np.argsort(term, kind="stable")
        in_order = term[order]
        fresh = in_order[np.flatnonzero(np.diff(in_order, prepend=-1))].astype(np.int64)
        self._terms.insert(fresh[self._terms.find(fresh) < 0])
        self._head = grown(self._head, self._terms.capacity)
        self._finest = grown(self._finest, self._terms.capacity)
        done = 0
        while True:
            done, places, cuts = append(order, term, box, link, mark, done, self._blocks(), self._mark)
            if done == term.shape[0]:
                break
            # What is left needs about this much: packing once is cheaper than packing for each term.
            self._repack(max(places, term.shape[0] - done), cuts)
        enter_postings(self._map, term, box)
        self._tidy()

    def withdraw(self, slots: Int32) -> None:
        """Remove rows that are about to be freed. Amortised O(n).

        Raises
        ------
        EngineError
            If a row is missing, which is damage.
        """
        term, box, link = self._describe(slots)
        done, unsorted = remove_entry(term, box, link, self._blocks(), self._mark)
        if done < term.shape[0]:
            number = self.subscriptions.slots.number[slot_of(link[done])]
            raise EngineError(
                f"{self._owner}: subscription {number} is not in the block of term {term[done]}; the state is "
                "damaged, restore the last checkpoint"
            )
        self._withdrawn += done
        if unsorted:
            self._repack(0, 0)
        self._tidy()

    def _tidy(self) -> None:
        used, abandoned, used_cuts, abandoned_cuts = self._used.tolist()
        outdated = self._withdrawn > len(self.subscriptions.slots)
        if outdated or abandoned > _MOST_ABANDONED * used or abandoned_cuts > _MOST_ABANDONED * used_cuts:
            self._repack(0, 0)

    def _repack(self, places: int, cuts: int) -> None:
        """Move every block into new pools with this much free, and an eighth for growth, and build the map anew."""
        used, abandoned, used_cuts, abandoned_cuts = self._used.tolist()
        wanted = used - abandoned + places
        wanted_cuts = used_cuts - abandoned_cuts + cuts
        wanted, wanted_cuts = wanted + wanted // 8, wanted_cuts + wanted_cuts // 8
        if wanted > 2**31 - 1:
            raise EngineError(f"{self._owner}: {wanted} postings do not fit one index; use more query bolts")
        marks = np.zeros(0 if self._marker is None else wanted, np.uint64)
        pools = np.zeros(wanted, np.uint64), np.zeros(wanted, np.int64), marks, np.zeros(wanted_cuts, np.int32)
        self._map = np.zeros(min(MOST_WORDS, self._head.shape[0]), np.uint64)
        self._withdrawn = 0
        repack(self._blocks(), self._mark, self._map, *pools)
        self._box, self._link, self._mark, self._cuts = pools

    @property
    def marked(self) -> bool:
        """Whether postings have marks."""
        return self._marker is not None

    def mark_by(self, marker: Marker) -> None:
        """Write the marks of all postings, when the marker has learned; from now on new ones get marks. O(postings)."""
        self._marker = marker
        # Dead and spare places are written too: whatever stands there is never read.
        self._mark = marker.of_slots(_slots_of(self._link))

    def scan(
        self, messages: Messages, first_row: int, slots: Int32, rows: Int32, marks: np.ndarray = NO_MARKS
    ) -> tuple[int, int, int, int]:
        """Match rows from `first_row` on; the `scan` of `matching.index.HitBuffer.fill`.

        `marks` are those of all messages, uint64[rows], where postings have marks.
        """
        if not messages.are_points and self._seen.shape[0] < self.subscriptions.slots.capacity:
            self._seen = np.zeros(self.subscriptions.slots.capacity, np.uint8)
        columns = self.subscriptions.columns
        frame = (self.space.west, self.space.south, self._steps_per_degree)
        sieve, blocks = Sieve(self._mark, marks, self.stages), self._blocks()
        return match(messages, first_row, blocks, self._map, sieve, columns, *frame, self._seen, slots, rows)

    def arrays(self) -> dict[str, np.ndarray]:
        """All memory but the rows. Views, no copies."""
        terms = self._terms.high_water
        columns = {"head": self._head[:terms], "finest": self._finest[:terms], "used": self._used, "map": self._map}
        columns |= {"box": self._box[: self._used[0]], "link": self._link[: self._used[0]]}
        columns |= {} if self._marker is None else {"mark": self._mark[: self._used[0]]}
        columns |= {"cuts": self._cuts[: self._used[2]]}
        return columns | {f"terms_{name}": value for name, value in self._terms.arrays().items()}

    def allocated_bytes(self) -> int:
        """Memory, capacity for growth included."""
        columns = (self._head, self._finest, self._box, self._link, self._mark, self._cuts, self._seen, self._map)
        return self._terms.allocated_bytes() + sum(column.nbytes for column in columns)


def _slots_of(link: Int64) -> Int32:
    """The slots in links, int32[n]."""
    return (link >> 32 & 0x7FFFFFFF).astype(np.int32)
