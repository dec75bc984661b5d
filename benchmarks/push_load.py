"""What `benchmarks.push` publishes, to whom it has to come by the oracle, and what clients' books say of it.

Each subscription has one word and a box of a hundredth of the world, each message two words and a place, uniformly; a
word has fifty subscriptions, so that a message has one update in the mean. All coordinates are multiples of 1/64 of a
degree, which single precision holds exactly: a database with such boxes needs no second test.
"""

from typing import Any, NamedTuple

import numpy as np

from matching.model import BOOLEAN, KEYWORDS_BY_KIND
from matching.naive import boolean_match
from matching.naive_rows import NaiveMessage, NaiveSubscription

_SUBSCRIPTIONS_A_WORD = 50
#: Steps of coordinates in a degree, and width and height of a box in degrees.
_STEPS, _WIDTH, _HEIGHT = 64, 36, 18
#: A pair of subscription and message is one number: subscription * _PAIR + message.
_PAIR = 2**32


class Subscriptions(NamedTuple):
    """One a row: `word`, and the box as `west`, `south`, `east`, `north` in degrees, closed."""

    word: np.ndarray
    box: np.ndarray


class Messages(NamedTuple):
    """One a row: two different `words`, and `place`, which is longitude and latitude in degrees."""

    words: np.ndarray
    place: np.ndarray


class Received(NamedTuple):
    """Events that clients have read, one a row: when (monotonic seconds), the client, the subscription, the message.

    `as_of`, where it was read: the seq at the end of the boundary that the update belongs to.
    """

    at_s: np.ndarray
    client: np.ndarray
    subscription: np.ndarray
    message: np.ndarray
    as_of: np.ndarray | None = None


def make_subscriptions(count: int, seed: int) -> Subscriptions:
    """Subscriptions that lie anywhere, wholly in the world."""
    random = np.random.default_rng([seed, count])
    west = random.integers(-180 * _STEPS, (180 - _WIDTH) * _STEPS, count, endpoint=True) / _STEPS
    south = random.integers(-90 * _STEPS, (90 - _HEIGHT) * _STEPS, count, endpoint=True) / _STEPS
    box = np.stack([west, south, west + _WIDTH, south + _HEIGHT], 1)
    return Subscriptions(np.arange(count) % words_of(count), box)


def words_of(subscriptions: int) -> int:
    """How many words there are for so many subscriptions."""
    return max(2, subscriptions // _SUBSCRIPTIONS_A_WORD)


def make_messages(count: int, words: int, seed: int) -> Messages:
    """Messages with two of so many words."""
    random = np.random.default_rng([seed, count, words])
    first = random.integers(0, words, count)
    second = (first + random.integers(1, words, count)) % words
    lon = random.integers(-180 * _STEPS, 180 * _STEPS, count, endpoint=True) / _STEPS
    lat = random.integers(-90 * _STEPS, 90 * _STEPS, count, endpoint=True) / _STEPS
    return Messages(np.stack([first, second], 1), np.stack([lon, lat], 1))


def expected(subscriptions: Subscriptions, messages: Messages) -> np.ndarray:
    """All pairs (subscription, message) that the oracle matches, int64[n, 2], in the order of messages.

    The oracle is asked about each pair with a common word, O(messages * subscriptions of a word); others never match.
    """
    of_word: dict[int, list[NaiveSubscription]] = {}
    for number, (word, box) in enumerate(zip(subscriptions.word.tolist(), subscriptions.box.tolist(), strict=True)):
        west, south, east, north = box
        row = NaiveSubscription(
            number, BOOLEAN, 0, 0.0, 0.0, (west, south, east, north), KEYWORDS_BY_KIND, 0, 0.0, {word: 1.0}
        )
        of_word.setdefault(word, []).append(row)
    found = []
    for seq, (words, (lon, lat)) in enumerate(zip(messages.words.tolist(), messages.place.tolist(), strict=True)):
        weights, counts = dict.fromkeys(words, 1.0), dict.fromkeys(words, 1)
        message = NaiveMessage(seq, 0.0, 0.0, lon, lat, lon, lat, seq, weights, counts, 0, None, 0)
        candidates = [one for word in words for one in of_word.get(word, ())]
        found += [(one.number, seq) for one in candidates if boolean_match(one, message)]
    return np.array(found, np.int64).reshape(-1, 2)


def books(wanted: np.ndarray, got: Received, a_client: int | None) -> dict[str, Any]:
    """What is missing, extra and repeated.

    Parameters
    ----------
    wanted : int64[n, 2]
        Pairs as of `expected`.
    got : Received
    a_client : int or None
        Client c follows the subscriptions from c * a_client on; what another one reads is extra. None: one reads all.
    """
    pairs, times = np.unique(got.subscription * _PAIR + got.message, return_counts=True)
    known = wanted[:, 0] * _PAIR + wanted[:, 1]
    astray = 0 if a_client is None else int(np.sum(got.subscription // a_client != got.client))
    return {
        "expected": len(wanted),
        "events": len(got.at_s),
        "missing": int(np.sum(~np.isin(known, pairs))),
        "extra": int(np.sum(~np.isin(pairs, known))) + astray,
        "repeated": int(np.sum(times - 1)),
    }


def latencies(got: Received, begun_s: float, rate: float, warming: int) -> dict[str, float]:
    """Milliseconds from when a message was due until a client had read its event, without the first messages."""
    late = 1e3 * (got.at_s - (begun_s + got.message / rate))[got.message >= warming]
    if not late.shape[0]:
        return {}
    p50, p99, p999 = np.percentile(late, [50, 99, 99.9]).tolist()
    return {"p50_ms": p50, "p99_ms": p99, "p99_9_ms": p999, "longest_ms": float(late.max())}
