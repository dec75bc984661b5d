"""`skyray preview` against the oracle, message by message: what matches, and what would without each condition."""

import json

import numpy as np
import pytest

from gateway.runs.reaching import reach
from gateway.subscriptions.checking import check_subscriptions
from gateway.subscriptions.preview import preview_subscriptions
from matching.errors import ConfigError
from matching.kinds import KINDS
from matching.naive import boolean_match, common_terms, passes, skyline_scores
from matching.naive_rows import messages_of, subscriptions_of
from matching.space import Space
from matching.validate import ParsedSubscription, build_table, subscription_row
from matching.window import Window
from spouts.parquet import read_messages
from spouts.subscriptions import load_vocabulary
from tests.support.etl_folder import random_rows, with_order, write_etl, write_lines

ATTRIBUTES = ("price:number", "type:category")
EARTH = Space(-180.0, -90.0, 180.0, 90.0, distance="sphere")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    rng, rows = np.random.default_rng(4), random_rows(900)
    for row in rows:
        row["attribute_price"] = float(rng.integers(0, 9)) if rng.random() < 0.8 else None
        row["attribute_type"] = str(rng.choice(["house", "flat"])) if rng.random() < 0.8 else None
    return write_etl(tmp_path_factory.mktemp("preview") / "etl", rows, attributes=ATTRIBUTES)


def random_query(rng: np.random.Generator, number: int) -> dict:
    kind = KINDS.run[number % len(KINDS.run)]
    row = {"subscription_id": f"s{number}", "kind": kind.name, "match": [1, 2, "all"][int(rng.integers(3))]}
    row["keywords"] = [f"w{word}" for word in rng.choice(12, 2, replace=False)]
    if rng.random() < 0.7:
        row["where"] = [{"price": {"lte": 4}}, {"type": "flat", "price": {"gt": 2}}, {"type": {"not": "flat"}}][
            number % 3
        ]
    if rng.random() < 0.5:
        row["not_keywords"] = f"w{rng.integers(12)}"
    lon, lat = float(rng.uniform(-90, 90)), float(rng.uniform(-45, 45))
    if "circle" in kind.shapes and rng.random() < 0.6:
        return row | {"circle": {"lon": lon, "lat": lat, "radius_m": 6e6}}
    if kind.place == "region":
        return row | {"region": [lon - 60, lat - 40, lon + 60, lat + 40]}
    row |= {"lon": lon, "lat": lat, "k": 3} | ({"alpha": 0.5} if "alpha" in kind.fields else {})
    return row | ({"radius_m": 8e6} if "radius_m" in kind.shapes else {})


def matched_by_oracle(row: dict, vocabulary, messages) -> int:
    parsed = subscription_row(row, vocabulary, EARTH, KINDS)
    assert isinstance(parsed, ParsedSubscription), parsed
    one = next(subscriptions_of(build_table([parsed], [0], [0])))
    found = 0
    for message in messages:
        there = boolean_match(one, message) if row["kind"] == "boolean" else bool(common_terms(one, message))
        there = there and (row["kind"] != "skyline" or skyline_scores(one, message) is not None)
        found += there and passes(one, message)
    return found


def without(row: dict, name: str) -> dict | None:
    """The row without a condition; None where the row cannot say that."""
    if name in ("keywords", "region", "circle"):
        return None
    if name == "match":
        return row | {"match": "any"}
    if name.startswith("where "):
        return row | {"where": {key: row["where"][key] for key in row["where"] if key != name.removeprefix("where ")}}
    return {key: row[key] for key in row if key != name}


def test_preview_counts_what_the_oracle_does(folder, tmp_path):
    rng = np.random.default_rng(1)
    rows = [random_query(rng, number) for number in range(90)]
    found = list(preview_subscriptions([write_lines(tmp_path / "s.jsonl", *rows)], folder, "earth"))
    vocabulary = load_vocabulary(folder)
    messages = [
        message
        for cut in read_messages(folder, Window.parse("count:10"), EARTH, 1_000)
        for message in messages_of(cut.messages)
    ]
    compared = 0
    for row, answer in zip(rows, found, strict=True):
        assert answer["messages"] == matched_by_oracle(row, vocabulary, messages), row
        assert len(answer["newest"]) == min(3, answer["messages"])
        for condition in answer["conditions"]:
            other = without(row, condition["name"])
            if other is not None:
                assert answer["messages"] + condition["without"] == matched_by_oracle(other, vocabulary, messages), row
                compared += 1
    assert sum(answer["messages"] for answer in found) > 1_000 and compared > 60


def test_preview_names_refused_rows_and_counts_days(folder, tmp_path):
    rows = ({"subscription_id": "s", "kind": "boolean", "keywords": "w11", "region": [-180, -90, 180, 90]},
            {"subscription_id": "t", "kind": "boolean", "keywords": "w11", "where": {"beds": 1}},
            b"{", {"unsubscribe": "s"})  # fmt: skip
    found = list(preview_subscriptions([write_lines(tmp_path / "s.jsonl", *rows)], folder, "earth", shown=1))
    assert [answer["reason"] for answer in found] == [None, "bad_region", "not_json"]
    assert found[0]["day"] == found[0]["week"] == found[0]["messages"], "all within fifteen minutes"
    assert int(found[0]["newest"][0]["message_id"].removeprefix("message ")) > 880 and json.dumps(found)


def test_preview_refuses_what_check_refuses(folder, tmp_path):
    never = {"subscription_id": "never", "kind": "boolean", "keywords": "w1", "region": [-9, -9, 9, 9]}
    rows = [never | {"where": {"price": {"gt": 5, "lt": 2}}}, never | {"kind": "bool"}, never, {"unsubscribe": "never"}]
    file = write_lines(tmp_path / "mine.jsonl", *rows)
    previewed = list(preview_subscriptions([file], folder, "earth"))
    checked = check_subscriptions([file], folder, "earth")["rows"]
    assert [row["reason"] for row in previewed] == ["impossible_where", "unknown_kind", None]
    shared = ("line", "reason", "what", "subscription_id")
    assert [[row[name] for name in shared] for row in previewed[:2]] == [
        [row[name] for name in shared] for row in checked[:2]
    ]


def test_clause_of_a_query_that_fails_is_named_by_match_preview_and_check(tmp_path):
    etl = write_etl(tmp_path / "etl", with_order(random_rows(300)))
    row = {"kind": "boolean", "region": [-180, -90, 180, 90]}
    asked = row | {"subscription_id": "s", "query": 'w11 "w11 w10"~1 -w9'}
    none = row | {"subscription_id": "none", "query": 'w11 "w11 w11 w11 w11"'}
    spoken = row | {"subscription_id": "spoken", "keywords": "w11 w10", "lang": "german"}
    file = write_lines(tmp_path / "s.jsonl", asked, none, spoken)
    told = {
        "w11 w10": "",
        "w10 w11 x w8 w10": '"w11 w10"~1 is not there: w11 at 2, w10 at 1, 5',
        "w11 w10 w9": "w9 is there, and is excluded",
    }
    for text, clause in told.items():
        answer = reach([file], etl, text, "1,1", "earth")
        missed = {one["subscription_id"]: (one["reason"], one["clause"]) for one in answer["missed"]}
        assert missed.get("s") == (("query", clause) if clause else None), text
        assert answer["not_reached"]["query"] == len(missed) > 0
    found, nothing, of_language = preview_subscriptions([file], etl, "earth")
    assert {one["name"] for one in of_language["conditions"]} == {"keywords", "match", "region"}
    assert {one["name"] for one in found["conditions"]} >= {'query: "w11 w10"~1', "query: -w9"}
    assert found["messages"] > 0 == nothing["messages"]
    checked = {one["subscription_id"]: one["what"] for one in check_subscriptions([file], etl, "earth")["rows"]}
    assert checked == {"s": "", "spoken": "", "none": 'no message with a word of it satisfies query: "w11 w11 w11 w11"'}


def test_match_goes_by_the_attributes_that_are_given(folder, tmp_path):
    row = {"subscription_id": "s", "kind": "boolean", "keywords": "w11", "region": [-10, -10, 10, 10]}
    files = [write_lines(tmp_path / "s.jsonl", row | {"where": {"price": {"lte": 4}}})]
    reached = [
        len(reach(files, folder, "w11", "1,1", "earth", attributes=given)["reached"])
        for given in (["price=4"], ["price=5"], ["type=flat"])
    ]
    assert reached == [1, 0, 0]
    assert reach(files, folder, "w11", "1,1", "earth")["not_reached"] == {"where": 1}
    for wrong in ("price", "beds=3", "price=cheap"):
        with pytest.raises(ConfigError, match="--attribute"):
            reach(files, folder, "w11", "1,1", "earth", attributes=[wrong])
