"""Texts cut and weighed a batch at a time (`matching.words`), beside one by one (`matching.text`).

    python -m benchmarks.texts MESSAGES [--limit 50000] [--batch 1000] [--rounds 5]

MESSAGES are lines of JSON with a `text`, plain or gzip. The stream starts without words, as `skyray serve` does: each
batch admits its new ones. Both ways take turns over the same texts; timed is processor time, in the first turn with
tokens that are new and in later ones with those that are known. Before, the terms, counts and weights of both are
compared to the bit.
"""

import gzip
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import process_time
from typing import Annotated, Any

import msgspec
import numpy as np

from benchmarks import command
from benchmarks.stopwatch import in_turns
from gateway.live.new_terms import NewTerms
from matching.text import TermColumns, Vocabulary

#: Terms that the stream may admit, as of `stream.most_terms`.
_ROOM = 1_000_000
_WAYS = ("one by one", "together")


class _Stream:
    """The gate's words, from none on."""

    def __init__(self) -> None:
        self.new_terms = NewTerms(Vocabulary.of_counts([], most_terms=_ROOM))
        self._messages = 0

    def together(self, texts: Sequence[str]) -> TermColumns:
        words = self.new_terms.words
        cut = words.cut(texts)
        self._admit(words.new_terms(cut))
        self._messages += len(texts)
        return words.vectors(cut)

    def one_by_one(self, texts: Sequence[str]) -> TermColumns:
        vocabulary = self.new_terms.vocabulary
        counts = [vocabulary.count_terms(text) for text in texts]
        self._admit(list(dict.fromkeys(term for row in counts for term in row)))
        self._messages += len(texts)
        return vocabulary.unit_vectors(counts)

    def _admit(self, terms: Sequence[str]) -> None:
        self.new_terms.admit(terms, self._messages)


def bench(
    messages: Annotated[Path, "lines of JSON with a text"],
    limit: Annotated[int, "messages at most"] = 50_000,
    batch: Annotated[int, "messages of a batch"] = 1_000,
    rounds: Annotated[int, "turns of each way"] = 5,
    tell: command.Tell = print,
) -> dict[str, Any]:
    """Microseconds a text of both ways, and their ratio."""
    texts = _texts(messages, limit)
    batches = [texts[first : first + batch] for first in range(0, len(texts), batch)]
    streams = {way: _Stream() for way in _WAYS}
    terms, same = 0, True
    for each in batches:
        one, other = streams["one by one"].one_by_one(each), streams["together"].together(each)
        same &= all(np.array_equal(column, like) for column, like in zip(one, other, strict=True))
        terms += one.terms.shape[0]
    tell(f"{terms:,} terms of {len(texts):,} texts are {'the same' if same else 'NOT the same'}")
    streams = {way: _Stream() for way in _WAYS}

    def turn(way: str, number: int) -> float:
        take = streams[way].together if way == "together" else streams[way].one_by_one
        begun = process_time()
        for each in batches:
            take(each)
        micros = (process_time() - begun) / len(texts) * 1e6
        tell(f"turn {number + 1} of {rounds}: {way}: {micros:.2f} us a text")
        return micros

    turns = in_turns(_WAYS, rounds, turn)
    known = {way: median(turns[way][1:]) for way in _WAYS}
    return {
        "texts": len(texts),
        "characters": sum(map(len, texts)) / len(texts),
        "micros_a_text": {way: {"new": turns[way][0], "known": known[way], "turns": turns[way]} for way in _WAYS},
        "ratio": known["together"] / known["one by one"],
        **command.verdict(same, terms, len(texts)),
    }


def lines_of(path: Path, limit: int) -> list[bytes]:
    """The first lines of a file, plain or gzip, without their ends."""
    opened = gzip.open(path) if path.suffix == ".gz" else open(path, "rb")  # noqa: SIM115 - closed below
    with opened as lines:
        return [line.rstrip(b"\r\n") for _, line in zip(range(limit), lines, strict=False)]


def _texts(path: Path, limit: int) -> list[str]:
    rows = map(msgspec.json.decode, lines_of(path, limit))
    return [row["text"] for row in rows if isinstance(row.get("text"), str)]


if __name__ == "__main__":
    sys.exit(command.main(bench))
