"""Blocks of several sizes in one pool of columns: a slot's entries lie together, and what it gives back is used again.

A kernel view `v` of such a pool has, by slot, `start` (place of its block, -1 without one) and `size_class`; by place,
`seq` and other columns; `free` int64[classes], the first free block of each class, chained through `seq`, -1 at the
end; and `used`, whose first entry is the end of the used part. What the sizes are and what an entry consists of is up
to the pool: `matching.topk.results_kernels`, `matching.skyline.results`.
"""

from compiling.njit import njit_inner, njit_inner_no_refcount

#: Start of a slot without a block, and the end of a list of free ones.
NO_BLOCK = -1


@njit_inner_no_refcount
def allocate_block(v, size_class, size):
    """Place of a block of this class, which has `size` entries; -1 if the pool has none left (nothing has changed)."""
    start = v.free[size_class]
    if start >= 0:
        # A free block keeps the next one in its own first entry, so the list costs no memory.
        v.free[size_class] = v.seq[start]
        return start
    start = v.used[0]
    if start + size > v.seq.shape[0]:
        # The caller packs or grows the pool and repeats the call.
        return NO_BLOCK
    v.used[0] = start + size
    return start


@njit_inner
def free_block(v, slot):
    """Chain the slot's block into the list of free ones of its class."""
    block, its_class = v.start[slot], v.size_class[slot]
    v.seq[block] = v.free[its_class]
    v.free[its_class] = block
    v.start[slot] = NO_BLOCK


@njit_inner
def forget_free(v, end):
    """The pool has been packed up to `end`: no block is free, and what follows has not been used."""
    v.used[0] = end
    # Packing moved blocks over the free ones, and their lists with them.
    for size_class in range(v.free.shape[0]):
        v.free[size_class] = NO_BLOCK
