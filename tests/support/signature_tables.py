"""Random claims and messages for the tests of signatures, and what is right: which message matters, by brute force."""

import numpy as np

from distribution.signatures.claims import Claims
from distribution.signatures.signature import QuerySignature, SignatureReplica, SignatureSpec
from distribution.signatures.spatial import whole_domain
from matching.kinds import KINDS
from matching.model import (
    ANY_KEYWORD,
    BOOLEAN,
    KEYWORDS_BY_KIND,
    NO_MESSAGES,
    SKYLINE,
    UNKNOWN_TERM,
    MessageBatch,
    Removals,
    SubscriptionTable,
)
from matching.operator import OperatorContext, OperatorInput, Regional, capable
from matching.space import Space
from matching.window import NO_FLOOR, Boundary, Window

SPACE = Space(-180.0, -90.0, 180.0, 90.0)
#: Coarse, so that cells and nodes are shared by many.
SMALL = SignatureSpec(SPACE, side=16, levels=3, rate=0.01, bins=16, most=12)


def random_subscriptions(
    seed: int, count: int, kinds=(BOOLEAN, SKYLINE), terms: int = 30, loose: float = 0.3
) -> SubscriptionTable:
    """Subscriptions with 0 to 3 keywords, on round degrees, a tenth across the antimeridian, some unknown words.

    `loose`: share of the boolean ones that want any of their keywords.
    """
    rng = np.random.default_rng([seed, 1])
    lon, lat = rng.integers(-18, 19, (2, count)) * 10.0, rng.integers(-9, 10, (2, count)) * 10.0
    region = np.stack([lon.min(0), lat.min(0), lon.max(0), lat.max(0)], axis=1)
    small = rng.random(count) < 0.7
    region[small, 2] = np.minimum(region[small, 0] + rng.integers(0, 3, int(small.sum())) * 5.0, 180.0)
    region[small, 3] = np.minimum(region[small, 1] + rng.integers(0, 3, int(small.sum())) * 5.0, 90.0)
    kind = rng.choice(kinds, count).astype(np.int8)
    turned = (rng.random(count) < 0.1) & (kind == BOOLEAN)
    region[turned, 0], region[turned, 2] = region[turned, 2].copy(), region[turned, 0].copy()
    offsets, flat = _texts(rng, count, 3, terms)
    unknown = np.flatnonzero((rng.random(count) < 0.1) & (np.diff(offsets) > 0) & (kind == BOOLEAN))
    flat[offsets[1:][unknown] - 1] = UNKNOWN_TERM
    nowhere, number = np.full(count, np.nan), np.arange(count)
    match = np.where((kind == BOOLEAN) & (rng.random(count) < loose), ANY_KEYWORD, KEYWORDS_BY_KIND).astype(np.int8)
    weights = np.ones(flat.shape[0], np.float32)
    no_k = np.zeros(count, np.int32)
    return SubscriptionTable(
        number, kind, number, nowhere, nowhere, region, match, no_k, nowhere, offsets, flat, weights
    )  # fmt: skip


def random_messages(seed: int, count: int, ranges: bool = False, terms: int = 30) -> MessageBatch:
    """Messages on round degrees, so that many lie on borders of cells and of regions; points unless `ranges`."""
    rng = np.random.default_rng([seed, 2])
    west, south = rng.integers(-36, 37, count) * 5.0, rng.integers(-18, 19, count) * 5.0
    east, north = west, south
    if ranges:
        east = np.minimum(west + rng.integers(0, 8, count) * 5.0, 180.0)
        north = np.minimum(south + rng.integers(0, 8, count) * 5.0, 90.0)
    offsets, flat = _texts(rng, count, 4, terms)
    seq, (x, y) = np.arange(count), SPACE.project(west, south)
    weights = np.ones(flat.shape[0], np.float32)
    return MessageBatch(seq, x, y, west, south, east, north, seq, offsets, flat, weights)


def _texts(rng, count: int, most: int, terms: int):
    rows = [np.sort(rng.choice(terms, rng.integers(0, most + 1), replace=False)) for _ in range(count)]
    offsets = np.concatenate([[0], np.cumsum([row.size for row in rows])]).astype(np.int64)
    return offsets, np.concatenate([np.zeros(0, np.int64), *rows]).astype(np.int32)


def matching(table: SubscriptionTable, messages: MessageBatch) -> np.ndarray:
    """bool[messages]: matched by some subscription, by the definitions alone."""
    found = np.zeros(len(messages), np.bool_)
    for row in range(len(table)):
        west, south, east, north = table.region[row]
        keywords = set(table.terms[table.term_offsets[row] : table.term_offsets[row + 1]].tolist())
        if not keywords:
            continue
        boxes = [(west, east)] if west <= east else [(west, 180.0), (-180.0, east)]
        for i in range(len(messages)):
            words = set(messages.terms[messages.term_offsets[i] : messages.term_offsets[i + 1]].tolist())
            every = table.kind[row] == BOOLEAN and table.match[row] != ANY_KEYWORD
            text = keywords <= words if every else bool(keywords & words)
            meets = any(low <= messages.east[i] and messages.west[i] <= high for low, high in boxes)
            found[i] |= text and meets and south <= messages.north[i] and messages.south[i] <= north
    return found


def in_touch(spec: SignatureSpec, domain=None) -> tuple[QuerySignature, SignatureReplica]:
    """A query task's signature and a distribution task's copy."""
    domain = whole_domain() if domain is None else domain
    return QuerySignature(spec, domain, 0), SignatureReplica(spec, domain)


def no_claims() -> Claims:
    return Claims(np.zeros((0, 4)), np.zeros(1, np.int64), np.zeros(0, np.int32))


def room_of_boolean() -> Regional:
    """An operator without subscriptions."""
    return capable(KINDS.named("boolean").make_operator(OperatorContext(SPACE, Window("count", 1))), Regional)


def change(operator: Regional, batch: int, added: SubscriptionTable, gone: np.ndarray) -> None:
    """Have an operator of `boolean` take the changes of a batch without messages."""
    added, rows = added.of_kind(BOOLEAN), gone.size
    removed = Removals(gone, np.full(rows, BOOLEAN, np.int8), np.zeros(rows, np.int64))
    home, held = np.zeros(len(added), np.int64), np.ones(len(added), np.bool_)
    operator.match(
        OperatorInput(Boundary(batch, 0, -1, NO_FLOOR), NO_MESSAGES, NO_MESSAGES, added, home, held, removed)
    )


def claims_in(operator: Regional, numbers: np.ndarray) -> Claims:
    """What those of these subscriptions claim that want all their keywords."""
    regions, terms = operator.claims(numbers)
    return Claims(regions, np.arange(terms.size + 1), terms)
