"""A hashtag is also the word that it names, for matching alone."""

import numpy as np
import pytest

import skyray
from matching.model import Names
from matching.pieces import JOINED, JOINED_ID, NAMED_ID
from matching.text import named_by, term_form
from matching.vocabulary import Vocabulary
from matching.words.message_words import MessageWords, weigh

TEXTS = [
    "#ramen bar",
    "ramen #ramen",
    "#東京都",
    "#東京2024 #best_of_ramen",
    "#_ # @ramen",
    "",
    "#new #the c# #C#",
    "x #Cafés,#Läufe",
    "ISPARTA #IĞDIR İSTANBUL I\u0307zmir &Iuml;x&#73;",
]


@pytest.mark.parametrize(
    ("term", "pieces"),
    [
        ("#ramen", ["ramen"]),
        ("ramen", []),
        ("@ramen", []),
        ("#best_ramen", ["best", JOINED, "ramen"]),
        ("#東京都", ["東", "東京", "京", "京都", "都"]),
        ("#東京2024", ["東", "東京", "京", JOINED, "2024"]),
        ("#läufe", ["läufe"]),
    ],
)
def test_hashtag_names_the_word_behind_its_mark(term, pieces):
    assert named_by(term) == pieces


def test_word_that_a_hashtag_names_has_the_form_of_the_stream():
    assert named_by("#läufe", term_form("german")) == ["lauf"]
    assert named_by("#cafes", term_form("english", folded=True)) == ["cafe"]


@pytest.mark.parametrize(("stem", "fold"), [("", False), ("german", True), ("turkish", False)])
def test_kernel_has_the_words_of_hashtags_behind_them_as_the_vocabulary_has(stem, fold):
    later = ("東京", "京", "2024", "best", "lauf", "cafe")
    known = [{"ramen": 2, "#ramen": 1, "bar": 1, "c": 1}, dict.fromkeys(later, 1)]
    vocabulary = Vocabulary.of_counts(known, stem, fold, most_terms=40)
    vocabulary.stop_terms = frozenset(["the", "of"])
    words, seen = MessageWords(vocabulary), 0
    for late in ([], ["new", "x"], ["#best_of_ramen", "都"]):
        vocabulary.admit(sorted(late), 10)
        for _ in range(2):  # with tokens that are new, and known
            found = words.terms(words.cut(Names.of(TEXTS)))
            for row, text in enumerate(TEXTS):
                ids = found.ids[found.offsets[row] : found.offsets[row + 1]].tolist()
                stopped = {-2: -1, NAMED_ID + 2: NAMED_ID + 1}
                assert [stopped.get(one, one) for one in ids] == vocabulary.order_of(text), text
                seen += sum(one <= NAMED_ID for one in ids)
            assert found.unknown.tolist() == [
                len({term for term in vocabulary.count_terms(text) if term not in {"the", "of"}} - {*vocabulary._ids})
                for text in TEXTS
            ]
    assert seen > 20
    first = vocabulary.first_id + 4  # as of before words were admitted
    early = words.terms(words.cut(Names.of(["#new x"])), [first])
    assert early.ids.tolist() == [-1, -1]
    if not stem:
        tag, ramen, bar = map(vocabulary.id_of, ("#ramen", "ramen", "bar"))
        assert words.terms(words.cut(Names.of(["#ramen-bar"]))).ids.tolist() == [tag, NAMED_ID - ramen, JOINED_ID, bar]


def test_words_of_hashtags_change_no_vector_and_are_not_admitted():
    vocabulary = Vocabulary.of_counts([{"ramen": 2, "#ramen": 1, "bar": 1}], most_terms=40)
    words = MessageWords(vocabulary)
    cut = words.cut(Names.of(["#ramen bar #soup"]))
    assert words.new_terms(cut) == ["#soup"]
    found = weigh(words.terms(cut), vocabulary.idf)
    assert found.terms.tolist() == sorted([vocabulary.id_of("#ramen"), vocabulary.id_of("bar")])
    assert found.counts.tolist() == [1, 1] and found.unknown.tolist() == [1]


PLACE = {"lon": 1.0, "lat": 1.0}
EVERYWHERE = {"kind": "boolean", "region": [0, 0, 2, 2]}
ASKED = {
    "word": EVERYWHERE | {"keywords": "ramen"},
    "tag": EVERYWHERE | {"keywords": "#ramen"},
    "both": EVERYWHERE | {"keywords": "bar ramen"},
    "phrase": EVERYWHERE | {"query": '"ramen bar"'},
    "with tag": EVERYWHERE | {"query": '"#ramen bar"'},
    "apart": EVERYWHERE | {"query": '"ramen open"~1'},
    "begins": EVERYWHERE | {"query": "ram*"},
    "near": EVERYWHERE | {"query": "rame~1"},
    "without": EVERYWHERE | {"keywords": "bar", "not_keywords": "ramen"},
    "tokyo": EVERYWHERE | {"keywords": "東京都"},
    "next": {"kind": "knn", "keywords": "ramen", "k": 9, **PLACE},
    "best": {"kind": "topk", "keywords": "ramen", "k": 9, "alpha": 0.5, **PLACE},
    "newest": {"kind": "decay", "keywords": "ramen", "k": 9, "alpha": 0.5, **PLACE},
    "line": {"kind": "skyline", "region": [0, 0, 2, 2], "keywords": "ramen"},
}
PUBLISHED = ["#ramen bar", "ramen bar", "a #ramen now open", "bar", "#東京都", "#京都 東", "#ramen"]


def test_every_kind_meets_a_message_by_the_word_of_its_hashtag():
    engine = skyray.Engine(window="count:20", clock=lambda: 1e9)
    for name, row in ASKED.items():
        engine.subscribe(row, subscription_id=name)
    met, scores = {name: set() for name in ASKED}, {}
    for number, text in enumerate(PUBLISHED):
        for one in engine.publish({"text": text, "time": 1_000_000, **PLACE}):
            met[one["subscription_id"]].add(number)
            scores[one["subscription_id"], number] = one["score"]
    words, tags = {0, 1, 2, 6}, {0, 2, 6}
    wanted = dict.fromkeys(("word", "begins", "near", "next", "best", "newest"), words)
    wanted |= {"tag": tags, "both": {0, 1}, "phrase": {0, 1}, "with tag": {0}, "apart": {2}, "without": {3}}
    assert met == wanted | {"tokyo": {4}, "line": {1}}
    assert scores["best", 0] == scores["best", 6] == 0.5 < scores["best", 1], "the word of a hashtag weighs nothing"


def test_scores_of_others_are_the_same_whether_words_are_marked():
    def scores(mark: str) -> dict:
        engine = skyray.Engine([f"{mark}ramen bar", "bar soup", "ramen"], window="count:20", clock=lambda: 1e9)
        engine.subscribe(subscription_id="s", kind="topk", keywords="bar soup", k=9, alpha=0.3, **PLACE)
        rows = [{"text": f"{mark}ramen bar", "time": 1, **PLACE}, {"text": "soup bar", "time": 1, **PLACE}]
        return {one["seq"]: one["score"] for row in rows for one in engine.publish(row)}

    assert scores("#") == scores("@") and len(scores("#")) == 2


def test_word_that_comes_later_is_not_found_in_earlier_hashtags_whatever_its_window():
    engine = skyray.Engine(window="count:20", clock=lambda: 1e9)
    engine.publish({"text": "#soup here", "time": 1, **PLACE})
    engine.subscribe(subscription_id="s", kind="topk", keywords="soup", k=9, alpha=0.5, **PLACE)
    found = [one["seq"] for one in engine.publish([{"text": "#soup", "time": 1, **PLACE}])]
    assert found == [1]


def test_codes_of_named_words_are_below_all_others():
    assert NAMED_ID - JOINED_ID < JOINED_ID and len({NAMED_ID - one for one in range(-3, 3)}) == 6
    assert (np.array([NAMED_ID - one for one in range(-3, 0)]) > NAMED_ID).all()
