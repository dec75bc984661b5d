"""Payloads of the streams of the topology, by stream name.

    stream      from -> to                      payload         grouping
    batches     messages -> distribution        StreamBatch     direct: task = batch number mod tasks
    changes     subscriptions -> distribution,  ChangeList      all; none for a batch that has no changes
                query, delivery                                 (`StreamBatch.has_changes`)
    parts       distribution -> query           Part            direct: one for every query task, maybe empty
    whole       distribution -> query           Part            all: instead of parts, where all get all, or nearly so
    window      distribution -> tuples          Part            direct: what each tuple task stores, maybe nothing
    ids         messages -> delivery            MessageIds      all
    updates     query -> delivery               Closed          direct: each subscription's updates to its delivery task
    late        query -> delivery               Late            likewise; after an answer, or other tasks' hits
    results     query -> delivery               ResultBatch     likewise; once, when the stream has ended
    gathered    delivery -> delivery            NamedResults    direct: the first task, which writes `results.parquet`;
                                                                feedback; only with several delivery tasks
    signature   query -> distribution           SignaturePatch  all, feedback; only where the router has signatures

The rest is feedback about one kind, `Addressed` with the body given here:

    hits        query -> query                  of the kind     direct: one a batch to every home of which the sender
                                                                has replicas; only where `Router.exchanges_hits`
    window_query  query -> aggregation          WindowQuery     direct: task = boundary of the query mod tasks
    collected   aggregation -> aggregation      Collecting      direct: itself; not `Addressed`
    joined_query  aggregation -> tuples         WindowQuery     all; from an aggregation task, in the place of the home
    partial     tuples -> aggregation           of the kind     direct: the task that asked
    answer      aggregation -> query            of the kind     direct: the home task
    relax       query -> distribution           Relaxing        all
    relaxed     distribution -> query           Relaxed         direct: the home task
    raise       query -> distribution           Thresholds      all
    influence   query -> distribution           InfluencePatch  all; only where `Router.uses_influence`; request: the
                                                                last change list that it covers
    register    distribution -> query           Register        direct; only where the router replicates
    thresholds  query -> query                  Thresholds      direct: every task with replicas

Every payload is a NamedTuple of arrays, scalars and such NamedTuples. Every receiver takes batches strictly in the
order of their numbers (`bolts.ordering`). A query task emits the updates of a subscription boundary by boundary, leaves
before enters, over `Closed` and `Late` together; delivery writes those of a replaced subscription before its
successor's (`bolts.replacements`).
"""

from typing import Any, NamedTuple

import numpy as np

from distribution.signatures.patches import SignaturePatch
from matching.model import (
    NO_MESSAGES,
    NO_UPDATES,
    ChangeList,
    Float64,
    Int32,
    Int64,
    MessageBatch,
    Names,
    Removals,
    SubscriptionTable,
    UpdateBatch,
    empty,
)
from matching.operator import Thresholds, WindowQuery
from matching.window import Boundary
from topology.core.api.component import Context, Tick
from topology.core.payload import keep

__all__ = [
    "Addressed",
    "Closed",
    "Collecting",
    "Late",
    "MessageIds",
    "Part",
    "WindowQuery",
    "Register",
    "Relaxed",
    "Relaxing",
    "SignaturePatch",
    "StreamBatch",
    "Thresholds",
    "emit_batch",
    "unchanged",
]

# Parts of most small batches' payloads, sealed once.
NO_NAMES = keep(Names.of(()), f"{__name__}:NO_NAMES")
NO_SEQS: Int64 = np.zeros(0, np.int64)
_NONE_ADDED = keep(empty(SubscriptionTable), f"{__name__}:NONE_ADDED")
_NONE_REMOVED = keep(
    Removals(np.zeros(0, np.int64), np.zeros(0, np.int8), np.zeros(0, np.int64)), f"{__name__}:NONE_REMOVED"
)
keep(NO_MESSAGES, f"{__name__}:NO_MESSAGES")
keep(NO_UPDATES, f"{__name__}:NO_UPDATES")


class StreamBatch(NamedTuple):
    """A whole batch as the spout cut it; `published_s` is the topology's clock when it was emitted.

    `ended` are messages of this batch or earlier ones that end at this boundary before they expire, for kinds with
    `needs_ended`: a later version of their object replaces them, or the object was deleted (deletions are themselves
    among them). They are in ascending seq, each in the batch that ended it only, with the columns they had in
    `messages`, so that they are routed as before (`spouts.versions`). Other kinds treat versions and deletions as
    ordinary messages.

    Where `has_changes` is False, no `ChangeList` is sent for the batch, and every receiver takes it as `unchanged`.
    True only means that a list comes, which may be empty.

    In a stream of objects `ended` are the versions that `messages.previous_seq` names, without deletions, and
    `objects` the ids of the objects, one for each seq of the batch; `dead` (int64[m]) are the seqs that live no more
    after it, or never did.
    """

    boundary: Boundary
    messages: MessageBatch
    names: Names  # message ids, one for each seq of the batch; none where they travel as `MessageIds`
    ended: MessageBatch = NO_MESSAGES
    published_s: float = 0.0
    has_changes: bool = True
    objects: Names | None = None
    dead: Int64 = NO_SEQS


class Part(NamedTuple):
    """The part of a batch that one receiver gets; empty parts are sent too, so that every task gets every batch.

    `ended` are those of `StreamBatch.ended` that the receiver must process: query tasks match them, tuple tasks store
    them. `withheld` are messages that a signature with false negatives filters out: their matches are counted only.
    `has_changes` as of `StreamBatch`. `targets` (`distribution.targets`) say which messages of a part for all are those
    of each task; None if all are.
    """

    boundary: Boundary
    messages: MessageBatch
    ended: MessageBatch = NO_MESSAGES
    withheld: MessageBatch = NO_MESSAGES
    has_changes: bool = True
    targets: Int64 | None = None


class MessageIds(NamedTuple):
    """External ids of the messages of one batch, `names` in the order of seq from `boundary.first_seq` on.

    `has_changes`, `objects` and `dead` as of `StreamBatch`.
    """

    boundary: Boundary
    published_s: float
    names: Names
    has_changes: bool = True
    objects: Names | None = None
    dead: Int64 = NO_SEQS


def emit_batch(context: Context, batch: StreamBatch) -> Tick:
    """Emit a batch of the clock spout: its messages to the distribution task whose turn it is, their ids to delivery.

    Delivery writes a batch once it has its ids; no other task needs them. Returns the tick of the batch.
    """
    boundary, tasks = batch.boundary, context.size_of("distribution")
    # by its list alone a distribution task knows of a batch that another one routes
    has_changes = batch.has_changes or tasks > 1
    context.emit("ids", MessageIds(boundary, batch.published_s, batch.names, has_changes, batch.objects, batch.dead))
    sent = StreamBatch(boundary, batch.messages, NO_NAMES, batch.ended, batch.published_s, has_changes)
    context.emit("batches", sent, to=boundary.number % tasks)
    return Tick(boundary.number, boundary.first_seq, boundary.last_seq, has_changes)


def unchanged(batch: int) -> ChangeList:
    """The change list of a batch without changes; receivers make it where none is sent."""
    return ChangeList(batch, _NONE_ADDED, NO_NAMES, _NONE_REMOVED)


class Closed(NamedTuple):
    """A query task has matched the batch of `boundary`.

    `updates` are those of this boundary, except for subscriptions that wait for an answer or for other tasks' hits
    (see `Late`). `watermark` is the number of the last batch up to which this task has emitted all updates, -1 if
    none; it releases delayed updates of successors on other tasks.
    """

    boundary: Boundary
    watermark: int
    updates: UpdateBatch


class Late(NamedTuple):
    """Updates of boundaries whose `Closed` was emitted before; `watermark` as there."""

    watermark: int
    updates: UpdateBatch


class NamedResults(NamedTuple):
    """Results of one of several delivery tasks at the end of a run, by id, then rank; columns as of `ResultBatch`."""

    subscriptions: Names
    messages: Names
    rank: Int32
    seq: Int64
    score: Float64
    text_score: Float64


class Addressed(NamedTuple):
    """A message about one kind between a home query task and the tasks that serve it.

    kind : int       code
    home : int       the query task whose subscriptions it concerns
    request : int    of the home, repeated in every answer; the number of the batch on `hits`
    body : NamedTuple
    """

    kind: int
    home: int
    request: int
    body: Any


class Relaxing(NamedTuple):
    """Treat these subscriptions as having no threshold as of `version`."""

    number: Int64
    version: Int64


class Relaxed(NamedTuple):
    """Answer to `Relaxing`: batches after `last_batch` are routed by this task without those thresholds."""

    last_batch: int


class Collecting(NamedTuple):
    """The window queries that came to an aggregation task before this are sent on; `query` numbers the next one."""

    query: int


class Register(NamedTuple):
    """Ahead of the next batch: these subscriptions have no threshold as of `version` (see
    `matching.operator.KindOperator`).

    `changes_through` is the last change list this distribution task has taken: later removals stay in force.
    `rows` are the subscriptions themselves where replicas may have been dropped, else empty.
    """

    changes_through: int
    number: Int64
    version: Int64
    rows: SubscriptionTable
