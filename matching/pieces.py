"""Words as people write them: the pieces that the tokeniser cuts one into.

`BTC&ETH` gives `btc`, `JOINED`, `eth`; `東京都` gives `東`, `東京`, `京`, `京都`, `都`. A text has its terms in order
of appearance in the same form, so that a word is in it where all its pieces stand in a row. Where a text of several
columns goes from one to the next it has `JOINED` twice (`BETWEEN_COLUMNS`), which no word and no phrase crosses.

`#ramen` also counts as `ramen`, for matching alone. Among the ids of a message's words in order of appearance the word
that a hashtag names stands behind it, as `named_ids` has it. A phrase is in a text whose hashtags are all read as they
stand, or all as the words that they name. The words as they are written of a message that has a language have the same
codes (`matching.languages`).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Stands between two pieces of a word, and for it among the ids of terms (below 0: no term).
JOINED, JOINED_ID = "", -3
#: Among the ids of a message's words `NAMED_ID - id` stands for a piece of the word that the hashtag before it names;
#: so those below `JOINED_ID` are of such pieces, and those up to `NAMED_ID` of such that have a term.
NAMED_ID = -7
#: Between the columns of a text: Unicode's paragraph separator.
BETWEEN_COLUMNS = "\u2029"


def named_ids(ids: Sequence[int]) -> list[int]:
    """What stands behind a hashtag for the word that it names, by ids of its pieces; nothing if none has a term."""
    return [NAMED_ID - one for one in ids] if max(ids, default=-1) >= 0 else []


def with_named(ids: NDArray[np.signedinteger]) -> NDArray[Any]:
    """Ids of a message's words in order of appearance; of the words that hashtags name those of their terms. O(n)."""
    return np.where(ids <= NAMED_ID, NAMED_ID - ids, ids)


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
