"""What subscriptions would have matched in the past: `skyray preview`, which a form shows before a search is saved.

For each row: how many messages of a folder, in its last day and its last week, the newest of them, and which condition
leaves out most.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gateway.runs.clauses import clause_programs
from gateway.runs.message_rows import MessageRows, Row
from gateway.subscriptions.checking import judged_rows, refused
from gateway.subscriptions.past import US_PER_DAY, Past, read_past
from matching.fields import Refusal
from matching.kind_table import Kinds
from matching.kinds import KINDS
from matching.message_segments import SegmentConditions
from matching.space import DISTANCE
from matching.validate import ParsedSubscription
from matching.vocabulary import Vocabulary
from matching.window import NO_FLOOR
from spouts.manifest import world_of
from spouts.subscriptions import load_vocabulary

_DAYS = {"day": 1, "week": 7}


def preview_subscriptions(
    paths: Sequence[str | os.PathLike[str]],
    etl: Path,
    world: str = "extent",
    shown: int = 3,
    distance: str = DISTANCE,
) -> Iterator[dict[str, Any]]:
    """Preview the rows of some files, one by one.

    Parameters
    ----------
    paths : sequence of path
        As `skyray run` takes them; rows that end subscriptions are passed over.
    etl : Path
        The messages of the past: a folder of `skyray etl`.
    world, distance : str
        As a run has them.
    shown : int
        Messages listed, the newest first.

    Yields
    ------
    dict
        `subscription_id`, `kind`, `file`, `line`, `reason` and `what` of a refused row; else `candidates` (messages
        with a keyword), `messages` (those that satisfy all conditions; of kinds that keep the best ones these compete),
        `day` and `week` (how many of them in the last day and week of the folder, None without times), `per_day`,
        `newest` (`message_id`, `text`, `time`, `lon`, `lat`), and `conditions` (each clause of a
        query is one): of each its `name`, how many candidates it `excludes`, and how many more messages there would be
        `without` it, most first.

    Raises
    ------
    InputError
        If a file is missing or damaged.

    Notes
    -----
    Holds the folder's terms; some ns for each message of each keyword, and condition.
    """
    vocabulary = load_vocabulary(etl)
    space, past, read = world_of(etl, world, distance=distance), read_past(etl, vocabulary), MessageRows(etl).read
    for row in judged_rows(paths, vocabulary, space, KINDS):
        if row.ends is not None:
            continue
        if isinstance(row.found, Refusal):
            yield row.place | refused(row, row.found, KINDS)
        else:
            yield row.place | preview_of(row.found, row.row, KINDS, vocabulary, past, read, shown)


def preview_of(
    parsed: ParsedSubscription,
    columns: Mapping[str, Any],
    kinds: Kinds,
    vocabulary: Vocabulary,
    past: Past,
    read: Callable[[Iterable[int]], Mapping[int, Row]],
    shown: int,
    share: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """The preview of one subscription, as `preview_subscriptions` yields it, without file and line.

    `columns` are the subscription's; `read` gives messages by seq; `share` is called between segments.
    """
    kind = kinds[parsed.kind]
    tests = SegmentConditions(parsed, kind, vocabulary, clause_programs(columns, vocabulary))
    tallies = dict[str, list[int]]()
    candidates = messages = 0
    since = [NO_FLOOR if past.last_us is None else past.last_us - days * US_PER_DAY for days in _DAYS.values()]
    counts, latest = [0] * len(since), list[tuple[int, int]]()
    for segment in past.segments:
        share()
        outcome = tests.tested(segment)
        rows = outcome.rows[outcome.matched]
        for name, passes in outcome.parts.items():
            others = [part for other, part in outcome.parts.items() if other != name]
            left = np.logical_and.reduce([np.ones(passes.shape[0], np.bool_), *others])
            tally = tallies.setdefault(name, [0, 0])
            tally[0] += int((~passes).sum())
            tally[1] += int(left.sum()) - rows.shape[0]
        times = segment.time_us[rows]
        counts = [count + int((times > after).sum()) for count, after in zip(counts, since, strict=True)]
        last = np.lexsort((rows, times))[::-1][:shown]
        seqs = (rows[last] + segment.first).tolist()
        latest = sorted([*latest, *zip(times[last].tolist(), seqs, strict=True)], reverse=True)[:shown]
        candidates += outcome.rows.shape[0]
        messages += rows.shape[0]
    conditions = [{"name": name, "excludes": out, "without": more} for name, (out, more) in tallies.items()]
    conditions.sort(key=lambda one: (-one["without"], -one["excludes"]))
    recent = {name: None if past.last_us is None else count for name, count in zip(_DAYS, counts, strict=True)}
    newest = [seq for _, seq in latest]
    found = read(newest)
    return {
        "subscription_id": parsed.subscription_id,
        "kind": kind.name,
        "reason": None,
        "candidates": candidates,
        "messages": messages,
        **recent,
        "per_day": None if past.days is None else messages / past.days,
        "newest": [
            {
                "message_id": found[seq].message_id,
                "text": found[seq].text,
                "time": None if found[seq].event_time is None else found[seq].event_time.isoformat(),
                "lon": found[seq].lon,
                "lat": found[seq].lat,
            }
            for seq in newest
        ],
        "conditions": conditions,
    }
