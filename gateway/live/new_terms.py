"""Terms that no message and no subscription had before: which of them a live stream admits, and with which batch.

Words of messages fill nine tenths of the room at most (`stream.most_terms`), so that subscriptions find some later.
Words of subscriptions fill it all, and come first in a batch. Terms for matching alone (`matching.words.beginnings`)
have a room of their own of the same size. Terms of one batch get their ids in the order of their UTF-8 bytes; nothing
is evicted.
"""

from collections.abc import Iterable

from matching.vocabulary import Vocabulary
from matching.words.beginnings import is_for_matching_alone
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
        self._open: set[str] = set()  # words of subscriptions, for the next batch
        self._begun: set[str] = set()  # their terms for matching alone

    def of_subscription(self, terms: Iterable[str]) -> bool:
        """Take new terms of a subscription into the next batch: all of them, or none if they do not all fit."""
        most = self.vocabulary.most_terms
        new = {term for term in terms if term not in self._open and self._is_new(term)} if most else set[str]()
        if not new:
            return True
        begun = set(filter(is_for_matching_alone, new))
        taken = len(self.vocabulary.begun) + len(self._begun)
        if len(new) - len(begun) > most - self._taken or len(begun) > most - taken:
            return False
        self._open |= new - begun
        self._begun |= begun
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
        if not self._open and not self._begun:
            return NONE_ADMITTED
        terms = tuple(sorted(self._open | self._begun))  # by UTF-8 bytes
        admitted = Admitted(terms, self.vocabulary.messages + messages)
        self.vocabulary.admit(*admitted)
        self._forget()
        return admitted

    def resume(self, record: Record) -> None:
        """Admit what a record of an earlier process has; the terms of its changes were taken before.

        Raises CheckpointError as `Vocabulary.admit`.
        """
        if record.last_seq >= 0:
            self.vocabulary.admit(record.admitted.terms, record.admitted.messages)
            self._forget()

    def _forget(self) -> None:
        self._open.clear()
        self._begun.clear()

    @property
    def _taken(self) -> int:
        return len(self.vocabulary.admitted) + len(self._open)

    def _is_new(self, term: str) -> bool:
        words = self.vocabulary
        known = term in self._open or term in self._begun or term in words.stop_terms
        return not known and words.id_of(term) is None
