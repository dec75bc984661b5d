"""A vocabulary that grows with a live stream, made anew for each batch by another way than `Vocabulary.admit`."""

import math

from matching.vocabulary import Vocabulary


class GrowingWords:
    """The terms of a stream by its definition: `vocabulary` is what is known with the batch that was closed last.

    Parameters
    ----------
    start : Vocabulary
    most_terms : int
    """

    def __init__(self, start, most_terms):
        self.start, self.most_terms = start, most_terms
        self.late = []  # (term, idf), newest first
        self.texts, self.open = [], []  # of messages, and new terms of subscriptions, for the next batch
        self.vocabulary = self._made()

    def message(self, text):
        self.texts.append(text)

    def subscription(self, keywords):
        """Whether the new terms of a subscription fit; none is taken if not all do."""
        new = [term for term in self.start.keyword_terms(keywords) if self._is_new(term)]
        fits = len(self.late) + len(self.open) + len(new) <= self.most_terms
        self.open += new if fits and self.most_terms else []
        return fits or not self.most_terms

    def close(self, messages):
        """The batch is closed that comes after so many messages of the stream."""
        for term in (term for text in self.texts for term in self.start.count_terms(text)):
            room = self.most_terms - math.ceil(self.most_terms / 10) - len(self.late) - len(self.open)
            if room > 0 and self._is_new(term):
                self.open.append(term)
        idf = math.log(1.0 + max(1, self.start.messages + messages) / 0.5)
        for term in sorted(self.open, key=lambda term: term.encode()):
            self.late.insert(0, (term, idf))
        self.texts, self.open = [], []
        self.vocabulary = self._made()

    def _is_new(self, term):
        known = {name for name, _ in self.late} | set(self.open) | set(self.start.terms)
        return term not in known

    def _made(self):
        start, none = self.start, [0] * len(self.late)
        return Vocabulary(
            [*(term for term, _ in self.late), *start.terms],
            [*none, *start.document_frequency.tolist()],
            [*none, *start.collection_count.tolist()],
            [*(idf for _, idf in self.late), *start.idf.tolist()],
            start.messages,
            start.total_tokens,
            most_terms=self.most_terms - len(self.late),  # ids of the start are the same with each batch
        )
