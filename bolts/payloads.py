"""What travels on the streams of the topology, by stream name.

    stream      from -> to                      payload         grouping
    batches     messages -> distribution        StreamBatch     direct: task = batch number mod tasks
    changes     subscriptions -> distribution,  ChangeList      all
                query, delivery
    parts       distribution -> query           Part            direct: one for every query task, maybe empty
    whole       distribution -> query           Part            all: instead of parts, where all get the same
    window      distribution -> tuples          Part            direct: one for every tuple task, maybe empty
    ids         distribution -> delivery        MessageIds      all
    updates     query -> delivery               Closed          all
    late        query -> delivery               Late            all: when an answer has come, or other tasks' finds
    results     query -> delivery               ResultBatch     all (once, when the stream has ended)
    signature   query -> distribution           SignaturePatch  all, feedback; only where the router has signatures

The rest is feedback between the tasks that answer for one kind, `Addressed` with the body given here:

    found       query -> query                  of the kind     direct: one a batch for every home of which the sender
                                                                holds subscriptions; only where the router shares
    ask         query -> tuples                 Question        all
    partial     tuples -> aggregation           of the kind     direct: task = (request + home) mod tasks
    answer      aggregation -> query            of the kind     direct: the home task
    relax       query -> distribution           Relaxing        all
    relaxed     distribution -> query           Relaxed         direct: the home task
    raise       query -> distribution           Thresholds      all
    register    distribution -> query           Register        direct; only where the router replicates
    thresholds  query -> query                  Thresholds      direct: every task with replicas

Every payload is a NamedTuple of arrays, scalars and such NamedTuples. Every receiver takes batches strictly in
the order of their numbers (`bolts.ordering`). A query task tells the updates of a subscription boundary by boundary and
leaves before enters, in `Closed` and `Late` taken together; delivery sees to it that those of a replaced subscription
come before its successor's (`bolts.replacements`).
"""

from typing import Any, NamedTuple

from distribution.signatures.patches import SignaturePatch
from matching.model import NO_MESSAGES, Int64, MessageBatch, Names, SubscriptionTable, UpdateBatch
from matching.operator import Thresholds, WindowQuery
from matching.window import Boundary

__all__ = [
    "Addressed",
    "Closed",
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
]


class StreamBatch(NamedTuple):
    """A whole batch as the spout cut it; `published_s` is the topology's clock when it was emitted.

    `ended` are messages, of this batch or earlier ones, that are alive no more, for kinds that hear of it, although
    their time is not over: at this boundary a later version of their object stands in their place, or the object has
    been deleted. A deletion is itself among them. They come in ascending seq, each in the batch that ended it and never
    again, and as they came in `messages`, so that whoever was given them can be found without remembering them
    (`spouts.versions`). The other kinds take versions and deletions for messages like any other.
    """

    boundary: Boundary
    published_s: float
    messages: MessageBatch
    names: Names  # message ids, one for each seq of the batch
    ended: MessageBatch = NO_MESSAGES


class Part(NamedTuple):
    """The part of a batch that one receiver gets; empty parts are sent too and serve as the marker of the batch.

    `ended` are those of `StreamBatch.ended` that the receiver answers for: query tasks match them, tuple tasks hold
    them. `withheld` are messages that a signature keeps from a query task although it may lose them: what it would have
    matched is counted there, and told to nobody.
    """

    boundary: Boundary
    published_s: float
    messages: MessageBatch
    ended: MessageBatch = NO_MESSAGES
    withheld: MessageBatch = NO_MESSAGES


class MessageIds(NamedTuple):
    """External ids of the messages of one batch, `names` in the order of seq from `boundary.first_seq` on."""

    boundary: Boundary
    published_s: float
    names: Names


class Closed(NamedTuple):
    """A query task has matched the batch of `boundary`.

    `updates` are those of this boundary, but for subscriptions that wait, for an answer or for what other tasks find
    (see `Late`). `watermark` is the number of the last batch up to which this task has told every event, -1 if
    none: no event of a batch up to it follows, which is what a successor in another task may be waiting for.
    """

    boundary: Boundary
    watermark: int
    updates: UpdateBatch


class Late(NamedTuple):
    """Updates of boundaries of which `Closed` has been told before; `watermark` as there."""

    watermark: int
    updates: UpdateBatch


class Addressed(NamedTuple):
    """A word about one kind, between the query task that is home to some subscriptions and whoever serves it.

    kind : int       code
    home : int       the query task whose subscriptions it is about
    request : int    of the home, echoed in every answer; the number of the batch on `found`
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


class Register(NamedTuple):
    """Ahead of the next batch: these subscriptions have no threshold as of `version` (see
    `matching.operator.KindOperator`).

    `changes_through` is the last change list this distribution task has taken: who was removed since must stay so.
    `rows` are the subscriptions themselves where replicas may have been given up, else empty.
    """

    changes_through: int
    number: Int64
    version: Int64
    rows: SubscriptionTable
