"""Checks subscription files against messages before a run: `skyray subscriptions check`.

Every row gets the verdict of a run (`matching.validate`), its words that no message has, and the number of messages of
the folder that it would match.
"""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gateway.runs.clauses import clause_programs
from gateway.runs.reader import subscriber
from gateway.subscriptions.past import Past, matches_in, read_past, unmet_in
from matching.fields import Refusal, identifier
from matching.kind_table import Kinds
from matching.kinds import KINDS
from matching.space import DISTANCE, Space
from matching.subscription_words import refused_when_new
from matching.validate import ParsedSubscription, subscription_row
from matching.vocabulary import Vocabulary
from spouts.lines import read_rows
from spouts.manifest import world_of
from spouts.subscriptions import load_vocabulary, meaning_of

#: How the expected matches are found, for people.
ESTIMATE = (
    "matches a day: messages of the folder that satisfy all that the row says of words, place and attributes, over the "
    "days that its messages span, by the nine tenths in the middle, so that a few absurd dates do not count; of kinds "
    "that keep the best ones it is how many compete; fewer are updates"
)


class JudgedRow(NamedTuple):
    """A row of a file of subscriptions.

    place : dict    `file` and `line`
    row : dict      without `unsubscribe`; empty if it is no object
    ends : str or None    the subscription that it ends
    found : ParsedSubscription or Refusal    a Refusal of a row that ends one means nothing
    """

    place: dict[str, Any]
    row: dict[str, Any]
    ends: Any
    found: ParsedSubscription | Refusal


def judged_rows(
    paths: Sequence[str | os.PathLike[str]], vocabulary: Vocabulary, space: Space, kinds: Kinds
) -> Iterator[JudgedRow]:
    """The rows of some files as a run takes them. Raises InputError if a file is missing or damaged."""
    for path in paths:
        for line, row in read_rows(path):
            columns = {} if isinstance(row, str) else {name: row[name] for name in row if name != "unsubscribe"}
            parsed = Refusal(row) if isinstance(row, str) else subscription_row(columns, vocabulary, space, kinds)
            if not isinstance(parsed, Refusal):
                parsed = refused_when_new(columns, vocabulary) or parsed
            if not isinstance(parsed, Refusal) and not kinds[parsed.kind].runs:
                parsed = Refusal("kind_without_engine")
            ends = None if isinstance(row, str) else row.get("unsubscribe")
            yield JudgedRow({"file": os.fspath(path), "line": line}, columns, ends, parsed)


def refused(row: JudgedRow, refusal: Refusal, kinds: Kinds) -> dict[str, Any]:
    """Why a row is refused: `subscription_id`, None if it has none, `reason` and `what`."""
    name = identifier(row.row.get("subscription_id")) or None
    what = meaning_of(refusal.reason, kinds, refusal.detail)
    return {"subscription_id": name, "reason": refusal.reason, "what": what}


def check_subscriptions(
    paths: Sequence[str | os.PathLike[str]],
    etl: Path,
    world: str = "extent",
    distance: str = DISTANCE,
) -> dict[str, Any]:
    """Check every row of some files.

    Parameters
    ----------
    paths : sequence of path
        As `skyray run` takes them.
    etl : Path
        Messages that stand for those to come.
    world, distance : str
        As a run has them.

    Returns
    -------
    dict
        `rows` (each `file`, `line`, `verdict` accepted or rejected, `reason`, `what`, `subscription_id`, and of
        accepted ones `kind`, `unknown_words`, `stop_words`, `messages` and `matches_per_day`, None without times;
        free columns under `more`), `accepted`, `rejected`, `rejected_by_reason`, `replaced` (ids that several rows
        have), `days` and `estimate` (how it is made).

    Raises
    ------
    InputError
        If a file is missing or damaged.

    Notes
    -----
    Holds 16 bytes a term of all messages; 20 us a row, and some ns for each message of each of its words.
    """
    vocabulary = load_vocabulary(etl)
    space = world_of(etl, world, distance=distance)
    past = read_past(etl, vocabulary)
    rows: list[dict[str, Any]] = []
    reasons: Counter[str] = Counter()
    ids: Counter[str] = Counter()
    for row in judged_rows(paths, vocabulary, space, KINDS):
        verdict = _verdict_of(row, vocabulary, past, KINDS)
        reasons.update([verdict["reason"]] if verdict["verdict"] == "rejected" else [])
        ids.update([verdict["subscription_id"]] if verdict["reason"] is None and "kind" in verdict else [])
        rows.append(row.place | verdict)
    rejected = sum(reasons.values())
    return {
        "rows": rows,
        "accepted": len(rows) - rejected,
        "rejected": rejected,
        "rejected_by_reason": dict(reasons.most_common()),
        "replaced": sorted(name for name, count in ids.items() if count > 1),
        "days": past.days,
        "estimate": ESTIMATE,
    }


def _verdict_of(row: JudgedRow, vocabulary: Vocabulary, past: Past, kinds: Kinds) -> dict[str, Any]:
    if row.ends is not None:
        return {"verdict": "accepted", "reason": None, "what": f"ends {row.ends}, if it is there by then"}
    parsed = row.found
    if isinstance(parsed, Refusal):
        return {"verdict": "rejected", **refused(row, parsed, kinds)}
    kind = kinds[parsed.kind]
    matched = matches_in(parsed, kind, vocabulary, past)
    what = "" if parsed.can_match else "cannot match: no message has as many of its words as it needs"
    if parsed.can_match and not matched:
        unmet = unmet_in(parsed, kind, vocabulary, past, clause_programs(row.row, vocabulary))
        what = f"no message with a word of it satisfies {', '.join(unmet)}" if unmet else ""
    unknown = [word for word in parsed.words if vocabulary.id_of(word) is None and word not in vocabulary.stop_terms]
    return {
        "verdict": "accepted",
        "reason": None,
        "what": what,
        "subscription_id": parsed.subscription_id,
        "kind": kind.name,
        "unknown_words": unknown,
        "stop_words": [word for word in parsed.words if word in vocabulary.stop_terms],
        "messages": matched,
        "matches_per_day": None if past.days is None else matched / past.days,
        "more": subscriber(row.row, parsed, kinds).more,
    }
