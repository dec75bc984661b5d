"""Whatever lines come down a pipe, each is taken or refused with a reason, and nothing good beside it is lost."""

import json
from collections import Counter

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.support.etl_folder import random_rows, write_etl
from tests.support.examples import examples
from tests.support.live_streams import Stream

MESSAGE = {"text": "w11 w9", "lon": 10, "lat": 20, "time": "2024-05-01T12:00:00Z"}
KNN = {"subscription_id": "odd", "kind": "knn", "keywords": "w11", "lon": 10, "lat": 20, "k": 3}
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=5), each, max_size=3),
    max_leaves=6,
)
changes = st.dictionaries(
    st.sampled_from([*MESSAGE, *KNN, "id", "west", "object_id", "op", "region", "match", "at", "until", "subscribe"]),
    json_values,
    max_size=3,
)
rows = (
    changes.map(lambda more: MESSAGE | more)
    | changes.map(lambda more: {"subscribe": KNN | more})
    | json_values.map(lambda value: {"subscribe": value})
    | json_values.map(lambda value: {"unsubscribe": value})
    | json_values
)
#: Rows that are nearly right, rows of anything, lines cut short, and bytes that are no lines of JSON.
lines = rows.map(lambda row: json.dumps(row).encode()) | st.binary(max_size=40).map(
    lambda data: data.replace(b"\n", b"")
)
cut = rows.map(lambda row: json.dumps(row).encode()[:-2])


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    return write_etl(tmp_path_factory.mktemp("fuzz") / "etl", random_rows(60))


@settings(max_examples=examples(40, 100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(odd=st.lists(lines | cut, max_size=8))
@example(odd=[b'{"text": "\\ud800", "lon": 1, "lat": 1}', b"[" * 9_999, b'{"k": 1e999}', b"\xff\xfe", b"null"])
@example(odd=[b'{"subscribe": {}, "unsubscribe": "good"}', b'{"unsubscribe": "\\u0000"}', b'{"lon": NaN}'])
def test_live_any_lines_are_taken_or_refused_and_good_ones_are_matched(words, tmp_path_factory, odd):
    stream = Stream(words, tmp_path_factory.mktemp("live"), window="count:1000", world="earth")
    stream.take({"subscribe": {**KNN, "subscription_id": "good", "k": 100}})
    for number, data in enumerate(odd):
        stream.take(data)
        stream.take({**MESSAGE, "id": f"good {number}"})
    stream.take({**MESSAGE, "id": "last"})
    stream.pipe.close_batch()
    stream.match()
    told = Counter(row["message_id"] for row in stream.told if row["subscription_id"] == "good")
    if not any(b"good" in data for data in odd):  # nobody else has its id
        assert all(told[f"good {number}"] == 1 for number in range(len(odd))) and told["last"] == 1
        assert not any("good" in row["row"] for row in stream.refused)
    assert all(row["reason"] and row["what"] for row in stream.refused)
    assert len(stream.refused) <= sum(map(bool, map(bytes.strip, odd)))
