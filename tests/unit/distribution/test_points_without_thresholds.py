"""Routers and subscriptions with a point whose thresholds nobody tells them."""

import numpy as np
import pytest

from distribution.location import LocationRouter
from distribution.routers import ROUTERS, placeable
from matching.kinds import KINDS
from matching.model import KEYWORDS_BY_KIND, MessageBatch, Removals, SubscriptionTable
from matching.space import EARTH, Space

SPACE = Space(*EARTH)
POINTS = [kind for kind in KINDS.run if kind.place == "point" and not kind.replicated]
NOBODY = np.zeros(0, np.int64)


@pytest.mark.parametrize("kind", POINTS, ids=lambda kind: kind.name)
def test_location_router_sends_them_every_message_that_shares_a_keyword(kind):
    """However far it is: one far away may be the first."""
    rng = np.random.default_rng(3)
    x, y = rng.random(50), rng.random(50) * 0.5
    alpha = np.full(50, 0.5 if "alpha" in kind.fields else np.nan)
    nowhere, terms = np.full((50, 4), np.nan), (np.arange(50) % 2).astype(np.int32)
    table = SubscriptionTable(
        np.arange(50), np.full(50, kind.code, np.int8), np.zeros(50, np.int64), x, y, nowhere,
        np.full(50, KEYWORDS_BY_KIND, np.int8), np.full(50, 3, np.int32), alpha, np.arange(51), terms,
        np.ones(50, np.float32),
    )  # fmt: skip
    router = LocationRouter(3, SPACE, x, y)
    known = router.table()
    known.change(table, Removals(NOBODY, NOBODY.astype(np.int8), NOBODY))
    lon, lat = rng.uniform(-180, 180, 90), rng.uniform(-90, 90, 90)
    seq, words = np.arange(90), (np.arange(90) % 3).astype(np.int32)
    messages = MessageBatch(
        seq, *SPACE.project(lon, lat), lon, lat, lon, lat, seq, np.arange(91), words, np.ones(90, np.float32)
    )
    for task, rows in enumerate(known.route(messages)):
        mine = set(terms[router.assigned_to(table, task)].tolist())
        assert mine == {0, 1}
        assert rows.tolist() == [row for row in range(90) if words[row] in mine]


@pytest.mark.parametrize("kind", POINTS, ids=lambda kind: kind.name)
def test_routers_that_place_by_keyword_refuse_them_by_name(kind):
    refused = {name for name in ROUTERS if placeable(name, KINDS, kind.name, False) is not None}
    assert refused == {"keyword", "prefix"}
    assert placeable("keyword", KINDS, kind.name, False) == f"is of kind {kind.name}, which this router cannot place"
