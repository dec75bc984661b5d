"""Terms that no message and no subscription had before: which of them a live stream admits, and with which batch.

Terms of messages fill nine tenths of the room at most (`--most-terms`), so that subscriptions find some later; those of
subscriptions fill it all, and come first in a batch. Terms of one batch get their ids in the order of their UTF-8
bytes; nothing is evicted. Used by `gateway.live.admission`, which refuses subscriptions that do not fit, and by
`gateway.live.write_ahead_log`, which logs the terms of a batch. Read on in `spouts.logged_words`, which gives the
topology the same vocabulary.
"""

from collections.abc import Iterable

from matching.text import Vocabulary
from spouts.log import NONE_ADMITTED, Admitted, Record

#: The part of the room that is kept for terms of subscriptions.
_KEPT_PART = 10


class NewTerms:
    """Admits terms to the vocabulary of the gate.

    Parameters
    ----------
    vocabulary : Vocabulary
        Its `most_terms` is the room; with 0 nothing is admitted.
    """

    def __init__(self, vocabulary: Vocabulary):
        self.vocabulary = vocabulary
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

    def admit(self, texts: Iterable[Iterable[str]], messages: int) -> Admitted:
        """Admit the terms of a batch.

        Parameters
        ----------
        texts : iterable of iterable of str
            The terms of each message of the batch; those that do not fit stay unknown. Not read where none fits.
        messages : int
            Those of the stream before the batch.
        """
        left = self._most_by_messages - self._taken
        for text in texts if left > 0 else ():
            new = [term for term in text if self._is_new(term)][:left]
            self._open.update(new)
            left -= len(new)
            if not left:
                break
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
            self.vocabulary.admit(*record.admitted)
            self._open.clear()

    @property
    def _taken(self) -> int:
        return len(self.vocabulary.admitted) + len(self._open)

    def _is_new(self, term: str) -> bool:
        words = self.vocabulary
        return words.id_of(term) is None and term not in self._open and term not in words.stop_terms
