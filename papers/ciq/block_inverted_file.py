"""Engine `block_inverted_file` (BIF): lists in blocks with one bound each, without cells; CIQ's baseline.

It is `papers.ciq.ciq` with the root as the only cell and one bucket for all: the distance score of every subscription
counts as 1, its maximum (Chen et al., CIQ, section VII-A), so that a list is in the order of registration, and a
subscription with much weight on place keeps its block from being skipped. Traversal, bounds and layout are the same.
Subscriptions with fewer than k results are separate here as well.
"""

from papers.ciq.ciq import Ciq


class BlockInvertedFile(Ciq):
    """Blocks by keyword. A message costs O(blocks of its terms and the postings of those not skipped)."""

    name = "block_inverted_file"
    depth = 0
    buckets = 1
    block = 128
    # never associated anew: only the bound on the k-th keys would change, which the scan keeps up to date
    rise = 1e18
    alike = False
