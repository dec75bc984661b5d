"""Window queries of the memo-and-filter R-tree (`papers.skyline.mf_rtree`), ordered by locality of memory.

First boxes and filters of inner nodes, then the marks (`mf_nodes.mark_of`) of the remaining leaves, a leaf at a time
with the next ones prefetched, then the messages, scattered in memory: all coordinates, then where texts start, then the
texts. Each is a loop without branches, so that cache misses overlap. A message is alive if its slot has a `place` in
the window's heap; for the newest version in a leaf the memo says the same. Queries as of a past boundary also read when
messages ended (`messages.Log`). They read all versions in a leaf, since an older one may have been alive then; other
queries read only the newest of each object.
"""

import numpy as np

from compiling.njit import njit, njit_inner_no_refcount
from matching.storage.prefetch import prefetch
from papers.skyline import filters as filters_module
from papers.skyline.messages import spatial_relevance, text_relevance
from papers.skyline.mf_nodes import bits_of, has_filter, has_marks, may_contain
from papers.skyline.rtree import FANOUT, ROOT, STACK

#: Leaves whose entries are verified together.
_TOGETHER = 64
#: Columns of `seen`: start of a message's text, number of terms, of common terms; of `seen_place`: longitude, latitude.
_SEEN, _SEEN_PLACE = 3, 2
#: Leaves that are prefetched ahead, and words of 64 bits in a cache line.
_AHEAD, _LINE = 3, 8
#: Powers of two below 2**66 have different remainders by this number: they map a bit to its position.
_DISTINCT, _BITS = 67, 62
_PLACE_OF = np.zeros(_DISTINCT, np.int64)
for _place in range(_BITS):
    _PLACE_OF[2**_place % _DISTINCT] = _place


@njit(cache=True, nogil=True)
def search(mf, log, place, as_of, past, region, offsets, terms, first, ends, found, visits):
    """Answer queries from `first` on; see `papers.skyline.tree.TreeWindow`.

    place : int32[slots]     negative once the end of the message was applied to the tree
    past : bool              whether `as_of` is an earlier boundary than the last
    """
    child, count, level = mf.tree.child, mf.tree.count, mf.tree.level
    box = mf.tree.box
    stack, leaves = np.empty(STACK, np.int32), np.empty(_TOGETHER + FANOUT, np.int32)
    # one place more, since entries are written before they are counted
    entries = (_TOGETHER + FANOUT) * FANOUT + 1
    picked, matched = np.empty(entries, np.int32), np.empty(entries, np.int64)
    seen, seen_place = np.empty((entries, _SEEN), np.int64), np.empty((entries, _SEEN_PLACE), np.float64)
    for query in range(first, region.shape[0]):
        rectangle, keywords = region[query], terms[offsets[query] : offsets[query + 1]]
        west, south, east, north = rectangle[0], rectangle[1], rectangle[2], rectangle[3]
        hashed, wanted = np.empty(keywords.shape[0], np.int64), np.empty((keywords.shape[0], 2), np.int64)
        hits = np.empty(keywords.shape[0], np.int64)
        for k in range(keywords.shape[0]):
            hashed[k] = filters_module.hash_term(keywords[k])
            wanted[k, 0], wanted[k, 1] = bits_of(hashed[k])
        row, many = ends[query], 0
        stack[0], height = mf.tree.meta[ROOT], 1
        # no message has any of the keywords: the query ends here
        if level[stack[0]] > 0 and not _may_contain_any(mf, stack[0], hashed):
            height = 0
        while height:
            height -= 1
            node = stack[height]
            if level[node] == 0:  # the root is the only leaf
                leaves[0], many = node, 1
                break
            visits[0] += 1
            to_leaves = level[node] == 1 and has_marks(mf)
            for i in range(count[node]):
                below = child[node, i]
                # all four comparisons in any case: which boxes meet is unpredictable
                meets = (
                    (box[below, 0] <= east)
                    & (west <= box[below, 2])
                    & (box[below, 1] <= north)
                    & (south <= box[below, 3])
                )
                if to_leaves:
                    # written in any case, and overwritten by the next if it does not meet: no branch
                    leaves[many] = below
                    many += meets
                elif meets and _may_contain_any(mf, below, hashed):
                    if level[below] > 0:
                        stack[height] = below
                        height += 1
                    else:
                        leaves[many] = below
                        many += 1
            # not leaf by leaf, so that cache misses of the loops below overlap
            if many >= _TOGETHER:
                taken = _pick(mf, leaves[:many], wanted, past, hits, picked, matched)
                visits[0] += many
                visits[1] += taken
                near = picked[:taken]
                row = _verify(log, place, as_of, near, matched, rectangle, keywords, seen, seen_place, found, row)
                many = 0
        taken = _pick(mf, leaves[:many], wanted, past, hits, picked, matched)
        visits[0] += many
        visits[1] += taken
        row = _verify(log, place, as_of, picked[:taken], matched, rectangle, keywords, seen, seen_place, found, row)
        ends[query + 1] = row
        if row > found.seq.shape[0]:
            return query
    return region.shape[0]


@njit_inner_no_refcount
def _may_contain_any(mf, node, hashed):
    """Whether a node's filter, if it has one, may contain one of the hashed keywords."""
    found = not has_filter(mf, node)
    for each in hashed:
        found = found or may_contain(mf, node, each)
    return found


@njit(cache=True, nogil=True)
def _pick(mf, leaves, wanted, past, hits, picked, matched):
    """Slots in leaves, newest versions only or all (`past`), whose marks, if any, match a keyword; returns how many.

    hits : int64[keywords]    scratch
    matched : int64[n]        bit set, by slot: which of the first `_BITS` keywords its mark matches
    """
    child, count, mark, versions = mf.tree.child, mf.tree.count, mf.nodes.mark, mf.nodes.stack
    taken = 0
    for at in range(leaves.shape[0]):
        ahead = np.int64(leaves[min(at + _AHEAD, leaves.shape[0] - 1)])
        for place in range(0, 2 * (FANOUT + 1), _LINE):
            prefetch(mark, ahead * 2 * (FANOUT + 1) + place)
        for place in range(0, FANOUT + 1, 2 * _LINE):
            prefetch(child, ahead * (FANOUT + 1) + place)
        prefetch(versions, ahead * (FANOUT + 1))
        leaf, left = leaves[at], np.int64(0)
        entries = np.int64(count[leaf])
        for k in range(wanted.shape[0]):
            one, two, has = wanted[k, 0], wanted[k, 1], np.int64(0)
            if not has_marks(mf):
                has = (np.int64(1) << entries) - 1
            else:
                # a bit for each entry, in one word: a loop without stores is vectorised
                for i in range(entries):
                    has |= np.int64(((mark[leaf, 0, i] & one) == one) & ((mark[leaf, 1, i] & two) == two)) << i
            hits[k] = has
            left |= has
        while left:
            i = _PLACE_OF[(left & -left) % _DISTINCT]
            which = np.int64(0)
            for k in range(min(wanted.shape[0], _BITS)):
                which |= ((hits[k] >> i) & 1) << k
            picked[taken], matched[taken] = child[leaf, i], which
            # an older version ended when the newer one came, but may have lived at a past boundary
            taken += (versions[leaf, i] != 0) | past
            left &= left - 1
    return taken


@njit_inner_no_refcount
def _verify(log, place, as_of, picked, matched, rectangle, keywords, seen, seen_place, found, row):
    """Write to `found` the picked messages that are alive, inside and share a keyword; returns the next free row."""
    west, south, east, north = rectangle[0], rectangle[1], rectangle[2], rectangle[3]
    kept = 0
    for i in range(picked.shape[0]):
        slot = picked[i]
        lon, lat = log.lon[slot], log.lat[slot]
        picked[kept], matched[kept] = slot, matched[i]
        seen_place[kept, 0], seen_place[kept, 1] = lon, lat
        # closed edges; a message whose end was applied may still be in its leaf, but its `place` is negative
        kept += (west <= lon) & (lon <= east) & (south <= lat) & (lat <= north) & (place[slot] >= 0)
    if log.ended.shape[0]:
        inside, kept = kept, 0
        for i in range(inside):
            slot = picked[i]
            picked[kept], matched[kept] = slot, matched[i]
            seen_place[kept, 0], seen_place[kept, 1] = seen_place[i, 0], seen_place[i, 1]
            # the window is ahead of the query: arrivals and ends of later batches do not count yet
            lived = (log.seq[slot] <= as_of.last_seq) & (log.ended[slot] > as_of.number)
            kept += lived & (log.life[slot] > as_of.floor)
    for i in range(kept):
        slot = picked[i]
        start, length = log.term_start[slot], np.int64(log.term_count[slot])
        seen[i, 0], seen[i, 1] = start, length
        # both ends of a text: it may span two cache lines
        prefetch(log.terms, start)
        prefetch(log.terms, start + length - 1)
    texts, kept = kept, 0
    for i in range(texts):
        start, length, common, rest = seen[i, 0], seen[i, 1], 0, matched[i]
        # Only keywords that the mark matches: with all keywords this took 1.5 times as long. Bisection took longer, and
        # so did a loop of fixed length that reads beyond the text.
        while rest:
            k = _PLACE_OF[(rest & -rest) % _DISTINCT]
            rest &= rest - 1
            for p in range(start, start + length):
                common += log.terms[p] == keywords[k]
        for k in range(_BITS, keywords.shape[0]):
            for p in range(start, start + length):
                common += log.terms[p] == keywords[k]
        picked[kept] = picked[i]
        seen_place[kept, 0], seen_place[kept, 1] = seen_place[i, 0], seen_place[i, 1]
        seen[kept, 1], seen[kept, 2] = seen[i, 1], common
        # a mark may be a false positive, so the text decides
        kept += common > 0
    # counted beyond the capacity too: the caller grows the columns and repeats the query
    fitting = min(kept, max(0, found.seq.shape[0] - row))
    for i in range(fitting):
        found.seq[row + i], found.life[row + i] = log.seq[picked[i]], log.life[picked[i]]
    for i in range(fitting):
        found.spatial[row + i] = spatial_relevance(seen_place[i, 0], seen_place[i, 1], rectangle)
        found.text[row + i] = text_relevance(keywords.shape[0], seen[i, 1], seen[i, 2])
    return row + kept
