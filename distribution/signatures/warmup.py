"""Compile every kernel of the signatures before the stream starts; `topology.warmup` calls it."""

import numpy as np

from distribution import splitting, targets
from distribution.signatures.claims import claims_of
from distribution.signatures.cuckoo import CuckooFilter
from distribution.signatures.signature import TEXT_FILTERS, QuerySignature, SignatureReplica, SignatureSpec
from distribution.signatures.spatial import CellCounts, CellNumbering, region_boxes, whole_domain
from matching.kinds import KINDS
from matching.model import KEYWORDS_BY_KIND, MessageBatch, SubscriptionTable
from matching.space import EARTH, Space
from matching.storage.slots import as_input

_ROWS = 40


def warmup() -> None:
    """Compile, or load from the cache, every kernel: a signature is made, sent as patches, and emptied."""
    spec = SignatureSpec(Space(*EARTH), side=16, levels=2, bins=8, most=4)
    messages, claims = _messages(), claims_of(_subscriptions())
    nothing = claims.take(np.zeros(0, np.int64))
    place, rows, passed = (messages.x, messages.y), np.arange(_ROWS), np.zeros(_ROWS, np.bool_)
    targets.warmup()
    splitting.warmup()
    for text in TEXT_FILTERS:
        for spatial in ("bitmap", "cuckoo"):
            chosen = spec._replace(spatial_filter=spatial, text_filter=text)
            signature = QuerySignature(chosen, whole_domain(), 0)
            replica = SignatureReplica(chosen, whole_domain())
            replica.note(0, claims)
            replica.may_match(messages)
            replica.pass_points(messages, *place, rows, passed)
            signature.change(claims, nothing)
            for through in range(2):
                patch = signature.patch(through, noted=True)
                assert patch is not None, "a patch is due when something was noted"
                replica.apply(patch)
                signature.change(nothing, claims.take(np.arange(_ROWS // 2)) if through == 0 else nothing)
            replica.may_match(messages)
            replica.pass_points(messages, *place, rows, passed)
    together = CellCounts(CellNumbering(1, whole_domain()))
    together.add(region_boxes(spec.space, claims.region, 1))
    small = CuckooFilter(8)  # for 100 items, so that it evicts
    fitted = small.insert(as_input(np.arange(100), np.int64))
    small.delete(np.arange(fitted))


def _messages() -> MessageBatch:
    seq = np.arange(_ROWS)
    lon, lat = np.linspace(-160.0, 160.0, _ROWS), np.linspace(-70.0, 70.0, _ROWS)
    x, y = Space(*EARTH).project(lon, lat)
    terms = np.arange(_ROWS, dtype=np.int32)
    weights = np.ones(_ROWS, np.float32)
    return MessageBatch(seq, x, y, lon, lat, lon, lat, seq, np.arange(_ROWS + 1), terms, weights)


def _subscriptions() -> SubscriptionTable:
    lon, lat = np.linspace(-160.0, 160.0, _ROWS), np.linspace(-70.0, 70.0, _ROWS)
    nowhere, number = np.full(_ROWS, np.nan), np.arange(_ROWS)
    region = np.stack([lon, lat, lon + 10.0, lat + 10.0], axis=1)
    kind = np.full(_ROWS, np.argmax(KINDS.traits.region), np.int8)
    terms, weights = np.arange(_ROWS, dtype=np.int32), np.ones(_ROWS, np.float32)
    match, no_k = np.full(_ROWS, KEYWORDS_BY_KIND, np.int8), np.zeros(_ROWS, np.int32)
    return SubscriptionTable(
        number, kind, number, nowhere, nowhere, region, match, no_k, nowhere, np.arange(_ROWS + 1), terms, weights
    )  # fmt: skip
