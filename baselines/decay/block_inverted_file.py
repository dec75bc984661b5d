"""Engine `block_inverted_file` (BIF): lists in blocks with one bound each, without cells; CIQ's opponent.

It is what is left of `matching.decay.engines.ciq` with the root for the only cell and one bucket for all: the distance
score of every subscription is taken for 1, its largest (Chen et al., CIQ, section VII-A), so that a list is in the
order of registration, and whoever gives much weight to place keeps its block from being skipped. Traversal, bounds and
layout are the same. Who has fewer than k results is kept apart here as well.
"""

from matching.decay.engines.ciq import Ciq


class BlockInvertedFile(Ciq):
    """Blocks by keyword. A message costs O(blocks of its terms and the postings of those not skipped)."""

    name = "block_inverted_file"
    depth = 0
    buckets = 1
    block = 128
    # an association bounds nothing but its k-th key, which the scan follows
    rise = 1e18
    alike = False
