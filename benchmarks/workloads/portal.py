"""The workload `portal`: saved searches as people keep them, over listings that are edited and end.

Listings take after real texts and places (`Listings`). Of twenty messages four are edits of earlier listings, with a
lower price, and one ends an earlier one. `MIX` has the kinds of the searches, `WORDS` what `boolean` ones ask of words.
All that is drawn depends on a seed; a search is made when its row is asked for (`Searches.row`), a message when its
line is, so that millions take 25 bytes each.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from gateway.subscriptions.filters import octagon
from matching.text import tokenise

#: Subscriptions by kind, of six million.
MIX = {"boolean": 5_000_000, "topk": 400_000, "knn": 400_000, "decay": 150_000, "skyline": 50_000}
#: Of `boolean` searches: no words but a price and rooms; a phrase; two words; one word and not another.
WORDS = {"none": 0.60, "phrase": 0.10, "words": 0.25, "not": 0.05}
#: Of `boolean` searches, how many have a circle, an octagon; the others have a rectangle.
SHAPES = {"circle": 0.5, "octagon": 0.2}
ATTRIBUTES = "price:number", "rooms:number", "category:category"
_CATEGORIES = ("flat", "house", "room", "office", "garage", "plot", "shop", "barn")
#: Of a block of messages, which edit a listing, and which ends one; how many blocks earlier; the one that is ended.
BLOCK, EDITS, ENDS, EDITED_BLOCKS, ENDED_BLOCKS, ENDED = 20, (5, 10, 15, 18), 0, 50, 500, 7
#: What an edit makes of a price; degrees by which a listing is away from the place that it takes after.
_CHEAPER, _JITTER_DEG = 0.95, 0.01
_METRES_A_DEGREE = 111_195.0
#: Messages of a second, by their times; the first is of this one.
_A_SECOND, _BEGIN_S = 10_000, 1_767_225_600
#: Places by whose neighbours the size of a search's shape goes, and how many neighbours.
_ANCHORS, _NEIGHBOURS = 2_000, 8
#: Share of the listings inside a shape without words that have the rooms and a price that fits, about.
_FITS = 0.2
#: Share of the listings from which on no search asks for a word alone, or for two.
_COMMON = 0.01
#: Half a side of shapes of searches with words.
_WIDE_DEG = 2.0


class Listings(NamedTuple):
    """Messages that are sent in turn.

    tails : list of (bytes, bytes)    what follows the ids in a line, and in that of an edit
    words : list of list of str       of each, in order
    rarer : list of list of str       those that fewer listings have (`_COMMON`), or the last one
    place : float64[n, 2]             longitude and latitude
    numbers : float64[n, 2]           price and rooms
    """

    tails: list[tuple[bytes, bytes]]
    words: list[list[str]]
    rarer: list[list[str]]
    place: np.ndarray
    numbers: np.ndarray

    def lines(self, first: int, end: int) -> bytes:
        """Messages `first` to `end`, as lines of JSON; number n has id `mn`."""
        return b"".join([self._line(number) for number in range(first, end)])

    def _line(self, number: int) -> bytes:
        place, turn = number % BLOCK, len(self.tails)
        if place == ENDS and (other := number - BLOCK * ENDED_BLOCKS + ENDED) >= 0:
            return b'{"id":"m%d","object_id":"o%d","deleted":true}\n' % (number, other)
        time_s = _BEGIN_S + number // _A_SECOND
        if place in EDITS and (other := number - place - BLOCK * EDITED_BLOCKS + 1 + EDITS.index(place)) >= 0:
            return b'{"id":"m%d","object_id":"o%d","time":%d%b' % (number, other, time_s, self.tails[other % turn][1])
        return b'{"id":"m%d","object_id":"o%d","time":%d%b' % (number, number, time_s, self.tails[number % turn][0])


def listings_of(lines: Sequence[bytes], seed: int) -> Listings:
    """Listings that take after lines of JSON with `text`, `lon` and `lat`; one without two plain words is left out."""
    random = np.random.default_rng([seed, 1])
    words, tails, places, numbers = [], [], [], []
    for row in map(msgspec.json.decode, lines):
        found = [word for word in tokenise(row.get("text") or "") if word.isascii() and word.isalnum()]
        if len(found) < 2 or not isinstance(row.get("lon"), float) or not isinstance(row.get("lat"), float):
            continue
        away = random.normal(0.0, _JITTER_DEG, 2).tolist()
        lon, lat = round(row["lon"] + away[0], 6) % 360, round(max(-89.0, min(89.0, row["lat"] + away[1])), 6)
        lon = round(lon - 360 if lon > 180 else lon, 6)
        price, rooms = float(round(random.lognormal(6.8, 0.6))), int(random.integers(1, 7))
        values = {
            "text": " ".join(found),
            "lon": lon,
            "lat": lat,
            "rooms": rooms,
            "category": str(random.choice(_CATEGORIES)),
        }
        both = [msgspec.json.encode(values | {"price": each}) for each in (price, float(int(price * _CHEAPER)))]
        tails.append((b"," + both[0][1:] + b"\n", b"," + both[1][1:] + b"\n"))
        words.append(found)
        places.append((lon, lat))
        numbers.append((price, rooms))
    often = Counter(word for each in words for word in set(each))
    rarer = [[word for word in each if often[word] <= _COMMON * len(words)] or each[-1:] for each in words]
    return Listings(tails, words, rarer, np.array(places, np.float64), np.array(numbers, np.float64))


class Searches:
    """Subscriptions of the kinds of `MIX`, in its shares; the number of one is its row.

    Parameters
    ----------
    listings : Listings    that they take after
    count : int
    matches : float        `boolean` searches without words that a listing is to have, about
    seed : int

    Attributes
    ----------
    kinds : dict of str to int    how many there are of each
    """

    def __init__(self, listings: Listings, count: int, matches: float, seed: int):
        random = np.random.default_rng([seed, 2, count])
        shares = np.array(list(MIX.values())) / sum(MIX.values())
        self._listings = listings
        self._kind = random.choice(len(MIX), count, p=shares).astype(np.int8)
        self._like = random.integers(0, len(listings.tails), count, dtype=np.int32)
        self._drawn = random.random((count, 4), dtype=np.float32)
        self.kinds = dict(zip(MIX, np.bincount(self._kind, minlength=len(MIX)).tolist(), strict=True))
        # a shape has so many listings around its middle that all of them together make `matches` of one
        self._near = matches / (self.kinds["boolean"] * WORDS["none"] * _FITS) * len(listings.tails)
        self._anchors = random.choice(len(listings.tails), min(_ANCHORS, len(listings.tails)), replace=False)
        self._reach_deg = _reach_deg(listings.place, self._anchors)

    def __len__(self) -> int:
        return self._kind.shape[0]

    def row(self, number: int) -> dict[str, Any]:
        """The subscription `sN` of a number N."""
        one, two, three, four = self._drawn[number].tolist()
        kind, like = list(MIX)[self._kind[number]], int(self._like[number])
        row: dict[str, Any] = {"subscription_id": f"s{number}", "kind": kind}
        words, (lon, lat) = self._words(like, two, three), self._listings.place[like].tolist()
        if kind == "skyline":
            return row | {"keywords": words, "region": _box(lon, lat, _WIDE_DEG / 4)}
        if kind != "boolean":
            row |= {"keywords": words, "lon": lon, "lat": lat, "k": 5}
            return row if kind == "knn" else row | {"alpha": round(0.2 + 0.6 * four, 3)}
        if one >= WORDS["none"]:
            asked = self._asked(one, like, words)
            return row | asked | _shape(lon, lat, _WIDE_DEG, four)
        anchor = like % len(self._anchors)
        place, (price, rooms) = self._listings.place[self._anchors[anchor]], self._listings.numbers[like].tolist()
        row["where"] = {"price": {"gte": 0.7 * price, "lte": 1.3 * price}, "rooms": {"gte": rooms}}
        reach_deg = min(_WIDE_DEG, float(self._reach_deg[anchor]) * (self._near * (0.5 + two) / _NEIGHBOURS) ** 0.5)
        # not in the middle of a listing, which would then always be inside
        lon, lat = (place + 0.7 * reach_deg * np.array([two - 0.5, three - 0.5])).tolist()
        return row | _shape(lon, lat, reach_deg, four)

    def _words(self, like: int, one: float, other: float) -> list[str]:
        """One or two of a listing's words that are not in many others."""
        words = self._listings.rarer[like]
        return list(dict.fromkeys(words[int(drawn * len(words))] for drawn in (one, other)))

    def _asked(self, drawn: float, like: int, words: list[str]) -> dict[str, Any]:
        """What a search asks of words."""
        if drawn < WORDS["none"] + WORDS["phrase"]:
            own = self._listings.words[like]
            first = int(drawn * 1e6) % (len(own) - 1)
            return {"query": f'"{own[first]} {own[first + 1]}"'}
        if drawn < 1.0 - WORDS["not"]:
            return {"keywords": words}
        others = [word for word in self._listings.words[(like + 1) % len(self._listings.words)] if word != words[0]]
        return {"keywords": words[:1], "not_keywords": others[:1]}


def _reach_deg(place: np.ndarray, anchors: np.ndarray) -> np.ndarray:
    """Degrees to the last of the `_NEIGHBOURS` nearest of each anchor. O(anchors * places)."""
    most = min(_NEIGHBOURS, place.shape[0] - 1)
    found = [np.partition(np.hypot(*(place - place[anchor]).T), most)[most] for anchor in anchors.tolist()]
    return np.maximum(1e-6, np.array(found))


def _box(lon: float, lat: float, reach_deg: float) -> list[float]:
    """A rectangle around a place, within the world."""
    west, south = max(-180.0, lon - reach_deg), max(-90.0, lat - reach_deg)
    return [west, south, min(180.0, lon + reach_deg), min(90.0, lat + reach_deg)]


def _shape(lon: float, lat: float, reach_deg: float, drawn: float) -> dict[str, Any]:
    """A circle, an octagon or a rectangle, about as large as a square of twice the reach."""
    box = _box(lon, lat, reach_deg)
    if drawn < SHAPES["circle"]:
        return {"circle": {"lon": lon, "lat": lat, "radius_m": reach_deg * _METRES_A_DEGREE}}
    if drawn < sum(SHAPES.values()):
        return {"polygon": {"type": "Polygon", "coordinates": [octagon(box)]}}
    return {"region": box}
