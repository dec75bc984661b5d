"""The index of logged messages against the oracle: what matches, in any range, however the log is cut and read."""

import tempfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matching.attributes import AttributeSchema
from matching.fields import Refusal
from matching.kinds import KINDS
from matching.message_segments import SegmentConditions
from matching.model import Names, join_messages
from matching.naive import boolean_match, passes
from matching.naive_rows import messages_of, subscriptions_of
from matching.space import Space
from matching.validate import build_table, subscription_row
from matching.vocabulary import Vocabulary
from matching.window import Window
from matching.words.message_words import MessageWords
from spouts import message_index
from spouts.log import Record, checksum_in, encode_record
from spouts.message_index import FOLDER, MessageIndex, messages_at
from spouts.messages import MessageBlock
from spouts.parsed import batch_of, parse_message

SCHEMA = AttributeSchema.parse(["price:number", "tags:categories"])
SPACE, WINDOW = Space(-180.0, -90.0, 180.0, 90.0), Window("count", 1_000)
KNOWN = list("abcde")
VOCABULARY = Vocabulary(KNOWN, [1, 2, 3, 4, 5], [1] * 5, [5.0, 4.0, 3.0, 2.0, 1.0], messages=10, attributes=SCHEMA)
NEVER = 2**62


def drawn_message(draw, number):
    row = {"id": f"m{number}", "text": " ".join([*KNOWN, "z"][draw(6)] for _ in range(draw(5))) or "none"}
    row |= {"lon": draw(9) - 4.0, "lat": draw(9) - 4.0}
    row |= {"time": f"2020-01-0{1 + draw(9)}"} if draw(3) else {}
    row |= {"price": draw(4)} if draw(3) else {}
    row |= {"tags": ["garden", "sea"][: draw(3)]} if draw(2) else {}
    if not draw(6):
        row |= {"west": row["lon"] - 2, "south": row["lat"] - 1, "east": row["lon"] + 2, "north": row["lat"] + 1}
    row |= {"op": "delete"} if not draw(8) else {}
    return row


def drawn_subscription(draw):
    """One of `boolean`, with and without words, shapes and conditions."""
    row = {"subscription_id": "s", "kind": "boolean", "everything": True}
    words = sorted({[*KNOWN, "y"][draw(6)] for _ in range(draw(4))})
    if words:
        row |= {"keywords": words} | ({"match": 1 + draw(len(words))} if draw(2) else {})
    elif draw(2):
        row["query"] = ('"a b"', "a OR (b -c)", "a -(b c)", "-a", '"c d"~2 OR e')[draw(5)]
    west, south = draw(8) - 4.0, draw(8) - 4.0
    shapes = [
        {"region": [west, south, west + draw(5), south + draw(5)]},
        {"region": [170.0, -90.0, -1.0, 90.0]},
        {"circle": [west, south, 100_000 * (1 + draw(3))]},
        {"polygon": [[west, south], [west + 3, south], [west, south + 3]]},
    ]
    row |= shapes[draw(4)] if draw(6) else {}
    row |= {"where": {"price": {"lte": draw(4)}} if draw(2) else {"tags": {"any": ["sea"]}}} if draw(2) else {}
    row |= {"not_keywords": KNOWN[draw(5)]} if not draw(4) and "query" not in row else {}
    return row


@contextmanager
def log_of(path, rows, cuts):
    """Blocks of a log, which is written record by record: each `next` appends one."""
    words, before, seq = MessageWords(VOCABULARY), "", 0
    blocks = []
    with open(path, "wb") as file:

        def append(some):
            nonlocal before, seq
            block = MessageBlock.of([parse_message(row, schema=SCHEMA) for row in some], SCHEMA)
            terms = words.terms(words.cut(block.words()))
            seq += len(block)
            data = encode_record(Record(seq - 1, seq, len(block), block=block, terms=terms), before)
            before = checksum_in(data)
            file.write(data)
            file.flush()
            blocks.append((seq - len(block), block, terms))

        yield blocks, [lambda some=rows[a:b]: append(some) for a, b in cuts]


def matched(index, conditions, first, last):
    found = [conditions.matching(one, first, last) + one.first for one in index.segments(NEVER)]
    return np.concatenate([*found, np.zeros(0, np.int64)]).tolist()


def same(one, other):
    for name, column in one._asdict().items():
        assert np.array_equal(column, getattr(other, name), equal_nan=column.dtype.kind == "f"), name


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_index_finds_what_the_oracle_finds_however_it_is_cut(seed):
    check(seed)


def check(seed):
    generator = np.random.default_rng(seed)

    def draw(below):
        return int(generator.integers(below))

    rows = [drawn_message(draw, number) for number in range(20 + draw(40))]
    ends = sorted({*(1 + draw(len(rows)) for _ in range(draw(25))), len(rows)})
    subscriptions = [drawn_subscription(draw) for _ in range(8)]
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(message_index, "SEGMENT", 5 + draw(30))
        patch.setattr(message_index, "_SMALL", 1 + draw(4))
        path = Path(folder) / "log"
        path.touch()
        index = MessageIndex(path, SPACE, VOCABULARY.reserved, writes=True)
        with log_of(path, rows, zip([0, *ends[:-1]], ends, strict=True)) as (blocks, appends):
            for append in appends:
                append()
                if draw(2):
                    index.segments(NEVER)
        whole = join_messages(
            [batch_of(block, words, VOCABULARY, first, SPACE, WINDOW) for first, block, words in blocks]
        )
        oracle = list(messages_of(whole))
        reopened = MessageIndex(path, SPACE, VOCABULARY.reserved, writes=bool(draw(2)))
        stored = sorted((path.parent / FOLDER).glob("[0-9]*"))
        if stored and not draw(3):  # damaged: made again
            some = stored[draw(len(stored))]
            data = some.read_bytes()
            some.unlink()  # the other index has it mapped
            some.write_bytes(data[:-1] + bytes([data[-1] ^ 7]))
        total = 0
        for row in subscriptions:
            parsed = subscription_row(row, VOCABULARY, SPACE, KINDS)
            if isinstance(parsed, Refusal):
                continue
            subscription = next(subscriptions_of(build_table([parsed], [0], [0])))
            wanted = [one.seq for one in oracle if boolean_match(subscription, one) and passes(subscription, one)]
            conditions = SegmentConditions(parsed, KINDS.named("boolean"), VOCABULARY)
            first = draw(len(rows))
            last = first + draw(len(rows))
            for each in (index, reopened):
                assert matched(each, conditions, 0, NEVER) == wanted, row
                assert matched(each, conditions, first, last) == [s for s in wanted if first <= s <= last], row
                tests = [(one.first, conditions.tested(one)) for one in each.segments(NEVER)]
                assert [s for at, found in tests for s in (found.rows[found.matched] + at).tolist()] == wanted, row
            total += len(wanted)
        segments = reopened.segments(NEVER)
        names = [Names(one.id_offsets, one.ids).strings() for one in segments]
        assert sum(names, []) == [row["id"] for row in rows]
        assert sum(map(len, segments)) == len(rows) and [one.first for one in segments][:1] == [0]
        picked = [np.flatnonzero(generator.random(len(one)) < 0.6) for one in segments]
        seqs = np.concatenate([at + one.first for one, at in zip(segments, picked, strict=True)])
        if seqs.shape[0]:
            same(join_messages(messages_at(segments, picked, VOCABULARY, SPACE, WINDOW)), whole.take(seqs))
        index.close()
        reopened.close()
        return total, len(stored)


def test_index_is_tested_with_matches_and_with_stored_segments():
    found = [check(seed) for seed in range(5)]
    assert sum(total for total, _ in found) > 30 and sum(stored for _, stored in found) > 5


def test_index_that_only_reads_maps_what_another_one_has_written(tmp_path):
    rows = [{"id": str(n), "text": "a", "lon": 0, "lat": 0} for n in range(12)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(message_index, "SEGMENT", 4)
        with log_of(tmp_path / "log", rows, [(0, 4), (4, 8), (8, 12)]) as (_, appends):
            reader = MessageIndex(tmp_path / "log", SPACE, VOCABULARY.reserved)
            writer = MessageIndex(tmp_path / "log", SPACE, VOCABULARY.reserved, writes=True)
            for follows, append in zip((writer, reader, writer), appends, strict=True):
                append()
                follows.follow(NEVER)  # the reader is the first to come to the second segment
            found = reader.segments(NEVER)
    assert [one.lon.flags.writeable for one in found] == [False, True, False]
    assert [one.first for one in found] == [0, 4, 8] and len(list((tmp_path / FOLDER).iterdir())) == 3
    for one in (reader, writer):
        one.close()


def test_index_of_another_log_is_made_again(tmp_path):
    """The second log has the same number of messages; only the checksum of the last record differs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(message_index, "SEGMENT", 2)
        for text in ("a", "b"):
            with log_of(tmp_path / "log", [{"id": n, "text": text, "lon": 0, "lat": 0} for n in "12"], [(0, 2)]) as (
                _,
                appends,
            ):
                appends[0]()
            index = MessageIndex(tmp_path / "log", SPACE, VOCABULARY.reserved, writes=True)
            term = VOCABULARY.id_of(text)
            assert [one.rows_of(term).tolist() for one in index.segments(NEVER)] == [[0, 1]]
            assert len(list((tmp_path / FOLDER).iterdir())) == 1
            index.close()
