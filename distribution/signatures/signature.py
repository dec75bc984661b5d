"""Signatures on both sides: maintained by a query task, replicated on the distribution tasks.

A query task counts the cells and the pairs (node, keyword) of its subscriptions exactly (`Summary`), and keeps a filter
of each of these two sets as of its last patch (`QuerySignature`). After a batch with changes it sends a patch: the
items added and removed, or the whole filter where that is shorter or the filter was rebuilt. A distribution task
applies the patch to its copy by the same operations (`SignatureReplica`), so both filters stay equal to the bit, and no
item is inserted twice or deleted without an insert.

A signature may let too much through, never too little, also while a patch is in flight: the replica notes new claims
exactly until a patch covers them. It serves every kind with a region, whose matches lie in a rectangle and share a
keyword.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distribution.signatures.claims import Claims, claims_of, claims_of_rows, is_loose, keywords_claimed
from distribution.signatures.counted import CountedSet
from distribution.signatures.cuckoo import CuckooFilter
from distribution.signatures.minwise import BINS, MOST_IN_ALL, READINGS, MinwiseFilter
from distribution.signatures.patches import FilterPatch, SignaturePatch
from distribution.signatures.points import pass_cells, pass_terms
from distribution.signatures.spatial import (
    CELLS_A_SIDE,
    Boxes,
    CellBitmap,
    CellCounts,
    CellNumbering,
    Domain,
    any_of_row,
    cells_of,
    message_boxes,
    region_boxes,
)
from distribution.signatures.text import LEVELS, claimed_pairs, message_pairs
from distribution.targets import no_targets, rows_of, set_bits
from matching.errors import ConfigError, EngineError
from matching.kind_table import Traits
from matching.kinds import KINDS
from matching.model import (
    Float64,
    Int64,
    MessageBatch,
    SubscriptionTable,
    take_ragged,
)
from matching.space import Space
from matching.storage.region_subscriptions import RegionSubscriptions
from matching.storage.slots import as_input

#: As written after `--signatures`.
MODES = ("off", "spatial", "spatial+text", "cuckoo", "cuckoo+text", "minwise", "approximate")
SPATIAL_FILTERS = ("bitmap", "cuckoo")
TEXT_FILTERS = ("cuckoo", *READINGS)
#: From a mode to `SignatureSpec.text_filter`, for the modes with a textual half; and to `spatial_filter`, for those
#: whose spatial half is not a bitmap.
_TEXT = {"spatial+text": "cuckoo", "cuckoo+text": "cuckoo", "minwise": "minwise", "approximate": "approximate"}
_SPATIAL = {"cuckoo": "cuckoo", "cuckoo+text": "cuckoo"}
#: A new filter has capacity for a quarter more items; it is rebuilt when its load factor falls below a quarter. Both
#: with an allowance of `_FEWEST` items, so that small filters are not rebuilt all the time.
_HEADROOM, _SPARSEST, _FEWEST = 0.25, 0.25, 256

Filter = CuckooFilter | CellBitmap | MinwiseFilter


class SignatureSpec(NamedTuple):
    """Parameters of signatures; the same for all tasks.

    space : Space
    text : bool             whether there is a textual half
    side : int              cells a side of the world, a power of two
    levels : int            of the quadtree of keywords below its root; 2**levels <= side
    rate : float            false positive rate of a full cuckoo filter for one item; a message has about 40 pairs
    spatial_filter, text_filter : str    one of `SPATIAL_FILTERS`, of `TEXT_FILTERS`; see `loses`
    bins, most : int        of a min-wise signature: bins of a row, and rows of a task
    traits : Traits         of all kinds
    """

    space: Space
    text: bool = True
    side: int = CELLS_A_SIDE
    levels: int = LEVELS
    rate: float = 0.001
    spatial_filter: str = "bitmap"
    text_filter: str = "cuckoo"
    bins: int = BINS
    most: int = MOST_IN_ALL
    traits: Traits = KINDS.traits

    def check(self) -> "SignatureSpec":
        """Check the values; returns the spec itself.

        Raises
        ------
        ConfigError
            For an invalid value.
        """
        if self.side & (self.side - 1) or not 1 <= self.side <= 2**14 or not 0 <= self.levels < self.side.bit_length():
            raise ConfigError(
                f"signature of {self.side} cells a side and {self.levels} levels: the side must be a power of two "
                f"up to {2**14} and 2**levels no larger"
            )
        if self.spatial_filter not in SPATIAL_FILTERS or self.text_filter not in TEXT_FILTERS:
            raise ConfigError(
                f"signature filters {self.spatial_filter!r} and {self.text_filter!r}: choose from "
                f"{', '.join(SPATIAL_FILTERS)} and from {', '.join(TEXT_FILTERS)}"
            )
        if self.bins < 1 or self.most < 1:
            raise ConfigError(f"signature of {self.most} rows of {self.bins} bins: each must be 1 or more")
        return self

    @property
    def loses(self) -> bool:
        """Whether the filter may drop messages that match, since it estimates resemblance (min-wise hashing)."""
        return self.text and self.text_filter in READINGS[1:]


def spec_of(mode: str, space: Space, traits: Traits = KINDS.traits, tasks: int = 1) -> SignatureSpec | None:
    """The signatures for a value of `--signatures` and a number of query tasks; None for `off`."""
    if mode == "off":
        return None
    words, cells = _TEXT.get(mode, "cuckoo"), _SPATIAL.get(mode, "bitmap")
    most = max(1, MOST_IN_ALL // tasks)
    spec = SignatureSpec(
        space, text=mode in _TEXT, spatial_filter=cells, text_filter=words, most=most, traits=traits
    )  # fmt: skip
    return spec.check()


class Summary:
    """Exact counts of the cells and of the pairs (node, keyword) that subscriptions claim."""

    def __init__(self, spec: SignatureSpec, domain: Domain):
        self.spec = spec
        self.cells = CellCounts(CellNumbering(spec.side, domain))
        self.pairs = CountedSet()
        self._used = np.zeros(spec.levels + 1, np.int64)

    def add(self, claims: Claims) -> None:
        """Add claims. O(their cells and pairs)."""
        boxes = region_boxes(self.spec.space, claims.region, self.spec.side)
        self.cells.add(boxes)
        if self.spec.text:
            self.pairs.add(self._pairs(boxes, claims, 1))

    def subtract(self, claims: Claims) -> None:
        """Remove claims that were added before. O(their cells and pairs).

        Raises
        ------
        EngineError
            If a claim was never added; the summary is invalid then.
        """
        boxes = region_boxes(self.spec.space, claims.region, self.spec.side)
        self.cells.subtract(boxes)
        if self.spec.text:
            self.pairs.subtract(self._pairs(boxes, claims, -1))

    @property
    def levels(self) -> int:
        """Levels of the quadtree with subscriptions, as an int: bit l is set if level l has any."""
        return sum(1 << level for level in np.flatnonzero(self._used).tolist())

    @property
    def nbytes(self) -> int:
        return self.cells.nbytes + self.pairs.nbytes

    def _pairs(self, boxes: Boxes, claims: Claims, step: int) -> Int64:
        spec = self.spec
        return claimed_pairs(boxes, spec.side, spec.levels, claims.term_offsets, claims.terms, self._used, step)


class QuerySignature:
    """The signature of one query task, on that task.

    Parameters
    ----------
    spec : SignatureSpec
    domain : bool[d, d]      the task's part of the world (`distribution.signatures.spatial`)
    task : int
    """

    def __init__(self, spec: SignatureSpec, domain: Domain, task: int):
        self.spec, self.task = spec.check(), task
        self.summary = Summary(spec, domain)
        self._cells = _Half(self.summary.cells, spec.spatial_filter, spec)
        self._pairs = _Half(self.summary.pairs, spec.text_filter, spec)
        self._serial = 0
        self._loose = RegionSubscriptions()

    def follow(self, added: SubscriptionTable, removed: Int64, strict: Claims) -> None:
        """Bring the summary in line with the changes of a batch.

        Parameters
        ----------
        added : SubscriptionTable    added subscriptions that are still there at the end of the batch
        removed : int64[n]           numbers of all removed subscriptions
        strict : Claims              of the removed ones that require all keywords; operators return them. Claims of the
                                     others are stored here

        Raises
        ------
        EngineError
            If a claim is removed that was never added.
        """
        mine = removed[self._loose.slots.find(removed) >= 0]
        leaving = [strict, claims_of_rows(self._loose, mine)]
        traits = self.spec.traits
        loose = added.take(np.flatnonzero(is_loose(added, traits)))
        if len(loose):
            claims = claims_of(loose, traits)
            columns = loose.take(keywords_claimed(loose, traits)[0])._asdict()
            columns |= {"term_offsets": claims.term_offsets, "terms": claims.terms}
            self._loose.insert(SubscriptionTable(**columns))
        if mine.size:
            self._loose.remove(self._loose.slots.find(mine))
        no_claims = claims_of(added.take(_NOTHING), traits)
        for claims in leaving:
            self.change(no_claims, claims)
        self.change(claims_of(added, traits), no_claims)

    def change(self, added: Claims, removed: Claims) -> None:
        """Add and remove claims.

        Raises
        ------
        EngineError
            If a claim is removed that was never added.
        """
        self.summary.add(added)
        self.summary.subtract(removed)

    def patch(self, through: int, noted: bool) -> SignaturePatch | None:
        """The changes since the last patch, up to change list `through`; None if there is nothing to send.

        `noted`: whether distribution tasks have noted claims since the last patch. Then a patch is due even without
        changes, so that they can drop these notes.
        """
        changed = self.summary.cells.changed() or self.summary.pairs.changed()
        if not (changed or noted):
            return None
        patch = SignaturePatch(
            self.task, self._serial, through, self.summary.levels, self._cells.patch(), self._pairs.patch()
        )  # fmt: skip
        self._serial += 1
        return patch

    @property
    def nbytes(self) -> int:
        """Bytes of memory of the filters and of their counts."""
        return self._cells.nbytes + self._pairs.nbytes + self.summary.nbytes

    def describe(self) -> dict[str, Any]:
        """Figures for the report of a run."""
        return {
            "signature_cells": len(self.summary.cells),
            "signature_pairs": len(self.summary.pairs),
            "signature_count_bytes": self.summary.nbytes,
        }

    def filters(self) -> tuple[Filter | None, Filter | None]:
        """Filters of cells and pairs, as of the last patch."""
        return self._cells.filter, self._pairs.filter


class _Half:
    """The spatial or the textual half of a query task's signature: a filter, and the counts that it is built from."""

    def __init__(self, counts: CellCounts | CountedSet, kind: str, spec: SignatureSpec):
        self.counts, self.kind, self.spec = counts, kind, spec
        self._size = counts.numbering.cells if isinstance(counts, CellCounts) else 0
        self.filter: Filter | None = None
        self._lost = 0

    def patch(self) -> FilterPatch:
        """Bring the filter in line with the counts; returns the patch that does the same to a replica's filter."""
        came, gone = self.counts.pop_changes()
        if self.filter is None and not came.size:
            return _NO_PATCH
        if self._update(came, gone) and 8 * (came.size + gone.size) <= self.filter.nbytes:  # type: ignore[union-attr]
            return FilterPatch(False, _NO_WORDS, _NOTHING, gone, came)
        arrays = self.filter.arrays()  # type: ignore[union-attr]
        return FilterPatch(True, arrays["words"].copy(), arrays["state"].copy(), _NOTHING, _NOTHING)

    def _update(self, came: Int64, gone: Int64) -> bool:
        """Insert `came` and delete `gone`; False if that was impossible and the filter was rebuilt."""
        self._lost += gone.size
        if self.filter is None or self._is_sparse(len(self.filter) + came.size - gone.size):
            return self._renew()
        self.filter.delete(gone)
        return self.filter.insert(came) == came.size or self._renew()

    def _is_sparse(self, items: int) -> bool:
        if isinstance(self.filter, CuckooFilter):
            return items + _FEWEST < _SPARSEST * self.filter.capacity
        return isinstance(self.filter, MinwiseFilter) and self._lost > items + _FEWEST

    def _renew(self) -> bool:
        """Rebuild the filter from the counts; returns False for `_update`."""
        self.filter, self._lost = make_filter(self.kind, self.spec, self.counts.items(), self._size), 0
        return False

    @property
    def nbytes(self) -> int:
        return self.filter.nbytes if self.filter is not None else 0


class SignatureReplica:
    """A query task's signature on a distribution task.

    A change list reaches every distribution task before its batch. The replica notes the claims of the list exactly,
    until a patch of the query task covers them. A message passes if the filter or the notes contain it.

    Parameters
    ----------
    spec : SignatureSpec
    domain : bool[d, d]      as the query task has it
    """

    def __init__(self, spec: SignatureSpec, domain: Domain):
        self.spec, self.domain = spec.check(), domain
        self._numbering = CellNumbering(spec.side, domain)
        self.cells: Filter | None = None
        self.pairs: Filter | None = None
        self.through = self._serial = -1
        self._levels = 0
        self._noted: deque[tuple[int, Claims]] = deque()
        self._notes: Summary | None = None  # of all noted claims; None without any

    def note(self, batch: int, added: Claims) -> None:
        """Note what change list `batch` (in ascending order) adds to the query task, until a patch covers it."""
        # A patch may arrive before a list that it covers.
        if batch <= self.through or not added.rows:
            return
        if self._notes is None:
            self._notes = Summary(self.spec, self.domain)
        self._notes.add(added)
        self._noted.append((batch, added))

    def apply(self, patch: SignaturePatch) -> None:
        """Update the filters, and drop the notes that the patch covers.

        Raises
        ------
        EngineError
            If a patch is missing before this one.
        """
        if patch.serial != self._serial + 1:
            raise EngineError(
                f"signature of query task {patch.task}: patch {patch.serial} came after {self._serial}; every patch "
                "has to arrive, in order, on one link"
            )
        # The query task sent this after it had matched batch `through`: all batches up to it have been routed, so the
        # patch may drop claims that ended in them at once. Claims that were added again since are among the notes.
        self._serial, self.through, self._levels = patch.serial, patch.through, patch.levels
        self.cells = _applied(self.cells, patch.cells, self.spec.spatial_filter)
        self.pairs = _applied(self.pairs, patch.pairs, self.spec.text_filter)
        while self._noted and self._noted[0][0] <= patch.through:
            claims = self._noted.popleft()[1]
            if self._notes is not None and self._noted:
                self._notes.subtract(claims)
        if not self._noted:
            self._notes = None

    def may_match(self, messages: MessageBatch, lossless: bool = False) -> NDArray[np.bool_]:
        """bool[n]: False for messages that no subscription of the task can match. O(their cells and pairs).

        With a filter that `loses` the result may be False for messages that match, too, unless `lossless`. A point
        needs a lookup of one cell and, with text, one for each term and used level. Messages that fail the spatial half
        skip the textual half.
        """
        spec = self.spec
        boxes = message_boxes(spec.space, messages, spec.side)
        offsets, items, beyond = cells_of(boxes, len(messages), self._numbering)
        passed = beyond
        if self.cells is not None:
            passed = passed | any_of_row(offsets, self.cells.contains(items))
        if self._notes is not None:
            passed = passed | any_of_row(offsets, self._notes.cells.contains(items))
        if not spec.text:
            return passed
        rows = np.flatnonzero(passed)
        passed[rows] = self._knows_a_term(messages, rows, Boxes(np.arange(rows.size), boxes.cells[rows]), lossless)
        return passed

    def pass_points(
        self, messages: MessageBatch, x: Float64, y: Float64, rows: Int64, passed: NDArray[np.bool_]
    ) -> None:
        """As `may_match`, for point messages in one pass. O(m * pairs).

        Parameters
        ----------
        messages : MessageBatch
        x, y : float64[n]    their places in the unit square
        rows : int64[m]      rows to test
        passed : bool[n]     output: passed[row] for each row of `rows`
        """
        spec, notes = self.spec, self._notes
        if spec.loses:
            passed[rows] = self.may_match(messages.take(rows))
            return
        bitmap = self.cells.bits if isinstance(self.cells, CellBitmap) else _NO_BITS
        noted = _NO_COUNTS if notes is None else notes.cells.counts
        ranks = self._numbering.ranks
        pass_cells(x, y, rows, spec.side, ranks, bitmap, *_cuckoo_of(self.cells), noted, passed)
        if not spec.text:
            return
        near = rows[passed[rows]] if notes is not None else _NOTHING
        levels = self._levels | (notes.levels if notes is not None else 0)
        minwise = self.pairs if isinstance(self.pairs, MinwiseFilter) else _NO_MINWISE
        pass_terms(
            x, y, rows, spec.side, spec.levels, levels, as_input(messages.term_offsets, np.int64),
            as_input(messages.terms, np.int32), *_cuckoo_of(self.pairs), minwise.least,
            minwise.row_of if self.pairs is minwise else _NOTHING, passed,
        )  # fmt: skip
        left = near[~passed[near]]
        if notes is not None and left.size:
            chosen = messages.take(left)
            boxes = message_boxes(spec.space, chosen, spec.side)
            pairs = message_pairs(boxes, spec.side, spec.levels, chosen.term_offsets, chosen.terms, levels)
            passed[left] = any_of_row(pairs[0], notes.pairs.contains(pairs[1]))

    @property
    def nbytes(self) -> int:
        """Bytes of memory of the two filters."""
        return sum(each.nbytes for each in (self.cells, self.pairs) if each is not None)

    @property
    def noted_claims(self) -> int:
        """Number of noted claims: those that no patch covers yet."""
        return sum(claims.rows for _, claims in self._noted)

    def _knows_a_term(self, messages: MessageBatch, rows: Int64, boxes: Boxes, lossless: bool) -> NDArray[np.bool_]:
        """bool[rows]: the textual half of `may_match`, for messages that passed the spatial half."""
        spec = self.spec
        levels = self._levels | (self._notes.levels if self._notes is not None else 0)
        term_offsets, picked = take_ragged(messages.term_offsets, rows)
        terms = messages.terms[picked]
        offsets, items, passed = message_pairs(boxes, spec.side, spec.levels, term_offsets, terms, levels)
        if isinstance(self.pairs, MinwiseFilter) and self.pairs.loses and not lossless:
            passed = passed | self.pairs.any_of(offsets, items)
        elif self.pairs is not None:
            passed = passed | any_of_row(offsets, self.pairs.contains(items))
        if self._notes is not None:
            passed = passed | any_of_row(offsets, self._notes.pairs.contains(items))
        return passed


class SignatureBoard:
    """The signatures of all query tasks on one distribution task.

    Parameters
    ----------
    spec : SignatureSpec
    domains : sequence of bool[d, d]    one for each query task

    Attributes
    ----------
    queried, kept_back : int    pairs of message and task that were tested; those of them that were not sent
    """

    def __init__(self, spec: SignatureSpec, domains: Sequence[Domain]):
        self.replicas = [SignatureReplica(spec, domain) for domain in domains]
        self.space, self.traits = spec.space, spec.traits
        self.lists = 0
        self.queried = self.kept_back = self.patch_bytes = 0

    def change(self, added: SubscriptionTable, held_by: Callable[[SubscriptionTable, int], NDArray[np.bool_]]) -> None:
        """Note the subscriptions that the next change list adds.

        `held_by`: from a table and a task to bool[n], which of its rows are assigned to the task.
        """
        for task, replica in enumerate(self.replicas if len(added) else ()):
            replica.note(self.lists, claims_of(added.take(np.flatnonzero(held_by(added, task))), self.traits))
        self.lists += 1

    def apply(self, patch: SignaturePatch) -> None:
        """Apply the patch of a query task."""
        self.patch_bytes += patch.nbytes()
        self.replicas[patch.task].apply(patch)

    def passed_by_owner(self, messages: MessageBatch, x: Float64, y: Float64, owner: Int64) -> NDArray[np.bool_]:
        """bool[n]: whether a subscription of the message's owner may match it; for point messages.

        x, y : float64[n]    places in the unit square
        owner : int64[n]     the task whose domain contains each
        """
        passed = np.zeros(len(messages), np.bool_)
        bits = no_targets(len(messages), len(self.replicas))
        set_bits(owner, bits)
        for replica, rows in zip(self.replicas, rows_of(bits, len(self.replicas)), strict=True):
            if rows.size:
                replica.pass_points(messages, x, y, rows, passed)
        self.queried += len(messages)
        self.kept_back += len(messages) - int(np.count_nonzero(passed))
        return passed

    def wanted_points(self, messages: MessageBatch) -> list[Int64]:
        """For each task the rows (int64[m]) of the point messages that a subscription of the task may match."""
        x, y = self.space.project(messages.west, messages.south)
        everything, found = np.arange(len(messages)), []
        for replica in self.replicas:
            passed = np.zeros(len(messages), np.bool_)
            replica.pass_points(messages, x, y, everything, passed)
            found.append(np.flatnonzero(passed))
        self.queried += len(messages) * len(found)
        self.kept_back += len(messages) * len(found) - sum(rows.size for rows in found)
        return found

    def wanted(self, messages: MessageBatch, rows: Int64, task: int, counted: bool = True) -> Int64:
        """The rows among `rows` (ascending) whose messages a subscription of the task may match.

        Pass `counted=False` for ended messages, which a task must get if it may have matched them: the filter is then
        read without loss.
        """
        chosen = messages if rows.size == len(messages) else messages.take(rows)
        left = rows[self.replicas[task].may_match(chosen, lossless=not counted)]
        if counted:
            self.queried += rows.size
            self.kept_back += rows.size - left.size
        return left

    @property
    def loses(self) -> bool:
        """See `SignatureSpec.loses`."""
        return self.replicas[0].spec.loses

    def counts(self) -> Int64:
        """`queried`, `kept_back` and `patch_bytes`, int64[3]; part of the snapshot of a distribution task."""
        return np.array([self.queried, self.kept_back, self.patch_bytes])

    def count_from(self, counts: Int64) -> None:
        """Continue from the counts of a snapshot."""
        self.queried, self.kept_back, self.patch_bytes = counts.tolist()

    def withheld(self, messages: MessageBatch, sent: Sequence[Int64]) -> list[Int64]:
        """For each task the rows that were not in `sent[task]` though they may match: a superset of false negatives."""
        found = []
        for replica, rows in zip(self.replicas, sent, strict=True):
            passed = replica.may_match(messages, lossless=True)
            passed[rows] = False
            found.append(np.flatnonzero(passed))
        return found

    def describe(self) -> dict[str, Any]:
        """Figures for the report of a run."""
        return {
            "signature_bytes": sum(replica.nbytes for replica in self.replicas),
            "signature_patch_bytes": self.patch_bytes,
            "signature_queried": self.queried,
            "signature_kept_back": self.kept_back,
        }


def _cuckoo_of(made: "Filter | None") -> tuple[NDArray[np.uint64], Int64]:
    """Words and state of a cuckoo filter for kernels; two empty arrays for any other filter or None."""
    return (made.words, made.state) if isinstance(made, CuckooFilter) else (_NO_WORDS, _NOTHING)


def make_filter(kind: str, spec: SignatureSpec, items: Int64, size: int) -> Filter:
    """A filter (`SPATIAL_FILTERS`, `TEXT_FILTERS`) with these distinct items (int64[m]), for a bitmap below `size`."""
    if kind == "cuckoo":
        headroom = max(_HEADROOM, _FEWEST / (1.0 + items.shape[0]))
        return CuckooFilter.of(items, spec.rate, headroom)
    if kind == "bitmap":
        made = CellBitmap(size)
    else:
        made = MinwiseFilter(spec.levels, spec.bins, spec.most, kind)
    made.insert(items)
    return made


_CLASSES = {"cuckoo": CuckooFilter, "bitmap": CellBitmap} | dict.fromkeys(READINGS, MinwiseFilter)
_NOTHING = np.zeros(0, np.int64)
_NO_WORDS = np.zeros(0, np.uint64)
_NO_BITS, _NO_COUNTS = np.zeros(0, np.uint8), np.zeros(0, np.int32)
_NO_MINWISE = MinwiseFilter(0, 1)
_NO_PATCH = FilterPatch(False, _NO_WORDS, _NOTHING, _NOTHING, _NOTHING)


def _applied(old: Filter | None, patch: FilterPatch, kind: str) -> Filter | None:
    """Apply a patch to the filter `old` of a replica; returns the filter, a new one if the patch has a whole one."""
    if patch.whole:
        old = _CLASSES[kind].from_arrays({"words": patch.words, "state": patch.state})
    if old is None:
        if patch.came.size or patch.gone.size:
            raise EngineError("a signature starts with changes: its first patch must be whole")
        return None
    old.delete(patch.gone)
    if old.insert(patch.came) < patch.came.size:
        raise EngineError("a signature is too full for a patch that fitted its query task's copy: the copies differ")
    return old
