"""Messages without text, numbers with marks and units, lists of categories, and conditions that cannot hold."""

import json

import pyarrow.parquet as pq
import pytest

import skyray
from gateway.live.vocabulary_files import empty_start
from gateway.runs.verify import verify_run
from gateway.serve.writer import PublishedRow, Subscribe
from matching.attributes import NUMBER, AttributeSchema, attribute_value
from matching.errors import ConfigError, InputError
from tests.support.live_streams import Stream, digest_of_run, read_table
from tests.support.naive_conditions import where_holds
from tests.support.writing import WriterStream

REGION = {"kind": "boolean", "region": [0, 0, 2, 2]}
POINT = {"lon": 1, "lat": 1}


def lines(*rows: dict) -> list[PublishedRow]:
    return [PublishedRow(json.dumps(row).encode()) for row in rows]


TEXTS = [{"text": ""}, {"text": " "}, {"text": None}, {}]


def test_message_without_text_is_visible_at_every_door(tmp_path):
    rows = [{"id": f"m{n}", **POINT, **TEXTS[n % 4], "price": n} for n in range(40)]
    cheap = {"subscription_id": "cheap", **REGION, "where": {"price": {"lt": 20}}}
    near = {"subscription_id": "near", "kind": "knn", **POINT, "k": 3}
    worded = {"subscription_id": "worded", **REGION, "keywords": "bike"}
    with WriterStream(tmp_path / "served", attributes=["price:number"]) as stream:
        found = stream.submit(*lines(*rows), *lines({"body": "", **POINT}, {"text": "", "body": "bike", **POINT}))
        stream.writer.begin()
        stream.end()
        assert [one["status"] for one in found] == ["accepted"] * 42
        assert stream.writer.batching.reader.sure > 0
    (out := tmp_path / "live").mkdir()
    live = Stream(empty_start(out, ["price:number"]), out, world="earth")
    for row in (cheap, near, worded):
        live.take({"subscribe": row})
    for row in rows:
        live.take(row)
    live.pipe.close_batch()
    live.finish(live.match())
    assert verify_run(out).exact and not live.refused
    told = {(one["subscription_id"], one["message_id"]) for one in live.told}
    assert {name for owner, name in told if owner == "cheap"} == {f"m{n}" for n in range(20)}
    assert sum(owner == "near" for owner, _ in told) == 3 and not any(owner == "worded" for owner, _ in told)
    engine = skyray.Engine(attributes=["price:number"])
    engine.subscribe(cheap)
    assert [one["message_id"] for one in engine.publish(rows)] == [f"m{n}" for n in range(20)]


@pytest.mark.parametrize(
    ("form", "text", "number"),
    [
        ("comma", "1.200,00", 1200.0),
        ("comma", "284 €", 284.0),
        ("comma", "€\u00a01.200,-", 1200.0),
        ("comma", "EUR 1 200,5", 1200.5),
        ("comma", "-3", -3.0),
        ("comma", "85 m²", 85.0),
        ("comma", "1.200.300", 1200300.0),
        ("comma", "12.50", None),
        ("comma", "VB", None),
        ("comma", "284 - 300", None),
        ("point", "$1,200.50", 1200.5),
        ("point", "CHF 1'200", 1200.0),
        ("point", "1.200,50", None),
        ("plain", "1200.5", 1200.5),
        ("plain", "284 €", None),
        ("plain", "1,200.50", None),
    ],
)
def test_number_is_read_in_the_form_of_the_stream_and_no_other(form, text, number):
    if number is None:
        with pytest.raises(ValueError, match="number"):
            attribute_value(NUMBER, text, form)
    else:
        assert attribute_value(NUMBER, text, form) == number


def test_numbers_of_a_stream_have_the_form_of_its_option(tmp_path):
    rows = [{"id": f"m{n}", "text": "a", **POINT, "price": ["1.200,00 €", 5, "VB", "7"][n % 4]} for n in range(20)]
    with WriterStream(tmp_path / "out", attributes=["price:number"], numbers="comma") as stream:
        found = stream.submit(*lines(*rows))
        stream.writer.begin()
        stream.end()
        (record,) = stream.records()
        assert record.block is not None
        assert [one.attributes[0] for one in record.block.messages()] == [1200.0, 5.0, None, 7.0] * 5
        assert sum("warnings" in one for one in found) == 5
    with pytest.raises(ConfigError, match="choose one of plain, point, comma"):
        AttributeSchema.parse(["price:number"], "de")
    engine = skyray.Engine(attributes=["price:number"], numbers="point")
    engine.subscribe({"subscription_id": "s", **REGION, "where": {"price": 1200.5}})
    assert len(engine.publish({"text": "a", **POINT, "price": "$1,200.50"})) == 1


WHERE = [
    {"tags": "sea"}, {"tags": ["sea", "lift"]}, {"tags": {"any": ["garden"]}}, {"tags": {"all": ["sea", "garden"]}},
    {"tags": {"none": ["lift", "sea"]}}, {"tags": {"not": "garden"}}, {"tags": {"exists": False}},
    {"tags": {"all": ["sea"], "none": "lift"}, "price": {"lte": 5}},
]  # fmt: skip
TAGS = [["sea"], ["sea", "garden"], ["garden", "lift", "sea"], "lift", [], None, ["lift", "", " ", None], ["x"] * 20]


def test_lists_of_categories_are_matched_as_the_oracle_says_in_every_life(tmp_path):
    (out := tmp_path / "out").mkdir()
    types, expected, number = {"tags": "categories", "price": "number"}, set(), 0
    wanted = [{"subscription_id": f"s{n}", **REGION, "where": where} for n, where in enumerate(WHERE)]
    nearest = {
        "subscription_id": "top",
        "kind": "topk",
        **POINT,
        "k": 4,
        "where": {"tags": {"any": ["garden", "lift"]}},
    }
    for life in range(2):
        start = empty_start(out, ["tags:categories", "price:number"])
        stream = Stream(start, out, world="earth", window="count:12", checkpoint_every=0.02, query_bolts=1 + life)
        for row in (*wanted, nearest) if life == 0 else ():
            stream.take({"subscribe": row})
        for _ in range(24):
            tags = TAGS[number % len(TAGS)]
            row = {"id": f"m{number}", "text": "flat", **POINT, "price": number % 10, "tags": tags}
            stream.take(row)
            members = [tags] if isinstance(tags, str) else [one for one in tags or () if one and one.strip()]
            values = {"tags": set(members) or None, "price": float(number % 10)}
            expected |= {
                (one["subscription_id"], row["id"]) for one in wanted if where_holds(one["where"], types, values)
            }
            number += 1
        stream.pipe.close_batch()
        assert not stream.refused
        digest = stream.finish(stream.match())
    assert len(expected) > 100
    found = read_table(out, "attribute_tags").to_pylist()
    assert found[1]["attribute_tags"] == ["sea", "garden"] and found[4]["attribute_tags"] is None
    verdict = verify_run(out)
    assert verdict.exact, verdict.render()
    told = {
        (one["subscription_id"], one["message_id"])
        for part in (out / "updates").glob("*.parquet")
        for one in pq.read_table(part).to_pylist()
        if one["change"] == "match"
    }
    assert told == expected
    assert digest_of_run(out, out / "again") == digest


def test_list_that_is_too_long_or_has_an_object_is_a_misfit(tmp_path):
    rows = [{"id": f"m{n}", "text": "a", **POINT, "tags": [f"t{one}" for one in range(15 + n)]} for n in range(4)]
    rows.append({"id": "object", "text": "a", **POINT, "tags": [{"a": 1}]})
    with WriterStream(tmp_path / "out", attributes=["tags:categories"]) as stream:
        found = stream.submit(*lines(*rows * 1), *lines(*({**row, "id": row["id"] + "b"} for row in rows)))
        stream.writer.begin()
        stream.end()
        assert ["warnings" in one for one in found] == [False, False, True, True, True] * 2


def test_tags_that_messages_have_are_declared_as_lists_by_the_first_condition():
    engine = skyray.Engine()
    engine.publish({"text": "a", **POINT, "tags": ["sea"], "state": "new"})
    engine.subscribe({"subscription_id": "s", **REGION, "where": {"tags": {"all": ["sea", "lift"]}, "state": "new"}})
    rows = [{"id": str(n), "text": "a", **POINT, "tags": tags, "state": "new"} for n, tags in enumerate(TAGS[:4])]
    rows.append({"id": "both", "text": "a", **POINT, "tags": ["lift", "sea"], "state": "new"})
    assert [one["message_id"] for one in engine.publish(rows)] == ["2", "both"]
    assert "tags" in engine.explain("s", "seq:1")["why"]


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ({"price": {"gte": 9, "lte": 5}}, "gte 9, lte 5"),
        ({"price": {"gt": 5, "lt": 5}}, "gt 5, lt 5"),
        ({"price": {"gt": 5, "lte": 5, "exists": True}}, "gt 5, lte 5"),
    ],
)
def test_condition_that_cannot_hold_is_refused_with_what_contradicts(tmp_path, where, value):
    row = {"subscription_id": "s", **REGION, "where": where}
    with WriterStream(tmp_path / "out", attributes=["price:number"]) as stream:
        found = stream.submit(Subscribe(row), Subscribe(row | {"where": {"price": {"gte": 5, "lte": 5}}}))
        stream.writer.begin()
        stream.end()
    assert [found[0][name] for name in ("reason", "column", "value")] == ["impossible_where", "where.price", value]
    assert found[1]["status"] == "created"
    with pytest.raises(InputError, match="no message could ever match"):
        skyray.Engine(attributes=["price:number"]).subscribe(row)


@pytest.mark.parametrize("given", [{"where": {"price": {"gte": 9, "lte": 5}}}, {"keywords": '"red (old) bike*"'}])
def test_subscription_that_is_refused_now_and_was_logged_before_is_resumed(tmp_path, monkeypatch, given):
    """Earlier releases took it: a folder with one goes on."""
    row = {"subscription_id": "s", **REGION, **given}
    with monkeypatch.context() as patch, WriterStream(tmp_path / "out", attributes=["price:number"]) as stream:
        patch.setattr("gateway.live.admission.refused_when_new", lambda *_: None)
        found = stream.submit(Subscribe(row), *lines({"id": "a", **POINT}))
        stream.writer.begin()
        stream.end()
        assert found[0]["status"] == "created"
    with WriterStream(tmp_path / "out", attributes=["price:number"]) as stream:
        assert len(stream.registry) == 1
        found = stream.submit(Subscribe(row | {"subscription_id": "t"}))
        stream.writer.begin()
        stream.end()
        assert (found[0]["status"], found[0]["column"]) in {("refused", "where.price"), ("refused", "keywords")}
