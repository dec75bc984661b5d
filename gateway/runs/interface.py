"""`skyray.Run`, a run as the Python interface gives it: what `gateway.runs.reader` reads, and `explain`.

Explaining stands on the reader, so it cannot be a method of it. Made by `skyray.open`.
"""

from typing import Any

from gateway.runs import reader
from gateway.runs.explaining import explain


class Run(reader.Run):
    """A run folder, in any state; see `gateway.runs.reader.Run` for parameters, attributes and errors."""

    def explain(self, subscription_id: str, message_id: str) -> dict[str, Any]:
        """Why a message is in a subscription's result, or is not: see `gateway.runs.explaining.explain`."""
        return explain(self.folder, subscription_id, message_id, self.kinds)
