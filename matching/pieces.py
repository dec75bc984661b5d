"""Words as people write them: the pieces that the tokeniser cuts one into.

`BTC&ETH` gives `btc`, `JOINED`, `eth`; `東京都` gives `東`, `東京`, `京`, `京都`, `都`. A text has its terms in order
of appearance in the same form, so that a word is in it where all its pieces stand in a row. Where a text of several
columns goes from one to the next it has `JOINED` twice (`BETWEEN_COLUMNS`), which no word and no phrase crosses.
"""

from collections.abc import Sequence
from typing import Any

#: Stands between two pieces of a word, and for it among the ids of terms (below 0: no term).
JOINED, JOINED_ID = "", -3
#: Between the columns of a text: Unicode's paragraph separator.
BETWEEN_COLUMNS = "\u2029"


def text_of_columns(values: Sequence[Any]) -> Any:
    """The text of the columns of one message, empty ones left out; the first value that is no text, if one is none.

    None, or an empty text, where all are missing or empty.
    """
    if len(values) == 1:
        return values[0]
    there = [value for value in values if value is not None and value != ""]
    odd = next((value for value in there if not isinstance(value, str)), None)
    return odd if odd is not None else BETWEEN_COLUMNS.join(there) if there else None


class Word(tuple[str, ...]):
    """A word as people write it: its pieces in order, with `JOINED` between two that no pair links."""

    __slots__ = ()

    @property
    def _parts(self) -> list[list[str]]:
        """The pieces between `JOINED`; of several in a part, every second one is a pair."""
        parts: list[list[str]] = [[]]
        for piece in self:
            if piece == JOINED:
                parts.append([])
            else:
                parts[-1].append(piece)
        return parts

    @property
    def terms(self) -> list[str]:
        """The pieces that are terms."""
        return [piece for piece in self if piece]

    @property
    def needed(self) -> list[str]:
        """Terms that tell all others: a text with a pair has its two characters."""
        return [piece for part in self._parts for piece in part[1::2] or part]

    @property
    def decided(self) -> bool:
        """Whether a text with all terms has the word: it is one term, or one pair."""
        return len(self) <= 3 and JOINED not in self

    def __str__(self) -> str:
        return "-".join("".join(part[::2]) for part in self._parts)
