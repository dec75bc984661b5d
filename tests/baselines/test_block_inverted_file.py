"""Posting lists in blocks, whatever a block holds."""

import numpy as np
import pytest

from baselines.topk.block_inverted_file import BlockInvertedFile
from tests.support.topk_tables import brute_force, found_by, messages_of, table_of
from tests.support.worlds import SPACE

#: The first of an engine compiles it.
pytestmark = [pytest.mark.timeout(300), pytest.mark.wide]


@pytest.mark.parametrize("block", [1, 2, 5])
def test_block_inverted_file_any_block_size_finds_what_brute_force_finds(block, monkeypatch):
    rng = np.random.default_rng(block)
    index = BlockInvertedFile(SPACE)
    live = index.insert(table_of(rng, 0, 400, terms=20))
    for threshold in (0.5, -np.inf, 0.8):
        index.set_thresholds(live, threshold + 0.2 * rng.random(live.size))
        batch = messages_of(rng, 30, terms=22)
        assert found_by(index, batch) == brute_force(index.subscriptions, batch, live)
        gone, live = live[:: block + 1], np.setdiff1d(live, live[:: block + 1])
        index.remove(gone)
        assert found_by(index, batch) == brute_force(index.subscriptions, batch, live)
