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
    late        query -> delivery               Late            all: when a refill has come back
    results     query -> delivery               ResultBatch     all (once, when the stream has ended)
    relax       query -> distribution           Relax           all, feedback
    raise       query -> distribution           Raise           all, feedback
    signature   query -> distribution           SignaturePatch  all, feedback; only where the router has signatures
    relaxed     distribution -> query           Relaxed         direct, feedback
    register    distribution -> query           Register        direct, feedback; only where the router replicates
    hits        query -> query                  HitsOfBatch     direct: one a batch for every other task, feedback
    thresholds  query -> query                  Raise           direct: to every other task, feedback
    ask         query -> tuples                 WindowQueries   all, feedback
    partial     tuples -> aggregation           WindowAnswers   direct: task = request mod tasks, feedback
    refilled    aggregation -> query            WindowAnswers   direct: the home task, feedback
    found_skyline      query -> query           FoundOfBatch    direct: one a batch for every home with subscriptions
                                                                there, feedback; only where the router shares skylines
    ask_skyline        query -> tuples          SkylineAsk      all, feedback
    partial_skyline    tuples -> aggregation    SkylineAnswers  direct: task = request mod tasks, feedback
    refilled_skyline   aggregation -> query     SkylineAnswers  direct: the home task, feedback

Every payload is a NamedTuple of arrays, scalars and such NamedTuples. Every receiver takes batches strictly in
the order of their numbers (`bolts.ordering`). A query task tells the updates of a subscription boundary by boundary and
leaves before enters, in `Closed` and `Late` taken together; delivery sees to it that those of a replaced subscription
come before its successor's (`bolts.succession`).
"""

from typing import NamedTuple

from distribution.signatures.signature import SignaturePatch
from matching.model import NO_MESSAGES, Float64, Int64, MessageBatch, Names, SubscriptionTable, UpdateBatch
from matching.skyline.answers import SkylineAnswers, SkylineAsk
from matching.skyline.home import SkylineFound
from matching.topk.steps import Found
from matching.topk.window_index import WindowAnswers, WindowQueries
from matching.window import Boundary

__all__ = [
    "Closed",
    "Found",
    "FoundOfBatch",
    "HitsOfBatch",
    "Late",
    "MessageIds",
    "Part",
    "Raise",
    "Register",
    "Relax",
    "Relaxed",
    "SignaturePatch",
    "SkylineAnswers",
    "SkylineAsk",
    "SkylineFound",
    "StreamBatch",
    "WindowAnswers",
    "WindowQueries",
]


class StreamBatch(NamedTuple):
    """A whole batch as the spout cut it; `published_s` is the topology's clock when it was emitted.

    `ended` are messages, of this batch or earlier ones, that are alive no more for `skyline` although their time is not
    over: at this boundary a later version of their object stands in their place, or the object has been deleted. A
    deletion is itself among them. They come in ascending seq, each in the batch that ended it and never again, and as
    they came in `messages`, so that whoever was given them can be found without remembering them (`spouts.versions`).
    The other kinds take versions and deletions for messages like any other.
    """

    boundary: Boundary
    published_s: float
    messages: MessageBatch
    names: Names  # message ids, one for each seq of the batch
    ended: MessageBatch = NO_MESSAGES


class Part(NamedTuple):
    """The part of a batch that one receiver gets; empty parts are sent too and serve as the marker of the batch.

    `ended` are those of `StreamBatch.ended` that the receiver answers for: query tasks match them for `skyline`, tuple
    tasks hold them.
    """

    boundary: Boundary
    published_s: float
    messages: MessageBatch
    ended: MessageBatch = NO_MESSAGES


class MessageIds(NamedTuple):
    """External ids of the messages of one batch, `names` in the order of seq from `boundary.first_seq` on."""

    boundary: Boundary
    published_s: float
    names: Names


class Closed(NamedTuple):
    """A query task has closed `boundary`.

    `updates` are those of this boundary, but for subscriptions that wait for a refill (see `Late`).
    `complete_through` is the number of the last batch up to which this task has told every event, -1 if none: no event
    of a batch up to it follows, which is what a successor in another task may be waiting for.
    """

    boundary: Boundary
    complete_through: int
    updates: UpdateBatch


class Late(NamedTuple):
    """Updates of boundaries closed before, whose refill has come back; `complete_through` as in `Closed`."""

    complete_through: int
    updates: UpdateBatch


class Relax(NamedTuple):
    """Ask every distribution task to treat these subscriptions as having no threshold (`request` is echoed)."""

    request: int
    home: int
    number: Int64
    version: Int64


class Raise(NamedTuple):
    """New thresholds; a receiver ignores a version older than the one it knows. May come late, never early."""

    number: Int64
    version: Int64
    threshold: Float64


class Register(NamedTuple):
    """Ahead of the next batch: these subscriptions have no threshold as of `version` (see `matching.topk.replicas`).

    `changes_through` is the last change list this distribution task has taken: who was removed since must stay so.
    `rows` are the subscriptions themselves where replicas may have been given up, else empty.
    """

    changes_through: int
    number: Int64
    version: Int64
    rows: SubscriptionTable


class HitsOfBatch(NamedTuple):
    """What one task's replicas found in a batch for the subscriptions of one home; maybe nothing."""

    batch: int
    found: Found


class FoundOfBatch(NamedTuple):
    """What one task found in a batch for the skylines at home at another; maybe nothing: it is the marker."""

    batch: int
    found: SkylineFound


class Relaxed(NamedTuple):
    """Answer to `Relax`: batches after `last_batch` are routed by this task without those thresholds."""

    request: int
    last_batch: int
