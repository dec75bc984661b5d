"""Streams that an index may break down on: everything at one point, one word everywhere, nothing but ties, and so on.

Each is a `benchmarks.cases.Case` of `topk`, made by bending the synthetic workload. Read on in
`benchmarks.figures.topk`.
"""

import numpy as np

from benchmarks.cases import Case
from benchmarks.workload import Table, TopkRecipe, changed, make_messages, topk_subscriptions
from matching.kinds import KINDS
from matching.model import concatenate
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
_RECIPES = {
    "k_beyond_window": TopkRecipe(k=(300, 300)), "alpha_0": TopkRecipe(alpha=(0.0, 0.0)),
    "alpha_1": TopkRecipe(alpha=(1.0, 1.0)),
}  # fmt: skip
_BATCH, _GAP_US = 1_000, 1_000_000


def make_stream(name: str, subscriptions: int, window: int, timed: int, seed: int) -> Case:
    """The case of a stream of `STREAMS`: `window` messages before, then two batches to check, then `timed`."""
    made = make_messages(window + 2 * _BATCH + timed, seed)
    recipe, batch, words = _RECIPES.get(name, TopkRecipe()), made.batch, made.idf.shape[0]
    if name == "k_beyond_window":
        window = min(window, 200)
    kept = Window("count", window)
    if name == "drift":
        # within the batches that are checked; from there on the window loses the old words message by message
        later = np.repeat(batch.seq >= window + _BATCH, np.diff(batch.term_offsets))
        batch = changed(batch, terms=batch.terms + np.where(later, words, 0).astype(np.int32))
        made = made._replace(batch=batch, idf=np.tile(made.idf, 2))
    table = topk_subscriptions(made, subscriptions, seed, recipe)
    if name in ("one_point", "equal_scores"):
        batch, table = _at_one_point(batch), _at_one_point(table)
    if name in ("one_word", "equal_scores"):
        batch, table = _of_one_word(batch), _of_one_word(table)
    elif name == "unused_words":
        told = -(-subscriptions // 25)  # of words that are there: enough to be compared
        unused = changed(table, terms=table.terms + np.int32(words)).take(np.arange(told, subscriptions))
        table = concatenate([unused, topk_subscriptions(made, told, seed + 1, recipe)])
        table = changed(table, number=np.arange(subscriptions))
    elif name == "half_expires":
        # half a window of messages in one second, then silence for half a window's time: they expire together
        half = max(1, window // 2)
        batch = changed(batch, life=batch.seq // half * half * _GAP_US)
        kept = Window("time", 2 * half * _GAP_US)
    facts = {"stream": name, "k": recipe.k[0], "seed": seed}
    return Case(KINDS.named("topk"), batch, table, kept, window, timed, _BATCH, facts)


def _at_one_point(table: Table) -> Table:
    return changed(table, x=np.full_like(table.x, 0.3), y=np.full_like(table.y, 0.3))


def _of_one_word(table: Table) -> Table:
    """Every row has term 0 with weight 1."""
    terms, weights = np.zeros(len(table), np.int32), np.ones(len(table), np.float32)
    return changed(table, term_offsets=np.arange(len(table) + 1), terms=terms, weights=weights)
