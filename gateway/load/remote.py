"""Load tests of a running `skyray serve`: `skyray loadtest --url http://...`.

Subscriptions are made before the first message and ended behind the last. Messages are published on a schedule by
processes of their own, one more changes subscriptions meanwhile (`gateway.load.senders`), and another reads updates
(`gateway.load.follower`): latency counts from when a message was due until its update was read here.
`gateway.load.check` compares all updates with the oracle's. The server may have other subscriptions
and other messages meanwhile: words of a test are its own.
"""

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, Self

import numpy as np

from gateway.client.blocking import Client
from gateway.load.check import Sent, recount
from gateway.load.follower import FollowerAnswer, Received, follow, latencies
from gateway.load.lifetimes import LATE_S, Lifetimes, report_of, shortcomings
from gateway.load.loadtest import TIMELINE_ROWS
from gateway.load.posting import PostingShare, ServerAddress
from gateway.load.ramp import ramp_test
from gateway.load.senders import SHORT_OF_PROCESSOR, Changed, Published, change, publish
from gateway.load.served import ServedWorkload, subscription_rows
from matching.errors import ConfigError, TopologyError
from matching.model import Int64
from matching.space import Space
from matching.window import Window
from topology.core.metrics import LatencyTimeline, latency_summary

#: Subscriptions of a kind by default, and messages a second.
SUBSCRIPTIONS, RATE = {"boolean": 2_000, "topk": 500}, 1_000.0
#: Seconds from when all processes are ready to the first message; that updates may take behind the last message; that
#: a process may take to start or to answer.
_FIRST_S, _DRAIN_S, _ANSWER_S = 0.3, 30.0, 120.0


class _Process:
    """A process with a pipe, which ends with this one."""

    def __init__(self, target: Callable[..., None], *arguments: Any):
        context = get_context("spawn")
        self.pipe, other = context.Pipe()
        self._process = context.Process(target=target, args=(other, *arguments), daemon=True)
        self._process.start()
        other.close()

    def close(self) -> None:
        """End it."""
        with suppress(OSError):
            self.pipe.send(None)
        self._process.join(2)
        self._process.kill()
        self._process.join(5)
        self.pipe.close()


def _answer(pipe: Connection, seconds: float, what: str) -> Any:
    """The next answer of a process. Raises TopologyError if none arrives in time."""
    try:
        if pipe.poll(seconds):
            return pipe.recv()
    except EOFError:
        raise TopologyError(f"loadtest: {what} has ended unexpectedly; its error is above") from None
    raise TopologyError(f"loadtest: {what} has not answered for {seconds:.0f} s; take a lower rate")


class ServedLoad:
    """A server with subscriptions of a load test, ready for messages while the block lasts.

    Parameters
    ----------
    key : str, optional
        With the scopes `subscribe` and `publish`.
    counts : mapping of kind to int
    say : callable
        Gets a line now and then.
    changes : float
        Subscriptions that are ended a second while messages are published; as many others are added.

    Raises
    ------
    ConfigError
        If the server refuses the subscriptions or their words.
    ClientError
        If it cannot be reached.
    """

    def __init__(
        self,
        url: str,
        key: str | None = None,
        generators: int = 1,
        counts: Mapping[str, int] | None = None,
        filters: float = 0.0,
        seed: int = 0,
        say: Callable[[str], Any] = lambda line: None,
        changes: float = 0.0,
    ):
        self._server = ServerAddress(url, key)
        self._client = Client(url, key=key)
        self.generators = generators
        self.counts = dict(SUBSCRIPTIONS if counts is None else counts)
        self.filters, self.seed = filters, seed
        self.changes = changes if sum(self.counts.values()) else 0.0
        self._say = say
        self._next = self._next_change = 0
        self._numbers: list[Int64] = []
        self._seqs: list[Int64] = []
        self._received: list[Received] = []
        self._gaps: list[str] = []
        self._lifetimes: Lifetimes | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(self._client.close)
            self._client.ready()
            facts = self._client.stream()
            self.window = Window.parse(facts["window"])
            self._load = self._workload(facts)
            primed = self._client.publish(self._load.primer(), wait="delivered")
            if primed.seq is None or not primed.delivered:
                raise TopologyError(f"loadtest: the server has not delivered a first message: {primed}")
            self._primer_seq = primed.seq
            stack.callback(self._unsubscribe)
            self._subscribe()
            since = str(primed.seq)
            self._follower = self._started(stack, "the follower", follow, self._server, self._load, since)
            self._generators = [
                self._started(stack, "a generator", publish, self._server, self._load)
                for _ in range(self.generators)
            ]  # fmt: skip
            self._changer = None
            if self.changes:
                self._changer = self._started(stack, "the changer", change, self._server, self._load)
            _answer(self._follower, _ANSWER_S, "the follower")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _started(self, stack: ExitStack, what: str, target: Callable[..., None], *arguments: Any) -> Connection:
        self._say(f"starting {what}")
        process = _Process(target, *arguments)
        stack.callback(process.close)
        return process.pipe

    def _workload(self, facts: Mapping[str, Any]) -> ServedWorkload:
        number = None
        if self.filters:
            number = next((one["name"] for one in facts["attributes"] if one["type"] == "number"), None)
        west, south, east, north = facts["world"]
        space = Space(west, south, east, north, facts["projection"], facts["distance"])
        return ServedWorkload("r" + uuid.uuid4().hex[:6], self.seed, self.counts, self.filters, number, space)

    def _subscribe(self) -> None:
        made = self._load.subscribers()
        table = made.make()
        filters = made.filters_of(table) if self.filters else None
        self._say(f"making {len(table):,} subscriptions")
        outcomes = self._client.subscribe_many(subscription_rows(self._load, table, filters))
        refused = next((one for one in outcomes if one.status != "created"), None)
        if refused is not None:
            raise ConfigError(
                f"the server refuses a subscription of the load ({refused.reason}: {refused.detail}); take other kinds "
                "or fewer"
            )
        self._lifetimes = Lifetimes(table, np.array([one.from_seq for one in outcomes], np.int64))

    def _unsubscribe(self) -> None:
        numbers = self._lifetimes.standing(self._next_change) if self._lifetimes else range(sum(self.counts.values()))
        name = self._load.subscription_id
        for _ in self._client.subscribe_stream({"unsubscribe": name(number)} for number in numbers):
            pass

    def run(
        self, rate: float | None = None, seconds: float = 30.0, warm_up: float = 1.0, check: bool = False
    ) -> dict[str, Any]:
        """Publish for so many seconds behind a warm-up; the report, as `gateway.load.loadtest.load_test` says.

        `topology` is what the server says of its components; `generators` has a row for each process, `short` how many
        of them had no processor time left; `foreign` counts updates of others, `refused` messages by reason, `gaps`
        says what the server did not send, `changes` what `gateway.load.lifetimes.report_of` says (None without). With
        `check` all updates since the block began are compared.
        """
        rate = RATE if rate is None else rate
        first, count, warming = self._next, round(rate * (seconds + warm_up)), round(rate * warm_up)
        if count <= warming:
            raise ConfigError(f"rate {rate} for {seconds} s is no message at all: raise one of them")
        self._next += count
        part = PostingShare(first, first + count, 0, 1, rate, 0.0)
        begin_s, published, changing = self._publish(part, round(self.changes * (seconds + warm_up)))
        seq = np.concatenate([one.seq for one in published])
        number = np.concatenate([one.number for one in published])
        self._numbers.append(number)
        self._seqs.append(seq)
        self._say("waiting for the last updates")
        followed = self._await_updates(int(seq.max(initial=self._primer_seq)))
        self._received.append(followed.received)
        self._gaps += followed.gaps
        due_s, late_s = latencies(followed.received, number, seq, first, begin_s, rate)
        steady, timeline = due_s >= warm_up, LatencyTimeline(max(1.0, seconds / TIMELINE_ROWS))
        timeline.record(due_s[steady], late_s[steady])
        changes = None if changing is None else self._changed(*changing, followed, warm_up)
        failures = [one.posted.failure for one in published if one.posted.failure]
        failures += [] if changing is None else shortcomings(changing[0])
        if followed.failure or followed.through < seq.max(initial=-1):
            failures.append(followed.failure or f"updates are missing {_DRAIN_S:.0f} s after the last message")
        return {
            "rate": rate,
            "peak_per_s": None,
            **_pace(published, begin_s, rate, count, followed, failures),
            "messages": count,
            "accepted": seq.shape[0],
            "batches": int(np.unique(followed.received.boundary).shape[0]),
            "updates": len(followed.received.at_s),
            "updates_per_s": len(followed.received.at_s) / max(seconds + warm_up, 1e-9),
            "latency": latency_summary(late_s[steady]),
            "warm_up": latency_summary(late_s[~steady]),
            "timeline": timeline.summary(),
            "checkpoints": None,
            "changes": changes,
            "check": self._check() if check else None,
            "settings": {
                "url": self._server.url, "seconds": seconds, "warm_up": warm_up, **self.counts,
                "changes": self.changes, "filters": self.filters, "generators": self.generators,
                "window": str(self.window), "seed": self.seed,
            },
            "topology": _components(self._client.topology()),
        }  # fmt: skip

    def _publish(
        self, whole: PostingShare, changes: int
    ) -> tuple[float, list[Published], tuple[Changed, PostingShare] | None]:
        """Publish the messages of a part, and make so many changes meanwhile; when it began, and what came of it."""
        step = len(self._generators)
        parts = [(pipe, whole._replace(offset=at, step=step)) for at, pipe in enumerate(self._generators)]
        change = PostingShare(self._next_change, self._next_change + changes, 0, 1, self.changes, 0.0)
        changer = self._changer if changes else None
        if changer is not None:
            self._next_change = change.end
            parts.append((changer, change))
        for pipe, part in parts:
            pipe.send(part)
        for pipe, _ in parts:
            _answer(pipe, _ANSWER_S, "the changer" if pipe is changer else "a generator")
        begin_s = time.monotonic() + _FIRST_S
        for pipe, _ in parts:
            pipe.send(begin_s)
        count = whole.end - whole.first
        self._say(f"publishing {count:,} messages at {whole.rate:,.0f}/s")
        allowed_s = _ANSWER_S + 10 * count / whole.rate
        published = [_answer(pipe, allowed_s, "a generator") for pipe in self._generators]
        if changer is None:
            return begin_s, published, None
        return begin_s, published, (_answer(changer, allowed_s, "the changer"), change._replace(begin_s=begin_s))

    def _changed(
        self, changed: Changed, part: PostingShare, followed: FollowerAnswer, warm_up: float
    ) -> dict[str, Any]:
        assert self._lifetimes is not None
        self._lifetimes.add(changed)
        return report_of(changed, followed, part, warm_up)

    def _await_updates(self, through: int) -> FollowerAnswer:
        self._follower.send((through, time.monotonic() + _DRAIN_S))
        return _answer(self._follower, _DRAIN_S + _ANSWER_S, "the follower")

    def _check(self) -> dict[str, Any]:
        self._say("recounting by the oracle")
        sent = Sent(self._primer_seq, np.concatenate(self._numbers), np.concatenate(self._seqs))
        received = Received(*(np.concatenate(columns) for columns in zip(*self._received, strict=True)))
        assert self._lifetimes is not None
        return recount(self._load, self.window, self._lifetimes, sent, received) | {"gaps": list(self._gaps)}


def _pace(
    published: Sequence[Published],
    begin_s: float,
    rate: float,
    count: int,
    followed: FollowerAnswer,
    failures: list[str],
) -> dict[str, Any]:
    """Figures of how the schedule was kept, and which side delayed it, JSON-ready."""
    rows = [
        {
            "behind_at_end_s": one.posted.behind_at_end_s,
            "furthest_behind_s": one.posted.furthest_behind_s,
            "blocked_s": one.posted.blocked_s,
            "processor_share": one.posted.processor_share,
        }
        for one in published
    ]
    refused: dict[str, int] = {}
    for one in published:
        for reason, times in one.refused.items():
            refused[reason] = refused.get(reason, 0) + times
    behind_s = max(one.posted.behind_at_end_s for one in published)
    whole = not (failures or followed.gaps or refused)
    took_s = max(one.posted.ended_s for one in published) - begin_s
    return {
        "reached_rate": count / max(took_s, count / rate),
        "kept_up": whole and behind_s < LATE_S,
        "behind_at_end_s": max(0.0, behind_s),
        "furthest_behind_s": max(one.posted.furthest_behind_s for one in published),
        "generators": rows,
        "short": sum(one.posted.processor_share > SHORT_OF_PROCESSOR for one in published),
        "follower_share": followed.processor_share,
        "refused": refused,
        "failures": failures,
        "gaps": followed.gaps,
        "foreign": followed.foreign,
    }


def _components(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The server's components as the report of a topology has them: how busy each is."""
    snapshot = facts.get("topology") or {}
    parts = snapshot.get("components", {})
    return {"components": {name: {"tasks": [{"busy_share": one["busy_share"]}]} for name, one in parts.items()}}


def served_test(
    url: str,
    *,
    key: str | None = None,
    generators: int = 1,
    subscriptions: Mapping[str, int] | None = None,
    filters: float = 0.0,
    seed: int = 0,
    rate: float | None = None,
    seconds: float = 30.0,
    warm_up: float | None = None,
    check: bool = False,
    hold: str | None = None,
    say: Callable[[str], Any] = lambda line: None,
    changes: float = 0.0,
    **ramp: Any,
) -> dict[str, Any]:
    """A load test of a server at a set rate, or with `hold` as of `gateway.load.ramp.ramp_test`, which takes `ramp`.

    Seconds of warm-up are 5, with `hold` 1 before each step, as of a topology. The report is that of `ServedLoad.run`.
    Raises what `ServedLoad` raises.
    """
    with ServedLoad(url.rstrip("/"), key, generators, subscriptions or None, filters, seed, say, changes) as served:
        if hold is None:
            return served.run(rate, seconds, 5.0 if warm_up is None else warm_up, check)
        ramp["warm_up"] = 1.0 if warm_up is None else warm_up
        return ramp_test(hold, load=served.run, first_rate=rate or RATE, check=check, **ramp)
