"""The memo-and-filter R-tree: ends go to a memo, not to the tree, and nodes have filters of their keywords.

- A message that ends is noted in the *update memo* (`papers.skyline.memo`). Its entry stays until its leaf is
  cleaned, by an insertion into it or by the cleaning cursor.
- Each inner node has a *cuckoo filter* of the keywords below (`papers.skyline.filters`), rebuilt when much
  below it has changed; each entry of a leaf has a *mark*, a bit signature of its object and terms. In the paper's form
  (`MfRtreePaper`) each leaf has a filter and no marks.
- The entries of a leaf are its *lookup table*: versions of an object together, the newest first. Queries read only the
  newest (`papers.skyline.mf_search`).

From Deng et al., "Spatial-keyword skyline publish/subscribe query processing over distributed sliding window streaming
data" (section 3.2.2), with the memo's bookkeeping after Silva, Xiong and Aref, "The RUM-tree". Named in
`matching.kinds`.
"""

import numpy as np

from compiling.njit import njit, njit_inner, njit_inner_no_refcount
from matching.errors import ConfigError, EngineError
from matching.space import Space
from matching.storage.slots import resized
from papers.skyline import filters as filters_module
from papers.skyline import memo as memo_module
from papers.skyline import rtree as rtree_module
from papers.skyline.filters import POOL_END
from papers.skyline.messages import object_of
from papers.skyline.mf_nodes import (
    NO_FILTER,
    USUAL_TERMS,
    Mf,
    Nodes,
    add_keywords,
    arrange,
    build_filter,
    drop_filter,
    has_filter,
    hash_terms,
    is_obsolete,
    is_outdated,
    needed_words,
    places_of,
    push,
)
from papers.skyline.mf_search import search
from papers.skyline.rtree import (
    FANOUT,
    HIGH,
    HIGHEST,
    LISTS,
    MEMO,
    READS,
    ROOT,
    WRITES,
    choose_leaf,
    fit_upwards,
    new_root,
    nodes_left,
    remove_empty,
    shorten,
    split,
    widen_box,
)
from papers.skyline.tree import TreeWindow, tables_of

#: `threshold` (the paper) removes the obsolete versions of an object from a leaf once they are more than T_clean; `all`
#: (the older RUM-tree) every obsolete entry; `off` none. `threshold` never removes single messages that expired, hence
#: `bounded`, which keeps the entries below about 1.2 times the live messages.
CLEANING = ("threshold", "all", "off")
#: Parameters of the paper's formula for T_clean.
_BETA, _MOST_PER_S, _MOST_LEVELS, _LEAST = 0.8, 10_000.0, 8, 5
#: Arrivals per leaf that the cursor cleans.
_ARRIVALS_PER_LOOK = 8
#: Every level may be split, and a root put on top.
_NODES_PER_INSERTION = HIGHEST + 1
#: Positions in `progress` of an insertion.
_DONE, _REMOVED, _WORDS, _FAILED = range(4)


class MfRtree(TreeWindow):
    """Memo-and-filter R-tree.

    Parameters
    ----------
    space : Space
    kept_boundaries : int      how many boundaries back `candidates` can answer
    cleaning : str             "threshold", "all" or "off"
    arrival_rate_per_s : float
        Messages a second, for T_clean: a busier stream is cleaned less often.
    bounded : bool             clean full leaves before they are split, and all leaves in turn; not with "off"
    leaf_filters : bool        leaves have filters in place of marks, and all filters buckets of four, as in the paper

    Raises
    ------
    ConfigError
        If `cleaning` is none of these.

    Notes
    -----
    An arrival costs O(height * (fan-out + terms)), amortised over splits; an end O(1); a query the nodes whose box
    meets its rectangle and whose filter has one of its keywords.
    """

    name = "mf_rtree"

    def __init__(
        self,
        space: Space,
        kept_boundaries: int = 0,
        *,
        cleaning: str = "threshold",
        arrival_rate_per_s: float = 1000.0,
        bounded: bool = True,
        leaf_filters: bool = False,
    ):
        super().__init__(space, kept_boundaries)
        if cleaning not in CLEANING:
            raise ConfigError(f"cleaning {cleaning!r}: choose one of {', '.join(CLEANING)}")
        self.cleaning, self.bounded = cleaning, bounded and cleaning != "off"
        self.arrival_rate_per_s = arrival_rate_per_s
        tree = rtree_module.new_rtree()
        count = tree.count.shape[0]
        nodes = Nodes(
            np.zeros((count, FANOUT + 1), np.int8), np.zeros((count, 0 if leaf_filters else 2, FANOUT + 1), np.int64),
            np.zeros(count, np.int64), np.full(count, NO_FILTER, np.int8), np.zeros(count, np.int32),
            np.zeros(count, np.int32), np.zeros(count, np.int32), np.zeros(count, np.int32),
            np.zeros(2, np.int64),
        )  # fmt: skip
        self.mf = Mf(tree, nodes, filters_module.new_filters(), memo_module.new_memo())

    @property
    def height(self) -> int:
        """Levels of the tree."""
        tree = self.mf.tree
        return int(tree.level[tree.meta[ROOT]]) + 1

    def clean_threshold(self) -> int:
        """T_clean: obsolete versions of one object that a leaf may keep."""
        rate, height = min(1.0, self.arrival_rate_per_s / _MOST_PER_S), min(1.0, self.height / _MOST_LEVELS)
        return round((_BETA * rate + (1.0 - _BETA) * (1.0 - height)) * FANOUT) + _LEAST

    def _end(self, slots):
        self.mf = self.mf._replace(memo=memo_module.with_capacity(self.mf.memo, slots.shape[0]))
        _end(self.mf, self.log.view, slots)

    def _insert(self, slots):
        removed = np.empty(len(self.log), np.int32)
        limit = {"threshold": self.clean_threshold(), "all": 0, "off": -1}[self.cleaning]
        log, progress = self.log.view, np.zeros(4, np.int64)
        oldest = self.known[0].last_seq
        while not _insert(self.mf, log, slots, limit, oldest, self.bounded, removed, progress):
            if progress[_FAILED]:
                raise EngineError("mf_rtree: a filter overflows at its largest size; choose another window index")
            self._grow(int(progress[_WORDS]))
        if self.bounded:
            _clean_some(self.mf, log, oldest, -(-slots.shape[0] // _ARRIVALS_PER_LOOK), removed, progress)
        gone = removed[: progress[_REMOVED]]
        if np.any(self._place[gone] >= 0):
            raise EngineError(
                f"mf_rtree: batch {self.boundary.number} or one before leaves two versions of an object alive; "
                "name the older one in `ended`"
            )
        self.log.remove(gone)

    def clean(self) -> None:
        """Remove all obsolete entries, as the cursor would in one round. O(entries)."""
        removed, progress = np.empty(len(self.log), np.int32), np.zeros(4, np.int64)
        leaves = int(self.mf.tree.meta[HIGH])
        _clean_some(self.mf, self.log.view, self.known[0].last_seq, leaves, removed, progress)
        self.log.remove(removed[: progress[_REMOVED]])

    def _grow(self, words: int) -> None:
        """Grow the tree and the filter pool for at least one more insertion."""
        tree, nodes, filters, memo = self.mf
        if nodes_left(tree) < _NODES_PER_INSERTION:
            tree = rtree_module.grown(tree)
            length = tree.count.shape[0]
            columns = {name: resized(getattr(nodes, name), length) for name in nodes._fields[:-1]}
            columns["bits"] = resized(nodes.bits, length, NO_FILTER)
            nodes = nodes._replace(**columns)
        if int(filters.meta[POOL_END]) + words > filters.words.shape[0]:
            filters = filters_module.grown(filters, words)
        self.mf = Mf(tree, nodes, filters, memo)

    def _search(self, as_of, region, offsets, terms, first, ends, found):
        past, queries = as_of != self.boundary, (region, offsets, terms)
        return search(self.mf, self.log.view, self._place, as_of, past, *queries, first, ends, found, self._visits)

    def _update_work(self) -> tuple[int, int, int, int]:
        meta = self.mf.tree.meta
        return int(meta[READS]), int(meta[WRITES]), int(meta[LISTS]), int(meta[MEMO])

    def _index_bytes(self) -> int:
        high = int(self.mf.tree.meta[HIGH])
        own = sum(column[:high].nbytes for column in self.mf.nodes[:-1])
        memo = sum(column.nbytes for column in self.mf.memo)
        return own + memo + 8 * int(self.mf.filters.meta[POOL_END]) + rtree_module.used_bytes(self.mf.tree)

    def _state(self) -> dict[str, dict[str, np.ndarray]]:
        return tables_of(**self.mf._asdict())


class MfRtreePaper(MfRtree):
    """The same in the paper's form: filters of table 4 in every node, no marks, and cleaning on touch alone.

    Parameters
    ----------
    space, kept_boundaries, cleaning, arrival_rate_per_s
        As of `MfRtree`; the paper's C1 is "threshold", C2 is "all".

    Notes
    -----
    A message that ends without a later version in its leaf is never taken out by C1, so the index grows with the
    stream. Differs from the paper: each of the four places of a bucket has a reference count of 5 bits beside its 10,
    and a filter is enlarged at 93 % load, not 95 %.
    """

    name = "mf_rtree_paper"

    def __init__(
        self,
        space: Space,
        kept_boundaries: int = 0,
        *,
        cleaning: str = "threshold",
        arrival_rate_per_s: float = 1000.0,
    ):
        super().__init__(
            space,
            kept_boundaries,
            cleaning=cleaning,
            arrival_rate_per_s=arrival_rate_per_s,
            bounded=False,
            leaf_filters=True,
        )


@njit_inner_no_refcount
def _clean(mf, log, leaf, limit, oldest, removed, progress):
    """Remove obsolete entries from a leaf: for each object with more than `limit` of them, all of them.

    oldest : int     last seq of the oldest retained boundary; later messages stay

    Of the others only the top of each stack is checked in the memo: if it is obsolete, so are all below it, else all
    but the top. Appends the slots to removed (int32); returns how many.
    """
    tree, stack = mf.tree, mf.nodes.stack
    kept, i, count = 0, 0, progress[_REMOVED]
    before = count
    end = tree.count[leaf]
    while i < end:
        length = np.int64(stack[leaf, i])
        stays = length
        if length > limit:  # a shorter stack stays in any case
            stays = np.int64(0)
            # The memo has no ends after the oldest retained boundary: later messages stay, and the next one is checked
            # as the newest.
            while stays < length and log.seq[tree.child[leaf, i + stays]] > oldest:
                stays += 1
            # newest in this leaf only: the object may have moved to another one, so the memo decides
            if stays < length and not is_obsolete(mf, log, tree.child[leaf, i + stays]):
                stays += 1
            # T_clean of Deng et al.: few obsolete versions stay until cleaning pays
            if length - stays <= limit:
                stays = length
        for k in range(length):
            slot = tree.child[leaf, i + k]
            # in place: `kept` is never ahead of the read position
            if k < stays:
                tree.child[leaf, kept], stack[leaf, kept] = slot, stays if k == 0 else 0
                for word in range(mf.nodes.mark.shape[1]):
                    mf.nodes.mark[leaf, word, kept] = mf.nodes.mark[leaf, word, i + k]
                kept += 1
                continue
            # one by one, so that a whole stack lowers the memo's count by its length
            memo_module.note_cleaned(mf.memo, object_of(log, slot))
            tree.meta[MEMO] += 1
            removed[count] = slot
            count += 1
        i += length
    tree.count[leaf] = kept
    if count > before:
        _forget_keywords(mf, log, leaf, removed[before:count])
    progress[_REMOVED] = count
    return count - before


@njit_inner_no_refcount
def _forget_keywords(mf, log, leaf, slots):
    """Delete the keywords of removed entries from a leaf's filter, if it has one; count them as stale above."""
    nodes, words = mf.nodes, mf.filters.words
    start, bits = nodes.start[leaf], nodes.bits[leaf]
    for slot in slots[: slots.shape[0] if has_filter(mf, leaf) else 0]:
        for p in range(log.term_start[slot], log.term_start[slot] + log.term_count[slot]):
            mf.tree.meta[LISTS] += 1
            if filters_module.remove_entry(words, start, bits, filters_module.hash_term(log.terms[p])):
                nodes.places[leaf] -= 1
    mf.tree.meta[WRITES] += 1
    nodes.state[0] -= slots.shape[0]
    node = np.int64(leaf)
    while node >= 0:
        nodes.below[node] -= slots.shape[0]
        # no deletion above, since other entries may have the same word: false positives, never false negatives
        nodes.stale[node] += slots.shape[0]
        node = np.int64(mf.tree.parent[node])


# --------------------------------------------------------------------------------------------------------- updates


@njit(cache=True, nogil=True)
def _end(mf, log, slots):
    """Note ended messages in the memo."""
    for slot in slots:
        memo_module.note_ended(mf.memo, object_of(log, slot), log.seq[slot])
    mf.tree.meta[MEMO] += slots.shape[0]


@njit(cache=True, nogil=True)
def _insert(mf, log, slots, limit, oldest, bounded, removed, progress):
    """Insert messages from `progress` on; returns whether all are inserted.

    If not, `progress` has the words that the filters need, or that a filter could not be built.
    """
    tree, nodes = mf.tree, mf.nodes
    scratch = np.empty(USUAL_TERMS, np.int64)
    while progress[_DONE] < slots.shape[0]:
        slot = slots[progress[_DONE]]
        lon, lat = log.lon[slot], log.lat[slot]
        # capacity is checked before anything changes, so that this message can be repeated
        progress[_WORDS] = 0
        if nodes_left(tree) < _NODES_PER_INSERTION:
            return False
        leaf = choose_leaf(tree, lon, lat)
        progress[_WORDS] = needed_words(mf, log, leaf, log.term_count[slot])
        if mf.filters.meta[POOL_END] + progress[_WORDS] > mf.filters.words.shape[0]:
            return False
        cleaned = 0
        if limit >= 0 and tree.count[leaf]:
            cleaned = _clean(mf, log, leaf, limit, oldest, removed, progress)
            # clean fully before a split
            if bounded and tree.count[leaf] == FANOUT:
                cleaned += _clean(mf, log, leaf, np.int64(0), oldest, removed, progress)
        push(mf, log, leaf, slot)
        nodes.state[0] += 1
        # shrunk after cleaning; an empty root still has its old box
        if cleaned or tree.count[leaf] == 1:
            fit_upwards(tree, log, leaf)
        node, hashed = np.int64(leaf), hash_terms(log, slot, scratch)
        while node >= 0:
            nodes.below[node] += 1
            grew = widen_box(tree, node, lon, lat)
            answer = add_keywords(mf, node, hashed)
            # a filter that failed has lost a term: it is built from the entries, with the newcomer
            if answer < 0 or is_outdated(mf, node):
                # sized by its places if little below is stale, else by those at the last build
                few = nodes.stale[node] * 4 < nodes.below[node]
                places = np.int64(nodes.places[node] if few else nodes.built[node])
                if not build_filter(mf, log, node, max(places, np.int64(log.term_count[slot]))):
                    progress[_FAILED] = 1
                    return False
            elif grew or answer == 1:
                tree.meta[WRITES] += 1
            node = np.int64(tree.parent[node])
        if not _split_upwards(mf, log, leaf):
            progress[_FAILED] = 1
            return False
        progress[_DONE] += 1
    return True


@njit_inner
def _split_upwards(mf, log, node):
    """Split an overflowing node, and those above that overflow by it; returns whether all filters could be built."""
    tree, nodes = mf.tree, mf.nodes
    while tree.count[node] > FANOUT:
        places = places_of(mf, log, node) if tree.meta[ROOT] == node else np.int64(nodes.places[node])
        if tree.meta[ROOT] == node:
            root = new_root(tree)
            if not build_filter(mf, log, root, places):
                return False
        other = split(tree, log, node)
        if tree.level[node] == 0:
            # a split goes by place: lookup tables and marks are recomputed
            arrange(mf, log, node)
            arrange(mf, log, other)
        # more than a half each, since common words are on both sides; doubled if that is too little
        if not build_filter(mf, log, node, places * 5 // 8) or not build_filter(mf, log, other, places * 5 // 8):
            return False
        node = np.int64(tree.parent[node])
    return True


@njit(cache=True, nogil=True)
def _clean_some(mf, log, oldest, looks, removed, progress):
    """Remove obsolete entries from the next `looks` leaves of the cursor."""
    tree, state = mf.tree, mf.nodes.state
    gone = np.empty(HIGHEST, np.int64)
    steps = tree.meta[HIGH]  # once round at most
    while looks and steps:
        state[1] = (state[1] + 1) % tree.meta[HIGH]
        steps -= 1
        leaf = state[1]
        # an inner node, or one not in use
        if tree.level[leaf] != 0:
            continue
        looks -= 1
        tree.meta[READS] += 1
        if not _clean(mf, log, leaf, np.int64(0), oldest, removed, progress):
            continue
        # only empty nodes are removed, so nothing is reinserted
        taken, stays = remove_empty(tree, leaf, gone)
        for i in range(taken):
            drop_filter(mf, gone[i])
        if tree.count[stays] == 0:  # the root, and nothing is left
            drop_filter(mf, stays)
            tree.level[stays] = 0
            continue
        fit_upwards(tree, log, stays)
        for i in range(shorten(tree, gone)):
            drop_filter(mf, gone[i])
