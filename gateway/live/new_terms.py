"""Terms that no message and no subscription had before: which of them a live stream admits, and with which batch.

Terms of messages fill nine tenths of the room at most (`stream.most_terms`), so that subscriptions find some later.
Terms of subscriptions fill it all, and come first in a batch. Terms of one batch get their ids in the order of their
UTF-8 bytes; nothing is evicted.
"""

from collections.abc import Iterable

from matching.vocabulary import Vocabulary
from matching.words.message_words import MessageWords
from spouts.log import NONE_ADMITTED, Admitted, Record

#: The part of the room that is kept for terms of subscriptions.
_KEPT_PART = 10


class NewTerms:
    """Admits terms to the vocabulary of the gate.

    Parameters
    ----------
    vocabulary : Vocabulary
        Its `most_terms` is the room; with 0 nothing is admitted.

    Attributes
    ----------
    words : MessageWords
        Of the vocabulary; for the thread that admits terms.
    """

    def __init__(self, vocabulary: Vocabulary):
        self.vocabulary = vocabulary
        self.words = MessageWords(vocabulary)
        self._most_by_messages = vocabulary.most_terms - -(-vocabulary.most_terms // _KEPT_PART)
        self._open: set[str] = set()  # of subscriptions, for the next batch

    def of_subscription(self, terms: Iterable[str]) -> bool:
        """Take new terms of a subscription into the next batch: all of them, or none if they do not all fit."""
        most = self.vocabulary.most_terms
        new = [term for term in terms if self._is_new(term)] if most else []
        if len(new) > most - self._taken:
            return False
        self._open.update(new)
        return True

    @property
    def has_room(self) -> bool:
        """Whether a term of a message may be admitted."""
        return self._taken < self._most_by_messages

    def admit(self, terms: Iterable[str], messages: int) -> Admitted:
        """Admit the terms of a batch.

        Parameters
        ----------
        terms : iterable of str
            Distinct terms of the messages of the batch, in order of first appearance; those that do not fit stay
            unknown.
        messages : int
            Those of the stream before the batch.
        """
        room = max(0, self._most_by_messages - self._taken)
        self._open.update(list(filter(self._is_new, terms))[:room])
        if not self._open:
            return NONE_ADMITTED
        admitted = Admitted(tuple(sorted(self._open)), self.vocabulary.messages + messages)  # by UTF-8 bytes
        self.vocabulary.admit(*admitted)
        self._open.clear()
        return admitted

    def resume(self, record: Record) -> None:
        """Admit what a record of an earlier process has; the terms of its changes were taken before.

        Raises CheckpointError as `Vocabulary.admit`.
        """
        if record.last_seq >= 0:
            self.vocabulary.admit(record.admitted.terms, record.admitted.messages)
            self._open.clear()

    @property
    def _taken(self) -> int:
        return len(self.vocabulary.admitted) + len(self._open)

    def _is_new(self, term: str) -> bool:
        words = self.vocabulary
        return words.id_of(term) is None and term not in self._open and term not in words.stop_terms
