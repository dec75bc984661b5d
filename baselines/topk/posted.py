"""Base of the `topk` baselines that scan plain posting lists: keeps the lists in line with the subscriptions."""

from abc import ABC

import numpy as np

from matching.model import Int32
from matching.space import Space
from matching.topk.engine import TopkEngine
from papers.skype.postings import PointPostings


class PostedEngine(TopkEngine, ABC):
    """An engine whose index is a posting list for each term."""

    #: Whether the posting lists carry the columns of the L2 suffix bound.
    bounded = False

    def __init__(self, space: Space):
        super().__init__(space)
        self.postings = PointPostings(self.bounded)

    def _post(self, slots: Int32) -> None:
        self.postings.insert(self.subscriptions, slots, self.max_distance)

    def _unpost(self, slots: Int32) -> None:
        self.postings.remove(self.subscriptions, slots)

    def _apply_thresholds(self, slots: Int32) -> None:
        self.postings.set_thresholds(self.subscriptions, slots)

    def arrays(self) -> dict[str, np.ndarray]:
        """All arrays, to measure memory: names prefixed `subscriptions_` and `postings_`."""
        return super().arrays() | {f"postings_{name}": value for name, value in self.postings.arrays().items()}
