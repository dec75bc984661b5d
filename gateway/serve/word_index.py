"""Active subscriptions by the words of their keywords, for questions.

Nothing is indexed until somebody asks: a question first takes the subscriptions that came since the one before.
"""

import threading
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

import msgspec
import numpy as np

from gateway.serve.registry import Registered, Registry
from matching.decoding import bare
from matching.model import Names
from matching.storage.slots import grown
from matching.subscription_words import texts_found_by
from matching.vocabulary import Vocabulary
from matching.words.message_words import MessageWords

#: Subscriptions whose keywords are cut at a time.
_TOGETHER = 1_000
#: Stands for the keywords of a subscription without any; no word is empty.
_NONE = ""


class WordIndex:
    """Finds the active subscriptions that have some words, or none at all, or a `lang`; for any thread.

    Parameters
    ----------
    vocabulary : Vocabulary
        Says what the terms of keywords are.

    Notes
    -----
    12 bytes a keyword, or a subscription without any, and 150 for each different word. About 3 us to take a
    subscription in, and 10 ns a keyword of all of them to find some.
    """

    def __init__(self, registry: Registry, vocabulary: Vocabulary):
        self._registry = registry
        self._vocabulary, self._words = vocabulary, MessageWords(vocabulary)
        self._lock = threading.Lock()
        self._next = self._subscriptions = self._count = 0
        self._number_of: dict[str, int] = {}  # of each word
        self._owner = np.zeros(0, np.int64)  # number of a subscription, ascending
        self._word = np.zeros(0, np.int32)  # number of a word that it has

    def having(self, words: Iterable[str], share: Callable[[], None] = lambda: None) -> list[Registered]:
        """The active subscriptions with one of these words among their keywords, or without any, in the order of
        registration.

        `share` is called again and again meanwhile: it lets others have the processor.
        """
        while self._follow():
            share()  # without the lock: whoever has the processor then may need it
        with self._lock:
            wanted = [number for word in (_NONE, *words) if (number := self._number_of.get(word)) is not None]
            rows = np.isin(self._word[: self._count], np.array(wanted, np.int32))
            found = np.unique(self._owner[: self._count][rows])
        return self._registry.numbered(found.tolist())

    def _follow(self) -> bool:
        """Take in some of the subscriptions that came; returns whether there are more."""
        with self._lock:
            last = min(self._next + _TOGETHER, self._registry.next_number)
            if some := self._registry.numbered(range(self._next, last)):
                self._take(some)
            self._next = last
            if self._subscriptions > 2 * len(self._registry) + _TOGETHER:
                self._forget_ended()
            return last < self._registry.next_number

    def _take(self, some: list[Registered]) -> None:
        texts = [_texts(one.line, self._vocabulary) for one in some]
        ends = np.zeros(len(texts) + 1, np.int64)
        np.cumsum(list(map(len, texts)), out=ends[1:])
        distinct = self._words.distinct(self._words.cut(Names.of(list(chain.from_iterable(texts)))), ends)
        numbers, of = np.unique(distinct.numbers, return_inverse=True)
        known = self._number_of
        own = [known.setdefault(word, len(known)) for word in self._words.names(numbers)]
        each, words = np.array([one.number for one in some], np.int64), np.diff(distinct.offsets)
        wordless = each[words == 0]
        before, end, count = self._count, self._count + len(of), self._count + len(of) + len(wordless)
        self._owner, self._word = grown(self._owner, count), grown(self._word, count)
        self._word[before:end], self._owner[before:end] = np.array(own, np.int32)[of], np.repeat(each, words)
        self._word[end:count], self._owner[end:count] = known.setdefault(_NONE, len(known)), wordless
        self._count, self._subscriptions = count, self._subscriptions + len(some)

    def _forget_ended(self) -> None:
        active = np.array([one.number for one in self._registry.listed()], np.int64)
        kept = np.flatnonzero(np.isin(self._owner[: self._count], active))
        self._owner, self._word, self._count = self._owner[kept], self._word[kept], len(kept)
        self._subscriptions = len(active)


class _Keywords(msgspec.Struct):
    keywords: Any = None
    query: Any = None
    lang: Any = None


class _Line(msgspec.Struct):
    subscribe: _Keywords


_DECODER = msgspec.json.Decoder(_Line)


def _texts(line: bytes, vocabulary: Vocabulary) -> list[str]:
    """The texts by which a logged subscription is found, none of one that requires no word."""
    found = _DECODER.decode(bare(line)).subscribe
    if found.lang is not None:
        return []  # a message of its language has stems, which this index lacks
    if found.query is not None:
        return texts_found_by({"keywords": found.keywords, "query": found.query}, vocabulary)
    return [found.keywords] if isinstance(found.keywords, str) else found.keywords or []
