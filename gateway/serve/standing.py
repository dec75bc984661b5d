"""Results of subscriptions as of a place in the stream of updates: what has entered and not left.

All updates of the subscriptions up to there are read (`gateway.serve.update_log`), for a group at a time.
Used by `gateway.serve.asking_routes` and `gateway.serve.update_routes`; `gateway.serve.replay` has updates of its own.
"""

from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import msgspec

from gateway.serve.asking import Asking
from gateway.serve.event_forms import LINES
from gateway.serve.hub import Hub, Interest
from gateway.serve.questions import Turn
from gateway.serve.registry import Registered, Registry
from gateway.serve.released import LookUp
from gateway.serve.update_parts import BEGINNING, Position
from matching.kind_table import Kind
from matching.kinds import KINDS
from spouts.subscriptions import NEVER

#: Matches that are listed for a subscription of a kind without results.
LAST_MATCHES = 100
#: Subscriptions whose results are in memory at a time.
GROUP = 1_000

Row = dict[str, Any]


class Standing:
    """The rows of one subscription id, update by update, without texts: in its result by seq, and the last matches."""

    def __init__(self) -> None:
        self.inside: dict[int, Row] = {}
        self._matches: deque[Row] = deque(maxlen=LAST_MATCHES)

    def take(self, row: Row) -> None:
        if row["change"] == "enter":
            self.inside[row["seq"]] = row
        elif row["change"] == "leave":
            self.inside.pop(row["seq"], None)
        else:
            self._matches.append(row)

    def ranked(self, kind: Kind, at: int) -> list[tuple[int | None, Row]]:
        """Rows with their ranks, best first; matches from the message `at` on have none, the newest first."""
        # of equal scores the newer goes first where the window decides, the older otherwise
        sign = 1 if kind.nearest else -1
        age = -1 if kind.windowed else 1
        inside = sorted(self.inside.values(), key=lambda row: (sign * row["score"], age * row["seq"]))
        matches = [(None, row) for row in reversed(self._matches) if row["as_of"] >= at]
        return [*enumerate(inside, start=1), *matches]


async def results_at(
    hub: Hub, registry: Registry, asking: Asking, names: Sequence[str], until: Position, turn: Turn
) -> AsyncIterator[dict[str, Any]]:
    """Results of subscriptions as of a position that is not beyond the head, one after the other.

    Parameters
    ----------
    hub : Hub
    registry : Registry
    asking : Asking
    names : sequence of str
        Ids; those that are not active and have nothing in their result are left out.
    until : Position
    turn : Turn
        Work is done within it, and nothing is yielded within it.

    Yields
    ------
    dict
        As of `gateway.serve.models.Results`; with the last `gap` of the updates that were read, if there was any.
    """
    for first in range(0, len(names), GROUP):
        group = names[first : first + GROUP]
        standing, gap = {name: Standing() for name in group}, {}
        async with turn:
            async for lines in hub.past(LINES, Interest(frozenset(group)), BEGINNING, until):
                gap = await turn.run(_take, standing, lines, until) or gap
                await turn.pass_on()
            look_up = hub.log.parts.look_up
            found = await turn.run(_results, registry, asking, look_up, standing, until)
        for one in found:
            yield one | gap


def _results(
    registry: Registry,
    asking: Asking,
    look_up: LookUp,
    standing: Mapping[str, Standing],
    until: Position,
    share: Callable[[], None],
) -> list[dict[str, Any]]:
    found = []
    for name, rows in standing.items():
        one = registry.active.get(name)
        if one is None and not rows.inside:
            continue
        kind = KINDS.named(registry.last_kind[name] if one is None else one.kind)
        ranked = list(rows.ranked(kind, NEVER if one is None else one.at))
        texts = look_up(sorted({row["seq"] for _, row in ranked}))
        results = []
        for rank, row in ranked:
            share()
            results.append(_result_row(asking, one, rank, row | {"text": texts[row["seq"]].text}))
        found.append({"subscription_id": name, "kind": kind.name, "as_of": until.boundary, "results": results})
    return found


def _take(standing: Mapping[str, Standing], lines: bytes, until: Position, share: Callable[[], None]) -> Row:
    """Take updates; returns the `gap` among them, {} without."""
    gap: Row = {}
    for line in lines.splitlines():
        share()
        row = msgspec.json.decode(line)
        if "change" in row and Position.of(row["id"]) <= until:
            del row["text"]  # one message may be in many results
            standing[row["subscription_id"]].take(row)
        elif "gap" in row:
            gap = row
    return gap


def _result_row(asking: Asking, one: Registered | None, rank: int | None, row: Row) -> Row:
    return {
        "rank": rank,
        **{name: row[name] for name in ("message_id", "seq", "score", "text", "lon", "lat")},
        "words": [] if one is None else asking.words_of(one, row["text"]),
        "distance_km": None if one is None else asking.kilometres(one, row["lon"], row["lat"]),
    }
