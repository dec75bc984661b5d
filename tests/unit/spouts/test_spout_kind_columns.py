"""What only some kinds ask of messages: counts and times, there and in step; and messages dated after the run."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest

from matching.errors import InputError
from matching.model import concatenate
from matching.space import Space
from matching.window import NO_FLOOR, Window
from spouts.generated import MessageRecipe
from spouts.parquet import ParquetSpout, read_messages
from tests.support.etl_folder import SCHEMA
from tests.support.generated import generate_messages
from tests.support.message_files import COUNT, EARTH, START, RecordingContext, message, write
from tests.support.saving import through_frames

COLUMNS = ("counts", "event_time_us")
START_US = int(START.timestamp()) * 1_000_000


def rows_with_counts(count: int) -> list[dict]:
    return [message(seq, counts=[seq + term + 1 for term in range(seq % 4)]) for seq in range(count)]


@pytest.mark.parametrize("batch", [1, 3, 7, 100])
def test_spout_kind_columns_counts_and_times_come_with_their_messages_however_cut(tmp_path, batch):
    write(tmp_path, rows_with_counts(16), "part-00000.parquet")
    write(tmp_path, rows_with_counts(33)[16:], "part-00001.parquet")
    for _, messages, *_ in read_messages(tmp_path, COUNT, EARTH, batch, kind_columns=COLUMNS):
        for row, seq in enumerate(messages.seq.tolist()):
            cut = slice(*messages.term_offsets[row : row + 2])
            assert messages.counts[cut].tolist() == [seq + term + 1 for term in messages.terms[cut].tolist()]
        assert ((messages.event_time_us - START_US) // 1_000_000).tolist() == messages.seq.tolist()
        taken = messages.take(np.flatnonzero(messages.seq % 2 == 1))
        assert taken.counts.shape == taken.terms.shape and taken.event_time_us.shape == taken.seq.shape


def test_spout_kind_columns_nothing_is_carried_for_nobody(tmp_path):
    write(tmp_path, rows_with_counts(9))
    for _, messages, *_ in read_messages(tmp_path, COUNT, EARTH, 4):
        assert messages.counts.shape == messages.event_time_us.shape == (0,)
    joined = concatenate(
        [messages for _, messages, *_ in read_messages(tmp_path, COUNT, EARTH, 4, kind_columns=COLUMNS)]
    )
    assert joined.counts.shape == joined.terms.shape and joined.event_time_us.shape == (9,)


def test_spout_kind_columns_outside_world_loses_its_counts_too(tmp_path):
    write(tmp_path, [
        message(seq, lon=float(seq), lat=0.0, terms=[1, 2], weights=[0.5, 0.5], counts=[seq + 1, 9]) for seq in range(9)
    ])  # fmt: skip
    space = Space(2.0, -1.0, 6.0, 1.0)
    joined = concatenate(
        [messages for _, messages, *_ in read_messages(tmp_path, COUNT, space, 4, kind_columns=COLUMNS)]
    )
    assert joined.counts.tolist() == [count for seq in range(2, 7) for count in (seq + 1, 9)]


def test_spout_kind_columns_null_times_are_refused_with_count_and_remedy(tmp_path):
    write(tmp_path, [message(seq, event_time=None if seq < 3 else START) for seq in range(9)])
    with pytest.raises(InputError, match=r"3 messages have no event time.*fade with time.*--column time=NAME"):
        list(read_messages(tmp_path, COUNT, EARTH, 3, kind_columns=COLUMNS))


@pytest.mark.parametrize("counts", [[1], [1, 0], None])
def test_spout_kind_columns_counts_that_fit_no_terms_are_refused(tmp_path, counts):
    rows = [message(seq, terms=[1, 2], weights=[1.0, 1.0], counts=[1, 1]) for seq in range(3)]
    rows[1] = rows[1] | {"counts": counts}
    write(tmp_path, rows)
    with pytest.raises(InputError, match="count"):
        list(read_messages(tmp_path, COUNT, EARTH, 3, kind_columns=COLUMNS))
    assert len(list(read_messages(tmp_path, COUNT, EARTH, 3))) == 1  # nobody else minds


def test_spout_kind_columns_counts_that_are_missing_are_refused(tmp_path):
    schema = pa.schema([field for field in SCHEMA if field.name != "counts"])
    write(tmp_path, [{key: value for key, value in message(0).items() if key != "counts"}], schema=schema)
    with pytest.raises(InputError, match="'counts' should be list<int32> and is missing"):
        list(read_messages(tmp_path, COUNT, EARTH, 3, kind_columns=COLUMNS))


def test_spout_kind_columns_messages_dated_after_the_run_match_nothing_and_move_no_time(tmp_path):
    far = datetime(2099, 1, 1, tzinfo=UTC)
    rows = [message(seq, terms=[1], weights=[1.0], counts=[1]) for seq in range(9)]
    rows[4] = rows[4] | {"event_time": far}
    write(tmp_path, rows)
    latest_us = START_US + 3_600_000_000
    for window, kind_columns in ((Window.parse("time:100"), ()), (Window.parse("time:100"), COLUMNS), (COUNT, COLUMNS)):
        batches = list(read_messages(tmp_path, window, EARTH, 3, kind_columns=kind_columns, latest_us=latest_us))
        joined = concatenate([batch.messages for batch in batches])
        assert joined.seq.tolist() == list(range(9))
        assert np.diff(joined.term_offsets).tolist() == [1, 1, 1, 1, 0, 1, 1, 1, 1]
        if window.kind == "time":
            assert joined.life[4] == NO_FLOOR
            assert batches[-1].boundary.floor == START_US + 8_000_000 - 100_000_000
    # where times do not matter nothing is set aside, and without a limit nothing is
    for kind_columns, latest in (((), latest_us), (COLUMNS, None)):
        batches = list(read_messages(tmp_path, COUNT, EARTH, 3, kind_columns=kind_columns, latest_us=latest))
        assert sum(len(batch.messages.terms) for batch in batches) == 9


def test_spout_kind_columns_the_start_of_the_run_decides_and_is_saved(tmp_path):
    write(tmp_path, [message(seq, event_time=datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=1000 + 10 * seq),
                             terms=[1], weights=[1.0], counts=[1]) for seq in range(9)])  # fmt: skip
    spout, context = ParquetSpout(tmp_path, COUNT, EARTH, 3, kind_columns=COLUMNS, max_ahead_s=35.0), RecordingContext()
    spout.open(context)
    while spout.next_batch(spout.cutter.number, None) is not None:
        pass
    figures = spout.report()
    assert (figures["ahead"], figures["latest_us"], figures["kind_columns"]) == (5, 1_035_000_000, list(COLUMNS))

    spout = ParquetSpout(tmp_path, COUNT, EARTH, 3, kind_columns=COLUMNS, max_ahead_s=35.0)
    spout.open(context)
    spout.next_batch(0, None)
    again = ParquetSpout(tmp_path, COUNT, EARTH, 3, kind_columns=COLUMNS, max_ahead_s=35.0)
    context.clock_s = 5_000.0  # it is resumed much later
    again.open(context)
    again.restore(through_frames(0, messages=spout))
    while again.next_batch(again.cutter.number, None) is not None:
        pass
    assert again.report() == figures


def test_spout_kind_columns_generated_messages_carry_what_is_asked():
    recipe, space = MessageRecipe(vocabulary=50, mean_terms=6.0), EARTH
    for kind_columns in ((), COLUMNS):
        batch = next(iter(generate_messages(recipe, COUNT, space, 2000, 2000, kind_columns)))
        assert batch.messages.counts.shape[0] == (batch.messages.terms.shape[0] if kind_columns else 0)
        assert batch.messages.event_time_us.shape[0] == (2000 if kind_columns else 0)
    assert batch.messages.counts.min() == 1 and batch.messages.counts.max() > 1
