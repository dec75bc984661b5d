"""Why a message does not satisfy a query, clause by clause, in words: for `explain`, `match`, `preview` and `check`.

Each clause is compiled and tested by itself, as the whole query is (`matching.query_programs`,
`matching.naive_filters`).
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from gateway.runs.match_rules import FILTER_REASONS, Verdict
from matching import filter_programs
from matching.filter_fields import asks_no_word
from matching.filter_programs import program_of
from matching.naive_filters import holds, instructions_of
from matching.naive_rows import NaiveMessage
from matching.pieces import JOINED_ID
from matching.query import ALL, ANY, NONE, PREFIX, WHERE, Node
from matching.query_programs import Query, clauses_of, instructions_of_clause, query_of
from matching.subscription_words import words_in
from matching.vocabulary import Vocabulary

#: Clauses, and places of a word, that are named at most.
_NAMED = 5
#: Reasons by the name of an instruction that is not of a query: of words that are cut into pieces.
_OF_KEYWORDS = {"phrase": "missing_word", "either": "too_few_keywords", "neither": "excluded_word"}
#: Reasons that a query may have: then its failed clauses are named.
_OF_WORDS = ("query", "missing_keyword", "no_common_word")


def clause_programs(columns: Mapping[str, Any], vocabulary: Vocabulary) -> dict[bytes, str]:
    """The parts of a subscription's query that must all hold, by the program of each instruction that they become."""
    vocabulary = words_in(columns, vocabulary)
    query, found = query_of(columns.get("query"), vocabulary), dict[bytes, str]()
    for clause, program in clauses_of(query, vocabulary) if isinstance(query, Query) else ():
        for one in filter_programs.instructions_of(program):
            found.setdefault(program_of([one]), clause)
    return found


def name_clause(verdict: Verdict, columns: Mapping[str, Any], message: NaiveMessage, vocabulary: Vocabulary) -> None:
    """Say in a verdict which column of the subscription failed, and of its query which clauses."""
    failed = verdict.failed
    if failed is not None and verdict.reason in FILTER_REASONS:
        own = (np.frombuffer(program, np.int64).tolist() for program in clause_programs(columns, vocabulary))
        of_query = failed.name not in ("circle", "polygon") and any(failed in instructions_of(one) for one in own)
        verdict.reason = "query" if of_query else _OF_KEYWORDS.get(failed.name, verdict.reason)
    query = query_of(columns.get("query"), words_in(columns, vocabulary))
    if isinstance(query, Query) and verdict.reason in _OF_WORDS:
        verdict.clause = failed_clauses(query.tree, message, vocabulary)
        if verdict.clause and asks_no_word(columns.get("keywords")):
            verdict.reason = "query"


def failed_clauses(node: Node, message: NaiveMessage, vocabulary: Vocabulary) -> str:
    """What of a query with terms of the vocabulary fails; "" if nothing does.

    Of alternatives all are named, of what is excluded the clauses that hold. Words that have to stand in a row come
    with the places at which the message has them, from 1.
    """
    lon, lat = (message.west + message.east) / 2.0, (message.south + message.north) / 2.0

    def holds_in(clause: Node) -> bool:
        program = np.frombuffer(program_of(instructions_of_clause(clause, vocabulary)), np.int64)
        given = lon, lat, message.carried, message.keys, message.order
        return all(holds(one, *given) for one in instructions_of(program.tolist()))

    def told(clause: Node) -> Iterator[str]:
        if holds_in(clause):
            return
        if clause.operation == ALL:
            for part in clause.parts:
                yield from told(part)
        elif clause.operation == ANY:
            need = "one is" if clause.value is None else f"{clause.value} are"
            failed = [one for part in clause.parts for one in told(part)]
            yield f"{clause}, of which {need} needed ({_listed(failed)})"
        elif clause.operation == NONE:
            for part in clause.parts:
                if holds_in(part):
                    yield f"{part} is there, and is excluded{_places(part, message, vocabulary)}"
        elif clause.operation == WHERE:
            yield f"{clause} does not hold"
        else:
            yield f"{clause} is not there{_places(clause, message, vocabulary)}"

    return _listed(list(told(node)))


def _listed(clauses: list[str]) -> str:
    more = len(clauses) - _NAMED
    return "; ".join(clauses[:_NAMED]) + (f"; and {more:,} more" if more > 0 else "")


def _places(clause: Node, message: NaiveMessage, vocabulary: Vocabulary) -> str:
    """Where a message has each of several words in a row; "" for another clause."""
    words = dict.fromkeys(clause.words()) if clause.operation != PREFIX else {}
    if len(words) < 2:
        return ""
    there = [term for term in message.order if term > JOINED_ID]
    found = []
    for word in words:
        at = [str(place) for place, term in enumerate(there, 1) if term == vocabulary.id_of(word)]
        found.append(f"{word} at {', '.join(at[:_NAMED])}" if at else f"{word} nowhere")
    return f": {', '.join(found)}"
