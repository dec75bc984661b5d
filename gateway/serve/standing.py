"""Results of subscriptions as of a position: the messages that have entered and not left.

Updates are read newest first (`gateway.serve.update_log`), for a group of subscriptions at a time, until each result is
whole: it has `k` messages, or the other updates are older than the subscription or its window. The last matches of a
kind without results come from the index of messages. In a stream of objects a result has objects, each with its living
version.
"""

import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from gateway.serve.asking import Asking
from gateway.serve.gaps import lost_events
from gateway.serve.hub import Hub
from gateway.serve.questions import Turn
from gateway.serve.registry import Ended, Registered, Registry
from gateway.serve.released import LookUp
from gateway.serve.update_log import UpdateLog
from gateway.serve.update_parts import Position
from gateway.serve.versions import VersionsAt
from matching.kind_table import Kind
from matching.kinds import KINDS
from matching.languages import in_language
from spouts.subscriptions import NEVER

#: Subscriptions whose results are in memory at a time, and updates that become rows at a time.
GROUP, _ROWS = 1_000, 5_000

Row = dict[str, Any]


class StoredResult:
    """The result of one subscription id, from its updates, newest first: rows by seq, or by object, without texts."""

    def __init__(self) -> None:
        self.inside: dict[int | str, Row] = {}
        self._known: set[int | str] = set()  # seqs or objects whose newest update was taken

    def take(self, row: Row, object_id: str | None = None) -> None:
        key = row["seq"] if object_id is None else object_id
        if row["change"] != "match" and key not in self._known:
            self._known.add(key)
            if row["change"] != "leave":
                self.inside[key] = row

    def bring_up(self, at: Mapping[str, int], scores_of: Callable[[Sequence[int]], Mapping[int, float | None]]) -> None:
        """Replace the versions that updates name by the living ones (seq by object), with their scores."""
        newer = {name: seq for name, seq in at.items() if seq != self.inside[name]["seq"]}
        scores = scores_of(sorted(newer.values())) if newer else {}
        for name, seq in newer.items():
            self.inside[name] |= {"seq": seq, "score": scores[seq]}

    def ranked(self, kind: Kind) -> list[tuple[int | None, Row]]:
        """Rows with their ranks, best first."""
        sign, age = 1 if kind.nearest else -1, -1 if kind.newer_first else 1
        inside = sorted(self.inside.values(), key=lambda row: (sign * row["score"], age * row["seq"]))
        return list(enumerate(inside, start=1))


async def results_at(
    hub: Hub,
    registry: Registry,
    asking: Asking,
    names: Sequence[str],
    until: Position,
    turn: Turn,
    versions: VersionsAt | None = None,
) -> AsyncIterator[dict[str, Any]]:
    """Results of subscriptions as of a position that is not beyond the head, one after the other.

    Parameters
    ----------
    names : sequence of str
        Ids; inactive ones with an empty result are left out.
    turn : Turn
        Held while results are computed, not while they are yielded.
    versions : VersionsAt, optional
        The versions of a stream of objects.

    Yields
    ------
    dict
        A `gateway.serve.models.Results`; with the last `gap` of the updates that were read, if there was any.
    """
    for first in range(0, len(names), GROUP):
        group = names[first : first + GROUP]
        standing, gaps = {name: StoredResult() for name in group}, []
        async with turn:
            look_up = hub.log.parts.look_up
            await turn.run(_read, hub.log, registry, asking, standing, until, gaps, versions)
            found = await turn.run(_results, registry, asking, look_up, standing, until, versions)
        for one in found:
            yield one | (gaps[0] if gaps else {})


def _read(
    log: UpdateLog,
    registry: Registry,
    asking: Asking,
    standing: Mapping[str, StoredResult],
    until: Position,
    gaps: list[Row],
    versions: VersionsAt | None,
    share: Callable[[], None],
) -> None:
    """Read updates, newest first, until all results are whole; lost ones are added to `gaps`."""

    def lost(position: Position, boundary: int) -> None:
        gaps.append({"gap": lost_events(position, boundary)})

    needs = {name: _needs(registry.last.get(name), asking, log.through(until), until.boundary) for name in standing}
    wanted = {name for name, (first, _) in needs.items() if first <= until.boundary}
    since = min((needs[name][0] for name in wanted), default=NEVER)
    for released, rows in log.newest_first(until, since, wanted, lost):
        for last in range(len(rows), 0, -_ROWS):
            some = rows[max(0, last - _ROWS) : last]
            objects = {} if versions is None else versions.objects(sorted({*released.seq[some].tolist()}))
            for row in reversed(released.facts(some)):
                share()
                standing[row["subscription_id"]].take(row, objects.get(row["seq"]))
            share()
        begins = int(released.boundary[0])
        for name in list(wanted):
            needed, most = needs[name]
            if begins < needed or len(standing[name].inside) >= most:
                wanted.discard(name)
        if not wanted:
            return


def _needs(last: Registered | Ended | None, asking: Asking, through: int, boundary: int) -> tuple[int, int]:
    """`Asking.needs` of the last subscription of an id; (`NEVER`, 0) if it has none, or has ended by `through`."""
    if isinstance(last, Registered) and last.at <= boundary:
        return asking.needs(last, boundary) if KINDS.named(last.kind).standing else (NEVER, 0)
    if isinstance(last, Ended) and last.end <= through:
        return NEVER, 0
    # before a subscription begins, its id has the result of the subscription that it replaces
    return 0 if last is None else last.at if isinstance(last, Ended) else last.earlier_at, sys.maxsize


def _results(
    registry: Registry,
    asking: Asking,
    look_up: LookUp,
    standing: Mapping[str, StoredResult],
    until: Position,
    versions: VersionsAt | None,
    share: Callable[[], None],
) -> list[dict[str, Any]]:
    found = []
    for name, rows in standing.items():
        one = registry.get(name)
        if one is None and not rows.inside:
            continue
        kind = KINDS.named(registry.last[name].kind)
        if versions is not None and one is not None:
            at = versions.at(until.boundary, [name for name in rows.inside if isinstance(name, str)])
            rows.bring_up(at, partial(asking.scores, one))
        ranked = rows.ranked(kind)
        if one is not None and one.at <= until.boundary and not kind.standing:
            matches = asking.last_matches(one, until.boundary, share, versions)
            ranked += [(None, {"seq": seq, "score": None}) for seq in matches]
        texts = look_up(sorted({row["seq"] for _, row in ranked}))
        results = []
        for rank, row in ranked:
            share()
            results.append(_result_row(asking, one, rank, row | texts[row["seq"]]._asdict()))
        found.append({"subscription_id": name, "kind": kind.name, "as_of": until.boundary, "results": results})
    return found


def _result_row(asking: Asking, one: Registered | None, rank: int | None, row: Row) -> Row:
    return {
        "rank": rank,
        **{name: row[name] for name in ("message_id", "seq", "score", "text", "lon", "lat")},
        **({"object_id": row["object_id"]} if row["object_id"] else {}),
        "words": [] if one is None else asking.words_of(one, in_language(row["text"], row["lang"])),
        "distance_km": None if one is None else asking.kilometres(one, row["lon"], row["lat"]),
    }
