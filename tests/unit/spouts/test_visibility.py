"""Which messages carry the reserved term: all but deletions, marks, and what is outside, ahead or quarantined."""

import numpy as np

from matching.attributes import NO_ATTRIBUTES
from matching.naive_rows import messages_of
from matching.reserved import is_reserved, with_reserved, without_reserved
from matching.space import EARTH, Space
from matching.validate import ParsedMessage
from matching.vocabulary import Vocabulary
from matching.window import Window
from matching.words.message_words import MessageTerms
from spouts.messages import MessageBlock
from spouts.parquet import read_messages
from spouts.parsed import batch_of, clock_mark, parse_message
from spouts.quarantine import without_terms
from tests.support.boolean_tables import RESERVED, SPACE, batch
from tests.support.etl_folder import random_rows, with_objects, write_etl

COUNT = Window("count", 10)


def visible(messages) -> list[bool]:
    return [one.visible for one in messages_of(messages)]


def read(folder, space=SPACE, latest_us=None):
    batches = list(read_messages(folder, COUNT, space, 7, None, ("event_time_us", "counts"), latest_us))
    return [one for each in batches for one in visible(each.messages)], batches


def test_messages_of_files_are_visible_with_or_without_words_but_deletions_strangers_and_the_ahead(tmp_path):
    rows = with_objects(random_rows(200))
    folder = write_etl(tmp_path / "etl", rows)
    seen, batches = read(folder)
    assert seen == [row["op"] == 0 for row in rows] and 0 < sum(seen) < 200
    assert any(not row["terms"] for row in rows if row["op"] == 0)
    for each in batches:
        last = each.messages.terms[is_reserved(each.messages.weights)]
        assert (last == 12).all() and (each.messages.counts[is_reserved(each.messages.weights)] == 0).all()
    part = Space(-90.0, -90.0, 0.0, 90.0)
    inside = [row["op"] == 0 and bool(part.contains(row["lon"], row["lat"])) for row in rows]
    assert read(folder, part)[0] == inside and inside != seen
    late = read(folder, latest_us=100_000_000)[0]
    assert late == [row["op"] == 0 and row["event_time"] <= 100_000_000 for row in rows] and late != seen


def test_mark_of_a_clock_and_deletions_of_a_live_stream_are_not_visible():
    row = {"id": "a", "text": "tea", "lon": 1, "lat": 2, "time": 5}
    ahead = parse_message(row | {"id": "c"})
    assert isinstance(ahead, ParsedMessage)
    parsed = [
        parse_message(row),
        parse_message(row | {"id": "b", "op": "delete"}),
        ahead._replace(ahead=True),
        clock_mark(3, 5_000_000, Space(*EARTH)),
        parse_message(row | {"id": "d", "text": "..."}),
    ]
    none = np.zeros(0, np.int32)
    vocabulary = Vocabulary([f"w{number}" for number in range(7)], [1] * 7, [1] * 7, [1.0] * 7, messages=1)
    words = MessageTerms(none, np.zeros(6, np.int64), np.zeros(5, np.int32), np.zeros(5, np.int32))
    made = batch_of(MessageBlock.of(parsed, NO_ATTRIBUTES), words, vocabulary, 0, SPACE, COUNT)
    assert visible(made) == [True, False, False, False, True] and made.terms.tolist() == [7, 7]


def test_quarantined_message_loses_the_reserved_term_too():
    messages = batch([((1.0, 1.0), [1, RESERVED]), ((1.0, 1.0), [RESERVED]), ((1.0, 1.0), [2, RESERVED])])
    assert visible(without_terms(messages, [(0, 1)])) == [False, False, True]


def test_reserved_term_comes_and_goes_and_leaves_the_words_as_they_were():
    plain = batch([((1.0, 1.0), [1, 3]), ((1.0, 1.0), []), ((1.0, 1.0), [2]), ((1.0, 1.0), [])])
    assert without_reserved(plain) is plain
    seen = np.array([True, True, False, False])
    counts = np.array([2, 5, 1], np.int32)
    offsets, terms, weights, counted = with_reserved(
        RESERVED, seen, plain.term_offsets, plain.terms, plain.weights, counts
    )
    assert offsets.tolist() == [0, 3, 4, 5, 5] and terms.tolist() == [1, 3, RESERVED, RESERVED, 2]
    assert counted.tolist() == [2, 5, 0, 0, 1] and np.abs(weights[2:4]).tolist() == [0.0, 0.0]
    both = type(plain)(**(plain._asdict() | {"term_offsets": offsets, "terms": terms, "weights": weights}))
    for again, before in zip(without_reserved(both), plain, strict=True):
        np.testing.assert_array_equal(again, before)
