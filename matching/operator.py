"""The two parts of a kind: an operator at each query task, a window index at each tuple task.

A `KindOperator` has the subscriptions of its kind at one query task. It processes a batch in two calls: `match` finds
the hits of this task, for its own results and for the homes of its replicas; `close` advances the results homed on this
task to the boundary once all tasks' hits have arrived. What the operator lacks it queries from the window as of a
boundary (`WindowQuery`); `answer` takes the reply, late but never wrong. A `WindowIndex` indexes the messages of one
tuple task and answers those queries.

Outside `matching` a kind is its row in `matching.kind_table`: bolts loop over operators and window indexes and forward
their outputs, routers read the traits. `bolts.query` drives operators, and `matching.local_engine` does in one process.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from matching.errors import EngineError
from matching.half_life import DecayParameters
from matching.model import (
    NO_MESSAGES,
    NO_UPDATES,
    Float64,
    Int32,
    Int64,
    MessageBatch,
    Removals,
    ResultBatch,
    SubscriptionTable,
    UpdateBatch,
    concatenate,
    empty,
)
from matching.space import Space
from matching.storage.state import State
from matching.window import Boundary, Window

if TYPE_CHECKING:
    from matching.influence import InfluencePatch

Bools = NDArray[np.bool_]
Capability = TypeVar("Capability")
NO_SEQS: Int64 = np.zeros(0, np.int64)
#: Which pairs a task reports: of the region of each pair (float64[m, 4]), the messages, and each pair's message row.
Owned = Callable[[Float64, MessageBatch, Int32], Bools]


class WindowQuery(NamedTuple):
    """A query of the window for some subscriptions.

    as_of : Boundary    the window at this boundary
    up_to : int         plus the messages of later batches up to this one, where the operator has not been sent all
    rows : NamedTuple   of the kind; arrays, one row a subscription, as `matching.model.concatenate` joins them
    onward : bool       plus the messages of all later batches that are stored; the answer says up to which
    more : bool         only the messages of later batches: `rows` come from the first answer
    """

    as_of: Boundary
    up_to: int
    rows: Any
    onward: bool = False
    more: bool = False


class WindowRequest(NamedTuple):
    """A window query in flight; the answer carries the same `request`."""

    request: int
    query: WindowQuery


class Relax(NamedTuple):
    """Subscriptions (int64[n]) whose thresholds routers must drop before the window is queried; see
    `Replicated.relaxed`.
    """

    request: int
    number: Int64
    version: Int64


class Thresholds(NamedTuple):
    """Scores below which messages do not matter: number int64[n], version int64[n], threshold float64[n]."""

    number: Int64
    version: Int64
    threshold: Float64


NO_THRESHOLDS = Thresholds(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))


class Work(NamedTuple):
    """Postings scanned, pairs verified, pairs that matched or were offered to a result."""

    scanned: int = 0
    verified: int = 0
    matched: int = 0

    def plus(self, other: "Work") -> "Work":
        """The sum of both."""
        return Work(*(a + b for a, b in zip(self, other, strict=True)))


class OperatorOutput(NamedTuple):
    """What an operator emits for a batch or an answer.

    updates : UpdateBatch     of the boundary, or late ones, boundary by boundary for each subscription
    window_requests, relaxes  window queries to send; thresholds that routers must drop before one is sent
    raised : Thresholds       that have risen; routers and replicas may apply them late
    work : Work
    """

    updates: UpdateBatch = NO_UPDATES
    window_requests: tuple[WindowRequest, ...] = ()
    relaxes: tuple[Relax, ...] = ()
    raised: Thresholds = NO_THRESHOLDS
    work: Work = Work()

    def plus(self, later: "OperatorOutput") -> "OperatorOutput":
        """This output followed by a later one. O(updates)."""
        return OperatorOutput(
            concatenate([self.updates, later.updates]),
            self.window_requests + later.window_requests,
            self.relaxes + later.relaxes,
            concatenate([self.raised, later.raised]),
            self.work.plus(later.work),
        )


class OperatorInput(NamedTuple):
    """A batch for one operator; everything of one kind.

    boundary : Boundary
    messages : MessageBatch      routed to this task
    ended : MessageBatch         messages, of this batch or earlier ones, whose object has ended; in a stream of objects
                                 the versions that `messages.previous_seq` names, each once, in ascending seq
    added : SubscriptionTable    assigned to this task, or homed on it
    home : int64[n]              the task that keeps the result of each
    assigned : bool[n]           whether this task matches it
    removed : Removals           all of the kind, on any task
    owned : callable, optional   which pairs this task reports, where several tasks may find the same one
    withheld : MessageBatch      messages that the router dropped for this task: counted (`Regional.missed`)
    """

    boundary: Boundary
    messages: MessageBatch
    ended: MessageBatch
    added: SubscriptionTable
    home: Int64
    assigned: Bools
    removed: Removals
    owned: Owned | None = None
    withheld: MessageBatch = NO_MESSAGES


class Matched(NamedTuple):
    """Hits of a task in a batch: `own_hits` for its own `KindOperator.close`, `hits_by_home[t]` (a NamedTuple) for
    the home at task t; empty for kinds without replicas.
    """

    own_hits: Any
    hits_by_home: tuple[Any, ...] = ()


@dataclass(frozen=True)
class OperatorContext:
    """What an operator knows of its run.

    relaxes : bool       routers drop messages by thresholds, and must drop these before they may fall
    replicates : bool    subscriptions are matched by replicas at the tasks of their keywords, not at their home
    prefix_only : bool   and only at the tasks of a prefix of the keywords
    routers : int        number of distribution tasks
    fading : DecayParameters    for kinds whose scores decay; None if the run has none
    options : mapping    settings of single kinds, by name
    ranges : bool        routers drop messages by the influence of subscriptions (`Ranged`)
    objects : bool       the stream is one of objects: messages have `previous_seq`, `OperatorInput.ended` the versions
                         that they name, and results are over the living objects
    window_tasks : int   tasks among which the messages of the window are dealt out
    """

    space: Space
    window: Window
    task: int = 0
    tasks: int = 1
    relaxes: bool = False
    replicates: bool = False
    prefix_only: bool = False
    routers: int = 1
    options: Mapping[str, str] = field(default_factory=dict)
    fading: DecayParameters | None = None
    ranges: bool = False
    objects: bool = False
    window_tasks: int = 1


class KindOperator(ABC):
    """The subscriptions of one kind at one query task.

    Parameters
    ----------
    engine : callable    makes an engine of a space; a value of `Kind.engines`
    context : OperatorContext
    """

    #: Whether it serves a stream of objects (`OperatorContext.objects`).
    serves_objects: ClassVar[bool] = False

    @abstractmethod
    def __init__(self, engine: Callable[..., Any], context: OperatorContext): ...

    @abstractmethod
    def __len__(self) -> int:
        """Number of subscriptions that this task matches."""

    @property
    @abstractmethod
    def watermark(self) -> int:
        """Last batch up to which all updates of the results homed on this task are emitted, -1 if none."""

    @abstractmethod
    def contains(self, numbers: Int64) -> Bools:
        """bool[n]: which of these subscriptions are matched by this task or homed on it. O(n)."""

    @abstractmethod
    def match(self, batch_input: OperatorInput, /) -> Matched:
        """Match the next batch, with its changes.

        Raises
        ------
        EngineError
            If the batch is not the next one, or a number is added twice.
        """

    @abstractmethod
    def close(self, mine: Any, found: list[Any]) -> OperatorOutput:
        """Close the next matched batch, with the hits of other tasks for the results homed on this task."""

    def pass_over(self, boundary: Boundary) -> None:
        """Close the next batch while the operator has no subscription, gets none and has no refill pending.

        Small batches are frequent, and kinds without subscriptions should cost them nothing: an operator may override
        this with less than an empty batch.
        """
        none = np.zeros(0, np.int8)
        batch_input = OperatorInput(
            boundary, empty(MessageBatch), empty(MessageBatch), empty(SubscriptionTable), NO_SEQS, none > 0,
            Removals(NO_SEQS, none, NO_SEQS),
        )  # fmt: skip
        self.close(self.match(batch_input).own_hits, [])

    def report(self) -> dict[str, Any]:
        """Figures for the run report, JSON-ready."""
        return {}

    @abstractmethod
    def arrays(self) -> dict[str, np.ndarray]:
        """All memory of the operator."""

    def state(self) -> State:
        """State for a snapshot: of the results homed on this task (of kinds without homes: of all), without refills.

        Rows have the columns of `SubscriptionTable` and those of the kind. An operator has this or `snapshot`.
        """
        taken = self.snapshot()
        return taken.results() if taken.subscriptions is None else taken.subscriptions().beside(taken.results())

    def snapshot(self, stored: int | None = None) -> "OperatorSnapshot":
        """The present state, to be built later on another thread; copies only arrays that later batches write to.

        `stored`: version of the subscriptions that a file has already; with this version they are not copied.
        """
        state = self.state()
        return OperatorSnapshot(None, None, lambda: state)

    @abstractmethod
    def restore(self, boundary: Boundary, state: State, home: Int64, assigned: Bools) -> None:
        """Resume after a boundary; on an empty operator.

        state : State       rows assigned to this task or homed on it; columns as in `state`
        home, assigned      as in `OperatorInput`, for the rows
        """


class OperatorSnapshot(NamedTuple):
    """State of an operator as it was when this was taken, made by these callables.

    version : int, optional    subscriptions of two snapshots of one operator with the same version are the same
    subscriptions : callable, optional    returns the columns and lists that do not change; in `results` too if None
    results : callable    returns the others
    """

    version: int | None
    subscriptions: Callable[[], State] | None
    results: Callable[[], State]


class ResultOperator(KindOperator):
    """An operator with results, kept at homes, that messages enter and leave; of others a pair is one `match`."""

    @abstractmethod
    def results(self) -> ResultBatch:
        """Results homed on this task, at the last boundary closed. O(results)."""


class Ranged(ResultOperator):
    """An operator whose results say where messages may still matter, which shrinks while a subscription is there."""

    @abstractmethod
    def influence_patch(self, new: bool) -> "InfluencePatch | None":
        """Keys that have come and gone; None if it is too early: never where subscriptions are `new` in this batch.

        Only where `OperatorContext.ranges`.
        """

    @classmethod
    @abstractmethod
    def radii(cls, state: State) -> Float64:
        """float64[n]: beyond what distance no message matters to each subscription of a snapshot."""


class Windowed(ResultOperator):
    """An operator whose results start from the window and are refilled from it."""

    @abstractmethod
    def answer(self, request: int, body: Any) -> OperatorOutput:
        """Take the merged answer of a window query, and advance its subscriptions to the last closed boundary.

        Raises
        ------
        EngineError
            If no such query is in flight.
        """


class Replicated(Windowed):
    """An operator with thresholds, by which routers drop messages, and with replicas at the tasks of keywords."""

    @abstractmethod
    def relaxed(self, request: int, last_batch: int) -> WindowRequest:
        """All routers have dropped the thresholds of a request, `last_batch` being the last batch routed by them."""

    @abstractmethod
    def register(self, home: int, number: Int64, version: Int64, rows: SubscriptionTable, changes_through: int) -> None:
        """Replicas: before the next batch, drop the thresholds of these subscriptions of one home, as of `version`.

        `changes_through` is the last change list that the router has applied: later removals must stay in force.
        `rows` are the subscriptions themselves where replicas may have been dropped, else empty.
        """

    @abstractmethod
    def raise_thresholds(self, raised: Thresholds) -> None:
        """Replicas: apply thresholds of the homes; those of an older version are ignored."""

    @abstractmethod
    def replica_tasks(self, numbers: Int64) -> Bools:
        """bool[n, tasks]: which tasks may have a replica of each of these, which are homed on this task."""


class Regional(KindOperator):
    """An operator that signatures of regions serve: it counts what they let through and what they withheld."""

    @property
    @abstractmethod
    def met(self) -> Int64:
        """Seqs of the messages of the last batch that matched a subscription of this task."""

    @property
    @abstractmethod
    def missed(self) -> Int64:
        """Seqs, one a pair, of withheld messages of the last batch that would have matched."""

    def claims(self, numbers: Int64) -> tuple[Float64, Int32]:
        """Region and rarest keyword of those of these subscriptions that can match and need all their keywords.

        Only for kinds that need all keywords: signatures drop the others by themselves.
        """
        return np.zeros((0, 4)), np.zeros(0, np.int32)


def capable(operator: KindOperator, capability: type[Capability]) -> Capability:
    """The operator, as one with a capability.

    Raises
    ------
    EngineError
        If it lacks the capability.
    """
    if not isinstance(operator, capability):
        raise EngineError(f"{type(operator).__name__}: is not {capability.__name__}")
    return operator


class WindowIndex(ABC):
    """One tuple task's messages, indexed for the window queries of one kind.

    Parameters
    ----------
    space : Space
    kept_boundaries : int    how many boundaries back a query may reach: messages are kept that long after expiry
    """

    #: As written after `--window-index KIND=`.
    name: ClassVar[str]
    #: Whether `answer` tests the filters of queries.
    serves_filters: ClassVar[bool] = False

    @abstractmethod
    def __init__(self, space: Space, kept_boundaries: int = 0): ...

    @property
    @abstractmethod
    def stored_through(self) -> int:
        """Number of the last batch stored, -1 if none."""

    @abstractmethod
    def store(self, boundary: Boundary, messages: MessageBatch, ended: Int64) -> None:
        """Store this task's part of the next batch.

        ended : int64[m]    seqs of messages, of this batch or earlier ones, that a later version or a deletion has
                            ended; unknown or expired ones are ignored

        Raises
        ------
        EngineError
            If the batch is not the next one.
        """

    @abstractmethod
    def load(self, boundary: Boundary, messages: MessageBatch, ended: Int64 = NO_SEQS) -> None:
        """Load a whole window, as of a boundary; before any batch. `ended` as in `store`."""

    @abstractmethod
    def answer(self, query: WindowQuery) -> Any:
        """Answer a query from this task's messages; a NamedTuple of the kind, for `merge`.

        `onward` and `more` are for kinds whose operators are `matching.refill.Resuming`.

        Raises
        ------
        EngineError
            If `query.as_of` is no longer or not yet known, or `query.up_to` is not stored yet; or if a row of the
            query has a filter and this index does not test filters.
        """

    def check_filters(self, filter_words: Int64) -> None:
        """Raise `EngineError` if `answer` would not test the programs of queries (`filter_words`, int64[m])."""
        if filter_words.shape[0] and not self.serves_filters:
            raise EngineError(f"window index {self.name}: serves no subscriptions with filters; take another one")

    @classmethod
    @abstractmethod
    def merge(cls, parts: list[Any]) -> Any:
        """Merge the answers of all tasks to one query."""

    @classmethod
    @abstractmethod
    def split(cls, answer: Any, rows: Sequence[int]) -> list[Any]:
        """The answers to several queries that were joined into one, from the answer to that.

        rows : sequence of int    how many rows each query has
        """

    @abstractmethod
    def size_bytes(self) -> int:
        """Memory of all arrays, spare capacity included."""

    def order_bytes(self) -> int:
        """Of these the words in order of appearance, for phrases; spare capacity included."""
        return 0
