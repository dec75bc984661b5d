"""Filters in live streams: attributes of lines, words of `not_keywords` that come later, several lives of a folder."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

import skyray
from gateway.live.vocabulary_files import empty_start
from gateway.runs.verify import verify_run
from matching.attributes import AttributeSchema, read_attributes
from matching.errors import ConfigError, InputError
from matching.kinds import KINDS
from matching.naive_shapes import in_circle, unit_vector
from matching.skyline.windows.grid import GridWindow
from tests.support.live_streams import Stream, digest_of_run, read_table
from tests.support.naive_conditions import query_holds, where_holds, words_hold
from tests.support.processes import Command

ATTRIBUTES = ["price:number", "type=house.type:category", "listed:time"]
TYPES = {"price": "number", "type": "category", "listed": "time"}
WORDS = ["garden", "garage", "quiet", "sea", "old"]


def random_row(rng: np.random.Generator, number: int) -> dict:
    """A message; a third of its attributes are missing. Later ones have words that no earlier one had."""
    words = [*WORDS, *(f"late{late}" for late in range(number // 20))]
    row = {"id": f"m{number}", "text": " ".join(rng.choice(words, 3)), "time": 1_577_836_800 + number}
    row |= {"lon": float(rng.integers(-5, 6)), "lat": float(rng.integers(-5, 6))}
    if rng.random() < 0.7:
        row["price"] = float(rng.integers(0, 6)) * 100
    if rng.random() < 0.7:
        row["house"] = {"type": str(rng.choice(["house", "flat", "boat"]))}
    if rng.random() < 0.7:
        row["listed"] = f"2020-01-0{rng.integers(1, 9)}"
    return row


def random_query(rng: np.random.Generator, number: int, kind) -> dict:
    row = {"subscription_id": f"s{number}", "kind": kind.name, "match": [1, 2, "any"][int(rng.integers(3))]}
    row["keywords"] = rng.choice([*WORDS, "late0", "late1"], 3, replace=False).tolist()
    row["not_keywords"] = rng.choice(["late0", "late2", "old", "never"], 1).tolist()
    where = {}
    if rng.random() < 0.6:
        where["price"] = [{"lte": 300}, {"gt": 100}, 200, {"exists": False}][int(rng.integers(4))]
    if rng.random() < 0.6:
        where["type"] = ["house", ["flat", "boat"], {"not": "boat"}, "castle"][int(rng.integers(4))]
    if rng.random() < 0.3:
        where["listed"] = {"gte": "2020-01-04"}
    row["where"] = where
    if rng.random() < 0.5:
        row["query"] = random_tree(rng)
    place = {"lon": float(rng.integers(-5, 6)), "lat": float(rng.integers(-5, 6))}
    if "circle" in kind.shapes:
        return row | {"circle": {**place, "radius_m": float(rng.integers(2, 9)) * 1e5}}
    if kind.place == "region":
        return row | {"region": [-4, -4, 5, 5]}
    row |= place | {"k": int(rng.integers(1, 4))}
    row |= {"radius_m": 6e5} if "radius_m" in kind.shapes else {}
    return row | ({"alpha": float(rng.random())} if "alpha" in kind.fields else {})


def random_tree(rng: np.random.Generator) -> dict:
    """A query, of which every match has a word, so that all kinds take it; new words among the others."""
    words = rng.choice([*WORDS, "late0", "late1", "late2"], 5).tolist()
    tree: dict = {"any": [{"all": words[:2]}, words[2]], "none": [words[3]]}
    if rng.random() < 0.5:
        tree["all"] = [{"any": [words[4], {"where": {"price": {"gte": 200}}}]}]
    if rng.random() < 0.5:
        phrase = f'"{words[0]} {words[4]}"' + str(rng.choice(["", "~1"]))
        tree["all"] = [*tree.get("all", []), {"any": [phrase, words[1]]}]
    if rng.random() < 0.5:  # words that begin so come later, too
        beginning = str(rng.choice(["ga*", "late*", "late1*", "gard*"]))
        tree = [{"all": [{"any": [beginning, words[0]]}, tree]}, tree | {"none": [beginning]}][int(rng.integers(2))]
    return tree


def fits(query: dict, row: dict) -> bool:
    """Whether a message matches a boolean subscription, from the two as they were written."""
    read = dict(zip(TYPES, read_attributes(row, AttributeSchema.parse(ATTRIBUTES)).values, strict=True))
    words = set(row["text"].split())
    place, circle = unit_vector(row["lon"], row["lat"]), query["circle"]
    return (
        where_holds(query["where"], TYPES, read)
        and words_hold(query["match"], query["keywords"], query["not_keywords"], words)
        and query_holds(query.get("query", {}), TYPES, read, row["text"].split())
        and in_circle(place, unit_vector(circle["lon"], circle["lat"]), circle["radius_m"])
    )


@pytest.mark.parametrize("seed", range(3))
def test_live_filters_are_exact_through_kills_and_with_other_bolts(tmp_path, seed):
    rng, out = np.random.default_rng(seed), tmp_path / "out"
    out.mkdir()
    kinds = [kind for kind in KINDS.run for _ in range(3 if kind.name == "boolean" else 1)]
    number, queries, matches, report = 0, [], set(), None
    for life in range(3):
        bolts = {"query_bolts": int(rng.integers(1, 4)), "distribution_bolts": int(rng.integers(1, 3))}
        start = empty_start(out, ATTRIBUTES)
        stream = Stream(start, out, world="-20,-20,20,20", window="count:40", checkpoint_every=0.02, **bolts)
        for _ in range(120):
            if rng.random() < 0.3:
                queries.append(random_query(rng, len(queries), kinds[int(rng.integers(len(kinds)))]))
                stream.take({"subscribe": queries[-1]})
            else:
                row = random_row(rng, number)
                stream.take(row)
                matches |= {
                    (one["subscription_id"], row["id"]) for one in queries if "circle" in one and fits(one, row)
                }
                number += 1
            if rng.random() < 0.1:
                stream.pipe.close_batch()
        stream.pipe.close_batch()
        assert not stream.refused
        if life == 1:
            stream.journal.close()  # killed before any of it is matched
        else:
            report = stream.match()
    digest = stream.finish(report)
    told = [row for row in pq.read_table(out / "updates").to_pylist() if row["change"] == "match"]
    assert len(told) == len(matches) > 60
    assert {(row["subscription_id"], row["message_id"]) for row in told} == matches
    for plain in (False, True):
        verdict = verify_run(out, plain=plain)
        assert verdict.exact and sum(verdict.delivered_updates.values()) > 250 and len(verdict.subscriptions) == 5
    assert digest_of_run(out, out / "again") == digest


def test_live_attributes_are_checked_and_named_by_the_stream(tmp_path):
    out, source = tmp_path / "out", tmp_path / "lines.jsonl"
    place = {"lon": 1, "lat": 1}
    rows = [
        {"subscribe": {"subscription_id": "s", "kind": "boolean", "keywords": "sea", "region": [0, 0, 2, 2],
                       "where": {"price": {"lt": 3}}}},
        {"subscribe": {"subscription_id": "t", "kind": "boolean", "keywords": "sea", "region": [0, 0, 2, 2],
                       "where": {"size": 3}}},
        {"text": "sea", "price": "2.5", **place},
        {"text": "sea", "price": 4, **place},
        {"text": "sea", "price": [2], **place},
    ]  # fmt: skip
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with (
        open(source) as file,
        Command(["live", "--attribute", "price:number", "--out", out, "--json"], source=file.fileno()) as command,
    ):
        code, told, said = command.finish(120)
    assert code == 0, said
    assert "reason=unknown_attribute" in said and "event=taken_without line=5 warnings=" in said and "no number" in said
    assert '"misfits":{"price":1}' in said.replace(" ", "")
    updates = [row for row in map(json.loads, told.splitlines()) if "change" in row]
    assert [row["seq"] for row in updates] == [0]
    assert len({row["message_id"] for row in read_table(out, "message_id").to_pylist()}) == 3
    with pytest.raises(ConfigError, match="was begun with price:number attributes"):
        empty_start(out, ["price:category"])


def test_engine_window_index_without_filters_refuses_the_subscription_alone(monkeypatch):
    row = {"subscription_id": "s", "kind": "skyline", "keywords": "sea", "region": [0, 0, 2, 2]}
    monkeypatch.setattr(GridWindow, "serves_filters", False)  # as `mf_rtree`, which takes 25 seconds to compile
    engine = skyray.Engine()
    engine.subscribe(row)
    with pytest.raises(InputError, match="skyline=grid.; no other serves them") as refused:
        engine.subscribe(row | {"subscription_id": "t", "not_keywords": "storm"})
    assert refused.value.reason_code == "filter_not_served" and engine.subscriptions == ["s"]
    assert [one["change"] for one in engine.publish({"text": "sea storm", "lon": 1, "lat": 1})] == ["enter"]


def test_engine_filters_by_attributes_and_words_that_come_later():
    engine = skyray.Engine(attributes=["price:number"])
    row = {
        "subscription_id": "s",
        "kind": "knn",
        "keywords": "sea",
        "not_keywords": "storm",
        "lon": 0,
        "lat": 0,
        "k": 1,
    }
    engine.subscribe(row | {"where": {"price": {"lte": 10}}, "radius_m": 200_000})
    place = {"lon": 1, "lat": 1}
    lines = [{"text": "sea storm", "price": 1}, {"text": "sea", "price": 20}, {"text": "sea", "price": 10}]
    assert [one["seq"] for one in engine.publish([line | place for line in lines])] == [2]
    assert engine.publish({"text": "sea", "price": 1, "lon": 0.5, "lat": 2}) == [], "222 km away"
    assert "storm" in engine.explain("s", "seq:0")["why"] and "price is 20" in engine.explain("s", "seq:1")["why"]
    assert engine.explain("s", "seq:3")["reason"] == "outside_circle"
    with pytest.raises(InputError, match="unknown_attribute|names an attribute"):
        engine.subscribe(row | {"where": {"beds": 2}})
