"""CIQ and its opponents in the form in which they are printed (Chen et al., ICDE 2015), for comparisons.

`ciq_paper` has the cells of `papers.ciq.ciq`, chosen once, by expected cost with a factor of 3.5 and a duration of as
many messages as the paper's runs have subscriptions: 5 messages come and 5 of 10 million subscriptions leave a second.
In every cell are 16 buckets, in their lists blocks of up to 1,024 postings in order of registration, as the paper has
them for tweets; for places it has 128, and a tenth of the subscriptions. Every posting of a block that is not skipped
costs a text relevance (`papers.ciq.ciq_paper_walk`); `ciq` has bounds instead, which are its own.

The paper leaves open how wide a bucket is. Not as printed: subscriptions short of k results are in a bucket of their
own at the root, until the end of the batch that brings the k-th.
"""

from typing import ClassVar

import numpy as np

from matching.half_life import DecayParameters
from matching.model import MessageBatch
from matching.space import Space
from papers.ciq.ciq import Ciq
from papers.ciq.ciq_paper_walk import scan


class CiqPaper(Ciq):
    """Cells by cost. A message costs O(depth * its terms * buckets) and a text relevance for each posting it reads.

    Attributes
    ----------
    walked : int64[3]    pairs that lemma 1 could not skip (definition 7), blocks skipped by lemma 3, blocks read
    """

    name = "ciq_paper"
    block = 1_024
    longest = 10_000_000
    # the paper does not say that a subscription is ever associated anew
    rise = 1e18
    alike = False
    #: Whether lemmas 1 and 3 are tested.
    bounded: ClassVar[bool] = True

    def __init__(self, space: Space, fading: DecayParameters):
        super().__init__(space, fading)
        self.walked = np.zeros(3, np.int64)

    def survivors(self) -> dict[str, int]:
        """Evaluations as definition 7 counts them, blocks skipped and blocks read, of all messages so far."""
        return dict(zip(("evaluations", "blocks_skipped", "blocks_read"), self.walked.tolist(), strict=True))

    def _scan(self, batch: MessageBatch, first_row: int) -> int:
        return scan(
            self.subscriptions.columns, self.best.view, self.filters, self.lists.view, self.history.view,
            batch, first_row,
            self.fading, self._reference.at or 0.0, self.bounded, self.depth, self.buckets + 2,
            self._found, self.counters, self.walked,
        )  # fmt: skip


class CiqHPaper(CiqPaper):
    """CIQ-H: the cells beside the way down to a subscription's place, to a level that the paper does not name."""

    name = "ciq_h_paper"
    depth = 4
    by_cost = False


class BifPaper(CiqPaper):
    """BIF: blocks by keyword, with the root as the only cell and one bucket, and so a proximity of 1 for everybody.

    What is left of a block by an alpha near 1 is so much that hardly any is skipped. `block_inverted_file` is the
    stronger one, with bounds on texts that are not the paper's.
    """

    name = "bif_paper"
    depth = 0
    buckets = 1


class IflPaper(BifPaper):
    """IFL: lists by keyword, side by side, and a table of subscriptions from which each posting is scored.

    Here the lists are in blocks as well, which nothing tests. `inverted_file` has the factors of a message in a table.
    """

    name = "ifl_paper"
    bounded = False
