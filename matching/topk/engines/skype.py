"""Engine `skype`: quadtree cells and alpha groups over inverted lists, pruned by every rule of the Skype paper.

A message walks the trees of its terms from the root down (`matching.topk.engines.skype_tree`), skipping cells and
groups without a subscription it could reach, scans the postings of the groups that are left
(`matching.topk.engines.skype_scan`, columns in `matching.topk.engines.skype_lists`), and verifies what passes
(`matching.topk.engines.skype_verify`): exactly, over all common terms, and only if the scanned term is the pair's first
common one. That last rule makes every filter safe at any term (the printed algorithm adds up products as it goes and
loses results).

Each rule is a switch in `Pruning` and has a counter of what it cut, so that its share can be measured:
`Skype.counters`. All bounds are in multiplied form, threshold <= alpha * spatial + (1 - alpha) * text, so that alpha 0
and 1 need no case of their own.
"""

from typing import NamedTuple

import numpy as np

from matching.index import Hits
from matching.model import Int32, MessageBatch
from matching.space import Space
from matching.topk.engine import TopkEngine
from matching.topk.engines.skype_bounds import COUNTERS, SCANNED, VERIFIED
from matching.topk.engines.skype_lists import SkypeLists
from matching.topk.engines.skype_scan import scan
from matching.topk.engines.skype_tree import TreeShape


class Pruning(NamedTuple):
    """Which rules are applied; answers never depend on it.

    cells : skip an inner cell of the tree, from the root down (Lemma 6, with the text bound of the term)
    groups : skip a group (Theorem 5.3)
    envelope : bound alpha and threshold of a node together, by chords over the maximum of their lines
    early_stop : stop inside a group (Theorem 5.4)
    prefix : location-aware prefix with weight sums and maximum weights (Theorem 5.1, Lemma 4)
    l2 : the same with the product of this term's weights and the norms of what follows (tighter; as in L2AP)
    inner_outer : distance of the subscription to its cell's side plus distance of the message to the cell
    exact_distance : distance to the subscription itself, kept beside the posting
    signature : what follows this term is bounded by the weights that the message has at the posting's later terms, of
        which a byte each is kept (needs `l2`)
    unseen : give up verification once the products so far and the bound of the rest do not reach (Theorem 5.2)
    adaptive : split a cell by what its postings differ in most; otherwise cells first, then alpha, as in the paper
    group_size, cell_size : postings of a group; of a cell that is split by alpha (not `adaptive`)
    """

    cells: bool = True
    groups: bool = True
    envelope: bool = True
    early_stop: bool = False
    prefix: bool = False
    l2: bool = True
    inner_outer: bool = False
    exact_distance: bool = True
    signature: bool = True
    unseen: bool = False
    adaptive: bool = True
    group_size: int = 64
    cell_size: int = 512


#: The rules the paper itself has.
PAPER = Pruning(
    envelope=False, early_stop=True, prefix=True, l2=False, inner_outer=True,
    exact_distance=False, signature=False, unseen=True, adaptive=False,
)  # fmt: skip


class Skype(TopkEngine):
    """Trees over posting lists. The cost of a message is the postings of its terms near its place and within its reach.

    Parameters
    ----------
    space : Space
    pruning : Pruning
        The class attribute of the same name by default.

    Attributes
    ----------
    together : int          messages of a chunk at most
    most_candidates : int   candidates of a chunk at most, 16 bytes each; a chunk ends before it would have more
    dense_slots : int       a chunk is verified slot by slot if it has a candidate for every `dense_slots` slots
    """

    name = "skype"
    serves_sphere = True
    pruning = Pruning()
    together = 4096
    dense_slots = 16
    most_candidates = 1 << 22

    def __init__(self, space: Space, pruning: Pruning | None = None):
        super().__init__(space)
        self.pruning = pruning or self.pruning
        if self.pruning.signature and not self.pruning.l2:
            self.pruning = self.pruning._replace(signature=False)
        p = self.pruning
        on = tuple(name for name, value in p._asdict().items() if value is True)
        self.lists = SkypeLists(space, on, TreeShape(p.adaptive, p.group_size, p.cell_size, p.l2))
        self._counters = np.zeros(len(COUNTERS), np.int64)
        self._chunk = np.array([self.together])  # messages that were last taken together; answers never depend on it

    def _post(self, slots: Int32) -> None:
        self.lists.insert(self.subscriptions, slots)

    def _unpost(self, slots: Int32) -> None:
        self.lists.remove(self.subscriptions, slots)

    def _apply_thresholds(self, slots: Int32) -> None:
        self.lists.set_thresholds(self.subscriptions, slots)

    def match(self, batch: MessageBatch, first_row: int = 0, most_hits: int = 1 << 21) -> Hits:
        """As `TopkEngine.match`; builds the trees that are due."""
        self.lists.settle(self.subscriptions)
        return super().match(batch, first_row, most_hits)

    def counters(self) -> dict[str, int]:
        """Postings read, and those that each rule has cut, since the engine was made.

        `postings` is what a flat scan would have read; `cells`, `groups` and `early_stop` are postings never read;
        `prefix` to `signature` are postings read and cut, each by the first rule in this order that could;
        `first_common` and `unseen` are pairs given up in verification; `nodes` are nodes tested.
        """
        return dict(zip(COUNTERS, self._counters.tolist(), strict=True))

    def _scan(self, batch, first_row, most_hits, slot, row, score):
        before = self._counters.copy()
        found, next_row = scan(
            self.subscriptions.columns, self.lists.view, batch, self.max_distance, self.pruning, self._counters,
            self.together, self._chunk, self.most_candidates, self.dense_slots, first_row, most_hits, slot, row, score,
        )  # fmt: skip
        done = self._counters - before
        return found, next_row, int(done[SCANNED]), int(done[VERIFIED])

    def arrays(self) -> dict[str, np.ndarray]:
        """All arrays, for figures of size: names prefixed `subscriptions_` and `lists_`, and the switches."""
        lists = {f"lists_{name}": value for name, value in self.lists.arrays().items()}
        return super().arrays() | lists | {"pruning": np.array(self.pruning, np.int64)}
