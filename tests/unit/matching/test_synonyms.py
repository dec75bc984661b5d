"""Synonyms: what a file may say, and that a subscription written out means what its oracle says."""

import numpy as np
import pytest

from matching.errors import ConfigError
from matching.kinds import KINDS
from matching.query import Node, parse_query
from matching.synonyms import MAX_WAYS, Synonyms
from matching.text import term_form
from tests.support.naive_conditions import query_holds, words_hold

LINES = ["# comment", "", "bike, bicycle, velo", "tv => television, telly", "big apple, nyc", "cheap , low\\, price"]
#: What the words of queries stand for.
WAYS = {word: ["bike", "bicycle", "velo"] for word in ("bike", "bicycle", "velo")}
WAYS |= {"tv": ["television", "telly"], "nyc": ['"big apple"', "nyc"], "cheap": ["cheap", '"low price"']}
PLACES = {
    "boolean": {"region": [0, 0, 1, 1]},
    "topk": {"lon": 0, "lat": 0, "k": 1, "alpha": 0.5},
    "knn": {"lon": 0, "lat": 0, "k": 1},
}


def written_out(**columns):
    return dict(Synonyms(LINES).written_out({"kind": "boolean", **columns}, KINDS))


def test_keywords_that_are_all_needed_become_alternatives_of_the_query():
    found = written_out(keywords="red Bike big apple")
    assert found["keywords"] == ["red"]
    assert found["query"] == {"all": [{"any": ["bike", "bicycle", "velo"]}, {"any": ['"big apple"', "nyc"]}]}
    assert written_out(keywords="bike", query="red -tv") == {
        "kind": "boolean",
        "keywords": None,
        "query": {
            "all": [
                {"all": ["red", {"none": ["television", "telly"]}]},
                {"any": ["bike", "bicycle", "velo"]},
            ]
        },
    }


def test_keywords_of_a_kind_that_ranks_score_with_their_synonyms():
    found = written_out(kind="topk", keywords="red nyc velo")
    assert found["keywords"] is None and found["query"] == {"all": [{"any": ["red", "nyc", "bike", "bicycle", "velo"]}]}
    found = written_out(kind="topk", keywords=["red", "tv"], query="old")
    assert found["keywords"] == ["red", "television", "telly"] and found["query"] == "old"


STAY = [{"keywords": "red"}, {"keywords": "red", "query": '"old bike" vel*'}, {"keywords": "bike red", "match": 2}]


@pytest.mark.parametrize("columns", [*STAY, {"keywords": 5}, {"query": "(a"}, {"kind": "none", "keywords": "bike"}, {}])
def test_subscription_without_a_synonym_or_that_cannot_be_read_stays(columns):
    given = {"kind": "boolean", **columns}
    assert Synonyms(LINES).written_out(given, KINDS) is given


def test_what_is_written_out_is_written_out_once():
    for columns in ({"keywords": "red bike tv", "not_keywords": ["nyc"]}, {"query": "(bike OR cheap) -velo"}):
        once = written_out(**columns)
        assert written_out(**once) == once != {"kind": "boolean", **columns}


def test_words_of_one_stem_are_one_word():
    found = Synonyms(["bikes, bicycle"], term_form("english")).written_out(
        {"kind": "boolean", "query": "biking"}, KINDS
    )
    assert found["query"] == {"any": ["bikes", "bicycle"]}


@pytest.mark.parametrize("line", ["bike,", "=> tv", "tv =>", "!, bike", "自転車, bike"])
def test_line_without_a_word_is_refused_with_its_number(line):
    with pytest.raises(ConfigError, match=r"synonyms, line 2: there is no word"):
        Synonyms(["a, b", line])


def test_word_that_stands_for_too_many_is_refused():
    with pytest.raises(ConfigError, match=f"more than {MAX_WAYS}"):
        Synonyms([", ".join(f"w{number}" for number in range(MAX_WAYS + 1))])


WORDS = [*WAYS, "red", "old", "television", "telly", "big", "apple", "low", "price"]


def stands(word: str) -> dict:
    return {"any": WAYS.get(word, [word])}


@pytest.mark.parametrize("seed", range(40))
def test_subscription_written_out_means_what_its_words_stand_for(seed):
    rng, met = np.random.default_rng(seed), 0
    kind = str(rng.choice([*PLACES]))
    match = [None, "all", "any"][int(rng.integers(3))]
    own, excluded, asked = (rng.choice([*WAYS, "red"], int(rng.integers(0, most))).tolist() for most in (3, 2, 3))
    columns = {"kind": kind, "match": match if own else None, "keywords": own or None, "not_keywords": excluded or None}
    columns["query"] = {"all": asked, "none": ["old"]} if asked else None
    found = Synonyms(LINES).written_out(columns, KINDS)
    assert found["query"] is None or isinstance(parse_query(found["query"]), Node)
    # beside a query, keywords of a kind that ranks are not needed unless `match` is given
    all_needed = match == "all" or (match is None and kind == "boolean")
    needed = bool(own) and (kind == "boolean" or match is not None or not asked)
    for _ in range(60):
        words = rng.choice(WORDS, 4).tolist()
        words += ["big", "apple"] if rng.random() < 0.2 else ["low", "price"] if rng.random() < 0.2 else []
        held = [query_holds(stands(word), {}, {}, words) for word in own]
        wanted = not needed or (all(held) if all_needed else any(held))
        wanted = wanted and not any(query_holds(stands(word), {}, {}, words) for word in excluded)
        wanted = wanted and all(query_holds(stands(word), {}, {}, words) for word in asked)
        wanted = wanted and not (asked and "old" in words)
        left = found["keywords"] or []
        need = found["match"] if kind == "boolean" or not needed else found["match"] or "any"
        holds = words_hold(
            need if left and needed else None, left if needed else (), found["not_keywords"] or (), words
        )
        holds = holds and (found["query"] is None or query_holds(found["query"], {}, {}, words))
        if kind != "boolean" and not all_needed and {"nyc", "cheap"} & {*own}:
            continue  # phrases do not rank: fewer messages are met
        assert holds == wanted, (columns, found, words)
        met += wanted
    assert met or seed, "nothing was met"
