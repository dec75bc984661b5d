"""Which subscriptions a message would reach: `skyray match`.

The message is cleaned and tokenised as in the ETL, and matched with every subscription by the oracle's rules. A kind
that keeps the k best messages would have it unless k better ones exist, which only a run knows (`skyray explain`).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gateway.runs.clauses import name_clause
from gateway.runs.match_rules import REASONS, Scene, judge
from gateway.runs.reader import decay_model
from matching.attributes import AttributeValue, attribute_value
from matching.errors import ConfigError
from matching.half_life import EPOCH_US, HALF_LIFE_S, SMOOTHING, DecayParameters
from matching.kind_table import Kinds
from matching.kinds import KINDS
from matching.languages import in_language
from matching.model import TERM
from matching.naive_rows import Extras, NaiveSubscription, messages_of, subscriptions_of
from matching.space import DISTANCE, Space
from matching.validate import DELETE, ParsedMessage, RawMessage, message_row
from matching.vocabulary import Vocabulary
from matching.window import NO_FLOOR, Window
from matching.words.message_words import MessageTerms
from spouts.lines import read_rows
from spouts.manifest import world_of
from spouts.messages import MessageBlock
from spouts.parsed import batch_of
from spouts.subscriptions import load_changes, load_vocabulary, meaning_of

#: Subscriptions whose query failed that are listed at most.
MOST_MISSED = 20


def reach(
    subscriptions: Sequence[Path],
    etl: Path,
    text: str,
    place: str,
    world: str = "extent",
    kinds: Kinds = KINDS,
    attributes: Sequence[str] = (),
    distance: str = DISTANCE,
) -> dict[str, Any]:
    """Match one message with all subscriptions of some files.

    Parameters
    ----------
    etl : Path
        Output folder of the ETL: vocabulary and world.
    place : str
        LON,LAT in degrees.
    world, distance : str
        As a run has them.
    attributes : sequence of str
        What else the message has, each as NAME=VALUE.

    Returns
    -------
    dict
        `words` of the message, those that are `unknown`, `reached` (each with `subscription_id`, `kind`, `words`,
        `score`, `parts`), `missed` (the first `MOST_MISSED` whose query failed, each with `subscription_id`, `kind`,
        `reason` and `clause`), `subscriptions` (how many there are), `not_reached` and `rejected` (counts by reason),
        and `first_rejected` (`spouts.subscriptions.SubscriptionChanges`).

    Raises
    ------
    ConfigError
        If the message could not be published, with the reason.

    Notes
    -----
    30 us a row of the files, 10 us a subscription with a word of the message.
    """
    vocabulary = load_vocabulary(etl)
    space = world_of(etl, world, distance=distance)
    parsed = _message(text, place, attributes, vocabulary, space, kinds)
    counts = vocabulary.count_terms(parsed.text)
    ids = sorted(term for word in counts if (term := vocabulary.id_of(word)) is not None)
    found_by = [term for word in vocabulary.found_by(parsed.text) if (term := vocabulary.id_of(word)) is not None]
    changes = load_changes(subscriptions, vocabulary, space, kinds=kinds)
    table, names = changes.table, changes.names.strings()
    meets = np.isin(table.terms, [*found_by, vocabulary.reserved])
    hits = np.concatenate([[0], np.cumsum(meets)])
    has_word = hits[table.term_offsets[1:]] > hits[table.term_offsets[:-1]]
    rows = np.flatnonzero(has_word)
    owners = ({"subscription_id": names[row], "kind": kinds[int(table.kind[row])].name} for row in rows.tolist())
    fading = DecayParameters.of(HALF_LIFE_S, SMOOTHING, vocabulary.collection_count, vocabulary.total_tokens)
    found = zip(owners, subscriptions_of(table.take(rows)), strict=True)
    columns = (
        {str(row["subscription_id"]): row for row in _with_query(subscriptions)} if table.filter_words.size else {}
    )
    candidates = ((facts, one, columns.get(facts["subscription_id"], {})) for facts, one in found)
    reached, missed, reasons = reached_by(parsed, vocabulary, space, Window("count", 1), fading, candidates)
    if without_words := int((~has_word).sum()):
        reasons["no_common_word"] += without_words
    return {
        "words": list(map(vocabulary.term_of, ids)),
        "unknown": [word for word in counts if vocabulary.id_of(word) is None],
        "subscriptions": len(table),
        "reached": reached,
        "missed": missed,
        "not_reached": dict(reasons.most_common()),
        "rejected": changes.rejected_by_reason,
        "first_rejected": changes.first_rejected,
    }


def reached_by(
    parsed: ParsedMessage,
    vocabulary: Vocabulary,
    space: Space,
    window: Window,
    fading: DecayParameters,
    candidates: Iterable[tuple[Mapping[str, Any], NaiveSubscription, Mapping[str, Any]]],
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], Counter[str]]:
    """Which of some subscriptions a message would reach if it came now and they were active.

    Parameters
    ----------
    vocabulary, space, window, fading
        Of the stream; the vocabulary may be a part that has all words of message and subscriptions.
    candidates : iterable of (mapping, Subscription, mapping)
        Facts of each, which are part of the answer, and its columns.

    Returns
    -------
    list of dict, list of dict, Counter
        Of each that it reaches the facts, `words`, `score` and `parts`; of the first `MOST_MISSED` others whose query
        failed the facts, `reason` and `clause`, which says what of it; and of all others how many by reason.
    """
    block = MessageBlock.of([parsed], vocabulary.attributes)
    ids = [] if parsed.op == DELETE or parsed.ahead else vocabulary.order_of(in_language(parsed.text, parsed.lang))
    none = np.zeros(1, np.int32)
    batch = batch_of(
        block, MessageTerms(np.array(ids, TERM), np.array([0, len(ids)]), none, none), vocabulary, 0, space, window
    )
    message = next(messages_of(batch, Extras(batch.event_time_us.tolist(), batch.counts.tolist())))
    decay = decay_model(fading, vocabulary, range(len(vocabulary)))
    scene = Scene([message], 0, NO_FLOOR, None, {}, space.max_distance, decay)
    reached, missed, reasons = [], [], Counter[str]()
    for facts, subscription, columns in candidates:
        verdict = judge(scene, subscription._replace(at=0), message)
        if verdict.in_result:
            found = {"words": [vocabulary.term_of(term) for term in verdict.common]}
            reached.append({**facts, **found, "score": verdict.score, "parts": verdict.parts})
        else:
            name_clause(verdict, columns, message, vocabulary)
            reasons[verdict.reason] += 1
            if verdict.clause and len(missed) < MOST_MISSED:
                missed.append({**facts, "reason": verdict.reason, "clause": verdict.clause})
    return reached, missed, reasons


def _with_query(paths: Sequence[Path]) -> Iterator[dict[str, Any]]:
    """The rows of files of subscriptions that have a query."""
    rows = (row for path in paths for _, row in read_rows(path) if isinstance(row, dict))
    return (row for row in rows if row.get("query") is not None)


def why_not(reason: str, kinds: Kinds = KINDS) -> str:
    """What a reason of `reach` means, for people."""
    return REASONS[reason] if reason in REASONS else meaning_of(reason, kinds)


def _message(
    text: str, place: str, attributes: Sequence[str], vocabulary: Vocabulary, space: Space, kinds: Kinds
) -> ParsedMessage:
    lon, _, lat = place.partition(",")
    if place.count(",") != 1:  # decimal commas are read elsewhere: "1,2,3" would be a place
        raise ConfigError(f"--at {place}: give LON,LAT in degrees, as 139.7,35.7")
    parsed = message_row(RawMessage(text=text, lon=lon, lat=lat), space)
    if isinstance(parsed, str):
        raise ConfigError(f"this message would be rejected as {parsed}: {meaning_of(parsed, kinds)}")
    return parsed._replace(event_time_us=EPOCH_US, attributes=_values(attributes, vocabulary))


def _values(attributes: Sequence[str], vocabulary: Vocabulary) -> tuple[AttributeValue, ...]:
    """Checked values of `NAME=VALUE`, in the order of the schema."""
    given, schema = dict[str, str](), vocabulary.attributes
    for one in attributes:
        name, equals, value = one.partition("=")
        if not equals or schema.number_of(name) is None:
            there = ", ".join(known.name for known in schema.attributes) or "none"
            raise ConfigError(f"--attribute {one}: give NAME=VALUE; the messages have {there}")
        given[name] = value
    try:
        return tuple(attribute_value(one.type, given.get(one.name)) for one in schema.attributes)
    except ValueError as error:
        raise ConfigError(f"--attribute {' '.join(attributes)}: {error}") from None
