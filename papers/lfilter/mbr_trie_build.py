"""Building an MBRTrie: level by level, all nodes of a level at once.

Subscriptions are ranked by their path (paths that end at a node come before longer ones), and by Morton code within a
node, so that the ranks below a node are one range. `papers.lfilter.mbr_trie` walks what is made here.
"""

import numpy as np

from compiling.njit import njit, njit_no_refcount
from matching.model import Int32
from matching.storage.cells import box_of, subscription_word
from matching.storage.region_subscriptions import RegionColumns

#: Ranks that share a rectangle in long lists: two cache lines of words behind one test.
BLOCK = 16


def build_trie(
    slots: Int32, columns: RegionColumns, described, bucket: int, leaves: bool = False
) -> dict[str, np.ndarray]:
    """Arrays of `mbr_trie.Trie` and `lfilter_parts.Boxes` for these slots. O((n + keywords) log n).

    Parameters
    ----------
    slots : int32[n]
    described : tuple    slot, word, text and Morton code of their boxes (`PartedEngine._boxes_of`)
    bucket : int         a node with no more than this many boxes beyond its own is not divided
    leaves : bool        boxes are below the node of their last keyword, in a leaf with token -1; only without buckets
    """
    slot, word, text, morton = described
    count = slot.shape[0]
    start = columns.start[np.where(slot < 0, ~slot, slot)].astype(np.int64)
    at, ended, read = np.zeros(count, np.int64), np.zeros(count, bool), np.zeros(count, bool)
    token, parent = [np.full(1, -1, np.int32)], [np.full(1, -1)]
    active, nodes, depth = np.arange(count), 1, 0
    while active.shape[0]:
        # Of a row whose keywords have all been read, a leaf is left; the term that is read here is not its own.
        term = columns.terms[np.minimum(start[active] + depth, columns.terms.shape[0] - 1)].astype(np.int64)
        in_leaf, is_last = read[active], term < 0
        read[active], ends = in_leaf | is_last, in_leaf if leaves else is_last
        # Tokens from 1 on in a key, so that a leaf comes first.
        key, inverse = _unique(at[active] << 32 | np.where(in_leaf, 0, 1 + np.where(is_last, ~term, term)))
        token.append(((key & 0xFFFFFFFF) - 1).astype(np.int32))
        parent.append(key >> 32)
        at[active], ended[active] = nodes + inverse, ends
        beyond = np.bincount(inverse[~ends], minlength=key.shape[0])
        active = active[~ends & (beyond[inverse] > bucket)]
        nodes += key.shape[0]
        depth += 1
    level_start = np.cumsum([0, *(each.shape[0] for each in token)])
    parents = np.concatenate(parent)
    own = np.bincount(at[ended], minlength=nodes)
    total = np.bincount(at, minlength=nodes)
    for low, high in _levels(level_start)[::-1]:
        total += np.bincount(parents[low:high], weights=total[low:high], minlength=nodes).astype(np.int64)
    # Children lie side by side, ascending by parent: their ranks follow those that end at the parent.
    children = np.bincount(parents[1:], minlength=nodes)
    first_child = 1 + np.cumsum(children) - children
    lowest = np.zeros(nodes, np.int64)
    for low, high in _levels(level_start):
        before = np.cumsum(total[low:high]) - total[low:high]
        of = parents[low:high]
        lowest[low:high] = lowest[of] + own[of] + before - before[first_child[of] - low]
    order = np.argsort((lowest[at] << 1 | ~ended) << 30 | morton, kind="stable")
    head = np.stack([first_child, first_child + children, lowest, lowest + own, lowest + total], axis=1)
    slot, word, text = slot[order], word[order], text[order]
    head = head.astype(np.int32)
    box, block = np.empty(nodes, np.uint64), np.empty((count + BLOCK - 1) // BLOCK, np.uint64)
    _surround(head, word, box, block)
    tokens = np.concatenate(token)
    shift, directory = _directory(tokens[1 : level_start[2]])
    tree = {"token": tokens, "head": head, "box": box, "block": block, "shift": shift, "directory": directory}
    return {"slot": slot, "word": word, "text": text} | tree


def _levels(start) -> list[tuple[int, int]]:
    """First and last node of each level below the root."""
    return list(zip(start[1:-1].tolist(), start[2:].tolist(), strict=True))


def _directory(tokens):
    """`Trie.shift` and `Trie.directory` for tokens (ascending), with about as many entries as there are tokens.

    Term ids are dense as a rule: few tokens share an entry, and the search among them takes a step or two. Where ids
    are not dense, only the search is longer.
    """
    highest = int(tokens[-1])
    shift = max(0, highest.bit_length() - tokens.shape[0].bit_length())
    begins = np.arange((highest >> shift) + 2, dtype=np.int64) << shift
    return np.array([shift], np.int64), (1 + np.searchsorted(tokens, begins)).astype(np.int32)


def _unique(keys):
    """Distinct keys, ascending, and for each of `keys` the place of its own among them."""
    order = np.argsort(keys, kind="stable")
    in_order = keys[order]
    new = np.empty(keys.shape[0], bool)
    new[0] = True
    np.not_equal(in_order[1:], in_order[:-1], out=new[1:])
    inverse = np.empty(keys.shape[0], np.int64)
    inverse[order] = np.cumsum(new) - 1
    return in_order[new], inverse


@njit(cache=True, nogil=True)
def _around(word, low, high):
    """Word of the rectangle around word[low:high]."""
    west, south, east, north = box_of(word[low])
    for i in range(low + 1, high):
        a, b, c, d = box_of(word[i])
        west, south, east, north = min(west, a), min(south, b), max(east, c), max(north, d)
    return subscription_word(west, south, east, north)


@njit_no_refcount
def _surround(head, word, box, block):
    """Rectangles of all blocks, and of all nodes from the last level up: each from its own ranks and its children."""
    for i in range(block.shape[0]):
        block[i] = _around(word, i * BLOCK, min((i + 1) * BLOCK, word.shape[0]))
    # Nodes are in breadth-first order and taken from the last: children come before their parent.
    for node in range(head.shape[0] - 1, -1, -1):
        first, end, low, own, high = head[node]
        if first == end:
            # Without children there is a bucket or nothing: the box is around all ranks of the node.
            box[node] = _around(word, low, high)
            continue
        box[node] = _around(box, first, end)
        # No child has the subscriptions that end at the node: the box is around theirs too.
        if own > low:
            west, south, east, north = box_of(box[node])
            a, b, c, d = box_of(_around(word, low, own))
            box[node] = subscription_word(min(west, a), min(south, b), max(east, c), max(north, d))
