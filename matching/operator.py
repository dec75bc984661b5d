"""What a kind of subscription is: a room at each query task, a share of the window at each tuple task.

A `KindOperator` holds the subscriptions of its kind that one query task is given. It takes a batch in two steps:
`match` finds what this task answers for, for itself and for the homes of subscriptions that it holds for others;
`close` leads those at home here to the boundary, once everybody's finds are there. What a room cannot know by itself it
asks the window as of a boundary (`WindowQuery`), whose answer comes back by `answer`, late but never wrong. A
`WindowIndex` is the window's side: it indexes the messages of one tuple task and answers questions about them.

Nobody outside `matching` knows more of a kind than its row (`matching.kind_table`): bolts loop over rooms and shares
and carry what they say, routers ask the traits. Rooms are driven by `bolts.query` and, in one process, by
`matching.local_engine`. Read on in `matching.refill`, what rooms do about questions, then in a room,
`matching.topk.operator`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from matching.errors import EngineError
from matching.half_life import DecayParameters
from matching.model import (
    NO_MESSAGES,
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

Bools = NDArray[np.bool_]
NO_SEQS: Int64 = np.zeros(0, np.int64)
#: Which pairs a task answers for: given the region of each pair (float64[m, 4]), the messages, and each pair's row.
Owned = Callable[[Float64, MessageBatch, Int32], Bools]


class WindowQuery(NamedTuple):
    """What rows of subscriptions ask of the window.

    as_of : Boundary    the window at this boundary
    up_to : int         and what came in later batches up to this one, where the room has not been sent all of it
    rows : NamedTuple   of the kind; arrays, one row a subscription
    onward : bool       and what came in later batches still, as many as are stored; the answer says how many
    more : bool         only what came in the later batches: the rest has been answered, and `rows` say how
    """

    as_of: Boundary
    up_to: int
    rows: Any
    onward: bool = False
    more: bool = False


class WindowRequest(NamedTuple):
    """A question on its way; the answer comes back with the same `request`."""

    request: int
    question: WindowQuery


class Relax(NamedTuple):
    """Subscriptions (int64[n]) whose thresholds routers must forget, before the window is asked:
    `KindOperator.relaxed`.
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
NOTHING_TOLD: UpdateBatch = empty(UpdateBatch)


class Work(NamedTuple):
    """Postings looked at, pairs tested, pairs that matched or were offered to a result."""

    scanned: int = 0
    verified: int = 0
    matched: int = 0

    def plus(self, other: "Work") -> "Work":
        """Both together."""
        return Work(*(a + b for a, b in zip(self, other, strict=True)))


class OperatorOutput(NamedTuple):
    """What comes of a batch or of an answer.

    updates : UpdateBatch     of the boundary, or late ones, boundary by boundary for each subscription
    asks, relaxes             what the window is asked, and for whom routers must be relaxed before it is
    raised : Thresholds       have risen; routers and replicas may learn them, late if need be
    work : Work
    """

    updates: UpdateBatch = NOTHING_TOLD
    asks: tuple[WindowRequest, ...] = ()
    relaxes: tuple[Relax, ...] = ()
    raised: Thresholds = NO_THRESHOLDS
    work: Work = Work()

    def plus(self, later: "OperatorOutput") -> "OperatorOutput":
        """What this one and a later one tell and ask, one after the other. O(updates)."""
        return OperatorOutput(
            concatenate([self.updates, later.updates]),
            self.asks + later.asks,
            self.relaxes + later.relaxes,
            concatenate([self.raised, later.raised]),
            self.work.plus(later.work),
        )


class OperatorInput(NamedTuple):
    """A batch as one task takes it; everything of one kind.

    boundary : Boundary
    messages : MessageBatch      those that this task answers for
    ended : MessageBatch         messages, of this batch or earlier ones, whose object is alive no more
    added : SubscriptionTable    those that this task holds, or is home to
    home : int64[n]              the task that keeps the result of each
    held : bool[n]               whether this task matches it
    removed : Removals           all of the kind, wherever they are
    owned : callable, optional   which pairs are told here, where several tasks may find the same one
    withheld : MessageBatch      messages that this task would answer for and is kept from: counted
    (`KindOperator.missed`)
    """

    boundary: Boundary
    messages: MessageBatch
    ended: MessageBatch
    added: SubscriptionTable
    home: Int64
    held: Bools
    removed: Removals
    owned: Owned | None = None
    withheld: MessageBatch = NO_MESSAGES


class Matched(NamedTuple):
    """What a task found in a batch: `mine`, for `KindOperator.close` alone; `found[t]` (a NamedTuple) for the home at
    task t.

    `found` is empty where nobody holds subscriptions for others.
    """

    mine: Any
    found: tuple[Any, ...] = ()


@dataclass(frozen=True)
class OperatorContext:
    """Where a room stands.

    relaxes : bool       routers keep messages back by thresholds, and must be relaxed before these may fall
    replicates : bool    subscriptions are matched by replicas at the tasks of their keywords, apart from their home
    prefix_only : bool   and only at those of a prefix of them
    routers : int        how many distribution tasks there are
    fading : Fading      how scores fade, for kinds that do; None if the run does not say
    options : mapping    settings that only some kinds know, by name
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


class KindOperator(ABC):
    """The subscriptions of one kind at one query task.

    Parameters
    ----------
    engine : callable    makes an engine of a space; a row of `Kind.engines`
    site : Site
    """

    @abstractmethod
    def __init__(self, engine: Callable[..., Any], site: OperatorContext): ...

    @abstractmethod
    def __len__(self) -> int:
        """Subscriptions matched here."""

    @property
    @abstractmethod
    def watermark(self) -> int:
        """Number of the last batch up to which everything has been told of those at home here, -1 if none."""

    @abstractmethod
    def holds(self, numbers: Int64) -> Bools:
        """bool[n]: which of these subscriptions are matched here, or at home here. O(n)."""

    @abstractmethod
    def match(self, turn: OperatorInput) -> Matched:
        """Match the next batch, with its changes.

        Raises
        ------
        EngineError
            If the batch is not the next one, or a number is added twice.
        """

    @abstractmethod
    def close(self, mine: Any, found: list[Any]) -> OperatorOutput:
        """Close the next batch that was matched, with what other tasks found in it for those at home here."""

    def pass_over(self, boundary: Boundary) -> None:
        """Close the next batch while nobody is here, nobody comes with it and nobody waits: nothing comes of it.

        Small batches are many, and kinds without subscriptions should cost them nothing: rooms that know a shorter way
        than an empty batch take it.
        """
        nobody = np.zeros(0, np.int8)
        turn = OperatorInput(
            boundary, empty(MessageBatch), empty(MessageBatch), empty(SubscriptionTable), NO_SEQS, nobody > 0,
            Removals(NO_SEQS, nobody, NO_SEQS),
        )  # fmt: skip
        self.close(self.match(turn).mine, [])

    def answer(self, request: int, body: Any) -> OperatorOutput:
        """Take the merged answer to a question, and lead who waited for it up to the last boundary closed.

        Raises
        ------
        EngineError
            If nobody waits for it.
        """
        raise EngineError(f"{type(self).__name__}: an answer to request {request}, which nobody has asked")

    def relaxed(self, request: int, last_batch: int) -> WindowRequest:
        """Every router has been relaxed; the last batch routed before that is `last_batch`."""
        raise EngineError(f"{type(self).__name__}: request {request} relaxed nobody")

    def register(self, home: int, number: Int64, version: Int64, rows: SubscriptionTable, changes_through: int) -> None:
        """Replicas: ahead of the next batch these of one home have no threshold as of their version.

        `changes_through` is the last change list that the router has taken: who was removed since must stay so. `rows`
        are the subscriptions themselves where replicas may have been given up, else empty.
        """
        raise EngineError(f"{type(self).__name__}: has no replicas to register")

    def raise_thresholds(self, raised: Thresholds) -> None:
        """Replicas: take thresholds of the homes; those of an older version are ignored."""
        raise EngineError(f"{type(self).__name__}: has no replicas to tell thresholds")

    def sharers(self, numbers: Int64) -> Bools:
        """bool[n, tasks]: who may have a replica of each of these, which are at home here."""
        raise EngineError(f"{type(self).__name__}: has no replicas")

    @property
    def met(self) -> Int64:
        """Seqs of those messages of the last batch that mattered to somebody here; only kinds with regions say."""
        return np.zeros(0, np.int64)

    @property
    def missed(self) -> Int64:
        """Seqs, one a pair, of withheld messages of the last batch that would have mattered; as `met`."""
        return np.zeros(0, np.int64)

    def claims(self, numbers: Int64) -> tuple[Float64, Int32]:
        """Region and rarest keyword of those of these subscriptions that can match and want all their keywords.

        Only kinds of which all keywords are wanted say: signatures forget the others by themselves.
        """
        return np.zeros((0, 4)), np.zeros(0, np.int32)

    def results(self) -> ResultBatch:
        """Standing results of those at home here, at the last boundary closed. O(results)."""
        return empty(ResultBatch)

    def report(self) -> dict[str, Any]:
        """Figures for the end of the run, JSON-ready."""
        return {}

    @abstractmethod
    def arrays(self) -> dict[str, np.ndarray]:
        """All memory, for figures of size."""

    @abstractmethod
    def state(self) -> State:
        """What cannot be derived of those at home here (of kinds without homes: of all), while nobody waits.

        Rows have the columns of `SubscriptionTable` and what the kind adds to them.
        """

    @abstractmethod
    def restore(self, boundary: Boundary, state: State, home: Int64, held: Bools) -> None:
        """Go on behind a boundary, in place of an empty room.

        state : State       rows that this task holds or is home to; columns as `state` gives them
        home, held          as in `OperatorInput`, for the rows
        """


class WindowIndex(ABC):
    """One tuple task's messages, indexed for the questions of one kind.

    Parameters
    ----------
    space : Space
    kept_boundaries : int    how many boundaries back a question may reach: what died since is kept that long
    """

    #: As written after `--window-index KIND=`.
    name: ClassVar[str]

    @abstractmethod
    def __init__(self, space: Space, kept_boundaries: int = 0): ...

    @property
    @abstractmethod
    def stored_through(self) -> int:
        """Number of the last batch stored, -1 if none."""

    @abstractmethod
    def store(self, boundary: Boundary, messages: MessageBatch, ended: Int64) -> None:
        """Take this task's part of the next batch.

        ended : int64[m]    seqs of messages, of this batch or earlier ones, that a later version or a deletion has
                            ended; those unknown or expired are passed over

        Raises
        ------
        EngineError
            If the batch is not the next one.
        """

    @abstractmethod
    def load(self, boundary: Boundary, messages: MessageBatch, ended: Int64 = NO_SEQS) -> None:
        """Take a whole window at once, as of a boundary; before any batch. `ended` as in `store`."""

    @abstractmethod
    def answer(self, question: WindowQuery) -> Any:
        """What this task's messages have to say; a NamedTuple of the kind, of which `merge` makes one answer.

        `onward` and `more` are only for kinds whose rooms ask so: see `matching.refill.Resuming`.

        Raises
        ------
        EngineError
            If `question.as_of` is no longer (or not yet) known, or `question.up_to` is not stored yet.
        """

    @classmethod
    @abstractmethod
    def merge(cls, parts: list[Any]) -> Any:
        """One answer of the answers of all tasks to one question."""

    @abstractmethod
    def size_bytes(self) -> int:
        """Memory of all arrays, spare room included."""
