"""Matching in the caller's process: updates and results are the oracle's, bad rows are counted, names are names."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import skyray
from matching.errors import InputError
from matching.fading import EPOCH_US, HALF_LIFE_S, SMOOTHING, Fading
from matching.kinds import KINDS
from matching.model import CHANGES, MATCH
from matching.naive import DecayModel, Message, Oracle
from matching.text import Vocabulary
from matching.validate import build_table, subscription_row
from matching.window import NO_FLOOR, Boundary, Window
from tests.support.etl_folder import random_rows, write_etl
from tests.support.naive_tables import batch, removals

WORDS = [f"w{number}" for number in range(5)]
TEXTS = [" ".join(WORDS[:count]) for count in range(1, 6)]
BOX = "-20,-10,20,10"


def random_subscription(rng, number):
    kind = KINDS.run[int(rng.integers(len(KINDS.run)))]
    keywords = rng.choice(WORDS, int(rng.integers(1, 3)), replace=False).tolist()
    row = {"subscription_id": f"s{number % 9}", "kind": kind.name, "keywords": keywords}
    if kind.place == "region":
        west, south = float(rng.integers(-20, 10)), float(rng.integers(-10, 5))
        row["region"] = [west, south, west + float(rng.integers(5, 20)), south + float(rng.integers(2, 10))]
    else:
        row |= {"lon": float(rng.integers(-20, 21)), "lat": float(rng.integers(-10, 11))}
    row |= {"k": int(rng.integers(1, 4))} if "k" in kind.fields else {}
    return row | ({"alpha": float(rng.random())} if "alpha" in kind.fields else {})


def random_message(rng, number):
    words = rng.choice(WORDS, int(rng.integers(0, 4))).tolist()
    row = {"id": f"m{number}", "text": " ".join(words) or "nothing", "time": 1_577_836_800 + number * 100}
    row |= {"lon": float(rng.integers(-20, 21)), "lat": float(rng.integers(-10, 11))}
    if rng.random() < 0.2:
        row["object_id"] = f"thing {rng.integers(4)}"
        row["op"] = "delete" if rng.random() < 0.3 else "publish"
    if rng.random() < 0.1:
        row |= {"west": row["lon"] - 3, "south": row["lat"], "east": row["lon"] + 3, "north": row["lat"]}
    return row


class Beside:
    """The oracle, told the same things by another way."""

    def __init__(self, window):
        self.words = Vocabulary.of_counts(Vocabulary([], [], [], [], 0).count_terms(text) for text in TEXTS)
        self.space = skyray.Engine(TEXTS, world=BOX).space
        self.window = Window.parse(window)
        fading = Fading.of(HALF_LIFE_S, SMOOTHING, self.words.collection_count, self.words.total_tokens)
        counts = dict(enumerate(self.words.collection_count.tolist()))
        model = DecayModel(fading.log_base_per_s, SMOOTHING, counts, self.words.total_tokens, EPOCH_US)
        self.oracle = Oracle(self.window, self.space.max_distance, model)
        self.number = self.seq = self.batch = 0
        self.names, self.live, self.added, self.removed = {}, {}, [], []
        self.ids, self.clock = [], NO_FLOOR

    def subscribe(self, row):
        if row["subscription_id"] in self.live:
            self.unsubscribe(row["subscription_id"])
        self.added.append((row, self.number))
        self.names[self.number] = row["subscription_id"]
        self.live[row["subscription_id"]] = self.number
        self.number += 1

    def unsubscribe(self, name):
        self.removed.append((self.live.pop(name), self.seq))

    def publish(self, rows):
        messages = []
        for row in rows:
            counts = {} if row.get("op") == "delete" else self.words.count_terms(row["text"])
            vector = self.words.unit_vector(counts)
            x, y = self.space.project(np.float64(row["lon"]), np.float64(row["lat"]))
            time_us, seq = row["time"] * 1_000_000, self.seq + len(messages)
            west, south, east, north = (row.get(s, row["lon" if s in ("west", "east") else "lat"]) for s in SIDES)
            messages.append(
                Message(
                    seq,
                    float(x),
                    float(y),
                    west,
                    south,
                    east,
                    north,
                    seq if self.window.kind == "count" else time_us,
                    dict(zip(vector.terms.tolist(), vector.weights.tolist(), strict=True)),
                    dict(zip(vector.terms.tolist(), vector.counts.tolist(), strict=True)),
                    time_us,
                    row.get("object_id", row["id"]),
                    int(row.get("op") == "delete"),
                )
            )
            self.clock = max(self.clock, time_us)
            self.ids.append(row["id"])
        last = self.seq + len(messages) - 1
        boundary = Boundary(self.batch, self.seq, last, self.window.floor(last, self.clock))
        columns, extras = batch(messages)
        parsed = [subscription_row(row, self.words, self.space, KINDS) for row, _ in self.added]
        table = build_table(parsed, [number for _, number in self.added], [self.seq] * len(parsed))
        updates = self.oracle.advance(boundary, columns, table, removals(self.removed), extras)
        self.seq, self.batch, self.added, self.removed = last + 1, self.batch + 1, [], []
        return Counter(
            (CHANGES[one.change], self.names[one.number], self.ids[one.seq], one.as_of,
             None if one.change == MATCH else one.score)
            for one in updates
        )  # fmt: skip


SIDES = ("west", "south", "east", "north")


def play(seed, window):
    """The same random story, told to both, who must agree; how many updates there were."""
    rng = np.random.default_rng(seed)
    engine, beside = skyray.Engine(TEXTS, window, world=BOX), Beside(window)
    told, number = 0, 0
    for turn in range(8):
        for _ in range(int(rng.integers(0, 5)) + 6 * (turn == 0)):
            row = random_subscription(rng, int(rng.integers(100)))
            assert engine.subscribe(row) == row["subscription_id"]
            beside.subscribe(row)
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
    {"text": " ", "lon": 0, "lat": 0},
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
    assert engine.publish({"text": "ramen", "lon": 0, "lat": 0}) == [] and engine.rejected == {"bad_time": 1}
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
def test_engine_a_subscription_that_a_run_would_reject_is_refused(engine, change, reason):
    with pytest.raises(InputError) as refused:
        engine.subscribe(RAMEN, **change)
    assert refused.value.reason_code == reason
    assert engine.subscriptions == []


def test_engine_who_is_not_subscribed_cannot_leave_or_ask(engine):
    for ask in (engine.unsubscribe, engine.results):
        with pytest.raises(InputError, match="nobody"):
            ask("s1")


def test_engine_over_an_etl_folder_has_its_words_and_world(tmp_path):
    etl = write_etl(tmp_path / "etl", random_rows(50))
    engine = skyray.Engine(etl, "count:10")
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
    assert len(engine._said) <= 60
    assert [row["message_id"] for row in engine.results("n")] == ["near"], "what is held is remembered"
