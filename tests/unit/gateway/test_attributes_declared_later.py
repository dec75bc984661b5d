"""Attributes that are declared while a stream runs: from their seq on, in every life of the folder."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

import skyray
from gateway.live.recent_fields import RecentFields
from gateway.live.vocabulary_files import empty_start
from gateway.runs.verify import verify_run
from gateway.serve.writer import Declare, PublishedRow, Subscribe
from matching.attributes import NO_ATTRIBUTES, AttributeSchema, DeclaredAttribute, read_attributes
from matching.errors import InputError
from matching.validate import MESSAGE_ROLES
from tests.support.live_streams import Stream, digest_of_run
from tests.support.naive_conditions import values_as_of, where_holds
from tests.support.writing import WriterStream

SCHEMA = AttributeSchema.parse(["price:number", "house.type:category", "listed:time"])
TYPES = {"price": "number", "house.type": "category", "listed": "time"}
WHERE = {
    "price": [{"lte": 300}, 200, {"exists": False}, {"not": 100}],
    "house.type": ["house", ["flat", "boat"], {"not": "boat"}, {"exists": True}],
    "listed": [{"gte": "2020-01-04"}, {"lt": "2020-01-03"}],
}
PLACE = {"text": "sea", "lon": 1, "lat": 1}
REGION = {"kind": "boolean", "keywords": "sea", "region": [0, 0, 2, 2]}


def row_of(rng: np.random.Generator, number: int) -> dict:
    row = {"id": f"m{number}", "time": 1_577_836_800 + number, **PLACE, "price": float(rng.integers(0, 6)) * 100}
    row |= {"house": {"type": str(rng.choice(["house", "flat", "boat"]))}, "listed": f"2020-01-0{rng.integers(1, 9)}"}
    return {name: value for name, value in row.items() if name not in TYPES or rng.random() < 0.8}


def query_of(rng: np.random.Generator, number: int, most: int) -> dict:
    """A subscription that names one of the first `most` attributes; of ranked kinds every third."""
    name = list(TYPES)[int(rng.integers(most))]
    row = {"subscription_id": f"s{number}", "where": {name: WHERE[name][int(rng.integers(len(WHERE[name])))]}}
    if number % 3:
        return row | REGION
    place = {"keywords": "sea", "lon": 1.5, "lat": 1.5, "k": 3}
    return row | place | ({"kind": "knn"} if number % 2 else {"kind": "topk", "alpha": 0.5})


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_attributes_declared_by_conditions_are_exact_through_kills_and_with_other_bolts(tmp_path, seed):
    rng, out = np.random.default_rng(seed), tmp_path / "out"
    out.mkdir()
    number, queries, matches, declared_at, report = 0, [], set(), {}, None
    for life in range(3):
        bolts = {"query_bolts": int(rng.integers(1, 4)), "distribution_bolts": int(rng.integers(1, 3))}
        start = empty_start(out)
        stream = Stream(start, out, world="-20,-20,20,20", window="count:40", checkpoint_every=0.02, **bolts)
        assert [one.name for one in stream.gate.vocabulary.attributes.attributes] == list(declared_at)
        for turn in range(100):
            if turn > 10 and rng.random() < 0.3:
                queries.append(query_of(rng, len(queries), life + 1))
                stream.take({"subscribe": queries[-1]})
                for one in stream.gate.vocabulary.attributes.attributes:
                    declared_at.setdefault(one.name, number)
            else:
                row = row_of(rng, number)
                stream.take(row)
                read = dict(zip(TYPES, read_attributes(row, SCHEMA).values, strict=True))
                values = values_as_of(read, declared_at, number)
                matches |= {
                    (one["subscription_id"], row["id"])
                    for one in queries
                    if one["kind"] == "boolean" and where_holds(one["where"], TYPES, values)
                }
                number += 1
            if rng.random() < 0.1:
                stream.pipe.close_batch()
        stream.pipe.close_batch()
        assert not stream.refused, stream.refused
        if life == 1:
            stream.journal.close()  # killed before any of it is matched
        else:
            report = stream.match()
    assert len(declared_at) == 3 and len(set(declared_at.values())) == 3
    digest = stream.finish(report)
    told = [row for row in pq.read_table(out / "updates").to_pylist() if row["change"] == "match"]
    assert len(told) == len(matches) > 100
    assert {(row["subscription_id"], row["message_id"]) for row in told} == matches
    for plain in (False, True):
        verdict = verify_run(out, plain=plain)
        assert verdict.exact and sum(verdict.delivered_updates.values()) > 150, verdict.render()
    assert digest_of_run(out, out / "again") == digest


@pytest.mark.ray
@pytest.mark.long  # `test_filters.py` runs attributes on Ray, the test before this one other bolts
def test_attributes_declared_later_are_the_same_on_ray_with_other_bolts(tmp_path):
    rng, out = np.random.default_rng(5), tmp_path / "out"
    out.mkdir()
    stream = Stream(empty_start(out), out, world="-20,-20,20,20", window="count:40")
    for turn in range(120):
        if turn in (20, 40, 60, 80):
            for number in range(turn // 10, turn // 10 + 3):
                stream.take({"subscribe": query_of(rng, number, turn // 20)})
        stream.take(row_of(rng, turn))
        if turn % 15 == 0:
            stream.pipe.close_batch()
    stream.pipe.close_batch()
    assert not stream.refused and len(stream.gate.vocabulary.attributes) > 1
    digest = stream.finish(stream.match())
    assert len(stream.told) > 50
    again = {"executor": "ray", "query_bolts": 3, "tuple_bolts": 2, "world": "-20,-20,20,20"}
    assert digest_of_run(out, out / "again", **again) == digest


def lines(*rows: dict) -> list[PublishedRow]:
    return [PublishedRow(json.dumps(row).encode()) for row in rows]


def test_attribute_declared_by_request_takes_effect_at_its_seq_and_stays(tmp_path):
    out = tmp_path / "out"
    priced = {"subscription_id": "s", **REGION, "where": {"price": {"lte": 5}}}
    many = [{"id": f"n{number}", **PLACE, "price": number} for number in range(10)]
    with WriterStream(out) as stream:
        first = stream.submit(*lines({"id": "a", **PLACE, "price": 3}))
        declared = stream.submit(
            Declare(DeclaredAttribute.parse("price:number")), Declare(DeclaredAttribute.parse("price:time"))
        )
        again = stream.submit(
            Declare(DeclaredAttribute.parse("price:number")), *lines({"id": "b", **PLACE, "price": "VB"})
        )
        read_together = stream.submit(*lines(*many))
        subscribed = stream.submit(Subscribe(priced))
        stream.writer.begin()
        stream.end()
        assert declared[0] == {"status": "created", "name": "price", "type": "number", "from_seq": 1}
        assert (declared[1]["reason"], declared[1]["value"]) == ("attribute_exists", "time")
        assert again[0] == {"status": "unchanged", "name": "price", "type": "number"}
        assert "warnings" not in first[0] and again[1]["warnings"][0]["column"] == "price"
        assert len(read_together) == 10 and subscribed[0]["status"] == "created"
        (record,) = stream.records()
        assert record.admitted.attributes == ("price:number",) and record.block is not None
        values = [one.attributes for one in record.block.messages()]
        assert values == [(None,), (None,), *((float(number),) for number in range(10))]
    with WriterStream(out) as stream:
        assert str(stream.admission.vocabulary.attributes.attributes[0]) == "price:number"
        # sent again, a message of before and one of after are what they were
        found = stream.submit(*lines({"id": "a", **PLACE, "price": 3}, many[2], many[2] | {"price": 3}))
        alone = stream.submit(Declare(DeclaredAttribute.parse("size=house.size:number")))
        stream.writer.begin()
        stream.end()
        assert [one["status"] for one in found] == ["duplicate", "duplicate", "refused"]
        assert alone[0]["from_seq"] == 12 and stream.records()[-1].admitted.attributes == ("size=house.size:number",)
    with WriterStream(out) as stream:
        names = [str(one) for one in stream.admission.vocabulary.attributes.attributes]
        assert names == ["price:number", "size=house.size:number"] and len(stream.registry) == 1


def test_row_without_id_has_the_same_id_before_and_after_a_declaration(tmp_path):
    rows = [{**PLACE, "price": price} for price in (1, 2)]
    with WriterStream(tmp_path / "out") as stream:
        before = stream.submit(*lines(*rows))
        stream.submit(Declare(DeclaredAttribute.parse("price:number")))
        after, together = stream.submit(*lines(*rows)), stream.submit(*lines(*(rows * 5)))
        stream.writer.begin()
        stream.end()
    assert len({one["id"] for one in (*before, *after, *together)}) == 1


def test_condition_on_what_no_recent_message_has_is_refused_with_what_to_do(tmp_path):
    out = tmp_path / "out"
    with WriterStream(out) as stream:
        stream.submit(*lines({"id": "a", **PLACE, "price": 3, "rooms": 2}))
        bad = REGION | {"region": [0, 3, 1, 2], "where": {"price": 3}}
        wanted = [{"prise": 3}, {"beds": 2}, {"price": {"lt": "x"}}, {"rooms": 2}, {"prices": 3}]
        rows = [REGION | {"where": where} for where in wanted]
        found = stream.submit(*(Subscribe(row | {"subscription_id": f"s{n}"}) for n, row in enumerate([bad, *rows])))
        stream.writer.begin()
        stream.end()
        reasons = [one.get("reason") for one in found]
        unknown = "unknown_attribute"
        assert reasons == ["bad_region", unknown, unknown, "bad_attribute", None, unknown]
        assert "did you mean price?" in found[1]["detail"] and "PUT /v1/stream/attributes" in found[2]["detail"]
        assert all(one["column"] == "where" for one in found if one.get("reason") == unknown)
        # what a refused one has named is not declared
        assert [str(one) for one in stream.admission.vocabulary.attributes.attributes] == ["rooms:number"]


def test_engine_declares_what_a_condition_names_first():
    engine = skyray.Engine()
    with pytest.raises(InputError, match="no recent message has it"):
        engine.subscribe(REGION | {"subscription_id": "s", "where": {"price": {"lte": 5}}})
    rows = [{**PLACE, "id": f"m{price}", "price": price} for price in (3, 4, 9)]
    engine.publish(rows)
    engine.subscribe(REGION | {"subscription_id": "s", "where": {"price": {"lte": 5}}})
    engine.subscribe({"subscription_id": "t", "kind": "topk", "keywords": "sea", "lon": 1, "lat": 1, "k": 9,
                      "alpha": 0.5, "where": {"price": {"exists": False}}})  # fmt: skip
    told = engine.publish([row | {"id": f"n{row['price']}"} for row in rows])
    of_window = {one["message_id"] for one in told if one["subscription_id"] == "t"}
    assert [one["message_id"] for one in told if one["subscription_id"] == "s"] == ["n3", "n4"]
    assert of_window == {"m3", "m4", "m9"}, "of earlier messages it is missing"
    assert "price" in engine.explain("s", "seq:0")["why"]


def test_recent_fields_have_types_shares_and_are_bounded():
    recent = RecentFields(["lang"])
    for number in range(40):
        row = {**PLACE, "price": "VB" if number % 20 == 0 else number, "state": f"s{number}", "more": {"beds": "3"}}
        row["lang"] = "de"
        recent.note(row | ({"made": "2020-01-04"} if number % 2 else {"made": None}), MESSAGE_ROLES, NO_ATTRIBUTES)
    found = {one["name"]: one for one in recent.report(NO_ATTRIBUTES, True)}
    assert {name: (one["type"], one["share"]) for name, one in found.items()} == {
        "price": ("number", 1.0), "state": ("category", 1.0), "more.beds": ("number", 1.0), "made": ("time", 0.5),
    }  # fmt: skip
    assert str(recent.attribute("lang")) == "lang:category", "a where may name it"
    assert found["state"]["samples"] == ["'s37'", "'s38'", "'s39'"]
    assert "samples" not in recent.report(NO_ATTRIBUTES, False)[0]
    assert [one["name"] for one in recent.report(AttributeSchema.parse(["price:number"]), False)] == [
        "state", "more.beds", "made",
    ]  # fmt: skip
    for number in range(5_000):
        recent.note({f"field{number}": "x" * 5_000, "y" * 500: 1}, MESSAGE_ROLES, NO_ATTRIBUTES)
    assert len(recent.names) <= 256 and max(map(len, recent.names)) <= 64
    assert all(len(one) <= 40 for row in recent.report(NO_ATTRIBUTES, True) for one in row["samples"])
    for _ in range(20_000):
        recent.note({"new": 1}, MESSAGE_ROLES, NO_ATTRIBUTES)
    assert not any(name.startswith("field") for name in recent.names), "old ones fade"
    assert str(recent.attribute("new")) == "new:number"
