"""Questions over retained messages: how long answers take, and what the index of a log costs.

A log of random messages is written and indexed; then the last 100 matches of random searches, previews of them (all
conditions over all messages) and backfills are found. Searches have one to three words (`zipf`), a rectangle of a
city's size and, half of them, a price; a fifth has no words. Answers of some are compared with a scan of all columns.
"""

import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from time import perf_counter, process_time
from typing import Annotated, Any

import numpy as np

from benchmarks import command
from gateway.subscriptions.past import Past
from gateway.subscriptions.preview import preview_of
from matching.attributes import AttributeSchema, number_keys
from matching.backfill import backfilled
from matching.fields import Refusal
from matching.filter_fields import ALL_EARLIER
from matching.kinds import KINDS
from matching.message_segments import SegmentConditions
from matching.model import Names
from matching.space import Space
from matching.validate import ParsedSubscription, subscription_row
from matching.vocabulary import Vocabulary
from matching.words.message_words import MessageTerms
from spouts.log import Record, checksum_in, encode_record
from spouts.message_index import FOLDER, MessageIndex
from spouts.messages import MessageBlock

_SPACE, _KIND = Space(-180.0, -90.0, 180.0, 90.0), KINDS.named("boolean")
_SCHEMA = AttributeSchema.parse(["price:number"])
_SECOND_US = 1_000_000


def bench(
    messages: Annotated[int, "that are retained"] = 10_000_000,
    batch: Annotated[int, "messages of a record"] = 10_000,
    words: Annotated[int, "that there are"] = 100_000,
    length: Annotated[int, "words of a message"] = 8,
    questions: Annotated[int, "of each sort"] = 100,
    compared: Annotated[int, "questions whose answers are compared with a scan"] = 20,
    seed: Annotated[int, "of messages and searches"] = 1,
    tell: command.Tell = print,
) -> dict[str, Any]:
    """Milliseconds of an answer, seconds and bytes of the index."""
    rng = np.random.default_rng(seed)
    vocabulary = Vocabulary(
        [f"w{number}" for number in range(words)], [1] * words, [1] * words, [1.0] * words, words, attributes=_SCHEMA
    )
    with tempfile.TemporaryDirectory(prefix="skyray-questions-") as folder:
        log = Path(folder) / "log"
        columns = _write(log, rng, messages, batch, words, length)
        tell(f"{messages:,} messages are logged")
        with closing(MessageIndex(log, _SPACE, vocabulary.reserved, writes=True)) as index:
            began_s, worked_s = perf_counter(), process_time()
            index.segments(messages)
            indexed_s, worked_s = perf_counter() - began_s, process_time() - worked_s
            tell(f"indexed in {indexed_s:.1f} s")
            searches = [_search(rng, vocabulary, columns) for _ in range(questions)]
            took = {name: _timed(answer, index, searches, vocabulary) for name, answer in _SORTS.items()}
            same = all(_same(one, index, vocabulary, columns) for one in searches[:compared])
        size_bytes = sum(file.stat().st_size for file in (log.parent / FOLDER).iterdir())
    return {
        "exact": same,
        "messages": messages,
        "log_and_index": {
            "seconds": round(indexed_s, 1),
            "processor_us_a_message": round(worked_s / messages * 1e6, 2),
            "bytes_a_message": round(size_bytes / messages, 1),
        },
        "milliseconds": took,
    }


def _write(log: Path, rng: np.random.Generator, messages: int, batch: int, words: int, length: int) -> dict[str, Any]:
    """Write the log; returns the columns of all messages."""
    found: dict[str, list[np.ndarray]] = {"lon": [], "lat": [], "price": [], "terms": []}
    before, none = "", np.zeros(batch, np.int32)
    with open(log, "wb") as file:
        for first in range(0, messages, batch):
            centre = rng.integers(0, 200, batch)  # cities
            lon = centre * 1.7 - 170 + rng.normal(0, 0.1, batch)
            lat = (centre % 60) * 2.0 - 60 + rng.normal(0, 0.1, batch)
            price = rng.integers(100, 3_000, batch).astype(np.float64)
            terms = np.minimum(rng.zipf(1.2, (batch, length)) - 1, words - 1).astype(np.int32)
            times = (first + np.arange(batch)) * _SECOND_US
            ids = Names.of([f"m{seq}" for seq in range(first, first + batch)])
            texts = Names(np.zeros(batch + 1, np.int64), np.zeros(0, np.uint8))
            block = MessageBlock(ids, texts, lon, lat, times, (price,))
            cut = MessageTerms(terms.reshape(-1), np.arange(batch + 1) * length, none, none)
            last = first + batch - 1
            data = encode_record(Record(last, last + 1, batch, block=block, terms=cut), before)
            before = checksum_in(data)
            file.write(data)
            for name, column in (("lon", lon), ("lat", lat), ("price", price), ("terms", terms)):
                found[name].append(column)
    return {name: np.concatenate(parts) for name, parts in found.items()}


def _search(rng: np.random.Generator, vocabulary: Vocabulary, columns: dict[str, Any]) -> ParsedSubscription:
    """A search like one of the messages."""
    like = int(rng.integers(columns["lon"].shape[0]))
    lon, lat = float(columns["lon"][like]), float(columns["lat"][like])
    row: dict[str, Any] = {"subscription_id": "s", "kind": "boolean"}
    row["region"] = [lon - 0.2, lat - 0.2, lon + 0.2, lat + 0.2]
    if rng.random() < 0.8:
        row["keywords"] = [f"w{term}" for term in np.unique(columns["terms"][like, : rng.integers(1, 4)])]
    if rng.random() < 0.5:
        row["where"] = {"price": {"lte": float(columns["price"][like]) + 100}}
    parsed = subscription_row(row, vocabulary, _SPACE, KINDS)
    assert not isinstance(parsed, Refusal), parsed
    return parsed


def _results(index: MessageIndex, parsed: ParsedSubscription, vocabulary: Vocabulary) -> None:
    segments, found = index.segments(index.next_seq - 1), 0
    conditions = SegmentConditions(parsed, _KIND, vocabulary)
    for segment in reversed(segments):
        found += conditions.matching(segment, 0, index.next_seq).shape[0]
        if found >= 100:
            return


def _preview(index: MessageIndex, parsed: ParsedSubscription, vocabulary: Vocabulary) -> None:
    past = Past.of(index.segments(index.next_seq - 1))
    preview_of(parsed, {}, KINDS, vocabulary, past, lambda _: {}, 0)


def _backfill(index: MessageIndex, parsed: ParsedSubscription, vocabulary: Vocabulary) -> None:
    segments = index.segments(index.next_seq - 1)
    backfilled(SegmentConditions(parsed, _KIND, vocabulary), ALL_EARLIER, index.next_seq, segments)


_SORTS = {"results": _results, "preview": _preview, "backfill": _backfill}


def _timed(
    answer: Callable[[MessageIndex, ParsedSubscription, Vocabulary], None],
    index: MessageIndex,
    searches: list[ParsedSubscription],
    vocabulary: Vocabulary,
) -> dict[str, float]:
    """Wall and processor time of an answer; the first one, which may compile kernels, is not counted."""
    answer(index, searches[0], vocabulary)
    took = np.zeros((len(searches), 2))
    for place, one in enumerate(searches):
        began = perf_counter(), process_time()
        answer(index, one, vocabulary)
        took[place] = perf_counter() - began[0], process_time() - began[1]
    names = [f"{way}_p{share}" for share in (50, 99) for way in ("wall", "processor")]
    return dict(zip(names, np.round(np.percentile(took * 1e3, (50, 99), axis=0), 1).reshape(-1).tolist(), strict=True))


def _same(parsed: ParsedSubscription, index: MessageIndex, vocabulary: Vocabulary, columns: dict[str, Any]) -> bool:
    """Whether the index finds what a scan of all columns finds."""
    conditions, most = SegmentConditions(parsed, _KIND, vocabulary), index.next_seq
    found = [conditions.matching(one, 0, most) + one.first for one in index.segments(most - 1)]
    west, south, east, north = parsed.region
    lon, lat = columns["lon"], columns["lat"]
    wanted = (lon >= west) & (lon <= east) & (lat >= south) & (lat <= north)
    for term in parsed.terms:
        if term != vocabulary.reserved:
            wanted &= (columns["terms"] == term).any(axis=1)
    if parsed.filter:
        number = np.frombuffer(parsed.filter, np.int64)
        wanted &= _within(columns["price"], number)
    return bool(np.array_equal(np.concatenate(found), np.flatnonzero(wanted)))


def _within(price: np.ndarray, program: np.ndarray) -> np.ndarray:
    """Whether prices are at most the upper bound of a program with this one condition."""
    return number_keys(price) <= program[-1]


if __name__ == "__main__":
    sys.exit(command.main(bench))
