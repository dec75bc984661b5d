"""Words that hashtags name, read from message files: the messages have them, and no vector does."""

import numpy as np

from gateway.subscriptions.past import read_past
from matching.naive_rows import Extras, messages_of
from matching.window import Window
from spouts.parquet import read_messages
from spouts.subscriptions import load_vocabulary
from tests.support.boolean_tables import SPACE
from tests.support.etl_folder import random_rows, with_hashtags, write_etl


def test_messages_of_files_have_the_words_of_their_hashtags_for_matching_alone(tmp_path):
    rows, alone = with_hashtags(random_rows(200)), 0
    folder = write_etl(tmp_path / "etl", rows)
    batches = [each.messages for each in read_messages(folder, Window("count", 10), SPACE, 12, None, ("counts",))]
    found = [one for each in batches for one in messages_of(each, Extras(counts=each.counts.tolist()))]
    assert len(found) == 200
    (segment,) = read_past(folder, load_vocabulary(folder)).segments
    for seq, (row, one) in enumerate(zip(rows, found, strict=True)):
        named = {int(word[2:]) for word in row["text"].split() if word.startswith("#")}
        assert [*one.weights] == row["terms"] and {*one.beginnings} == named - {*row["terms"]}
        assert one.counts == dict(zip(row["terms"], row["counts"], strict=True))
        terms = segment.terms[segment.term_offsets[seq] : segment.term_offsets[seq + 1]].tolist()
        assert terms == [*sorted({*row["terms"]} | named), 12]
        alone += len(one.beginnings)
    assert alone > 20


def test_messages_that_are_set_aside_have_no_words_of_hashtags(tmp_path):
    folder = write_etl(tmp_path / "etl", with_hashtags(random_rows(200)))
    read = read_messages(folder, Window("count", 10), SPACE, 12, None, ("event_time_us",), 100_000_000)
    terms = np.concatenate([np.diff(each.messages.term_offsets) for each in read])
    assert (terms[:101] > 0).all() and not terms[101:].any()
