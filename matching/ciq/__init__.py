"""Parts of the index of conditional influence regions (CIQ) that do not depend on the score.

Chen, Cong, Cao and Tan, "Temporal Spatial-Keyword Top-k Publish/Subscribe", ICDE 2015, section IV: subscriptions are
associated with cells of a quadtree, by expected cost, and posted there in blocks that are skipped whole. Start in
`matching.ciq.celled_lists`; `matching.decay.engines.ciq` is the engine of the paper.
"""
