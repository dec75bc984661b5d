"""Engine `skype_paper` against brute force: any leaf and group, any rules, thresholds up and down; and broken."""

import numpy as np
import pytest

from papers.skype import skype_paper
from papers.skype.skype_paper import PaperRules, SkypePaper
from tests.support.topk_tables import brute_force, found_by, messages_of, table_of
from tests.support.worlds import SPACE

#: The first of an engine compiles it.
pytestmark = pytest.mark.wide

_RULES = [PaperRules(), *(PaperRules()._replace(**{rule: False}) for rule in PaperRules._fields)]


def differences(index: SkypePaper, seed: int) -> int:
    """Hits that brute force has and the index lacks, or the other way round, while everything changes."""
    rng, wrong = np.random.default_rng(seed), 0
    live = index.insert(table_of(rng, 0, 600, terms=20))
    for turn, threshold in enumerate((0.5, 0.7, 0.3, -np.inf, 0.6)):
        index.set_thresholds(live, threshold + 0.3 * rng.random(live.size))
        some = live[rng.random(live.size) < 0.2]
        index.set_thresholds(some, -np.inf)
        index.set_thresholds(some[::2], 0.8)
        batch = messages_of(rng, 40, terms=22)
        wrong += found_by(index, batch) != brute_force(index.subscriptions, batch, live)
        gone, live = live[::5], np.setdiff1d(live, live[::5])
        index.remove(gone)
        live = np.append(live, index.insert(table_of(rng, 1_000 * (turn + 1), 90, terms=20)))
        wrong += found_by(index, batch) != brute_force(index.subscriptions, batch, live)
    return wrong


@pytest.mark.parametrize("rules", _RULES, ids=["all", *(f"no_{rule}" for rule in PaperRules._fields)])
@pytest.mark.parametrize(("leaf", "group"), [(1, 1), (40, 3), (1_000, 64)])
def test_skype_paper_finds_what_brute_force_finds_and_each_rule_cuts(rules, leaf, group):
    index = SkypePaper(SPACE, rules, leaf, group)
    assert differences(index, leaf) == 0
    counted = index.counters()
    names = {"cells": "cells", "groups": "groups", "early_stop": "early_stop", "prefix": "prefix", "unseen": "unseen"}
    if group == 3:
        assert all((counted[count] > 0) == getattr(rules, rule) for rule, count in names.items())


def test_skype_paper_that_forgets_to_lower_bounds_is_found_out(monkeypatch):
    monkeypatch.setattr(SkypePaper, "_apply_thresholds", lambda index, slots: None)
    assert differences(SkypePaper(SPACE, None, 40, 3), 40) > 0


def test_skype_paper_in_small_columns_finds_the_same(monkeypatch):
    rng = np.random.default_rng(7)
    index = SkypePaper(SPACE, None, 40, 3)
    index._hits.columns = [column[:8].copy() for column in index._hits.columns]
    live = index.insert(table_of(rng, 0, 300, terms=20))
    batch = messages_of(rng, 30, terms=22)
    assert found_by(index, batch) == brute_force(index.subscriptions, batch, live)
    assert skype_paper.SkypePaperTrees(SPACE).pruning.early_stop
