"""Why a message is, or is not, in a subscription's result in a run: `skyray explain RUN SUBSCRIPTION MESSAGE`.

`explained` reads the messages of a stream that share a keyword (all visible ones where there is none), of a folder, a
server or an engine, and judges them by the rules (`gateway.runs.match_rules`); `answer_of` puts the verdict into words,
with keywords, ids and texts.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute

from gateway.runs.clauses import name_clause
from gateway.runs.distance import distance_km, kilometres
from gateway.runs.match_rules import REASONS, Lives, Scene, Verdict, judge
from gateway.runs.message_rows import MessageRows, Row
from gateway.runs.oracle_replay import CHUNK, boundary_ends, read_objects, relevant_rows
from gateway.runs.reader import RunReader, Subscriber, active_at, decay_model
from matching.attributes import TIME
from matching.errors import ConfigError, InputError
from matching.kind_table import Kind, Kinds
from matching.kinds import KINDS
from matching.model import Int64, MessageBatch, SubscriptionTable, concatenate, empty
from matching.naive_filters import NaiveInstruction
from matching.naive_rows import Extras, NaiveMessage, messages_of, subscriptions_of
from matching.pieces import JOINED, JOINED_ID, Word
from matching.reserved import is_visible
from matching.space import Space
from matching.validate import DELETE
from matching.vocabulary import Vocabulary
from matching.window import NO_FLOOR, Floors, Window, stream_time
from spouts.cutting import Rows
from spouts.history import history_of
from spouts.manifest import is_live
from spouts.parquet import ParquetSource, read_columns
from spouts.quarantine import in_ranges, without_terms
from spouts.subscriptions import NEVER

#: Rivals (`gateway.runs.match_rules.Rival`) that an answer lists at most.
RIVALS = 5
pc: Any = pyarrow.compute  # its functions are made when it is imported, which type checkers cannot see

#: What each update says that a version did.
_DID = {"enter": "entered", "leave": "left", "change": "changed", "match": "matched"}
#: Reasons that only runs have, beside those of `gateway.runs.match_rules`.
RUN_REASONS = {
    "outside_world": "the message lies outside the world of the run, so that it matches nothing",
    "ahead": "the message is dated too long after the start of the run, or after it came (stream.max_ahead), so it "
    "matches nothing",
    "message_aside": "a component has raised on the message, which is in quarantine",
    "subscription_aside": "a component has raised on the subscription, which is in quarantine",
}


def explain(folder: Path, subscription_id: str, message_id: str, kinds: Kinds = KINDS) -> dict[str, Any]:
    """Why a message is, or is not, in a subscription's result as of the last boundary whose updates are published.

    Parameters
    ----------
    subscription_id : str
        If several replaced each other under this id, the last one that has begun.
    message_id : str
        The id of a message, of several with this id the last; or `seq:N`, the seq of a message.

    Returns
    -------
    dict
        `in_result`, `reason` (a code), `why` in words, `as_of`, `subscription`, `message`, `words` found, `missing` and
        `unknown`, `distance_km` (None for a region), `parts` of the score and `by_word`, `score`, `rank`, `threshold`
        (score of the k-th), `rivals` (the first `RIVALS` messages that rank before it; of a skyline: dominate it),
        `rivals_in_all` (how many there are), `updates`: those of this message for this subscription, of a stream of
        objects `versions`: for each update in words what has changed from one version of the object to the next, and
        `checkpoint`: of a live stream that has not ended, up to where it was read, in words.

    Raises
    ------
    ConfigError
        For a subscription that the run does not have.
    InputError
        For a message that the run does not have, or a run without updates so far.

    Notes
    -----
    Reads the stream once: a second for a million messages, and 10 us for each message that shares a keyword.
    """
    run = RunReader(folder, kinds)
    return explain_in(run, subscription_id, message_id, last_boundary(run))


def explain_in(run: RunReader, subscription_id: str, message_id: str, last_seq: int) -> dict[str, Any]:
    """As `explain`, of a run that is open and as of any of its boundaries: its last seq."""
    owner = active_at(run.known([subscription_id])[subscription_id], last_seq)
    seq = find_message(run.etl, message_id)
    number = number_as_of(run, subscription_id, last_seq)
    table, end = run.changes.table.take(np.array([number])), int(run.changes.end[number])

    def aside(row: Row) -> str:
        return _quarantine_reason(run, number, seq, row)

    given = (run.vocabulary, run.kinds, run.window, run.space, run.fading, run.messages, aside)
    stream = ExplainedStream(*given, run.objects)
    batches = _batches_of(run, run.kinds[int(table.kind[0])])
    answer = explained(stream, batches, table, owner, seq, last_seq, end=None if end >= NEVER else end)
    answer["updates"] = _updates_of_pair(run, subscription_id, seq)
    if run.objects:
        answer["versions"] = _versions_in_words(run, seq, answer["updates"])
        answer["why"] = "; ".join([answer["why"], *answer["versions"]])
    return answer | ({"checkpoint": run.checkpoint} if run.checkpoint else {})


class ExplainedStream(NamedTuple):
    """A stream that is asked about: of a folder, of a server, or of an engine in this process.

    vocabulary, kinds, window, space
    fading : DecayParameters or None    how scores fade (`gateway.runs.reader.decay_model`); None: they do not
    read : callable                     seqs -> messages by seq
    aside : callable                    a message -> why it was left out (`RUN_REASONS`), "" if it was not
    objects : bool                      it is one of objects
    """

    vocabulary: Vocabulary
    kinds: Kinds
    window: Window
    space: Space
    fading: Any
    read: Callable[[Iterable[int]], Mapping[int, Row]]
    aside: Callable[[Row], str]
    objects: bool = False


def explained(
    stream: ExplainedStream,
    batches: Iterable[Rows],
    table: SubscriptionTable,
    owner: Subscriber,
    seq: int,
    last_seq: int,
    clock: int = NO_FLOOR,
    end: int | None = None,
    ends: Mapping[int, int] | None = None,
    floor: int | None = None,
) -> dict[str, Any]:
    """As `explain`, of any stream, but for `updates` and `checkpoint`.

    Parameters
    ----------
    batches : iterable of Rows
        The messages that may matter, in the order of seq, and the one in question before or behind them.
    table : SubscriptionTable
        The subscription alone.
    seq, last_seq : int
        Of the message, and of the boundary.
    clock : int
        Stream time before the messages.
    end : int, optional
        The seq before which the subscription ended.
    ends : mapping of int to int, optional
        As of `Lives`; by default those of the messages.
    floor : int, optional
        Of the boundary; by default that of the messages.
    """
    subscription = next(subscriptions_of(table))
    kind, reserved = stream.kinds[subscription.kind], stream.vocabulary.reserved
    relevant = np.zeros(reserved + 1, bool)
    relevant[table.terms[table.terms <= reserved]] = True
    parts, target, lives, through = [empty(MessageBatch)], empty(MessageBatch), Lives(), -1
    deletions = [np.zeros(0, np.int64)]
    for rows in batches:
        messages = rows.messages
        if not len(messages) or messages.seq[0] <= through:
            continue
        through = int(messages.seq[-1])
        if messages.seq[0] <= seq <= through:
            target = messages.take(np.flatnonzero(messages.seq == seq))
        inside = messages.take(np.flatnonzero(messages.seq <= last_seq))
        clock = stream_time(inside.life, clock)
        if rows.objects is not None:
            deletions.append(_take(lives, rows, len(inside), stream.objects))
        parts.append(inside.take(relevant_rows(inside, relevant)))
        if through >= max(last_seq, seq):
            break
    if floor is None:
        floor = Floors(stream.window, stream.objects).at(last_seq, clock, np.concatenate(deletions))
    parts = [part for part in parts if len(part)] or parts[:1]
    found = concatenate(parts)
    windowed = kind.windowed or stream.objects
    found = found.take(np.flatnonzero(found.life > floor if windowed else found.seq >= subscription.at))
    scene = Scene(
        list(_oracle_messages(found)) if kind.standing else [],
        last_seq,
        floor,
        end,
        lives.ends if ends is None else ends,
        stream.space.max_distance,
        None if stream.fading is None else decay_model(stream.fading, stream.vocabulary, subscription.weights),
        stream.objects,
    )
    message = next(_oracle_messages(target))
    verdict = judge(scene, subscription, message)
    name_clause(verdict, owner.conditions, message, stream.vocabulary)
    texts = stream.read([seq, *(rival.seq for rival in verdict.rivals[:RIVALS])])
    if aside := stream.aside(texts[seq]):
        verdict.in_result, verdict.reason = False, aside
    return answer_of(verdict, scene, kind, stream.vocabulary, owner, seq, texts)


def _take(lives: Lives, rows: Rows, count: int, objects: bool) -> Int64:
    """Take the first so many messages, in a stream of objects those not set aside; returns the seqs of deletions."""
    assert rows.objects is not None, "they were asked for"
    messages, names, deleted = rows.messages, rows.objects.names, rows.objects.deleted
    takes = np.ones(len(names), np.bool_)
    if objects:
        deleted = deleted if rows.ahead is None else deleted & ~rows.ahead
        takes = deleted | is_visible(messages.term_offsets, messages.weights)
    for row in np.flatnonzero(takes[:count]).tolist():
        lives.take(int(messages.seq[row]), names[row], bool(deleted[row]))
    return messages.seq[:count][deleted[:count]]


def _oracle_messages(messages: MessageBatch) -> Iterator[NaiveMessage]:
    times, counts = messages.event_time_us.tolist(), messages.counts.tolist()
    return messages_of(messages, Extras(times or None, counts or None))


def scores_in(run: RunReader, number: int, seqs: Sequence[int]) -> dict[int, float | None]:
    """What messages (ascending seqs) of a run score for a subscription. Reads those between them, too."""
    table, found = run.changes.table.take(np.array([number])), dict[int, float | None]()
    subscription, kind = next(subscriptions_of(table)), run.kinds[int(table.kind[0])]
    decay = None if run.fading is None else decay_model(run.fading, run.vocabulary, subscription.weights)
    for rows in _batches_of(run, kind, seqs[0]):
        picked = np.flatnonzero(np.isin(rows.messages.seq, seqs))
        for message in _oracle_messages(rows.messages.take(picked)):
            scene = Scene([message], message.seq, NO_FLOOR, None, {}, run.space.max_distance, decay)
            found[message.seq] = judge(scene, subscription, message).score
        if rows.messages.seq[-1] >= seqs[-1]:
            break
    return found


def _batches_of(run: RunReader, kind: Kind, first: int = 0) -> Iterator[Rows]:
    """The messages of a run from one on, or some before it, without those that were set aside."""
    columns = {*run.columns, *kind.columns}
    given = {"objects": kind.needs_ended or run.objects, "kind_columns": columns, "latest_us": run.latest_us}
    with closing(ParquetSource(run.etl, run.window, run.space, **given)) as source:
        source.skip_to(first)
        while (rows := source.read()) is not None:
            aside = in_ranges(rows.messages.seq, run.quarantine.messages)
            ahead = aside if rows.ahead is None else rows.ahead | aside
            yield rows._replace(messages=without_terms(rows.messages, run.quarantine.messages), ahead=ahead)


def answer_of(
    verdict: Verdict,
    scene: Scene,
    kind: Kind,
    vocabulary: Vocabulary,
    owner: Subscriber,
    seq: int,
    messages_by_seq: Mapping[int, Row],
) -> dict[str, Any]:
    """A verdict in words; `messages_by_seq` has the message and its first rivals."""
    row, rivals, term_of = messages_by_seq[seq], verdict.rivals[:RIVALS], vocabulary.term_of
    known = {vocabulary.id_of(word): word for word in owner.words}
    unknown = [word for word in owner.words if vocabulary.id_of(word) is None]
    found = [known.get(term) or term_of(term) for term in verdict.common]
    missing = [word for word in owner.words if word not in found]
    answer = {
        "in_result": verdict.in_result,
        "reason": verdict.reason,
        "as_of": scene.last_seq,
        "subscription": {**owner._asdict(), "words": list(owner.words)},
        "message": {
            **row._asdict(),
            "seq": seq,
            "event_time": None if row.event_time is None else row.event_time.isoformat(),
        },
        "words": found,
        "missing": missing,
        "unknown": unknown,
        "distance_km": owner.kilometres(row.lon, row.lat),
        "parts": verdict.parts,
        "by_word": {known.get(term) or term_of(term): value for term, value in verdict.by_term.items()},
        "score": verdict.score,
        "rank": verdict.rank,
        "threshold": verdict.threshold,
        "rivals": [
            {
                "message_id": messages_by_seq[rival.seq].message_id,
                "seq": rival.seq,
                "score": rival.score,
                "text_score": None if np.isnan(rival.text_score) else rival.text_score,
                "text": messages_by_seq[rival.seq].text,
            }
            for rival in rivals
        ],
        "rivals_in_all": len(verdict.rivals),
    }
    answer["why"] = _in_words(answer, verdict, kind, scene, owner.at, vocabulary)
    del answer["message"]["terms"], answer["message"]["ahead"]
    return answer


def find_message(etl: Path, message_id: str) -> int:
    """The seq of a message by its id, of several with this id the last, or by `seq:N`. Reads the column of ids.

    Raises InputError if it is not there.
    """
    first, found = 0, None
    named = message_id.removeprefix("seq:")
    by_seq = int(named) if message_id.startswith("seq:") and named.isdecimal() and len(named) < 19 else None
    for batch in read_columns(etl, ["message_id"], rows=CHUNK):
        with suppress(UnicodeEncodeError):  # half a surrogate pair: no message has such an id
            places = pc.indices_nonzero(pc.equal(batch.column(0), message_id))
            if len(places):
                found = first + places[-1].as_py()
        first += len(batch)
    if found is not None:
        return found
    history = history_of(etl)
    if by_seq is not None and history is not None and by_seq < history.first_kept and not _is_kept(etl, by_seq):
        what = f"message {message_id}: is no longer kept; of those before seq:{history.first_kept} results have some"
        raise InputError("unknown_message", what)
    if by_seq is not None and by_seq < first:
        return by_seq
    raise InputError(
        "unknown_message",
        f"message {message_id}: {etl} has none of that id; `seq:N` names one by its number, below {first:,}",
    )


def _is_kept(etl: Path, seq: int) -> bool:
    """Whether a message has its content."""
    return bool(MessageRows(etl).read([seq])[seq].message_id)


def last_boundary(run: RunReader) -> int:
    """The last boundary whose updates are all published."""
    ends = boundary_ends(run, run.message_count())
    if "digest" in run.report or run.checkpoint:
        return int(ends[-1]) if ends.size else -1
    before = ends[ends <= max((pc.max(piece["as_of"]).as_py() for piece in run.pieces()), default=-1)]
    if not before.size:
        raise InputError("no_run", f"{run.folder}: this run is {run.state} and has no updates so far; try again later")
    return int(before[-1])


def number_as_of(run: RunReader, subscription_id: str, last_seq: int) -> int:
    """The number of the last subscription of an id that had begun as of a seq; of the first one if none had."""
    numbers = [number for number, name in enumerate(run.changes.names.strings()) if name == subscription_id]
    if not numbers:
        raise ConfigError(f"subscription {subscription_id}: was replaced or ended before it took effect")
    begun = [number for number in numbers if run.changes.table.at[number] <= last_seq]
    return begun[-1] if begun else numbers[0]


def _quarantine_reason(run: RunReader, number: int, seq: int, row: Row) -> str:
    """Why subscription or message was left out of the run; "" if neither was."""
    if any(first <= number <= last for first, last in run.quarantine.subscriptions):
        return "subscription_aside"
    if any(first <= seq <= last for first, last in run.quarantine.messages):
        return "message_aside"
    if not run.space.contains(np.float64(row.lon), np.float64(row.lat)):  # type: ignore[arg-type]
        return "outside_world"
    late = run.latest_us is not None and row.event_time is not None and row.event_time.timestamp() * 1e6 > run.latest_us
    if row.ahead or (late and not is_live(run.etl)):
        return "ahead"
    return ""


def _updates_of_pair(run: RunReader, subscription_id: str, seq: int) -> list[dict[str, Any]]:
    updates = run.updates(subscription_id)
    rows = updates.filter(pc.equal(updates["seq"], seq)).to_pylist()
    return [{name: row[name] for name in ("as_of", "change", "score")} for row in rows]


def _versions_in_words(run: RunReader, seq: int, updates: Sequence[Mapping[str, Any]]) -> list[str]:
    """What each update of a version says, and what has changed: "entered with version v2: price 950 -> 890".

    O(messages), where there is an update.
    """
    names, ops = read_objects(run.etl) if updates else ([], [])
    found = []
    for update in updates:
        # a version leaves with the one that replaces it, or with a deletion, at the row or within the batch
        now = update["as_of"] if update["change"] == "leave" else seq
        before = seq if update["change"] == "leave" else _before(names, ops, seq)
        now = next((at for at in range(now, -1, -1) if names[at] == names[seq]), seq)
        rows = run.messages([one for one in (before, now) if one >= 0])
        ended = update["change"] == "leave" and ops[now] == DELETE
        found.append(version_words(update["change"], rows[now], None if before < 0 else rows[before], ended))
    return found


def version_words(change: str, now: Row, before: Row | None, ended: bool = False) -> str:
    """An update of an object in words, and what has changed: "entered with version v2: price 950 -> 890".

    Parameters
    ----------
    now : Row            the version, or deletion, that causes it
    before : Row or None    the version before that; None if there was none
    ended : bool         `now` is a deletion
    """
    words = f"{_DID[change]} with {'the deletion' if ended else 'version'} {now.message_id}"
    changed = "" if before is None or ended else _changed(before.attributes, now.attributes)
    return f"{words}: {changed}" if changed else words


def _before(names: Sequence[str], ops: Sequence[int], seq: int) -> int:
    """The version of the same object that stood before a version; -1 for none."""
    earlier = next((at for at in range(seq - 1, -1, -1) if names[at] == names[seq]), -1)
    return -1 if earlier < 0 or ops[earlier] == DELETE else earlier


def _changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Attributes that differ, with both values."""
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    return ", ".join(f"{name} {_value(before.get(name))} -> {_value(now.get(name))}" for name in names)


def _value(value: Any) -> str:
    return "missing" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


# ------------------------------------------------------------------------------------------------------ in words


def _why_not(answer: Mapping[str, Any], failed: NaiveInstruction, vocabulary: Vocabulary) -> str:
    """For the failed instruction of a filter: what the message has, and what the filter wants."""
    message, conditions = answer["message"], answer["subscription"]["conditions"]
    if failed.name == "circle":
        lon, lat, radius_m = np.array(failed.words[:3]).view(np.float64).tolist()
        far = kilometres(distance_km(lon, lat, message["lon"], message["lat"]))
        return f"{far} km from the centre, where {kilometres(radius_m / 1000)} km are allowed"
    if failed.name == "polygon":
        return f"{message['lon']:g} {message['lat']:g}"
    if failed.name == "without":
        return ", ".join(vocabulary.term_of(term) for term in failed.words if term in message["terms"])
    if failed.name == "at least":
        there, words = sum(term in message["terms"] for term in failed.words), map(vocabulary.term_of, failed.words)
        return f"{there} of {', '.join(words)}, where {failed.argument} is needed or more"
    if failed.name == "phrase":
        return str(Word(JOINED if term == JOINED_ID else vocabulary.term_of(term) for term in failed.words))
    if failed.name in ("either", "neither"):
        return str(conditions["not_keywords"] if failed.name == "neither" else conditions.get("match", "all"))
    attribute = vocabulary.attributes.attributes[vocabulary.attributes.number_at(failed.argument)]
    name = attribute.name
    value, wanted = message["attributes"].get(name), json.dumps(conditions["where"][name], ensure_ascii=False)
    if value is not None and attribute.type == TIME:
        value = datetime.fromtimestamp(value / 1e6, UTC).isoformat()
    return f"{name} is {'missing' if value is None else value}, where it says {wanted}"


def _in_words(
    answer: Mapping[str, Any], verdict: Verdict, kind: Kind, scene: Scene, at: int, vocabulary: Vocabulary
) -> str:
    """One sentence for a verdict, with the figures that decided."""
    k, rank, rivals = answer["subscription"]["k"], verdict.rank, answer["rivals"]
    reason = verdict.reason
    if reason == "in_result" and rank is not None:
        return f"it is in the result: number {rank:,} of at most {k:,}"
    if reason == "in_result":
        return "it is in the result: no message in the window dominates it"
    if reason == "matched":
        words = "the words are there and " if answer["subscription"]["words"] else ""
        return f"it matched: {words}the place is right"
    what = REASONS.get(reason) or RUN_REASONS[reason]
    more = ""
    if reason in ("missing_keyword", "no_common_word"):
        more = f"not there: {', '.join(answer['missing'])}"
        if answer["unknown"]:
            more += f" (no message has {', '.join(answer['unknown'])})"
        more += f"; of the query {verdict.clause}" if verdict.clause else ""
    elif reason == "outside_region":
        west, south, east, north = answer["subscription"]["region"]
        place = f"{answer['message']['lon']:g} {answer['message']['lat']:g}"
        more = f"{place} is not within {west:g} to {east:g}, {south:g} to {north:g}"
    elif reason == "query":
        more = verdict.clause
    elif verdict.failed is not None and reason not in RUN_REASONS:
        more = _why_not(answer, verdict.failed, vocabulary)
    elif reason == "before_registration":
        more = f"it is number {answer['message']['seq']:,}, the subscription begins before number {at:,}"
    elif reason in ("after_end", "subscription_ended"):
        more = f"it ended before message {scene.end:,}"
    elif reason == "object_ended":
        by = scene.ends[answer["message"]["seq"]]
        more = f"by message {by:,}" if by >= 0 else ""
    elif reason == "out_of_window":
        more = f"the window begins after {scene.floor:,} as of message {scene.last_seq:,}"
    elif reason == "rivals":
        far = "farther than" if kind.nearest else "below"
        unit = " m" if kind.nearest and "distance_m" in verdict.parts else ""
        own, last = f"{verdict.score:.6g}{unit}", f"{verdict.threshold:.6g}{unit}"
        more = f"it is number {rank:,} and {k:,} fit; its score {own} is {far} {last}"
        if verdict.score == verdict.threshold:
            more = f"it is number {rank:,} and {k:,} fit; its score is that of the last of them, which wins the tie"
    elif reason == "dominated":
        more = f"by {answer['rivals_in_all']:,}, first {rivals[0]['message_id']}"
    elif reason in ("not_reached", "not_registered"):
        more = f"updates are published up to message {scene.last_seq:,}"
    return f"{what}: {more}" if more else what
