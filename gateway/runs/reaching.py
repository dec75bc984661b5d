"""Which subscriptions a message would reach: `skyray match`.

The message is cleaned and tokenised as in the ETL, and matched with every subscription by the oracle's rules. A kind
that keeps the k best messages would have it unless k better ones exist, which only a run knows (`skyray explain`). Used
by `gateway.commands.match`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gateway.runs.match_rules import REASONS, Scene, judge
from matching.attributes import attribute_value
from matching.errors import ConfigError
from matching.half_life import EPOCH_US, HALF_LIFE_S, SMOOTHING, DecayParameters
from matching.kind_table import Kinds
from matching.kinds import KINDS
from matching.naive_rows import DecayModel, Extras, Message, messages_of, subscriptions_of
from matching.space import DISTANCE, Space
from matching.text import Vocabulary
from matching.validate import RawMessage, message_row
from matching.window import NO_FLOOR, Window
from spouts.messages import MessageBlock
from spouts.parquet import world_of
from spouts.parsed import batch_of
from spouts.subscriptions import load_changes, load_vocabulary, meaning_of


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
    subscriptions : sequence of Path
    etl : Path
        Output folder of the ETL: vocabulary and world.
    text : str
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
        `score`, `parts`), `subscriptions` (how many there are), `not_reached` and `rejected` (counts by reason), and
        `first_rejected` (`spouts.subscriptions.Changes`).

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
    message, unknown = _message(text, place, attributes, vocabulary, space, kinds)
    changes = load_changes(subscriptions, vocabulary, space, kinds=kinds)
    scene = Scene([message], 0, NO_FLOOR, None, {}, space.max_distance, _decay(vocabulary))
    table = changes.table
    meets = np.isin(table.terms, [*message.weights, vocabulary.reserved])
    hits = np.concatenate([[0], np.cumsum(meets)])
    has_word = hits[table.term_offsets[1:]] > hits[table.term_offsets[:-1]]
    reasons: Counter[str] = Counter()
    reached = []
    names = changes.names.strings()
    rows = np.flatnonzero(has_word)
    for row, subscription in zip(rows.tolist(), subscriptions_of(table.take(rows)), strict=True):
        # as if it were active already
        verdict = judge(scene, subscription._replace(at=0), message)
        if not verdict.in_result:
            reasons[verdict.reason] += 1
            continue
        reached.append(
            {
                "subscription_id": names[row],
                "kind": kinds[subscription.kind].name,
                "words": [vocabulary.terms[term] for term in verdict.common],
                "score": verdict.score,
                "parts": verdict.parts,
            }
        )
    if without_words := int((~has_word).sum()):
        reasons["no_common_word"] += without_words
    return {
        "words": [vocabulary.terms[term] for term in message.weights],
        "unknown": unknown,
        "subscriptions": len(table),
        "reached": reached,
        "not_reached": dict(reasons.most_common()),
        "rejected": changes.rejected_by_reason,
        "first_rejected": changes.first_rejected,
    }


def why_not(reason: str, kinds: Kinds = KINDS) -> str:
    """What a reason of `reach` means, for people."""
    return REASONS[reason] if reason in REASONS else meaning_of(reason, kinds)


def _message(
    text: str, place: str, attributes: Sequence[str], vocabulary: Vocabulary, space: Space, kinds: Kinds
) -> tuple[Message, list[str]]:
    """The message for the oracle, and its words that the vocabulary lacks."""
    lon, _, lat = place.partition(",")
    if place.count(",") != 1:  # decimal commas are read elsewhere: "1,2,3" would be a place
        raise ConfigError(f"--at {place}: give LON,LAT in degrees, as 139.7,35.7")
    parsed = message_row(RawMessage(text=text, lon=lon, lat=lat), space)
    if isinstance(parsed, str):
        raise ConfigError(f"this message would be rejected as {parsed}: {meaning_of(parsed, kinds)}")
    parsed = parsed._replace(event_time_us=EPOCH_US, attributes=_values(attributes, vocabulary))
    counts = vocabulary.count_terms(parsed.text)
    block = MessageBlock.of([parsed], vocabulary.attributes)
    batch = batch_of(block, vocabulary.unit_vectors([counts]), vocabulary.reserved, 0, space, Window("count", 1))
    extras = Extras([EPOCH_US], batch.counts.tolist())
    return next(messages_of(batch, extras)), [word for word in counts if vocabulary.id_of(word) is None]


def _values(attributes: Sequence[str], vocabulary: Vocabulary) -> tuple[float | int | str | None, ...]:
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


def _decay(vocabulary: Vocabulary) -> DecayModel:
    """Default decay of a run, as of the message's own time, so that its age is 0."""
    counts = np.asarray(vocabulary.collection_count)
    fading = DecayParameters.of(HALF_LIFE_S, SMOOTHING, counts, vocabulary.total_tokens)
    collected: Mapping[int, int] = dict(enumerate(counts.tolist()))
    return DecayModel(fading.log_base_per_s, SMOOTHING, collected, vocabulary.total_tokens, EPOCH_US)
