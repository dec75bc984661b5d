"""Streams that an index may break down on: everything at one point, one word everywhere, nothing but ties, and so on.

Each is a `benchmarks.cases.Case` of `topk`, made by bending the synthetic workload. Read on in
`benchmarks.figures.topk`.
"""

from typing import Any

import numpy as np

from benchmarks.cases import Case
from benchmarks.workload import Messages, Table, TopkRecipe, changed, make_messages, topk_subscriptions
from matching.kinds import KINDS
from matching.model import concatenate, take_ragged
from matching.window import Window

#: Name to what it does.
STREAMS = {
    "plain": "the synthetic workload as it is",
    "one_point": "all messages and subscriptions at one point",
    "one_word": "every message and every subscription has one and the same word only",
    "equal_scores": "one point and one word: every score is the same",
    "k_beyond_window": "k is larger than the window",
    "alpha_0": "only text counts",
    "alpha_1": "only place counts",
    "half_expires": "a time window that loses half of its messages at once, again and again",
    "unused_words": "subscriptions ask for words that no message has",
    "drift": "when the window is full the messages change to other words, and some subscriptions ask for these",
}
_BATCH = 1_000
_GAP_US = 1_000_000


def make_stream(name: str, subscriptions: int, window: int, timed: int, seed: int) -> Case:
    """The case of a stream of `STREAMS`: `window` messages before, then two batches to check, then `timed`."""
    count = window + 2 * _BATCH + timed
    made = make_messages(count, seed)
    kept, length = Window("count", window), window
    recipe = TopkRecipe()
    if name == "k_beyond_window":
        window = min(window, 200)
        kept, length = Window("count", window), window
        recipe = TopkRecipe(k=(300, 300))
    elif name == "alpha_0":
        recipe = TopkRecipe(alpha=(0.0, 0.0))
    elif name == "alpha_1":
        recipe = TopkRecipe(alpha=(1.0, 1.0))
    if name == "drift":
        # within the batches that are checked; from there on the window loses the old words message by message
        made = _drifting(made, length + _BATCH)
    table = topk_subscriptions(made, subscriptions, seed, recipe)
    batch = made.batch
    if name in ("one_point", "equal_scores"):
        batch = changed(batch, x=_same(batch.x), y=_same(batch.y))
        table = changed(table, x=_same(table.x), y=_same(table.y))
    if name in ("one_word", "equal_scores"):
        batch, table = _one_word(batch), _one_word(table)
    elif name == "unused_words":
        table = changed(table, terms=table.terms + np.int32(made.idf.shape[0]))
        some = table.take(np.arange(0, len(table), 25))  # who are told enough to be compared
        real = topk_subscriptions(made, len(some), seed + 1, recipe)
        table = concatenate([table.take(np.arange(len(some), len(table))), changed(real, number=some.number)])
        table = changed(table, number=np.arange(len(table)))
    elif name == "half_expires":
        # half a window of messages in one second, then silence for half a window's time: they expire together
        half = max(1, window // 2)
        life = (batch.seq // half) * half * _GAP_US
        batch = changed(batch, life=life)
        kept = Window("time", int(2 * half * _GAP_US))
    facts: dict[str, Any] = {"stream": name, "k": recipe.k[0], "seed": seed}
    return Case(KINDS.named("topk"), batch, table, kept, length, timed, _BATCH, facts)


def _same(column: np.ndarray) -> np.ndarray:
    return np.full_like(column, 0.3)


def _one_word(table: Table) -> Table:
    """Every row has term 0 with weight 1."""
    rows = table.term_offsets.shape[0] - 1
    return changed(
        table,
        term_offsets=np.arange(rows + 1, dtype=np.int64),
        terms=np.zeros(rows, np.int32),
        weights=np.ones(rows, np.float32),
    )


def _drifting(made: Messages, turn: int) -> Messages:
    """From message `turn` on every term is another one: ids are moved by the size of the vocabulary."""
    batch, size = made.batch, made.idf.shape[0]
    later = np.repeat(batch.seq >= turn, np.diff(batch.term_offsets))
    terms = batch.terms + np.where(later, size, 0).astype(np.int32)
    offsets, picked = take_ragged(batch.term_offsets, np.arange(len(batch)))
    return Messages(changed(batch, term_offsets=offsets, terms=terms[picked]), np.concatenate([made.idf, made.idf]))
