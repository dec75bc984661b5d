"""Rows of subscription files."""

from matching.vocabulary import Vocabulary

WORDS = Vocabulary.of_counts([{"ramen": 1, "soup": 2}, {"ramen": 1, "bar": 1}, {"ramen": 3}])


def topk(name, at=0, **more):
    return {
        "subscription_id": name,
        "kind": "topk",
        "keywords": "ramen",
        "lon": 1.0,
        "lat": 2.0,
        "k": 3,
        "alpha": 0.5,
        "at": at,
    } | more


def boolean(name, at=0, **more):
    return {
        "subscription_id": name,
        "kind": "boolean",
        "keywords": ["ramen", "soup"],
        "region": [0, 0, 1, 1],
        "at": at,
    } | more


def gone(name, at=0):
    return {"unsubscribe": name, "at": at}
