"""Checks subscription files against messages before a run: `skyray subscriptions check`.

Every row gets the verdict of a run (`matching.validate`), its words that no message has, and the number of messages of
the folder that it would match.
"""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gateway.runs.reader import subscriber
from gateway.subscriptions.past import Past, read_past, tested
from matching.fields import Refusal, identifier
from matching.kind_table import Kinds
from matching.kinds import KINDS
from matching.space import DISTANCE, Space
from matching.subscription_words import refused_when_new
from matching.text import Vocabulary
from matching.validate import subscription_row
from spouts.lines import read_rows
from spouts.manifest import world_of
from spouts.subscriptions import load_vocabulary, meaning_of

#: How the expected matches are found, for people.
ESTIMATE = (
    "matches a day: messages of the folder that satisfy all that the row says of words, place and attributes, over the "
    "days that its messages span, by the nine tenths in the middle, so that a few absurd dates do not count; of kinds "
    "that keep the best ones it is how many compete; fewer are updates"
)


def check_subscriptions(
    paths: Sequence[str | os.PathLike[str]],
    etl: Path,
    world: str = "extent",
    kinds: Kinds = KINDS,
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
    kinds : Kinds
        Whose rows are accepted.

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
    for path in paths:
        for line, row in read_rows(path):
            verdict = _verdict_of(row, vocabulary, space, past, kinds)
            reasons.update([verdict["reason"]] if verdict["verdict"] == "rejected" else [])
            ids.update([verdict["subscription_id"]] if verdict["reason"] is None and "kind" in verdict else [])
            rows.append({"file": os.fspath(path), "line": line, **verdict})
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


def _verdict_of(
    row: dict[str, Any] | str, vocabulary: Vocabulary, space: Space, past: Past, kinds: Kinds
) -> dict[str, Any]:
    if isinstance(row, str):
        return _refused(Refusal(row), kinds)
    if row.get("unsubscribe") is not None:
        return {"verdict": "accepted", "reason": None, "what": f"ends {row['unsubscribe']}, if it is there by then"}
    row = {name: value for name, value in row.items() if name != "unsubscribe"}
    parsed = subscription_row(row, vocabulary, space, kinds)
    if not isinstance(parsed, Refusal):
        parsed = refused_when_new(row, vocabulary) or parsed
    if isinstance(parsed, Refusal):
        return _refused(parsed, kinds) | {"subscription_id": identifier(row.get("subscription_id")) or None}
    kind = kinds[parsed.kind]
    if not kind.runs:
        return _refused(Refusal("kind_without_engine"), kinds)
    matched = int(tested(parsed, kind, vocabulary, past).matched.sum())
    unknown = [word for word in parsed.words if vocabulary.id_of(word) is None and word not in vocabulary.stop_terms]
    return {
        "verdict": "accepted",
        "reason": None,
        "what": "" if parsed.can_match else "cannot match: no message has as many of its words as it needs",
        "subscription_id": parsed.subscription_id,
        "kind": kind.name,
        "unknown_words": unknown,
        "stop_words": [word for word in parsed.words if word in vocabulary.stop_terms],
        "messages": matched,
        "matches_per_day": None if past.days is None else matched / past.days,
        "more": subscriber(row, parsed, kinds).more,
    }


def _refused(refusal: Refusal, kinds: Kinds) -> dict[str, Any]:
    what = meaning_of(refusal.reason, kinds, refusal.detail)
    return {"verdict": "rejected", "reason": refusal.reason, "what": what}
