"""Messages of a live stream as the oracle takes them, and as answers show them."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from gateway.runs.message_rows import Row
from matching.half_life import DecayParameters
from matching.naive_rows import DecayModel, Extras, Message, messages_of
from matching.space import Space
from matching.text import TermColumns, TermVector, Vocabulary
from matching.validate import ParsedMessage
from matching.window import Window
from spouts.messages import MessageBlock
from spouts.parsed import batch_of

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def oracle_message(
    parsed: ParsedMessage, vector: TermVector, seq: int, space: Space, window: Window, vocabulary: Vocabulary
) -> Message:
    """A message as the oracle has it."""
    block, terms = MessageBlock.of([parsed], vocabulary.attributes), TermColumns.of_one(vector)
    batch = batch_of(block, terms, vocabulary.reserved, seq, space, window)
    extras = Extras(batch.event_time_us.tolist(), batch.counts.tolist(), [parsed.object_id], [parsed.op])
    return next(messages_of(batch, extras))


def message_row(parsed: ParsedMessage, vector: TermVector, vocabulary: Vocabulary) -> Row:
    """A message as answers show it."""
    time_us = parsed.event_time_us
    moment = None if time_us is None else _EPOCH + timedelta(microseconds=time_us)
    named = zip(vocabulary.attributes.attributes, parsed.attributes, strict=True)
    attributes = {one.name: value for one, value in named if value is not None}
    terms = frozenset(vector.terms.tolist())
    return Row(parsed.message_id, parsed.lon, parsed.lat, moment, parsed.text, terms, parsed.ahead, attributes)


def decay_model(fading: DecayParameters, vocabulary: Vocabulary, terms: Iterable[int]) -> DecayModel:
    """How scores fade, for the oracle, with the counts of these terms."""
    counts = {term: int(vocabulary.collection_count[term]) for term in terms if term < vocabulary.reserved}
    return DecayModel(fading.log_base_per_s, fading.smoothing, counts, vocabulary.total_tokens, fading.epoch_us)
