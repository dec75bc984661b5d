"""Engine `ciq_paper`: CIQ in the form in which it is printed (Chen et al., ICDE 2015), for comparisons.

Cells are those of `papers.ciq.ciq`, chosen once, by expected cost with a factor of 3.5 and a duration of as many
messages as there are subscriptions: in the paper's runs 5 messages come and 5 subscriptions leave a second. In every
cell 16 buckets, in their lists blocks of up to 1,024 postings in order of registration, as the paper has them for
tweets; 128 for places. Every posting of a block that is not skipped costs a text relevance
(`papers.ciq.ciq_paper_walk`); `ciq` has bounds instead, which are its own.

Not as printed: buckets are equal intervals of r / (1 + r), r being the weighted proximity, which has no upper end for
an alpha near 1 and of which the paper does not say how wide an interval is; subscriptions short of k results are in a
bucket of their own at the root, until the end of the batch that brings the k-th.
"""

from typing import ClassVar

from matching.model import MessageBatch
from papers.ciq.ciq import Ciq
from papers.ciq.ciq_paper_walk import scan


class CiqPaper(Ciq):
    """Cells by cost. A message costs O(depth * its terms * buckets) and a text relevance for each posting it reads."""

    name = "ciq_paper"
    block = 1_024
    longest: ClassVar[int | None] = None
    # the paper does not say that a subscription is ever associated anew
    rise = 1e18
    alike = False

    def _scan(self, batch: MessageBatch, first_row: int) -> int:
        return scan(
            self.subscriptions.columns, self.best.view, self.filters, self.lists.view, self.history.view,
            batch, first_row,
            self.fading, self._reference.at or 0.0, self._most_common, self.depth, self.buckets + 2,
            self._found, self.counters,
        )  # fmt: skip
