"""Matching in the caller's process: updates and results are the oracle's, bad rows are counted, names are names."""

import math
from collections import Counter

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import skyray
from matching.errors import ConfigError, InputError
from matching.kinds import KINDS
from tests.support.beside import (
    BOX,
    TEXTS,
    Beside,
    random_message,
    random_subscription,
    vocabulary_of,
    wide_subscription,
)
from tests.support.etl_folder import random_rows, write_etl


def play(seed, window):
    """The same random story, told to both, who must agree; how many updates there were."""
    rng = np.random.default_rng(seed)
    room = int(rng.choice([0, 5, 1_000_000]))
    texts = TEXTS if rng.random() < 0.7 else []
    engine = skyray.Engine(texts, window, world=BOX, most_terms=room)
    beside = Beside(window, vocabulary_of(texts), most_terms=room)
    told, number = 0, 0
    for turn in range(8):
        for _ in range(int(rng.integers(0, 5)) + 6 * (turn == 0)):
            row = random_subscription(rng, int(rng.integers(100)))
            reason = beside.subscribe(row)
            if reason is None:
                assert engine.subscribe(row) == row["subscription_id"]
            else:
                with pytest.raises(InputError) as refused:
                    engine.subscribe(row)
                assert refused.value.reason_code == reason
        if beside.live and rng.random() < 0.4:
            name = sorted(beside.live)[0]
            engine.unsubscribe(name)
            beside.unsubscribe(name)
        rows = [random_message(rng, number + place) for place in range(int(rng.choice([0, 1, 12])))]
        number += len(rows)
        expected = beside.publish(rows)
        found = Counter(
            (row["change"], row["subscription_id"], row["message_id"], row["as_of"], row["score"])
            for row in engine.publish(rows)
        )
        assert found == expected
        told += sum(found.values())
        results = [(row.number, row.rank, beside.ids[row.seq], row.score) for row in beside.oracle.results()]
        held = sorted((beside.names[who], rank, name, score) for who, rank, name, score in results)
        assert sorted((r["subscription_id"], r["rank"], r["message_id"], r["score"]) for r in engine.results()) == held
    assert sorted(engine.subscriptions) == sorted(beside.live)
    assert engine.vocabulary.admitted == [term for term, _ in reversed(beside.growing.late)]
    assert engine.unknown_words == beside.unknown
    return told


WINDOWS = ["count:15", "time:1500", "count:1000"]


@given(seed=st.integers(0, 2**32 - 1), window=st.sampled_from(WINDOWS))
@settings(max_examples=12, deadline=None)
def test_engine_tells_what_the_oracle_does(seed, window):
    play(seed, window)


def test_engine_stories_have_something_to_tell():
    assert all(sum(play(seed, window) for seed in range(3)) > 60 for window in WINDOWS)


@pytest.fixture
def engine():
    return skyray.Engine(["ramen soup", "ramen"], "count:4")


@pytest.mark.parametrize("half_life", [1e-304, 0, 1e13, math.nan])
def test_engine_half_life_out_of_range_is_refused(half_life):
    with pytest.raises(ConfigError, match="give seconds between 1e-06 and 1e\\+12"):
        skyray.Engine(["ramen"], decay_half_life=half_life)


RAMEN = {"subscription_id": "s1", "kind": "topk", "keywords": "ramen", "lon": 1, "lat": 2, "k": 1, "alpha": 0.5}


def test_engine_a_result_leaves_with_the_window(engine):
    engine.subscribe(RAMEN)
    (enter,) = engine.publish([{"id": "m", "text": "ramen!", "lon": 1, "lat": 2}])
    assert (enter["change"], enter["message_id"], enter["text"], enter["lon"]) == ("enter", "m", "ramen!", 1.0)
    assert [row["message_id"] for row in engine.results("s1")] == ["m"]
    (leave,) = engine.publish({"text": "else", "lon": 0, "lat": 0} for _ in range(4))
    assert (leave["change"], leave["message_id"], leave["text"]) == ("leave", "m", "ramen!")
    assert engine.results("s1") == []


def test_engine_one_who_comes_later_starts_from_the_window(engine):
    engine.publish({"id": "m", "text": "ramen", "lon": 1, "lat": 2})
    engine.subscribe(RAMEN)
    assert engine.results("s1") == []
    assert [row["message_id"] for row in engine.publish()] == ["m"]


def test_engine_columns_may_be_given_by_name(engine):
    assert engine.subscribe(RAMEN, subscription_id="s2", k="3") == "s2"
    assert engine.subscribe(**RAMEN) == "s1"
    assert list(engine.subscriptions) == ["s2", "s1"]


BAD = [
    {"text": "ramen"},
    {"text": "ramen", "lon": 200, "lat": 0},
    {"text": "ramen", "lon": math.nan, "lat": 0},
    {"text": [], "lon": 0, "lat": 0},
    {"text": "ramen", "lon": 0, "lat": 0, "time": "yesterday"},
    {"text": 5, "lon": 0, "lat": 0},
    {"text": "ramen", "lon": 0, "lat": 0, "id": ["x"]},
    {"text": "ramen", "lon": 0, "lat": 0, "op": "burn"},
    {"text": "ramen", "lon": 0, "lat": 0, "west": 1},
    "ramen",
    None,
]


def test_engine_bad_messages_are_counted_and_good_ones_beside_them_matched(engine):
    engine.subscribe(RAMEN, k=100)
    good = [{"id": f"m{place}", "text": "ramen", "lon": 0, "lat": 0} for place in range(len(BAD))]
    told = engine.publish([row for pair in zip(good, BAD, strict=True) for row in pair])
    assert {row["message_id"] for row in told} == {row["id"] for row in good[-4:]}, "four are in the window"
    assert sum(engine.rejected.values()) == len(BAD)
    assert engine.rejected["wrong_type"] >= 3 and engine.rejected["bad_time"] == 1


def test_engine_times_are_asked_for_where_they_matter(engine):
    engine.publish({"text": "ramen", "lon": 0, "lat": 0})
    assert not engine.rejected
    engine.subscribe(RAMEN, subscription_id="d", kind="decay")
    assert engine.publish({"text": "ramen", "lon": 0, "lat": 0}) == [] and engine.set_aside == {"no_time": 1}
    assert not engine.rejected
    assert len(engine.publish({"text": "ramen", "lon": 0, "lat": 0, "time": "2026-01-01T00:00:00Z"})) == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"k": 0}, "bad_k"),
        ({"keywords": "nothing"}, "no_known_keyword"),
        ({"keyword": "x"}, "unknown_column"),
        ({"at": 5}, "bad_span"),
        ({"kind": "best"}, "unknown_kind"),
    ],
)
def test_engine_a_subscription_that_a_run_would_reject_is_refused(change, reason):
    engine = skyray.Engine(["ramen soup", "ramen"], "count:4", most_terms=0)
    with pytest.raises(InputError) as refused:
        engine.subscribe(RAMEN, **change)
    assert refused.value.reason_code == reason
    assert engine.subscriptions == []


def test_engine_who_is_not_subscribed_cannot_leave_or_ask(engine):
    for ask in (engine.unsubscribe, engine.results):
        with pytest.raises(InputError, match="is not active"):
            ask("s1")


def test_engine_over_an_etl_folder_has_its_words_and_world(tmp_path):
    etl = write_etl(tmp_path / "etl", random_rows(50))
    engine = skyray.Engine(etl, "count:10", most_terms=0)
    assert len(engine.vocabulary) == 12
    engine.publish([{"text": "w3 unheard", "lon": 0, "lat": 0}])
    assert engine.unknown_words == 1


def test_engine_forgets_what_nobody_can_be_told_of(engine, monkeypatch):
    monkeypatch.setattr("gateway.engine._KEPT", 20)
    engine = skyray.Engine(["ramen"], "count:4")
    engine.subscribe(RAMEN, kind="knn", subscription_id="n")
    engine.publish([{"id": "near", "text": "ramen", "lon": 1, "lat": 2}])
    for _ in range(30):
        engine.publish([{"text": "ramen", "lon": 5, "lat": 5}] * 10)
    assert len(engine._messages_by_seq) <= 60
    assert [row["message_id"] for row in engine.results("n")] == ["near"], "what is held is remembered"


BOX_OF_ALL = {"subscription_id": "b", "kind": "boolean", "keywords": "ramen", "region": [-10, -10, 10, 10]}
AT_NOON = {"text": "ramen", "lon": 1, "lat": 2, "time": "2026-01-01T12:00:00Z"}
NOON_S = 1_767_268_800.0


def test_engine_message_without_a_time_reaches_all_who_need_none(engine):
    for kind in ("decay", "knn", "topk"):
        engine.subscribe(RAMEN, subscription_id=kind, kind=kind)
    engine.subscribe(BOX_OF_ALL)
    told = engine.publish({"id": "m", "text": "ramen", "lon": 1, "lat": 2})
    assert {row["subscription_id"] for row in told} == {"knn", "topk", "b"}
    assert engine.set_aside == {"no_time": 1} and not engine.rejected
    assert engine.explain("decay", "m")["reason"] == "no_time"


def test_engine_message_without_a_time_is_in_no_window_that_goes_by_time():
    engine = skyray.Engine(["ramen soup", "ramen"], "time:3600", clock=lambda: NOON_S)
    engine.subscribe(RAMEN)
    engine.subscribe(RAMEN, subscription_id="n", kind="knn")
    engine.subscribe(BOX_OF_ALL)
    told = engine.publish([{"id": "m", "text": "ramen", "lon": 1, "lat": 2}, AT_NOON | {"id": "timed", "lon": 3}])
    assert {(row["subscription_id"], row["message_id"]) for row in told} == {
        ("s1", "timed"), ("n", "m"), ("b", "m"), ("b", "timed")
    }  # fmt: skip
    assert engine.explain("s1", "m")["why"].startswith("the message has no time")


@pytest.mark.parametrize("kind", ["topk", "decay"])
def test_engine_message_dated_too_far_ahead_is_set_aside_and_moves_no_window(kind):
    window = "time:3600" if kind == "topk" else "count:10"
    engine = skyray.Engine(["ramen soup", "ramen"], window, max_ahead=60.0, clock=lambda: NOON_S)
    engine.subscribe(RAMEN, kind=kind, k=5)
    dated = {"ahead": NOON_S + 61, "just": NOON_S + 60, "now": NOON_S}
    told = engine.publish([AT_NOON | {"id": name, "time": time} for name, time in dated.items()])
    assert {row["message_id"]: row["seq"] for row in told} == {"just": 1, "now": 2}
    assert engine.set_aside == {"ahead": 1} and not engine.rejected
    answer = engine.explain("s1", "ahead")
    assert not answer["in_result"] and answer["reason"] == "ahead" and "stream.max_ahead" in answer["why"]


def test_engine_dates_do_not_matter_where_nobody_asks_for_times(engine):
    engine.subscribe(RAMEN)
    assert len(engine.publish(AT_NOON | {"time": "2126-01-01T00:00:00Z"})) == 1 and not engine.set_aside


@pytest.mark.parametrize("what", ["ramen", b"ramen", None, 5, skyray])
def test_engine_publish_of_what_is_no_message_says_what_is_one(engine, what):
    with pytest.raises(InputError, match=f"'text': ..., 'lon': ..., 'lat': ....*not {type(what).__name__}") as refused:
        engine.publish(what)
    assert refused.value.reason_code == "wrong_type" and not engine.rejected and engine.publish() == []


def test_engine_misspelt_option_or_column_is_named_with_what_was_meant(engine):
    for wrong, meant in ((lambda: skyray.Engine(["a"], windw="count:4"), "'windw'; did you mean window"),
                         (lambda: skyray.etl("x", out="y", tim_column="z"), "'tim_column'; did you mean time_column"),
                         (lambda: skyray.run("m", ["s"], "o", overrite=True), "'overrite'; did you mean overwrite"),
                         (lambda: skyray.Engine(["a"], zzz=1), "'zzz'; there are vocabulary, window")):  # fmt: skip
        with pytest.raises(ConfigError, match=meant):
            wrong()
    with pytest.raises(InputError, match="'keyword' is no column of subscriptions; did you mean keywords?"):
        engine.subscribe(RAMEN, keyword="soup")
    with pytest.raises(InputError, match="takes columns, as a mapping or by name, not str 's1'"):
        engine.subscribe("s1")


def test_engine_results_have_the_words_found_and_kilometres(engine):
    engine.subscribe(RAMEN, keywords="soup ramen")
    engine.subscribe(RAMEN, subscription_id="sky", kind="skyline", lon=None, lat=None, region=[0, 0, 5, 5])
    engine.publish({"id": "m", "text": "ramen", "lon": 1, "lat": 3})
    (row,) = engine.results("s1")
    assert row["words"] == ["ramen"] and row["distance_km"] == pytest.approx(111.2, abs=0.1)
    assert engine.results("sky")[0]["distance_km"] is None


def test_engine_explains_by_id_or_number_what_it_keeps(engine):
    engine.subscribe(RAMEN)
    again = [{"id": "twice", "text": "ramen", "lon": lon, "lat": 2} for lon in (1, 5)]
    engine.publish([*again, {"id": "other", "text": "soup", "lon": 1, "lat": 2}])
    assert engine.explain("s1", "seq:0")["in_result"]
    answer = engine.explain("s1", "twice")  # the later one
    assert (answer["reason"], answer["message"]["seq"]) == ("rivals", 1)
    assert [rival["seq"] for rival in answer["rivals"]] == [0] and answer["distance_km"] > 400
    assert engine.explain("s1", "other")["reason"] == "no_common_word"
    for message in ("never", "seq:3", "seq:-1"):
        with pytest.raises(InputError, match="was not published") as refused:
            engine.explain("s1", message)
        assert refused.value.reason_code == "unknown_message"
    with pytest.raises(InputError, match="is not active"):
        engine.explain("s2", "twice")


def test_skyray_names_its_interface():
    assert dir(skyray) == sorted(skyray.__all__) and {"Engine", "Run", "etl", "open", "run"} <= set(dir(skyray))
    assert all(getattr(skyray, name) is not None for name in dir(skyray))


@pytest.mark.parametrize("kind", KINDS.run, ids=lambda kind: kind.name)
def test_engine_alert_on_a_word_in_no_vocabulary_fires(kind):
    for vocabulary in ((), ["ramen soup"]):
        engine = skyray.Engine(vocabulary, "count:4")
        engine.subscribe(wide_subscription(kind, "s1", ["Łódź"]))
        told = engine.publish([{"id": "m1", "text": "in łódź", "lon": 1, "lat": 1, "time": 1_577_836_800}])
        assert [(row["subscription_id"], row["message_id"]) for row in told] == [("s1", "m1")]
        assert engine.vocabulary.admitted == ["in", "łódź"] and engine.unknown_words == 0
        if kind.standing:
            assert engine.results("s1")[0]["words"] == ["łódź"]
            assert engine.explain("s1", "m1")["words"] == ["łódź"]


def test_engine_word_keeps_its_weight_and_a_message_the_words_known_with_its_batch():
    engine = skyray.Engine((), "count:9")
    engine.subscribe(RAMEN, kind="topk", k=9, alpha=0.0)
    place = {"lon": 0, "lat": 0}
    engine.publish([{"id": "m1", "text": "ramen", **place}])
    engine.publish([{"id": "m2", "text": "ramen soup", **place}])
    soup = math.log(1.0 + 1 / 0.5)
    assert engine.vocabulary.idf[engine.vocabulary.id_of("soup")] == soup, "one message came before its batch"
    engine.publish([{"id": f"more{place_}", "text": "nothing", **place} for place_ in range(5)])
    assert engine.vocabulary.idf[engine.vocabulary.id_of("soup")] == soup
    assert [row["score"] for row in engine.results("s1")] == pytest.approx([1.0, math.sqrt(0.5)])
    assert engine.explain("s1", "m2")["score"] == engine.results("s1")[1]["score"]


def test_engine_refuses_subscriptions_beyond_the_room_for_terms_and_drops_those_of_messages():
    engine = skyray.Engine((), "count:9", most_terms=10)
    place = {"lon": 0, "lat": 0}
    engine.publish([{"id": "first", "text": " ".join(f"a{number}" for number in range(12)), **place}])
    assert len(engine.vocabulary) == 9 and engine.unknown_words == 3, "a tenth is kept for subscriptions"
    with pytest.raises(InputError) as refused:
        engine.subscribe(RAMEN, keywords=["a11", "new"])
    assert refused.value.reason_code == "too_many_terms" and engine.subscriptions == []
    engine.subscribe(RAMEN, keywords=["a11", "a3"])
    assert len(engine.publish([{"text": "a11", **place}])) == 1
    explained = engine.explain("s1", "first")
    assert (explained["words"], explained["missing"]) == (["a3"], ["a11"]), "it was unknown when the message came"
    with pytest.raises(InputError, match="no room left"):
        engine.subscribe(RAMEN, keywords="new")


def test_engine_explains_a_subscription_before_the_batch_that_gives_its_words_ids():
    engine = skyray.Engine((), "count:9")
    engine.publish([{"id": "m1", "text": "ramen", "lon": 0, "lat": 0}])
    engine.subscribe(RAMEN, keywords="unheard")
    assert engine.explain("s1", "m1")["in_result"] is False
    engine.publish()
    assert engine.explain("s1", "m1")["missing"] == ["unheard"]


@pytest.mark.parametrize("most_terms", [-1, 2**31, 1.5, "many"])
def test_engine_room_for_terms_that_is_no_number_is_refused(most_terms):
    with pytest.raises(ConfigError, match="most_terms .*: give a whole number from 0 to 100,000,000"):
        skyray.Engine((), most_terms=most_terms)


MESSAGE = {"text": "ramen", "lon": 1.0, "lat": 2.0}


@pytest.mark.parametrize(
    "columns",
    [
        {"id": np.int64(7)},
        {"id": np.float64(7)},
        {"id": np.str_("a"), "text": np.str_("ramen")},
        {"lon": np.float32(1), "lat": np.float16(2)},
        {"lon": np.int64(1), "lat": np.uint8(2)},
        {"time": pd.NaT},
        {"time": np.datetime64("NaT")},
        {"time": float("nan"), "id": np.nan, "object_id": pd.NA, "op": np.float32("nan")},
        {"time": np.datetime64("2018-10-10T20:19:24", "ns")},
        {"time": pd.Timestamp("2018-10-10T20:19:24.000000001", tz="Asia/Tokyo")},
        {"west": np.nan, "south": np.nan, "east": np.nan, "north": np.nan},
        {"op": np.int8(0)},
    ],
    ids=str,
)
def test_engine_takes_values_of_numpy_and_pandas(columns):
    engine = skyray.Engine()
    engine.subscribe(subscription_id="all", kind="boolean", keywords="ramen", region=np.array([-180, -90, 180, 90]))
    assert len(engine.publish([MESSAGE | columns])) == 1 and not engine.rejected


def test_engine_reads_moments_of_numpy_and_pandas_as_they_are():
    engine = skyray.Engine(window="time:60")
    engine.subscribe(
        subscription_id="a", kind="topk", keywords="ramen", lon=1, lat=1, k=np.int64(9), alpha=np.float32(0.5)
    )
    first = np.datetime64("1970-02-01T00:00:00", "ns")  # read as microseconds its number would be an hour later
    moments = [first, pd.Timestamp(first) + pd.Timedelta("30s"), str(first + np.timedelta64(70, "s"))]
    for name, moment in enumerate(moments):
        engine.publish({**MESSAGE, "id": name, "time": moment})
    assert {row["message_id"] for row in engine.results("a")} == {"1", "2"}
    with pytest.raises(InputError) as refused:
        engine.subscribe(subscription_id="b", kind="topk", keywords="a", lon=1, lat=1, k=3, alpha=np.float32(1.5))
    assert refused.value.reason_code == "bad_alpha"


def test_engine_rows_of_a_frame_are_its_messages():
    engine = skyray.Engine(attributes=["price:number", "type:category"])
    engine.subscribe(subscription_id="a", kind="boolean", keywords="ramen", region=[-180, -90, 180, 90],
                     where={"price": {"lte": np.int64(5)}, "type": 1})  # fmt: skip
    frame = pd.DataFrame([MESSAGE | {"id": 1.0, "price": 5, "type": 1.0}, MESSAGE | {"price": 4}])
    assert [row["message_id"] for row in engine.publish(frame.to_dict("records"))] == ["1"]
    assert not engine.rejected


@pytest.mark.parametrize("table", [pd.DataFrame([MESSAGE]), pa.table({"text": ["ramen"]}), pa.record_batch({"a": [1]})])
def test_engine_publish_of_a_table_is_refused_with_what_to_give(table):
    engine = skyray.Engine()
    with pytest.raises(InputError, match=f"not a {type(table).__name__}: give it the rows") as refused:
        engine.publish(table)
    assert refused.value.reason_code == "wrong_type" and not engine.rejected
