"""The vocabulary of a live stream as of a place in its log: the start's terms and attributes, and those after it.

The gate admits terms (`gateway.live.new_terms`) and the log has them with their batch, so that each reader of the log
that follows it with a `LoggedWords` has the same ids and weights.
"""

import os
from contextlib import closing

from matching.errors import CheckpointError
from matching.vocabulary import Vocabulary
from spouts.log import NONE_ADMITTED, LogReader, Record
from spouts.subscriptions import load_vocabulary


class LoggedWords:
    """A vocabulary that follows a log.

    Parameters
    ----------
    vocabulary : path
        Folder that the stream starts with: an output folder of the ETL, or an empty one (`gateway.live.empty_start`).
    most_terms : int
        How many terms the stream may admit.

    Attributes
    ----------
    vocabulary : Vocabulary
    floor : int
        Messages before it may be removed: changes behind the place do not ask for them.
    """

    def __init__(self, log: str | os.PathLike[str], vocabulary: str | os.PathLike[str], most_terms: int):
        self.vocabulary: Vocabulary = load_vocabulary(vocabulary, most_terms)
        self.floor = 0
        self._log = log
        self._offset = 0

    def take(self, record: Record, offset: int) -> None:
        """Admit the terms and declare the attributes of a record that was read; the next one begins at `offset`.

        Raises CheckpointError.
        """
        if record.admitted != NONE_ADMITTED:
            self.vocabulary.admit(*record.admitted)
        self.floor = max(self.floor, record.floor)
        self._offset = offset

    def go_to(self, offset: int) -> None:
        """Have the terms of the records before a place, which may be earlier or later.

        A few microseconds a record from the place so far, or from the beginning to go back. Raises CheckpointError if
        the log is damaged.
        """
        if offset < self._offset:
            self.vocabulary.forget_admitted()
            self._offset = self.floor = 0
        if offset == self._offset:
            return
        with closing(LogReader(self._log, self._offset)) as reader:
            try:
                while reader.offset < offset and (record := reader.skim()) is not None:
                    self.take(record, reader.offset)
                return
            except CheckpointError:
                if not reader.was_pruned():  # else it is read from the base that there is now
                    raise
        self.vocabulary.forget_admitted()
        self._offset = self.floor = 0
        self.go_to(offset)
