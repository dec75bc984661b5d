"""Building a PT-Quadtree: boxes into cells, lists of ranks, and the pivotal tokens of each cell.

A box belongs to the finest level at which it covers at most two by two cells, and has an entry in each of those; a cell
below which few entries remain is a leaf and keeps them all. So no box has more than four entries, whatever its size:
the quadtree of Kedem's multiple storage between the two that the paper names (one list for each box, or a copy in each
leaf). Pivotal tokens are as in the paper. `papers.lfilter.pt_quadtree` walks what is made here.
"""

import numpy as np

from compiling.njit import njit, njit_inner, njit_no_refcount
from matching.storage.cells import FINEST, box_of, cell_range, fitting_level
from matching.storage.region_subscriptions import RegionColumns
from matching.storage.slots import as_input, longer, put
from matching.storage.sorting import ascending
from papers.lfilter.lfilter_parts import first_not_below, interleave, text_bit

#: A cell with no more entries than this is not divided.
LEAF_CAPACITY = 48
#: A cell with more pivotal tokens is entered whatever the message says: hardly any message would be turned away.
MOST_TOKENS = 64
#: Nor are pivots sought for lists of more than so many times as many, which need more of them as a rule.
_TIMES_GREEDY = 8
_OPEN = -1
#: Largest side of a box as seen from a cell.
_NARROW_RIM = 127


def build_quadtree(slot, word, text, columns: RegionColumns, leaf_capacity: int) -> dict[str, np.ndarray]:
    """Arrays of `pt_quadtree.Quadtree` over the boxes of these ranks. O(n log n).

    Parameters
    ----------
    slot : int32[n]    as in `lfilter_parts.Boxes`, as are word and text
    leaf_capacity : int    tau_num of the paper
    """
    word = as_input(word, np.uint64)
    key, rank = _entries(word)
    order = np.argsort(key, kind="stable")
    head, cell, entry = _divide(as_input(key[order], np.int64), as_input(rank[order], np.int32), leaf_capacity)
    return list_cells(head, cell, entry, slot, word, text, columns)


def list_cells(head, cell, entry, slot, word, text, columns: RegionColumns) -> dict[str, np.ndarray]:
    """What `build_quadtree` returns, for cells and lists that have been made (`pt_quadtree.Quadtree`)."""
    word = as_input(word, np.uint64)
    tokens, limits, token_text = choose_pivots(head, entry, as_input(slot, np.int32), columns, MOST_TOKENS)
    entry_box, entry_text = np.empty(entry.shape[0], np.uint32), np.empty(entry.shape[0], np.uint32)
    _narrow(head, cell, entry, word, as_input(text, np.uint64), entry_box, entry_text)
    lists = {"entry": entry, "entry_box": entry_box, "entry_text": entry_text}
    return (
        lists
        | {"branch": head, "cell": cell, "pivot": tokens, "pivots": limits, "pivot_text": token_text}
        | {"typical": np.array([_typical(head)])}
    )


@njit(cache=True, nogil=True)
def _entries(word):
    """Key (Morton code of the cell's corner << 4 | level) and rank of each entry, ascending by rank."""
    key, rank = np.empty(4 * word.shape[0], np.int64), np.empty(4 * word.shape[0], np.int32)
    count = 0
    for i in range(word.shape[0]):
        west, south, east, north = box_of(word[i])
        # Two by two cells at most, hence four entries a box and not one in each leaf it touches.
        level = fitting_level(west, south, east, north, FINEST)
        left, right, bottom, top = cell_range(west, south, east, north, level)
        shift = 15 - level
        for line in range(bottom, top + 1):
            for column in range(left, right + 1):
                # The corner in lattice steps, then the level: a cell comes first, then all that lies in it.
                key[count] = (interleave(column << shift) | interleave(line << shift) << 1) << 4 | level
                rank[count] = i
                count += 1
    return key[:count].copy(), rank[:count].copy()


@njit(cache=True, nogil=True)
def box_within(cell, west, south, east, north):
    """A box seen from a cell (level << 28 | row << 14 | column): four lanes of 7 bits, guard bits zero.

    Sides outside the cell are drawn to its rim, and within, 128 steps have to do. Both keep order, so boxes that meet
    still do, but boxes that only just miss each other may seem to meet.
    """
    level = cell >> 28
    left, bottom = (cell & 0x3FFF) << (15 - level), (cell >> 14 & 0x3FFF) << (15 - level)
    # A cell is 2**(15 - level) steps wide, of which seven bits are kept; from level 8 on they all fit.
    coarser = max(np.int64(0), 8 - level)
    lanes = np.int64(0)
    lanes |= min(max((west - left) >> coarser, np.int64(0)), np.int64(_NARROW_RIM))
    # From the far rim, as in `cells`: then all lanes compare the same way.
    lanes |= (_NARROW_RIM - min(max((east - left) >> coarser, np.int64(0)), np.int64(_NARROW_RIM))) << 8
    lanes |= min(max((south - bottom) >> coarser, np.int64(0)), np.int64(_NARROW_RIM)) << 16
    lanes |= (_NARROW_RIM - min(max((north - bottom) >> coarser, np.int64(0)), np.int64(_NARROW_RIM))) << 24
    return lanes


@njit(cache=True, nogil=True)
def _narrow(head, cell, entry, word, text, entry_box, entry_text):
    """Write what lies beside each entry: its box within the cell, and its two rarest keywords."""
    for node in range(head.shape[0]):
        for i in range(head[node, 4], head[node, 5]):
            west, south, east, north = box_of(word[entry[i]])
            entry_box[i] = box_within(cell[node], west, south, east, north)
            entry_text[i] = text[entry[i]] & np.uint64(0xFFFFFFFF)  # the lower two of the four lanes


@njit(cache=True, nogil=True)
def _divide(key, rank, leaf_capacity):
    """Cells in preorder from entries ascending by key; returns (branch, cell, entry), see `pt_quadtree.Quadtree`."""
    # Preorder: children behind their parent. What sums up cells below runs from the end, what hands down from
    # the beginning.
    head, cell = np.empty((64, 8), np.int32), np.empty(64, np.int64)
    entry = np.empty(rank.shape[0], np.int32)
    # Frames: first and last key, level, code of the cell, and where the parent has it: 4 * parent + quarter.
    stack = np.empty((64, 5), np.int64)
    stack[0] = (0, key.shape[0], 0, 0, -1)
    depth, nodes, used = 1, 0, 0
    while depth > 0:
        depth -= 1
        low, high, level, code, above = stack[depth]
        node = nodes
        nodes += 1
        head, cell = longer(head, nodes), longer(cell, nodes)
        head[node, :4] = -1
        cell[node] = np.int64(level) << 28 | _half(code >> 1) << 14 | _half(code)
        if above >= 0:
            head[above >> 2, above & 3] = node
        # Entries of this very cell come first: theirs is the lowest code, and of those the lowest level.
        own = low
        while own < high and key[own] & 15 == level:
            own += 1
        # Nothing but its own is a leaf too: no quarter would have an entry.
        leaf = high - low <= leaf_capacity or own == high
        head[node, 4] = used
        until = high if leaf else own
        for i in range(low, until):
            # A box may have several of the cells that a leaf stands for: once is enough. Lists ascend by rank.
            # By insertion: a leaf is short, and entries of one cell come in this order anyhow.
            place = used
            while place > head[node, 4] and entry[place - 1] > rank[i]:
                place -= 1
            if place > head[node, 4] and entry[place - 1] == rank[i]:
                continue
            for j in range(used, place, -1):
                entry[j] = entry[j - 1]
            entry[place] = rank[i]
            used += 1
        head[node, 5] = used
        if leaf:
            continue
        stack = longer(stack, depth + 4)
        # Codes in keys are of lattice steps, as if of level 15: two bits for each level from the child down to there.
        shift = 2 * (14 - level)
        end = high
        for quarter in range(3, -1, -1):  # the first quarter ends on top, so that cells come in Morton order
            child = np.int64(code) << 2 | quarter
            begin, beyond = own, end
            while begin < beyond:
                middle = (begin + beyond) >> 1
                if key[middle] >> 4 < child << shift:
                    begin = middle + 1
                else:
                    beyond = middle
            if begin < end:
                stack[depth] = (begin, end, level + 1, child, 4 * node + quarter)
                depth += 1
            end = begin
    for node in range(nodes - 1, -1, -1):
        # Lists and entries of the cell and all below it, for estimates.
        lists, entries = np.int64(head[node, 5] > head[node, 4]), np.int64(head[node, 5] - head[node, 4])
        for quarter in range(4):
            child = head[node, quarter]
            if child >= 0:
                lists += head[child, 6]
                entries += head[child, 7]
        head[node, 6] = lists
        # An estimate, so it may end where int32 does.
        head[node, 7] = min(entries, 2**31 - 1)
    return head[:nodes].copy(), cell[:nodes].copy(), entry[:used].copy()


@njit(cache=True, nogil=True)
def _typical(head):
    """Entries in the lists from the root to a cell, as an average over all entries: what a point meets among them."""
    ahead, total, weight = np.zeros(head.shape[0], np.int64), 0.0, 0.0
    for node in range(head.shape[0]):
        own = head[node, 5] - head[node, 4]
        ahead[node] += own
        # Weighted by what lies in it: messages come, by and large, where subscriptions are.
        total += np.float64(own) * ahead[node]
        weight += own
        for quarter in range(4):
            if head[node, quarter] >= 0:
                ahead[head[node, quarter]] = ahead[node]
    return total / weight


@njit(cache=True, nogil=True)
def _half(code):
    """Every other bit of a Morton code: the inverse of `interleave`."""
    value = np.int64(code) & 0x55555555
    value = (value | value >> 1) & 0x33333333
    value = (value | value >> 2) & 0x0F0F0F0F
    value = (value | value >> 4) & 0x00FF00FF
    return (value | value >> 8) & 0x0000FFFF


@njit(cache=True, nogil=True)
def greedy_pivots(ranks, slot, columns, out):
    """Pivotal tokens of a list by greedy hitting set: the most frequent token, then that of what it does not hit...

    Of equally frequent ones the lowest term id, which is the rarest in the stream. Returns how many, ascending in out
    (int32[most]), or -1 if they are too many.
    """
    count = ranks.shape[0]
    if count > _TIMES_GREEDY * out.shape[0]:
        return _OPEN
    pairs, used = np.empty(4 * count, np.int64), 0  # term << 32 | place in the list
    for i in range(count):
        here = slot[ranks[i]]
        # Both boxes of a subscription have its keywords, and one token hits both.
        position = columns.start[~here if here < 0 else here]
        while True:
            term = columns.terms[position]
            pairs = longer(pairs, used + 1)
            pairs[used] = np.int64(~term if term < 0 else term) << 32 | i
            used += 1
            position += 1
            if term < 0:
                break
    # By term, so that each token has its places side by side, and of equals the rarest comes first.
    pairs = pairs[:used][ascending(pairs[:used])]
    begins, distinct, most = np.empty(used + 1, np.int64), 0, 0
    for i in range(used):
        if i == 0 or pairs[i] >> 32 != pairs[i - 1] >> 32:
            begins[distinct] = i
            distinct += 1
        most = max(most, i + 1 - begins[distinct - 1])
    begins[distinct] = used
    hit = np.zeros(count, np.bool_)
    left, chosen = count, 0
    while left > 0:
        # What a token would add only falls. So one pass takes all that add the most, as if each were sought anew, and
        # no pass is begun that would leave some unhit in any case.
        if most * (out.shape[0] - chosen) < left:
            return _OPEN
        next_most = 0
        for token in range(distinct):
            begin, end, missing = begins[token], begins[token + 1], 0
            for i in range(begin, end):
                missing += not hit[pairs[i] & 0xFFFFFFFF]
            # The highest of those passed over is as much as any can add in the next pass.
            if missing < most:
                next_most = max(next_most, missing)
                continue
            if chosen == out.shape[0]:
                return _OPEN
            out[chosen] = pairs[begin] >> 32
            chosen += 1
            left -= missing
            for i in range(begin, end):
                hit[pairs[i] & 0xFFFFFFFF] = True
        most = next_most
    put(out, 0, out[ascending(out[:chosen])])
    return chosen


@njit_no_refcount
def _among(tokens, low, high, token):
    """Whether tokens[low:high], ascending, has the token."""
    place = first_not_below(tokens, low, high, token)
    return place < high and tokens[place] == token


@njit_inner
def _all_tokens(head, entry, slot, columns, most):
    """Pivotal tokens of every cell with all below it: tokens, and [first, last) of each cell, last -1 for too many."""
    nodes = head.shape[0]
    tokens, limits, used = np.empty(1024, np.int32), np.empty((nodes, 2), np.int64), 0
    longest = 1
    for node in range(nodes):
        longest = max(longest, head[node, 5] - head[node, 4])
    # A list needs no more tokens than it has entries.
    buffer, pivots = np.empty(1024, np.int32), np.empty(min(most, longest), np.int32)
    for node in range(nodes - 1, -1, -1):
        # From the last cell back, so that the tokens below are known: in preorder they stand behind.
        count = greedy_pivots(entry[head[node, 4] : head[node, 5]], slot, columns, pivots)
        is_open = count == _OPEN
        if not is_open:
            buffer = longer(buffer, count)
            put(buffer, 0, pivots[:count])
        for quarter in range(4):
            child = head[node, quarter]
            if child < 0 or is_open:
                continue
            low, high = limits[child, 0], limits[child, 1]
            # One open cell below opens this one: a message may match there whatever it carries.
            is_open = high == _OPEN
            buffer = longer(buffer, count + high - low)
            for i in range(low, high):
                buffer[count] = tokens[i]
                count += 1
        limits[node] = (used, _OPEN)
        if is_open:
            continue
        in_order = buffer[:count][ascending(buffer[:count])]
        distinct = 0
        for i in range(count):
            if i == 0 or in_order[i] != in_order[i - 1]:
                in_order[distinct] = in_order[i]
                distinct += 1
        # It stays open, and so will all above it.
        if distinct > most:
            continue
        tokens = longer(tokens, used + distinct)
        put(tokens, used, in_order[:distinct])
        used += distinct
        limits[node, 1] = used
    return tokens[:used], limits


@njit(cache=True, nogil=True)
def _covers(head, tokens, limits):
    """Tokens that all children of a cell have, of which there must be two: tokens, and [first, last) of each cell."""
    nodes = head.shape[0]
    cover, within, used = np.empty(1024, np.int32), np.zeros((nodes, 2), np.int64), 0
    for node in range(nodes):
        within[node] = (used, used)
        shortest, children = -1, 0
        for quarter in range(4):
            child = head[node, quarter]
            if child >= 0:
                children += 1
                if limits[child, 1] == _OPEN:
                    # Never two again, however many follow: an open child has no tokens to share.
                    children = -4
                elif shortest < 0 or limits[child, 1] - limits[child, 0] < limits[shortest, 1] - limits[shortest, 0]:
                    shortest = child
        # Tokens of an only child are tested at the child, at no more cost.
        if children < 2:
            continue
        # Common tokens are among those of the child with the fewest: only these are looked up in the others.
        cover = longer(cover, used + limits[shortest, 1] - limits[shortest, 0])
        for i in range(limits[shortest, 0], limits[shortest, 1]):
            everywhere = True
            for quarter in range(4):
                child = head[node, quarter]
                if child >= 0:
                    everywhere = everywhere and _among(tokens, limits[child, 0], limits[child, 1], tokens[i])
            if everywhere:
                cover[used] = tokens[i]
                used += 1
        within[node, 1] = used
    return cover[:used], within


@njit(cache=True, nogil=True)
def choose_pivots(head, entry, slot, columns, most):
    """Cover and non-cover sets: tokens, limits, signatures; see `pt_quadtree.Quadtree`.

    A cell that would have more than `most` tokens is open; without a limit none is.
    """
    tokens, limits = _all_tokens(head, entry, slot, columns, most)
    cover, within = _covers(head, tokens, limits)
    nodes = head.shape[0]
    out, places, text = np.empty(1024, np.int32), np.empty((nodes, 3), np.int32), np.empty(nodes, np.uint64)
    above = np.full(nodes, -1, np.int32)
    used = 0
    for node in range(nodes):
        for quarter in range(4):
            if head[node, quarter] >= 0:
                above[head[node, quarter]] = node
        # Tokens in the cover set of the parent are tested there, once for all children.
        low, high = 0, 0
        if above[node] >= 0:
            low, high = within[above[node], 0], within[above[node], 1]
        places[node, 0] = used
        signature = np.uint64(0)
        out = longer(out, used + within[node, 1] - within[node, 0] + max(0, limits[node, 1] - limits[node, 0]))
        for i in range(within[node, 0], within[node, 1]):
            if not _among(cover, low, high, cover[i]):
                out[used] = cover[i]
                signature |= text_bit(cover[i])
                used += 1
        places[node, 1] = used
        if limits[node, 1] == _OPEN:
            places[node, 2] = _OPEN
            # Any message with a term passes; one without matches nothing.
            text[node] = np.uint64(0xFFFF_FFFF_FFFF_FFFF)
            continue
        for i in range(limits[node, 0], limits[node, 1]):
            # A message tested here has none of these, or its text tests would have ended.
            if _among(cover, low, high, tokens[i]):
                continue
            if not _among(cover, within[node, 0], within[node, 1], tokens[i]):
                out[used] = tokens[i]
                signature |= text_bit(tokens[i])
                used += 1
        places[node, 2] = used
        text[node] = signature
    return out[:used].copy(), places, text
