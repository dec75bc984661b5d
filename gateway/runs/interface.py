"""`skyray.Run`, a run as the Python interface gives it: what `gateway.runs.reader` reads, `explain`, and `map`.

Explaining and drawing stand on the reader, so they cannot be methods of it. Made by `skyray.open`.
"""

from itertools import islice
from typing import TYPE_CHECKING, Any

from gateway.runs import reader
from gateway.runs.explaining import explain
from gateway.runs.reader import Subscriber, active_at, subscriber
from matching.fields import Refusal
from matching.validate import subscription_row

if TYPE_CHECKING:
    import lonboard

#: Subscriptions, and messages, that a map draws.
_MOST = 50_000


class Run(reader.Run):
    """A run folder, in any state; see `gateway.runs.reader.Run` for parameters, attributes and errors."""

    def explain(self, subscription_id: str, message_id: str) -> dict[str, Any]:
        """Why a message is in a subscription's result, or is not: see `gateway.runs.explaining.explain`."""
        return explain(self.folder, subscription_id, message_id, self.kinds)

    def map(self, *subscription_ids: str, most: int = _MOST) -> "lonboard.Map":
        """A map of subscriptions, or of all, and of the messages in their results, for a notebook.

        O(updates), as `results`. Of an id with several subscriptions the last one is drawn.

        Parameters
        ----------
        *subscription_ids : str
        most : int
            Subscriptions, and messages, that are drawn; a warning says what is left out.

        Returns
        -------
        lonboard.Map
            Layers of shapes, of places and of messages, coloured by kind; none that has no rows.

        Raises
        ------
        ConfigError
            For a subscription that the run does not have, or where lonboard is not installed.
        """
        from gateway.runs import notebook

        notebook.check(most)
        known = self.known(subscription_ids) if subscription_ids else self._all_known()
        drawn = dict(islice(known.items(), most))
        results = self.result_rows(drawn.keys())
        messages = self.join(results.slice(0, most).to_pylist(), drawn)
        shown = [_columns(active_at(several, None)) for several in drawn.values()]
        left_out = notebook.left_out("subscriptions", len(drawn), len(known))
        left_out += notebook.left_out("messages of results", len(messages), len(results))
        placed = [row for row in messages if "lon" in row]
        if lost := len(messages) - len(placed):
            left_out.append(f"{lost:,} messages of results are not in {self.etl}")
        return notebook.Drawing(shown, placed, left_out).map()

    def _all_known(self) -> dict[str, list[Subscriber]]:
        """The subscriptions of the run that were not rejected, by id, in order of `at`. O(rows of the files)."""
        found: dict[str, list[Subscriber]] = {}
        for row in self.subscription_rows():
            parsed = subscription_row(row, self.vocabulary, self.space, self.kinds)
            if not isinstance(parsed, Refusal | str):
                found.setdefault(parsed.subscription_id, []).append(subscriber(row, parsed, self.kinds))
        for several in found.values():
            several.sort(key=lambda one: one.at)
        return found


def _columns(one: Subscriber) -> dict[str, Any]:
    """A subscription as columns to be drawn."""
    place = {"lon": one.lon, "lat": one.lat, "region": one.region}
    return {"subscription_id": one.subscription_id, "kind": one.kind, "keywords": one.words} | place | one.conditions
