"""Made-up filters of made-up subscriptions: a word that a message must not have, or bounds of its number.

The numbers are those of `spouts.generated.MessageRecipe.numbered`.
"""

from typing import Any, NamedTuple

import numpy as np

from matching.conditions import WITHIN, Condition
from matching.filter_programs import compile_filter, joined_programs
from matching.model import Int64, SubscriptionTable
from spouts.generated import NUMBERS

#: Excluded words are drawn from this part of the vocabulary, the most frequent words.
_FREQUENT = 0.1
#: Least distance of two bounds.
_NARROWEST = NUMBERS // 10


class FilterRows(NamedTuple):
    """Filters, one for each subscription, int64[n] each: `without`, a term, -1 for none; `low` and `high`, closed
    bounds of the number, -1 for none. A subscription has one of both, or no filter."""

    without: Int64
    low: Int64
    high: Int64


def draw_filters(table: SubscriptionTable, share: float, seed: int, vocabulary: int, numbered: bool) -> FilterRows:
    """Filters for about this share of the subscriptions; bounds for every other one if messages have a number. O(n).

    The excluded word is none of the subscription's own.
    """
    rng, count = np.random.default_rng([seed, 4]), len(table)
    has = rng.random(count) < share
    bounded = has & (rng.random(count) < 0.5) if numbered else np.zeros(count, bool)
    without = rng.integers(int(vocabulary * (1 - _FREQUENT)), vocabulary, count)
    row_of = np.repeat(np.arange(count), np.diff(table.term_offsets))
    own = np.isin(row_of * vocabulary + table.terms, np.arange(count) * vocabulary + without)
    without[row_of[own]] = -1
    low = rng.integers(0, NUMBERS - _NARROWEST, count)
    high = np.minimum(NUMBERS - 1, low + rng.integers(_NARROWEST, NUMBERS, count))
    return FilterRows(
        np.where(has & ~bounded, without, -1), np.where(bounded, low, -1), np.where(bounded, high, -1)
    )  # fmt: skip


def with_filters(table: SubscriptionTable, rows: FilterRows) -> SubscriptionTable:
    """The same subscriptions with these filters. O(n)."""
    programs = [
        compile_filter(
            [Condition(0, WITHIN, (("gte", float(low)), ("lte", float(high))))] if low >= 0 else [],
            [without] if without >= 0 else [],
        )
        for without, low, high in zip(*(column.tolist() for column in rows), strict=True)
    ]
    offsets, words = joined_programs(programs)
    columns: dict[str, Any] = {**table._asdict(), "filter_offsets": offsets, "filter_words": words}
    return SubscriptionTable(**columns)
