"""Questions about a stream that runs: why a message is in a result or not, whom one would reach, what would match.

Answered from the write-ahead log by the oracle's rules (`gateway.runs.match_rules`), as `skyray explain`, `match` and
`preview` answer them of folders.
"""

import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from gateway.live.admission import Admission, Refused
from gateway.live.mapping import ColumnMapping
from gateway.live.oracle_rows import decay_model, message_row, oracle_message
from gateway.live.write_ahead_log import WriteAheadLog
from gateway.runs.explaining import RIVALS, answer_of
from gateway.runs.match_rules import Scene, judge
from gateway.runs.message_rows import Row
from gateway.runs.reader import subscriber
from gateway.serve.registry import Registered, Registry
from gateway.subscriptions.past import Past
from gateway.subscriptions.preview import preview_of
from matching.errors import InputError
from matching.fields import Refusal
from matching.kinds import KINDS
from matching.naive_rows import Message, Subscription, subscriptions_of
from matching.reasons import explain as meaning_of
from matching.text import LATE_DOCUMENT_FREQUENCY, TermVector, Vocabulary, inverse_document_frequency
from matching.validate import ParsedMessage, ParsedSubscription, build_table, subscription_row
from matching.window import NO_FLOOR
from spouts.messages import MessageBlock
from spouts.parsed import batch_of, block_of, counts_of, parse_message, vector_of
from topology.settings import LiveConfig
from topology.wiring import fading_of

#: Matches that are listed for a subscription of a kind without results.
LAST_MATCHES = 100
#: Messages that are read for an answer at most, those of a preview, and subscriptions that are judged for one.
MOST_READ, PREVIEWED, MOST_JUDGED = 200_000, 20_000, 20_000

Share = Callable[[], None]


class _Read(NamedTuple):
    """A message of the log, with its vector as of its batch."""

    seq: int
    parsed: ParsedMessage
    vector: TermVector


class Asking:
    """Answers questions; for any thread.

    Parameters
    ----------
    config : LiveConfig
    admission : Admission
    registry : Registry
    wal : WriteAheadLog
    mapping : ColumnMapping
    """

    def __init__(
        self,
        config: LiveConfig,
        admission: Admission,
        registry: Registry,
        wal: WriteAheadLog,
        mapping: ColumnMapping,
    ):
        self._admission = admission
        self._registry = registry
        self._wal = wal
        self._mapping = mapping
        self._vocabulary = admission.vocabulary
        self._fading = fading_of(config, admission.vocabulary)

    def needs(self, one: Registered, last_seq: int) -> tuple[int, int]:
        """How far back the updates go that decide what a result has as of a boundary.

        Returns
        -------
        int, int
            The first seq, and how many messages the result has at most: those that are found first, from the newest
            update on, are all.
        """
        kind, first = KINDS.named(one.kind), one.at
        if kind.windowed and last_seq >= 0:
            window = self._admission.window
            first = max(first, self._first_alive(window.floor(last_seq, self._stream_time(last_seq))))
        if not kind.standing:
            return first, LAST_MATCHES
        return first, self._parsed(one).k if "k" in kind.fields else sys.maxsize

    def explain(self, one: Registered, seq: int, last_seq: int, share: Share = lambda: None) -> dict[str, Any]:
        """Why a message is, or is not, in a subscription's result as of a boundary.

        Parameters
        ----------
        one : Registered
        seq : int
            Of a logged message.
        last_seq : int
            The boundary.
        share : callable
            Called again and again meanwhile: lets others have the processor.

        Returns
        -------
        dict
            As of `gateway.runs.explaining.explain`, but for `updates`.

        Raises
        ------
        InputError
            If more than `MOST_READ` messages would have to be read (`too_far_back`).
        """
        parsed = self._parsed(one)
        kind, space, window = KINDS[parsed.kind], self._admission.space, self._admission.window
        subscription = next(subscriptions_of(build_table([parsed], [one.number], [one.at])))
        floor = window.floor(last_seq, self._stream_time(last_seq)) if last_seq >= 0 else NO_FLOOR
        first = last_seq + 1
        if kind.standing:
            first = self._first_alive(floor) if kind.windowed else one.at
        if last_seq - first > MOST_READ:
            raise InputError(
                "too_far_back",
                f"{last_seq - first:,} messages have come since this subscription, and {MOST_READ:,} are read at most; "
                "end the server, and use `skyray explain` on its folder",
            )
        there: list[_Read] = []
        ends: dict[int, int] = {}
        current: dict[str, int] = {}
        for read in self._messages(first, last_seq, share):
            earlier = current.get(read.parsed.object_id)
            if earlier is not None:
                ends.setdefault(earlier, read.seq)
            if read.parsed.op == 1:
                ends[read.seq] = read.seq
            current[read.parsed.object_id] = read.seq
            if subscription.wordless or not subscription.weights.keys().isdisjoint(read.vector.terms.tolist()):
                there.append(read)
        target = next(self._messages(seq, seq))
        messages = [
            oracle_message(read.parsed, read.vector, read.seq, space, window, self._vocabulary) for read in there
        ]
        if kind.windowed:
            messages = [message for message in messages if message.life > floor]
        decay = decay_model(self._fading, self._vocabulary, subscription.weights)
        scene = Scene(messages, last_seq, floor, None, ends, space.max_distance, decay)
        message = oracle_message(target.parsed, target.vector, seq, space, window, self._vocabulary)
        verdict = judge(scene, subscription, message)
        if target.parsed.ahead:
            verdict.in_result, verdict.reason = False, "ahead"
        wanted = {rival.seq for rival in verdict.rivals[:RIVALS]}
        texts = {read.seq: self._row(read) for read in (*there, target) if read.seq in wanted or read.seq == seq}
        owner = subscriber(one.columns, parsed, KINDS)._replace(at=one.at)
        return answer_of(verdict, scene, kind, self._vocabulary, owner, seq, texts)

    def match(self, data: bytes, most: int, owner: str | None = None, share: Share = lambda: None) -> dict[str, Any]:
        """Which active subscriptions a message would reach if it came now.

        Parameters
        ----------
        data : bytes
            A row of messages.
        most : int
            Subscriptions that are listed.
        owner : str, optional
            Whose subscriptions are matched; by default all are.
        share : callable
            As of `explain`.

        Returns
        -------
        dict
            `words`, `subscriptions` (how many are active), `candidates` (with a word of it, or without any), `reached`
            (each with `subscription_id`, `kind`, `words`, `score`), `reached_in_all`, `not_reached` (counts by reason),
            and `complete`: False if there were more than `MOST_JUDGED` candidates, and not all were judged.

        Raises
        ------
        InputError
            With the reason code of a refusal.
        """
        parsed = self._message_of(data)
        counts = counts_of(parsed, self._vocabulary)
        candidates = [one for one in self._registry.with_words(counts) if owner in (None, one.owner)]
        active = len(self._registry) if owner is None else self._registry.owned[owner]
        judged = candidates[:MOST_JUDGED]
        words = self._words([*counts, *(word for one in judged for word in one.words)])
        space, window = self._admission.space, self._admission.window
        message = oracle_message(parsed, vector_of(parsed, words), 0, space, window, words)
        reached, reasons = [], Counter[str]()
        for one in judged:
            share()
            row = subscription_row(one.columns, words, space, KINDS)
            assert isinstance(row, ParsedSubscription), "it was accepted"
            verdict = judge(self._alone(message, row, words), _subscription(row), message)
            if verdict.in_result:
                found = [words.term_of(term) for term in verdict.common]
                kind = {"subscription_id": one.subscription_id, "kind": one.kind}
                reached.append({**kind, "words": found, "score": verdict.score})
            else:
                reasons[verdict.reason] += 1
        if others := active - len(candidates):
            reasons["no_common_word"] += max(0, others)
        return {
            "words": list(counts),
            "subscriptions": active,
            "candidates": len(candidates),
            "reached": reached[:most],
            "reached_in_all": len(reached),
            "not_reached": dict(reasons.most_common()),
            "complete": len(judged) == len(candidates),
        }

    def preview(self, columns: Mapping[str, Any], shown: int, share: Share = lambda: None) -> dict[str, Any]:
        """What a subscription would have matched among the last `PREVIEWED` messages; `share` as of `explain`.

        Returns
        -------
        dict
            As of `gateway.subscriptions.preview.preview_subscriptions`, and `read`: how many messages were looked at.

        Raises
        ------
        InputError
            With the reason code of a refusal.
        """
        reads = list(self._messages(max(0, self._wal.next_seq - PREVIEWED), self._wal.next_seq - 1, share))
        texts = []
        for read in reads:
            share()
            texts.append(counts_of(read.parsed, self._vocabulary))
        named = {"subscription_id": "preview", **columns}
        keywords = [word for name in ("keywords", "not_keywords") for word in self._terms(named.get(name))]
        words = self._words([*(term for text in texts for term in text), *keywords])
        parsed = subscription_row(named, words, self._admission.space, KINDS)
        if isinstance(parsed, Refusal):
            raise InputError(parsed.reason, meaning_of(parsed.reason, KINDS, parsed.detail))
        block = MessageBlock.of([read.parsed for read in reads], self._schema)
        space, window = self._admission.space, self._admission.window
        batch = batch_of(block, words.unit_vectors(texts), words.reserved, 0, space, window)
        past = Past.of(batch, batch.event_time_us, words.reserved + 1)
        return preview_of(parsed, KINDS, words, past, _Texts(self, reads), shown) | {"read": len(reads)}

    def words_of(self, one: Registered, text: str) -> list[str]:
        """The keywords of a subscription that a text has."""
        counts = self._vocabulary.count_terms(text)
        return [word for word in one.words if word in counts]

    def kilometres(self, one: Registered, lon: float, lat: float) -> float | None:
        """From a subscription's point to a place; None where it has a region."""
        return subscriber(one.columns, self._parsed(one), KINDS).kilometres(lon, lat)

    def _parsed(self, one: Registered) -> ParsedSubscription:
        parsed = subscription_row(one.columns, self._vocabulary, self._admission.space, KINDS)
        if isinstance(parsed, Refusal):
            raise InputError(parsed.reason, meaning_of(parsed.reason, KINDS, parsed.detail))
        return parsed

    def _message_of(self, data: bytes) -> ParsedMessage:
        renamed = self._mapping.rename(data)
        if isinstance(renamed, Refused):
            raise InputError(renamed.reason, renamed.what)
        found = renamed.row
        parsed = found if isinstance(found, str) else parse_message(found, self._admission.space, self._schema)
        if isinstance(parsed, str):
            raise InputError(parsed, meaning_of(parsed, KINDS))
        return parsed

    def _alone(self, message: Message, row: ParsedSubscription, words: Vocabulary) -> Scene:
        """The message, and nothing beside it."""
        decay = decay_model(self._fading, words, row.terms)
        return Scene([message], 0, NO_FLOOR, None, {}, self._admission.space.max_distance, decay)

    def _messages(self, first: int, last: int, share: Share = lambda: None) -> Iterator[_Read]:
        """Logged messages from one seq to another, clock marks among them."""
        if last < first:
            return
        for at, record in self._wal.records_from(first):
            if at > last:
                return
            if not record.messages:
                continue
            first_id = self._wal.first_id_of(at)
            block, _ = block_of(record, at, self._admission.space, self._wal.log)
            for seq in range(max(first, at), min(last + 1, at + len(block))):
                share()
                one = block.message(seq - at)
                yield _Read(seq, one, vector_of(one, self._vocabulary, first_id))

    def _stream_time(self, last_seq: int) -> int:
        """Stream time after the batch of a message."""
        time_us = next(self._wal.records_from(last_seq))[1].time_us
        return NO_FLOOR if time_us is None else time_us

    def _first_alive(self, floor: int) -> int:
        """A seq before which no message is in the window."""
        if self._admission.window.kind == "count":
            return max(0, floor + 1)
        ends = self._wal.ends
        # stream time never goes back: batches after which it is at most the floor have none
        batch = bisect_left(range(len(ends)), True, key=lambda batch: self._stream_time(ends[batch]) > floor)
        return ends[batch - 1] + 1 if batch else 0

    def _words(self, terms: Iterable[str]) -> Vocabulary:
        """The part of the vocabulary with these terms, new ones among them as the next batch would admit them."""
        whole, wanted = self._vocabulary, dict.fromkeys(terms)
        ids = sorted(each for term in wanted if (each := whole.id_of(term)) is not None)
        new = [term for term in wanted if whole.id_of(term) is None and term not in whole.stop_terms]
        new = sorted(new, key=str.encode, reverse=True) if whole.most_terms else []
        late = inverse_document_frequency(max(1, whole.messages + self._wal.next_seq), LATE_DOCUMENT_FREQUENCY)
        return Vocabulary(
            [*new, *map(whole.term_of, ids)],
            [0] * len(new) + whole.document_frequency[ids].tolist(),
            [0] * len(new) + whole.collection_count[ids].tolist(),
            [late] * len(new) + whole.idf[ids].tolist(),
            whole.messages,
            whole.total_tokens,
            whole.stop_terms,
            whole.stem_language,
            whole.folds_accents,
            whole.attributes,
        )

    def _terms(self, keywords: Any) -> list[str]:
        texts = [keywords] if isinstance(keywords, str) else keywords if isinstance(keywords, list) else []
        return self._vocabulary.keyword_terms([one for one in texts if isinstance(one, str)])

    def _row(self, read: _Read) -> Row:
        return message_row(read.parsed, read.vector, self._vocabulary)

    @property
    def _schema(self) -> Any:
        return self._vocabulary.attributes


class _Texts:
    """Messages that were read, by their places."""

    def __init__(self, asking: Asking, reads: list[_Read]):
        self._asking = asking
        self._reads = reads

    def read(self, seqs: Iterable[int]) -> dict[int, Row]:
        return {place: self._asking._row(self._reads[place]) for place in seqs}


def _subscription(row: ParsedSubscription) -> Subscription:
    """As if it were active already."""
    return next(subscriptions_of(build_table([row], [0], [0])))
