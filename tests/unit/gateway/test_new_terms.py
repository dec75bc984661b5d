"""New words of a live stream: who brings them, which fit, and that they stay what they are through kills."""

import json
import math
import pickle
from collections import Counter

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway import cli
from gateway.live.new_terms import NewTerms
from gateway.live.vocabulary_files import empty_start
from gateway.live.write_ahead_log import settings_of
from gateway.runs.explaining import explain
from gateway.runs.verify import verify_run
from matching.errors import CheckpointError, ConfigError
from matching.kinds import KINDS
from matching.vocabulary import Vocabulary
from spouts.log import NONE_ADMITTED, Admitted, Record, read_records
from spouts.logged_words import LoggedWords
from spouts.subscriptions import load_vocabulary
from tests.support.beside import Beside, random_message, random_subscription, wide_subscription
from tests.support.etl_folder import random_rows, write_etl
from tests.support.live_streams import Stream, digest_of_run, read_table
from tests.support.processes import Command
from topology.settings import MOST_TERMS

PLACE = {"lon": 1.0, "lat": 1.0}


def new_terms(most_terms, terms=("old",), messages=3, **more):
    none = [1] * len(terms)
    return NewTerms(Vocabulary(terms, none, none, none, messages, most_terms=most_terms, **more))


def test_new_terms_of_a_batch_are_admitted_in_the_order_of_their_bytes():
    new = new_terms(100)
    assert new.of_subscription(["a", "ż", "😀", "｡"])
    assert new.vocabulary.id_of("a") is None, "not before the batch is closed"
    assert new.admit(["zoo", "old", "a", "é"], 7) == Admitted(("a", "zoo", "é", "ż", "｡", "😀"), 10)
    assert [new.vocabulary.id_of(term) for term in ("a", "zoo", "old")] == [99, 98, 100]
    assert new.admit(["a", "old", "next"], 9) == Admitted(("next",), 12)
    assert new.vocabulary.idf[[99, 94, 93]].tolist() == [math.log(21), math.log(21), math.log(25)]
    assert new.admit(["a"], 20) == NONE_ADMITTED


def test_new_terms_of_messages_leave_a_tenth_of_the_room_to_subscriptions():
    new = new_terms(11)  # two are kept
    assert new.admit([f"m{number}" for number in range(20)], 0).terms == tuple(f"m{number}" for number in range(9))
    assert not new.of_subscription(["x", "y", "z"]), "they do not all fit, so none is taken"
    assert new.of_subscription(["x", "m3", "y"]) and new.of_subscription(["y", "x"])
    assert not new.of_subscription(["z"])
    assert new.admit(["z"], 1).terms == ("x", "y") and not new.of_subscription(["z"]) and new.of_subscription(["m0"])


def test_new_terms_without_room_and_stop_terms_are_not_admitted():
    none = new_terms(0)
    assert not none.has_room and none.of_subscription(["b"]) and none.admit(["a"], 1) == NONE_ADMITTED
    stopped = new_terms(10, stop_terms=["the"])
    assert stopped.of_subscription(["the"]) and stopped.admit(["the", "sea"], 1).terms == ("sea",)


def test_terms_for_matching_alone_take_no_place_of_a_word_and_have_as_many_of_their_own():
    new = new_terms(3)
    assert new.of_subscription(["fahr*", "rad~", "see*"])
    assert not new.of_subscription(["c", "mehr*"]), "neither of them is taken"
    assert new.of_subscription(["a", "b", "c", "fahr*"]) and not new.of_subscription(["d"])
    admitted = new.admit(["d"], 0)
    assert admitted.terms == ("a", "b", "c", "fahr*", "rad~", "see*")
    words = new.vocabulary
    assert [words.id_of(term) for term in admitted.terms] == [2, 1, 0, 4, 5, 6] and words.id_of("old") == 3
    assert (words.reserved, len(words), words.idf[4:].tolist()) == (7, 4, [0.0] * 3)
    assert list(map(words.term_of, range(7))) == ["c", "b", "a", "old", "fahr*", "rad~", "see*"]
    assert not new.of_subscription(["mehr*"]) and not new.of_subscription(["d"])
    again = new_terms(3)
    again.resume(Record(0, 1, admitted=admitted))
    copied = pickle.loads(pickle.dumps(words))  # noqa: S301 - our own bytes
    for other in (again.vocabulary, copied):
        assert (other.admitted, other.begun, other.reserved) == (words.admitted, words.begun, 7)
        assert [other.id_of(term) for term in admitted.terms] == [2, 1, 0, 4, 5, 6]
    settled = words.settled(3, 2)
    assert (settled.terms, settled.begun, settled.id_of("c"), settled.reserved) == (["c", "b", "a", "old"], [], 2, 8)
    words.forget_admitted()
    assert (words.id_of("fahr*"), words.id_of("a"), len(words)) == (None, None, 1)


def test_new_terms_that_a_log_has_twice_are_refused():
    new = new_terms(10)
    record = Record(0, 1, admitted=Admitted(("a",), 3))
    new.resume(record)
    with pytest.raises(CheckpointError, match="term 'a' is admitted twice"):
        new.resume(record)


# ---------------------------------------------------------------------------------------------------- several lives


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    return write_etl(tmp_path_factory.mktemp("new") / "words", random_rows(60))


class Lives:
    """A random story by lines in several lives of one folder, told to the oracle too.

    Attributes
    ----------
    expected : Counter    the updates of the oracle
    refused : Counter     subscriptions, by reason
    """

    def __init__(self, seed, words, out, most_terms):
        self.rng = np.random.default_rng(seed)
        self.words = words if self.rng.random() < 0.5 else empty_start(out)
        self.out, self.most_terms = out, most_terms
        self.beside = Beside("count:15", load_vocabulary(self.words), most_terms=most_terms)
        self.expected, self.refused, self.number = Counter(), Counter(), 0

    def begin(self):
        settings = {"query_bolts": int(self.rng.integers(1, 4)), "distribution_bolts": int(self.rng.integers(1, 3))}
        settings["router"] = str(self.rng.choice(["hashing", "location"]))
        stream = Stream(
            self.words, self.out, window="count:15", most_terms=self.most_terms, checkpoint_every=0.02, **settings
        )
        self.assert_known(stream.gate.vocabulary)
        return stream

    def assert_known(self, vocabulary):
        """It has the ids and weights of the definition."""
        late = self.beside.growing.late
        assert vocabulary.admitted == [term for term, _ in reversed(late)]
        assert [vocabulary.id_of(term) for term, _ in late] == [
            self.most_terms - len(late) + place for place in range(len(late))
        ]
        assert vocabulary.idf[vocabulary.first_id : vocabulary.most_terms].tolist() == [idf for _, idf in late]

    def tell(self, stream, steps):
        for step in range(steps):
            if self.rng.random() < 0.25 or self.number < 12:
                row = random_subscription(self.rng, int(self.rng.integers(100)))
                reason = self.beside.subscribe(row)
                before = len(stream.refused)
                stream.take({"subscribe": row})
                assert [one["reason"] for one in stream.refused[before:]] == ([] if reason is None else [reason])
                self.refused.update([reason] if reason else [])
            else:
                row = random_message(self.rng, self.number)
                self.beside.offer(row)
                stream.take(row)
            self.number += 1
            if self.rng.random() < 0.2 or step == steps - 1:
                if self.beside.waiting:  # changes alone count with the next message
                    self.expected += self.beside.publish(by_seq=True)
                stream.pipe.close_batch()
        self.assert_known(stream.gate.vocabulary)


def play(seed, words, out, most_terms):
    story, report = Lives(seed, words, out, most_terms), None
    for life in range(3):
        stream = story.begin()
        story.tell(stream, 35)
        if life == 1:
            stream.journal.close()  # killed before any of it is matched
        else:
            report = stream.match()
    digest = stream.finish(report)
    updates = pq.read_table(out / "updates").to_pylist()
    names = ("change", "subscription_id", "message_id", "as_of", "score")
    assert Counter(tuple(row[name] for name in names) for row in updates) == story.expected
    recorded = load_vocabulary(out)
    late = story.beside.growing.late
    assert recorded.terms == [*(term for term, _ in late), *story.beside.growing.start.terms]
    assert recorded.idf[: len(late)].tolist() == [idf for _, idf in late]
    assert recorded.total_tokens == story.beside.growing.start.total_tokens
    verdict = verify_run(out)
    assert verdict.exact and sum(verdict.delivered_updates.values()) == sum(story.expected.values()), verdict
    assert digest_of_run(out, out / "again") == digest
    assert report["spouts"]["messages"]["unknown_words"] == story.beside.unknown
    return story


@given(seed=st.integers(0, 2**32 - 1), most_terms=st.sampled_from([0, 6, 10, MOST_TERMS]))
@settings(max_examples=6, deadline=None)
def test_new_words_tell_what_the_oracle_does_through_kills_and_with_other_bolts(
    words, tmp_path_factory, seed, most_terms
):
    play(seed, words, tmp_path_factory.mktemp("lives"), most_terms)


def test_new_words_stories_have_something_to_tell(words, tmp_path_factory):
    rooms = enumerate((6, 10, MOST_TERMS, 10, 6, 10, MOST_TERMS))
    stories = [play(seed, words, tmp_path_factory.mktemp("lives"), room) for seed, room in rooms]
    assert all(len(story.beside.growing.late) >= 5 and sum(story.expected.values()) > 20 for story in stories)
    assert sum(story.refused["too_many_terms"] for story in stories) > 10
    assert sum(story.beside.unknown for story in stories) > 50


def test_folder_has_messages_with_the_words_known_with_their_batch(words, tmp_path):
    """A word of a message that had no room is admitted later, with a subscription: the message lacks it for good."""
    stream = Stream(words, tmp_path, most_terms=10, window="count:9")
    topk = next(kind for kind in KINDS.run if kind.name == "topk")
    stream.take({"id": "m0", "text": " ".join(f"a{number}" for number in range(12)), **PLACE})
    stream.pipe.close_batch()
    stream.take({"subscribe": wide_subscription(topk, "s1", ["a3", "a11"])})
    stream.take({"id": "m1", "text": "a11", **PLACE})
    stream.pipe.close_batch()
    stream.finish(stream.match())
    vocabulary = load_vocabulary(tmp_path)
    rows = read_table(tmp_path, "terms").to_pylist()
    assert [{vocabulary.terms[term] for term in row["terms"]} for row in rows] == [
        {f"a{number}" for number in range(9)},
        {"a11"},
    ]
    verdict = verify_run(tmp_path)
    assert verdict.exact and sum(verdict.delivered_updates.values()) == 2, verdict


def test_stream_resumed_with_other_room_is_refused_and_an_earlier_release_had_none(words, tmp_path):
    stream = Stream(words, tmp_path, most_terms=0)
    stream.take({"text": "w1", **PLACE})
    stream.pipe.close_batch()
    stream.finish(stream.match())
    with pytest.raises(ConfigError, match="was begun with another most_terms"):
        Stream(words, tmp_path, most_terms=9)
    report = json.loads((tmp_path / "run.json").read_text())
    del report["live"]["most_terms"]  # as earlier releases left it
    (tmp_path / "run.json").write_text(json.dumps(report))
    assert Stream(words, tmp_path, most_terms=0).before


def test_logged_words_follow_the_log_forwards_and_back(words, tmp_path):
    stream = Stream(words, tmp_path, most_terms=50)
    for text in ("first", "w1", "second third", "w2"):
        stream.take({"text": text, **PLACE})
        stream.pipe.close_batch()
    log = tmp_path / "journal" / "log"
    logged = LoggedWords(log, words, 50)
    ends = [end for _, _, end in read_records(log)]
    for place, known in ((3, 3), (0, 1), (2, 3), (1, 1), (3, 3)):
        logged.go_to(ends[place])
        assert logged.vocabulary.admitted == ["first", "second", "third"][:known]
        assert logged.vocabulary.idf[50 - known : 50].tolist() == stream.gate.vocabulary.idf[50 - known : 50].tolist()
    stream.journal.close()


def test_empty_start_is_written_once_and_named_as_none(tmp_path):
    start = empty_start(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in start.rglob("*")}
    assert empty_start(tmp_path) == start and {path: path.stat().st_mtime_ns for path in start.rglob("*")} == before
    stream = Stream(start, tmp_path)
    assert settings_of(stream.config)["vocabulary"] is None
    stream.journal.close()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "run.json").write_text("{}")
    with pytest.raises(ConfigError, match="holds something"):
        empty_start(tmp_path / "other")


def test_command_words_of_subscriptions_after_the_last_message_are_in_the_folder(tmp_path, capsys):
    """Every kind, with a word that no message ever has; the next life begins with the message that brings it."""
    out = tmp_path / "out"
    stamp = {"time": 1_577_836_800, **PLACE}
    late = [wide_subscription(kind, f"late {kind.name}", ["łódź"]) | {"not_keywords": "zebra"} for kind in KINDS.run]
    first = [{"id": "m0", "text": "snow", **stamp}, *({"subscribe": row} for row in late)]
    digests = []
    for life, lines in enumerate((first, [{"id": "m1", "text": "Łódź snow", **stamp}])):
        source = tmp_path / f"lines{life}.jsonl"
        source.write_text("".join(json.dumps(row) + "\n" for row in lines))
        command = ["live", "--out", out, "--set", "stream.batch_rows=1", "--json"]
        with open(source) as file, Command(command, source=file.fileno()) as command:
            code, told, said = command.finish(120)
        assert code == 0 and json.loads(said.splitlines()[-1])["unknown_words"] == 0, said
        words = load_vocabulary(out)
        idf = dict(zip(words.terms, words.idf.tolist(), strict=True))
        assert [idf.get(term) for term in ("snow", "zebra", "łódź")] == [math.log(1 + 1 / 0.5)] * 3
        verdict = verify_run(out)
        assert verdict.exact and sorted(verdict.subscriptions) == sorted(KINDS.names)
        report = json.loads((out / "run.json").read_text())
        assert report["world"] == "-180.0,-90.0,180.0,90.0" and report["live"]["vocabulary"] is None
        digests.append(report["digest"])
        assert digests[-1] == digest_of_run(out, tmp_path / f"again{life}")
        for row in late:
            name = row["subscription_id"]
            assert explain(out, name, f"m{life}")["in_result"] == bool(life)
            assert cli.main(["show", str(out), name, "--json"]) == 0
            (shown,) = json.loads(capsys.readouterr().out)["subscriptions"]
            assert shown["keywords"] == ["łódź"] and len(shown["results"]) == life
    matched = {row["subscription_id"] for row in map(json.loads, told.splitlines()) if row.get("message_id") == "m1"}
    assert matched == {row["subscription_id"] for row in late}
