"""Questions about a stream that runs: why a message is in a result or not, whom one would reach, what would match.

Answered from the write-ahead log by the oracle's rules (`gateway.runs.match_rules`), as `skyray explain`, `match` and
`preview` answer them of folders.
"""

import itertools
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gateway.live.admission import Admission, RefusedLine
from gateway.live.mapping import ColumnMapping
from gateway.live.write_ahead_log import WriteAheadLog
from gateway.runs.explaining import ExplainedStream, explained
from gateway.runs.match_rules import Scene, judge
from gateway.runs.message_rows import Row, message_row
from gateway.runs.reaching import reached_by
from gateway.runs.reader import decay_model, subscriber
from gateway.serve.registry import Registered, Registry
from gateway.serve.versions import VersionsAt
from gateway.serve.word_index import WordIndex
from gateway.subscriptions.past import Past, matches_in
from gateway.subscriptions.preview import preview_of
from matching.backfill import backfilled, start_of
from matching.errors import InputError
from matching.fields import Refusal
from matching.kind_table import Kind
from matching.kinds import KINDS
from matching.languages import in_language
from matching.message_segments import SegmentConditions
from matching.model import MessageBatch, Names
from matching.naive_rows import Extras, NaiveSubscription, messages_of, subscriptions_of
from matching.reasons import explain as meaning_of
from matching.reserved import is_visible
from matching.subscription_words import words_of_row
from matching.validate import ParsedMessage, ParsedSubscription, build_table, subscription_row
from matching.vocabulary import LATE_DOCUMENT_FREQUENCY, Vocabulary, inverse_document_frequency
from matching.window import NO_FLOOR
from matching.words.beginnings import is_for_matching_alone
from spouts.cutting import Rows
from spouts.message_index import MessageIndex, messages_at
from spouts.parsed import block_of, counts_of, parse_message, rows_of
from spouts.quarantine import Quarantine
from topology.settings import LiveConfig
from topology.wiring import fading_of

#: Matches that are listed for a subscription of a kind without results.
LAST_MATCHES = 100
#: Messages that compete in a result that is explained, and subscriptions that are judged for an answer, at most.
MOST_READ, MOST_JUDGED = 200_000, 20_000

Share = Callable[[], None]


class Asking:
    """Answers questions; for any thread.

    Attributes
    ----------
    index : MessageIndex
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
        self._index = WordIndex(registry, admission.vocabulary)
        self.index = MessageIndex(wal.log, admission.space, admission.vocabulary.reserved, writes=True)
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
        if kind.windowed and last_seq >= 0 and not self._admission.objects:  # an object may stay by newer versions
            first = max(first, self._first_alive(self._floor(last_seq)))
        return first, self._parsed(one).k if "k" in kind.fields else sys.maxsize

    def explain(
        self, one: Registered, seq: int, last_seq: int, versions: VersionsAt | None, share: Share = lambda: None
    ) -> dict[str, Any]:
        """Why a message is, or is not, in a subscription's result as of a boundary.

        Parameters
        ----------
        seq : int
            Of a logged message.
        last_seq : int
            The boundary.
        versions : VersionsAt or None
            Of a stream of objects.
        share : callable
            Called again and again meanwhile: lets others have the processor.

        Returns
        -------
        dict
            As of `gateway.runs.explaining.explain`, but for `updates`.

        Raises
        ------
        InputError
            If more than `MOST_READ` messages compete, whose scores would have to be compared (`too_many_rivals`).
        """
        parsed = self._parsed(one)
        kind, objects = KINDS[parsed.kind], versions is not None
        clock, floor, first = NO_FLOOR, None, last_seq + 1
        if last_seq >= 0:
            clock, floor = self._stream_time(last_seq), self._floor(last_seq)
            if kind.standing:
                first = self._first_alive(floor) if kind.windowed or objects else one.at
        given = (self._vocabulary, KINDS, self._admission.window, self._admission.space, self._fading)
        stream = ExplainedStream(*given, self._rows, lambda row: "ahead" if row.ahead else "", objects)
        batches, ends = self._candidates(parsed, kind, first, last_seq, seq, share), None
        if versions is not None and kind.standing and not kind.needs_ended:
            batches = list(batches)
            seqs = [each for rows in batches for each in rows.messages.seq.tolist() if each <= last_seq]
            living = {*versions.living(last_seq, seqs)}
            ends = {each: -1 for each in seqs if each not in living}
        table = build_table([parsed], [one.number], [one.at])
        owner = subscriber(one.columns, parsed, KINDS)._replace(at=one.at)
        return explained(stream, batches, table, owner, seq, last_seq, clock, ends=ends, floor=floor)

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
            `words`, `subscriptions` (how many are active), `candidates` (with a word of it, without any, or with a
            `lang`), `reached` (each with `subscription_id`, `kind`, `words`, `score`), `reached_in_all`, `missed` (the
            first whose query failed, each with `subscription_id`, `kind`, `reason` and `clause`), `not_reached` (counts
            by reason), and `complete`: False if there were more than `MOST_JUDGED` candidates, and not all were judged.

        Raises
        ------
        InputError
            With the reason code of a refusal.
        """
        parsed = self._message_of(data)
        counts = counts_of(parsed, self._vocabulary)
        found_by = self._vocabulary.found_by(in_language(parsed.text, parsed.lang)) if counts else ()
        candidates = [one for one in self._index.having(found_by, share) if owner in (None, one.owner)]
        active = len(self._registry) if owner is None else self._registry.owned[owner]
        judged = candidates[:MOST_JUDGED]
        words = self._words(
            [*counts, *(word for one in judged for word in words_of_row(one.columns, self._vocabulary))]
        )
        space, fading = self._admission.space, self._fading

        def subscriptions() -> Iterator[tuple[dict[str, str], NaiveSubscription, Mapping[str, Any]]]:
            for one in judged:
                share()
                row = subscription_row(one.columns, words, space, KINDS)
                assert isinstance(row, ParsedSubscription), "it was accepted"
                facts = {"subscription_id": one.subscription_id, "kind": one.kind}
                yield facts, next(subscriptions_of(build_table([row], [0], [0]))), one.columns

        given = (parsed, words, space, self._admission.window, fading)
        reached, missed, reasons = reached_by(*given, subscriptions())
        for row in reached:
            del row["parts"]
        if others := active - len(candidates):
            reasons["no_common_word"] += max(0, others)
        return {
            "words": list(counts),
            "subscriptions": active,
            "candidates": len(candidates),
            "reached": reached[:most],
            "reached_in_all": len(reached),
            "missed": missed,
            "not_reached": dict(reasons.most_common()),
            "complete": len(judged) == len(candidates),
        }

    def preview(self, columns: Mapping[str, Any], shown: int, share: Share = lambda: None) -> dict[str, Any]:
        """What a subscription would have matched among all logged messages; `share` as of `explain`.

        Returns
        -------
        dict
            As of `gateway.subscriptions.preview.preview_subscriptions`, and `read`: how many messages there are.

        Raises
        ------
        InputError
            With the reason code of a refusal.
        """
        parsed, past, words = self._checked(columns), self._past(share), self._vocabulary.as_it_is()
        found = preview_of(parsed, columns, KINDS, words, past, self._rows, shown, share)
        return found | {"read": len(past)}

    def expected(self, one: Registered, share: Share = lambda: None) -> dict[str, Any]:
        """What a new subscription would have matched.

        Returns
        -------
        dict
            `matches_per_day` by all logged messages, where these have times, and `backfill`, where it asks for one:
            `start`, `updates` and `truncated`.
        """
        parsed, past, found = self._parsed(one), self._past(share), dict[str, Any]()
        kind = KINDS[parsed.kind]
        if past.days is not None:
            found["matches_per_day"] = matches_in(parsed, kind, self._vocabulary, past, share) / past.days
        if parsed.backfill is not None:
            conditions = SegmentConditions(parsed, kind, self._vocabulary)
            seqs, truncated = backfilled(conditions, parsed.backfill, one.at, past.segments, aside=self._aside)
            start = start_of(parsed.backfill, one.at, past.segments)
            found["backfill"] = {"start": start, "updates": seqs.shape[0], "truncated": truncated}
        return found

    def scores(self, one: Registered, seqs: Sequence[int]) -> dict[int, float | None]:
        """What messages (ascending seqs) score for a subscription. O(their words), and some ms."""
        parsed = self._parsed(one)
        kind, space, window = KINDS[parsed.kind], self._admission.space, self._admission.window
        subscription = next(subscriptions_of(build_table([parsed], [one.number], [0])))
        decay = decay_model(self._fading, self._vocabulary, subscription.weights) if kind.fades else None
        wanted, found = np.array(seqs, np.int64), dict[int, float | None]()
        segments = self.index.segments(seqs[-1])
        picked = [wanted[(wanted >= each.first) & (wanted < each.first + len(each))] - each.first for each in segments]
        kept = (self._early(seq, seq) for seq in seqs if seq < self._wal.first_seq)
        of_index = messages_at(segments, picked, self._vocabulary, space, window)
        for batch in itertools.chain(of_index, *kept):
            for message in messages_of(batch, Extras(batch.event_time_us.tolist(), batch.counts.tolist())):
                scene = Scene([message], message.seq, NO_FLOOR, None, {}, space.max_distance, decay)
                found[message.seq] = judge(scene, subscription, message).score
        return found

    def last_matches(
        self, one: Registered, last_seq: int, share: Share = lambda: None, versions: VersionsAt | None = None
    ) -> list[int]:
        """Seqs of the last messages that a subscription of a kind without results matched, the newest first.

        With `versions` those alone that lived at `last_seq`.
        """
        parsed, found, aside = self._parsed(one), list[int](), self._aside
        conditions = SegmentConditions(parsed, KINDS[parsed.kind], self._vocabulary)
        segments = self.index.segments(last_seq, share)
        start = one.at if parsed.backfill is None else start_of(parsed.backfill, one.at, segments)
        for segment in reversed(segments):
            share()
            if segment.first + len(segment) <= start or len(found) >= LAST_MATCHES:
                break
            seqs = (conditions.matching(segment, start, last_seq) + segment.first)[::-1]
            seqs = [seq for seq in seqs.tolist() if not any(first <= seq <= last for first, last in aside)]
            if versions is None:
                found += seqs
                continue
            for begin in range(0, len(seqs), 10 * LAST_MATCHES):
                share()
                found += versions.living(last_seq, seqs[begin : begin + 10 * LAST_MATCHES])
                if len(found) >= LAST_MATCHES:
                    break
        return found[:LAST_MATCHES]

    def words_of(self, one: Registered, text: str) -> list[str]:
        """The words by which a subscription is found that a text has."""
        there = self._vocabulary.found_by(text)
        words = words_of_row({name: one.columns.get(name) for name in ("keywords", "lang")}, self._vocabulary)
        if one.columns.get("query") is not None:
            words = self._parsed(one).words
        return [word for word in words if word in there]

    def kilometres(self, one: Registered, lon: float, lat: float) -> float | None:
        """From a subscription's point to a place; None where it has a region."""
        return subscriber(one.columns, self._parsed(one), KINDS).kilometres(lon, lat)

    @property
    def _aside(self) -> Sequence[tuple[int, int]]:
        """Ranges of seqs that are in quarantine."""
        return Quarantine.of(self._wal.run.report().get("quarantined") or {}).messages

    def _past(self, share: Share) -> Past:
        return Past.of(self.index.segments(self._wal.next_seq - 1, share))

    def _parsed(self, one: Registered) -> ParsedSubscription:
        return self._checked(one.columns)

    def _checked(self, columns: Mapping[str, Any]) -> ParsedSubscription:
        named = {"subscription_id": "preview", **columns}
        parsed = subscription_row(named, self._vocabulary.as_it_is(), self._admission.space, KINDS)
        if isinstance(parsed, Refusal):
            raise InputError(parsed.reason, meaning_of(parsed.reason, KINDS, parsed.detail))
        return parsed

    def _message_of(self, data: bytes) -> ParsedMessage:
        renamed = self._mapping.rename(data)
        if isinstance(renamed, RefusedLine):
            raise InputError(renamed.reason, renamed.what)
        found = renamed.row
        space, stems = self._admission.space, self._vocabulary.stem_language
        parsed = found if isinstance(found, str) else parse_message(found, space, self._schema, stem_language=stems)
        if isinstance(parsed, str):
            raise InputError(parsed, meaning_of(parsed, KINDS))
        return parsed

    def _candidates(
        self, parsed: ParsedSubscription, kind: Kind, first: int, last: int, seq: int, share: Share
    ) -> Iterator[Rows]:
        """A message, and those from one seq to another that compete with it, by ascending seq."""
        space, window = self._admission.space, self._admission.window
        if kind.needs_ended:  # of every message the object
            own, others = self._batches(seq, seq), self._batches(first, last, share)
            yield from itertools.chain(own, others) if seq < first else itertools.chain(others, own)
            return
        conditions, segments, picked, left = SegmentConditions(parsed, kind, self._vocabulary), [], [], MOST_READ
        for segment in self.index.segments(max(last, seq), share):
            share()
            rows = conditions.candidates(segment)[0]
            rows = rows[(rows >= first - segment.first) & (rows <= last - segment.first)]
            if segment.first <= seq < segment.first + len(segment):
                rows = np.union1d(rows, np.array([seq - segment.first]))
            left -= rows.shape[0]
            if left < 0:
                what = f"more than {MOST_READ:,} messages have a word of it, or its place, and compete in its result"
                raise InputError("too_many_rivals", f"{what}: end the server, and use `skyray explain` on its folder")
            segments.append(segment)
            picked.append(rows)
        early = self._early(min(first, seq), min(max(last, seq), self._wal.first_seq - 1), share)
        of_index = messages_at(segments, picked, self._vocabulary, space, window)
        for messages in itertools.chain(early, of_index):
            share()
            times = messages.event_time_us if window.kind == "time" else None
            yield Rows(messages, Names.of(()), times)

    def _early(self, first: int, last: int, share: Share = lambda: None) -> Iterator[MessageBatch]:
        """Messages from one seq to another, of those before the index that are kept."""
        for rows in self._batches(first, min(last, self._wal.first_seq - 1), share):
            seq = rows.messages.seq
            there = (seq >= first) & (seq <= last) & is_visible(rows.messages.term_offsets, rows.messages.weights)
            if there.any():
                yield rows.messages.take(np.flatnonzero(there))

    def _batches(self, first: int, last: int, share: Share = lambda: None) -> Iterator[Rows]:
        """The logged batches with the messages from one seq to another, clock marks among them."""
        space, window = self._admission.space, self._admission.window
        for at, record in self._wal.records_from(first) if first <= last else ():
            if at > last:
                return
            share()
            if record.messages:
                block, terms = block_of(record, at, space, self._wal.log)
                yield rows_of(block, terms, self._vocabulary, at, space, window)

    def _rows(self, seqs: Iterable[int]) -> dict[int, Row]:
        """Logged messages, as answers show them."""
        found, schema = {}, self._vocabulary.attributes
        for seq in seqs:
            at, record = next(self._wal.records_from(seq))
            block, terms = block_of(record, at, self._admission.space, self._wal.log)
            ids = terms.ids[terms.offsets[seq - at] : terms.offsets[seq - at + 1]]
            found[seq] = message_row(block.message(seq - at), ids, schema)
        return found

    def _stream_time(self, last_seq: int) -> int:
        """Stream time after the batch of a message."""
        time_us = next(self._wal.records_from(last_seq))[1].time_us
        return NO_FLOOR if time_us is None else time_us

    def _floor(self, last_seq: int) -> int:
        """The floor of a boundary."""
        window = self._admission.window
        if self._admission.objects and window.kind == "count":
            return self._wal.window_floor(last_seq, window.length)
        return window.floor(last_seq, self._stream_time(last_seq))

    def _first_alive(self, floor: int) -> int:
        """A seq before which no message is in the window."""
        if floor == NO_FLOOR:
            return 0
        if self._admission.window.kind == "count":
            return max(0, floor + 1)
        ends = self._wal.ends
        # stream time never goes back: batches after which it is at most the floor have none
        batch = bisect_left(range(len(ends)), True, key=lambda batch: self._stream_time(ends[batch]) > floor)
        return ends[batch - 1] + 1 if batch else 0

    def _words(self, terms: Iterable[str]) -> Vocabulary:
        """The part of the vocabulary with these words, new ones among them as the next batch would admit them."""
        whole, wanted = self._vocabulary, dict.fromkeys(itertools.filterfalse(is_for_matching_alone, terms))
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

    @property
    def _schema(self) -> Any:
        return self._vocabulary.attributes
