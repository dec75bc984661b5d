"""Queries against their oracle: what is written, what the program says, and what engines find."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matching.attributes import AttributeSchema, key_of
from matching.boolean.engines.cell_term import CellTerm
from matching.bulk_oracle import Chunk, passing_rows
from matching.fields import Refusal
from matching.filter_programs import program_of
from matching.kinds import KINDS
from matching.naive import boolean_match, meets, passes
from matching.naive_rows import messages_of, subscriptions_of
from matching.pieces import JOINED_ID, NAMED_ID
from matching.query import Node, parse_query
from matching.query_programs import Query, instructions_of_query, query_of
from matching.space import Space
from matching.subscription_words import texts_found_by
from matching.topk.engines.skype import Skype
from matching.validate import build_table, subscription_row
from matching.vocabulary import Vocabulary
from tests.support.conditions import batch_of, passing, passing_plain
from tests.support.naive_conditions import query_holds

SCHEMA = AttributeSchema.parse(["price:number"])
TYPES = {"price": "number"}
NAMES = ["all", "any", "none", "where", "x"]
KNOWN = ["ab", "abc", "acb", "bcd", "bc"]
#: Of these hashtags the first has a term, and both name words that have one.
TAGS = ["#ab", "#bc"]
WORDS = [*KNOWN, "abx", "#ab", "y"]
#: The last begins no known word.
BEGINNINGS = ["ab*", "abc*", "bc*", "acb*", "bx*", "abc~1", "bcd~1", "xyz~1"]
SPACE = Space(-180.0, -90.0, 180.0, 90.0)
VOCABULARY = Vocabulary(
    [*KNOWN, "#ab"], [1, 2, 3, 4, 5, 6], [1] * 6, [5.0, 4.0, 3.0, 2.0, 1.0, 0.5], messages=10, attributes=SCHEMA
)
ENGINES = {"boolean": CellTerm, "topk": Skype}
PLACES = {
    "boolean": {"region": [-180, -90, 180, 90], "everything": True},
    "topk": {"lon": 0, "lat": 0, "k": 1, "alpha": 0.5},
    "decay": {"lon": 0, "lat": 0, "k": 1, "alpha": 0.5},
    "knn": {"lon": 0, "lat": 0, "k": 1},
    "skyline": {"region": [-180, -90, 180, 90]},
}


def drawn_tree(draw, depth=0):
    """A query as a tree, whose texts are a word, the beginning of one or a phrase each; `draw(n)` is below n."""
    if depth and not draw(5):
        return f'"{" ".join(WORDS[draw(3 + draw(5))] for _ in range(2 + draw(2)))}"' + ("", "~1", "~3")[draw(3)]
    if depth and not draw(6):
        return BEGINNINGS[draw(len(BEGINNINGS))]
    if depth and draw(3):
        return WORDS[draw(len(WORDS))] if draw(4) else {"where": {"price": {"lte": draw(4)}}}
    names = ("all", "any", "none")
    made = {}
    for name in {names[draw(3)], names[draw(3)]}:
        made[name] = [drawn_tree(draw, depth + 1) if depth < 3 else WORDS[draw(8)] for _ in range(1 + draw(3))]
    return made


def as_text(tree):
    """The same query in the syntax of texts, with brackets around every group; None where it has a condition."""
    if isinstance(tree, str):
        return tree
    parts = []
    for name, members in tree.items():
        each = None if name == "where" else [as_text(one) for one in members]
        if each is None or None in each:
            return None
        if name == "none":
            parts += [f"-({one})" for one in each]
        else:
            parts.append(f"({(' OR ' if name == 'any' else ' ').join(f'({one})' for one in each)})")
    return " ".join(parts)


def drawn(seed, queries=150, messages=120):
    generator = np.random.default_rng(seed)

    def draw(below):
        return int(generator.integers(below))

    return [drawn_tree(draw) for _ in range(queries)], [drawn_message(draw) for _ in range(messages)]


def drawn_message(draw):
    """Words in order, `z` for one without a term, a line's end between those of two columns, and a price or none."""
    return [[*KNOWN, *TAGS, "z", "\n"][draw(9)] for _ in range(draw(7))], (None, draw(6))[draw(5) > 0]


def batch(messages):
    """The messages, with the reserved term, which says that they are visible."""
    keys = np.array([[key_of(None if price is None else float(price))] for _, price in messages], np.int64).reshape(
        -1, 1
    )
    of_word = {"\n": [JOINED_ID, JOINED_ID], "z": [-1]} | {word: [at] for at, word in enumerate(KNOWN)}
    of_word |= dict(zip(TAGS, ([5, NAMED_ID - 0], [-1, NAMED_ID - 4]), strict=True))
    ids = [[one for word in words for one in of_word[word]] for words, _ in messages]
    words = [{one for one in own if one >= 0} for own in ids]
    named = [{NAMED_ID - one for one in own if one <= NAMED_ID} for own in ids]
    made = batch_of([own | more | {VOCABULARY.reserved} for own, more in zip(words, named, strict=True)], keys)
    counted = [term in own for own, more in zip(words, named, strict=True) for term in sorted(own | more | {99})]
    weights = np.where(counted, made.weights, np.float32(-0.0))
    ends, order = np.cumsum([0, *map(len, ids)]), np.array([one for own in ids for one in own], np.int32)
    return type(made)(**(made._asdict() | {"weights": weights, "order_offsets": ends, "order": order}))


def wanted(tree, messages):
    return [query_holds(tree, TYPES, {"price": price}, words) for words, price in messages]


def programs(trees):
    found = [query_of(tree, VOCABULARY) for tree in trees]
    assert all(isinstance(one, Query) for one in found)
    return [program_of(instructions_of_query(one, VOCABULARY)) for one in found]


@pytest.mark.parametrize("seed", range(3))
def test_program_of_a_query_says_what_the_oracle_says(seed):
    trees, messages = drawn(seed)
    made = programs(trees)
    oracle = np.array([wanted(tree, messages) for tree in trees])
    some = batch(messages)
    assert (passing_plain(made, some) == oracle).all()
    assert np.argwhere(passing(made, some) != oracle).tolist() == []
    assert 1500 < oracle.sum() < oracle.size - 1500, "too few pairs of one verdict, so little is compared"


@settings(deadline=None)
@given(st.data())
def test_program_of_a_query_says_what_the_oracle_says_whatever_is_drawn(data):
    def draw(below):
        return data.draw(st.integers(0, below - 1))

    tree, messages = drawn_tree(draw), [drawn_message(draw) for _ in range(4)]
    made, some = programs([tree]), batch(messages)
    assert passing(made, some)[0].tolist() == wanted(tree, messages) == passing_plain(made, some)[0].tolist()


@pytest.mark.parametrize("seed", range(2))
def test_text_of_a_query_is_read_as_its_tree_and_written_as_it_is_read(seed):
    trees, messages = drawn(seed, 600, 60)
    texts = [(tree, text) for tree in trees if (text := as_text(tree)) is not None]
    assert len(texts) > 60
    some = batch(messages)
    for tree, text in texts:
        read = query_of(text, VOCABULARY)
        assert isinstance(read, Query)
        again = query_of(str(read.tree), VOCABULARY)
        for one in (read, again):
            assert isinstance(one, Query)
            made = [program_of(instructions_of_query(one, VOCABULARY))]
            assert passing_plain(made, some)[0].tolist() == wanted(tree, messages), (tree, text, str(read.tree))


def subscription_holds(kind, row, words, price):
    """What a subscription of a kind asks of a message, without its place."""
    query = row["query"]
    own, positive = set(row.get("keywords") or ()), positive_words(query)
    there = {*words, *(word.removeprefix("#") for word in words)}
    need = {None: len(own) if kind == "boolean" else 0, "all": len(own), "any": 1}.get(row["match"], row["match"])
    if own and len(own & there) < need:
        return False
    scoring = own | positive
    if kind != "boolean" and scoring and not scoring & ({*words} if kind == "skyline" else there):
        return False
    return query_holds(query, TYPES, {"price": price}, words)


def positive_words(tree):
    """Words that score: those outside `none` and phrases."""
    if isinstance(tree, str):
        return {tree} if tree.removeprefix("#").isalpha() else set()
    lists = [members for name, members in tree.items() if name in ("all", "any")]
    return {word for members in lists for member in members for word in positive_words(member)}


def asked(kind):
    """The table of subscriptions of a kind with queries, messages, and what the oracle says of each pair."""
    trees, messages = drawn(7, 500)
    generator = np.random.default_rng(8)
    rows = []
    for number, tree in enumerate(trees):
        row = {"subscription_id": str(number), "kind": kind, "query": tree, "match": None, **PLACES[kind]}
        if generator.random() < 0.4:
            row["keywords"] = generator.choice(WORDS, generator.integers(1, 3), replace=False).tolist()
            row["match"] = [None, "all", "any", 1][generator.integers(4)]
        rows.append(row)
    parsed = [subscription_row(row, VOCABULARY, SPACE, KINDS) for row in rows]
    refused = {one.reason for one in parsed if isinstance(one, Refusal)}
    assert refused <= {"no_known_keyword", "no_needed_word", "no_keyword"}, refused
    taken = [(row, one) for row, one in zip(rows, parsed, strict=True) if not isinstance(one, Refusal)]
    assert len(taken) > 50
    oracle = np.array([[subscription_holds(kind, row, *message) for message in messages] for row, _ in taken])
    assert 500 < oracle.sum() < oracle.size - 500
    numbers = range(len(taken))
    return build_table([one for _, one in taken], numbers, [0] * len(taken)), batch(messages), oracle


@pytest.mark.parametrize("kind", PLACES)
def test_row_of_a_subscription_with_a_query_means_what_the_oracle_says(kind):
    table, messages, oracle = asked(kind)
    rows = list(messages_of(messages))
    found = [
        [(boolean_match if kind == "boolean" else meets)(one, row) and passes(one, row) for row in rows]
        for one in subscriptions_of(table)
    ]
    assert np.argwhere(np.array(found) != oracle).tolist() == []


@pytest.mark.parametrize("kind", PLACES)
def test_bulk_oracle_judges_queries_as_the_oracle_does_message_by_message(kind):
    table, messages, _ = asked(kind)
    chunk, rows = Chunk(messages, 1.0, None), list(messages_of(messages))
    some = np.arange(0, len(messages), 2)
    for at, one in enumerate(subscriptions_of(table)):
        assert passing_rows(chunk, table, at, some).tolist() == [passes(one, rows[row]) for row in some]


@pytest.mark.parametrize("kind", ENGINES)
def test_subscription_with_a_query_is_found_where_the_oracle_says(kind):
    table, messages, oracle = asked(kind)
    engine = ENGINES[kind](SPACE)
    engine.insert(table)
    hits = engine.match(messages)
    found = np.zeros(oracle.shape, np.bool_)
    found[engine.numbers(hits.slot), hits.row] = True
    assert np.argwhere(found != oracle).tolist() == []


@pytest.mark.parametrize(
    ("query", "where"),
    [
        ("a OR b c", "character 8, at 'c'"),
        ("a b OR c", "character 5, at 'OR'"),
        ("(a", "character 1, at '('"),
        ("a)", "character 2, at ')'"),
        ("a OR", "character 5, at the end"),
        ("a - b", "character 3, at '-'"),
        ("()", "character 2, at ')'"),
        ("fahr* *", "character 7"),
        ("fa*r", "at the end of a word"),
        ('"rotes fahr*"', "whole words"),
        ('a "b c', "character 3"),
        ('"b c"~x', "needs a number"),
        ('"b c"~101', "at most 100"),
        ('a ""', "between the quotes"),
        ("fahrad~2", "behind a phrase"),
        ("~1", "behind one word"),
        ("fahr*~1", "behind one word"),
        ("-" * 20 + "a", "nested"),
        ("(" * 5000 + "a", "nested"),
        ({"any": []}, "query any is"),
        ({"some": ["a"]}, "'some'"),
        ({"all": ["a", {"any": ["b", "(c"]}]}, "query all 1 any 1, character 1"),
        ({}, "empty"),
        (["a"], "query is"),
        ('{"all": ', "JSON"),
    ],
)
def test_query_that_cannot_be_read_is_refused_with_its_place(query, where):
    found = parse_query(query)
    assert isinstance(found, Refusal) and found.reason == "bad_query" and where in found.detail, found
    assert found.fault.column == "query"


@settings(deadline=None)
@given(st.text(alphabet='ab ()-|"*~{}\\ORANDT', max_size=30) | st.recursive(
    st.text(max_size=5) | st.none() | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner),
))  # fmt: skip
def test_query_of_anything_is_read_or_refused(given_query):
    found = query_of(given_query, VOCABULARY)
    assert found is None or isinstance(found, Query | Refusal)
    if isinstance(found, Query):
        assert isinstance(parse_query(str(found.tree)) if "price" not in str(found.tree) else found.tree, Node)


def test_texts_by_which_a_query_is_found_are_of_all_its_alternatives():
    found = texts_found_by({"query": {"any": ['"ab abc"', "bcd"], "none": ["bc"]}}, VOCABULARY)
    assert set(found) == {"ab", "abc", "bcd"}
    assert texts_found_by({"query": "bcd OR ab*"}, VOCABULARY) == []
    assert texts_found_by({"query": "-bcd"}, VOCABULARY) == []
