"""Random filters: keys for the messages of a stream, and programs for its subscriptions."""

from typing import Any

import numpy as np

from matching.attributes import MISSING_KEY
from matching.conditions import ABSENT, ANY_OF, NONE_OF, PRESENT, WITHIN
from matching.filter_programs import (
    AT_LEAST,
    EITHER,
    NEITHER,
    PHRASE,
    WITHOUT,
    Instruction,
    branches_of,
    joined_programs,
    program_of,
)
from matching.filters import circle_instruction, polygon_instruction
from matching.geo.polygons import Rings
from matching.model import ANY_KEYWORD, BOOLEAN, Int64, MessageBatch, SubscriptionTable
from matching.reserved import is_reserved

ATTRIBUTES = 3


def keys_of(seq: Int64, seed: int) -> Int64:
    """Keys of messages by their seq, so that a message has the same ones wherever it stands; some are missing."""
    rows = [np.random.default_rng([seed, int(one)]).integers(-1, 6, ATTRIBUTES) for one in seq.tolist()]
    keys = np.array(rows, np.int64).reshape(seq.size, ATTRIBUTES)
    return np.where(keys < 0, MISSING_KEY, keys)


def order_of(messages: MessageBatch, seed: int) -> dict[str, Any]:
    """Columns of the messages' words in some order by seq, some twice, words without a term among them."""
    rows, terms = [], np.where(is_reserved(messages.weights), -1, messages.terms)
    for row, seq in enumerate(messages.seq.tolist()):
        own = terms[messages.term_offsets[row] : messages.term_offsets[row + 1]]
        rng = np.random.default_rng([seed, 2, seq])
        rows.append(rng.permutation(np.concatenate([own, own[rng.random(own.size) < 0.3]]).astype(np.int32)))
    ends = np.cumsum([0, *map(len, rows)])
    return {"order_offsets": ends, "order": np.concatenate([np.zeros(0, np.int32), *rows])}


def with_keys(messages: MessageBatch, seed: int) -> MessageBatch:
    """The messages with attributes, and with their words in order."""
    return MessageBatch(**(messages._asdict() | {"keys": keys_of(messages.seq, seed)} | order_of(messages, seed)))


def random_instructions(
    rng: np.random.Generator, terms: list[int], most_terms: int, depth: int = 0
) -> list[Instruction]:
    """None to three instructions, groups within groups too; about half of all messages pass most of them."""
    return [_instruction(rng, terms, most_terms, depth) for _ in range(int(rng.integers(0, 4)))]


def _instruction(rng: np.random.Generator, terms: list[int], most_terms: int, depth: int) -> Instruction:
    attribute, low = int(rng.integers(ATTRIBUTES)), int(rng.integers(0, 4))
    some = np.unique(rng.integers(0, 6, rng.integers(1, 5))).tolist()
    lon, lat = float(rng.uniform(-180, 180)), float(rng.uniform(-90, 90))
    makers = (
        lambda: Instruction(WITHIN, attribute, [low, low + int(rng.integers(0, 5))]),
        lambda: Instruction(ANY_OF, attribute, some),
        lambda: Instruction(NONE_OF, attribute, some),
        lambda: Instruction(PRESENT, attribute, []),
        lambda: Instruction(ABSENT, attribute, []),
        lambda: Instruction(WITHOUT, 0, np.unique(rng.integers(0, most_terms, 2)).tolist()),
        lambda: Instruction(AT_LEAST, min(2, len(terms)), terms),
        lambda: circle_instruction(lon, lat, float(rng.uniform(3e6, 1.5e7))),
        lambda: polygon_instruction(_triangles(rng)),
        lambda: Instruction(
            PHRASE, int(rng.integers(0, 3)), rng.integers(max(0, most_terms - 4), most_terms, 2).tolist()
        ),
        lambda: _group(rng, terms, most_terms, depth, EITHER),
        lambda: _group(rng, terms, most_terms, depth, NEITHER),
    )
    return makers[int(rng.integers(12 if depth < 3 else 10))]()


def _group(rng: np.random.Generator, terms: list[int], most_terms: int, depth: int, operation: int) -> Instruction:
    """A group of one to three branches, some without an instruction."""
    count = int(rng.integers(1, 4))
    branches = [random_instructions(rng, terms, most_terms, depth + 1) for _ in range(count)]
    return Instruction(operation, 0, branches_of(branches))


def _triangles(rng: np.random.Generator) -> Rings:
    """A large triangle and a small one, which may be a hole; corners on whole degrees, where messages of a grid lie."""
    rings = []
    for size in (170, 40):
        corners = np.round(rng.uniform(-1, 1, (3, 2)) * [size, size / 2]) * 1.0
        rings.append(np.concatenate([corners, corners[:1]]))
    lon, lat = np.concatenate(rings).T
    return Rings(np.array([0, 4, 8]), lon.copy(), lat.copy())


def filter_rows(table: SubscriptionTable, seed: int, most_terms: int) -> SubscriptionTable:
    """The subscriptions with random filters; of boolean ones with two keywords or more some need only two."""
    programs, match = [], table.match.copy()
    for row, number in enumerate(table.number.tolist()):
        rng = np.random.default_rng([seed, 1, number])
        own = slice(*table.term_offsets[row : row + 2].tolist())
        terms = table.terms[own][~is_reserved(table.weights[own])].tolist()
        made = random_instructions(rng, terms, most_terms)
        if table.kind[row] == BOOLEAN and any(one.operation == AT_LEAST for one in made):
            match[row] = ANY_KEYWORD
        programs.append(program_of(made))
    offsets, words = joined_programs(programs)
    columns: dict[str, Any] = {"match": match, "filter_offsets": offsets, "filter_words": words}
    return SubscriptionTable(**(table._asdict() | columns))


def filtered(turn: Any, seed: int, most_terms: int) -> Any:
    """A batch of `tests.support.any_kind` whose messages have attributes and whose new subscriptions have filters."""
    return turn._replace(
        messages=with_keys(turn.messages, seed),
        ended=with_keys(turn.ended, seed),
        added=filter_rows(turn.added, seed, most_terms),
    )


def with_filters(world: Any, seed: int, most_terms: int = 12) -> Any:
    """A world whose messages have attributes and whose subscriptions have filters; changed in place and returned."""
    if hasattr(world, "turns"):  # of skylines: its batches are made of turns
        world.turns = [
            turn._replace(
                messages=with_keys(turn.messages, seed),
                ended=with_keys(turn.ended, seed),
                changes=turn.changes._replace(added=filter_rows(turn.changes.added, seed, most_terms)),
            )
            for turn in world.turns
        ]
        world.batches = [(turn.boundary, turn.messages, turn.changes) for turn in world.turns]
        return world
    world.batches = [
        (boundary, with_keys(messages, seed), changes._replace(added=filter_rows(changes.added, seed, most_terms)))
        for boundary, messages, changes in world.batches
    ]
    return world
