"""Lifetimes of the subscriptions of a load test of a server, in seqs; input of the recount.

The server's answer to a change names the first message for which it counts. So a subscription stands for the messages
from the answer to its registration up to the one before the answer to its end, however requests were spread over
batches.
"""

from typing import Any

import numpy as np

from gateway.load.follower import FollowerAnswer
from gateway.load.posting import PostingShare
from gateway.load.senders import UNANSWERED, Changed
from gateway.load.served import copies
from matching.bulk_oracle import NEVER
from matching.model import Int64, SubscriptionTable, concatenate
from topology.core.metrics import latency_summary

#: Seconds behind the schedule at the end from which a process has not kept it.
LATE_S = 1.0


class Lifetimes:
    """All subscriptions of a load test; the number of one is its row. The initial ones come first.

    Parameters
    ----------
    table : SubscriptionTable
        The initial subscriptions.
    at : int64[n]
        Seq of the first message for which each counts.

    Attributes
    ----------
    at, end : int64[m]
        For each subscription the first message for which it counts, and the first for which it no longer does;
        `NEVER` if there is none.
    unanswered : int
        Changes without an answer of the server, whose effect is unknown.
    """

    def __init__(self, table: SubscriptionTable, at: Int64):
        self._first = table
        self.at, self.end = at, np.full(len(table), NEVER)
        self.unanswered = 0

    @property
    def table(self) -> SubscriptionTable:
        """All subscriptions ever sent, those that the server has refused included. O(their words)."""
        return concatenate([self._first, copies(self._first, np.arange(self._changes))])

    @property
    def changed(self) -> np.ndarray:
        """bool[m]: which were added or ended during the load test."""
        return (np.arange(self.at.shape[0]) >= len(self._first)) | (self.end != NEVER)

    @property
    def _changes(self) -> int:
        return self.at.shape[0] - len(self._first)

    def add(self, changed: Changed) -> None:
        """Add the outcomes of the next changes: change i ends subscription i and adds a new one."""
        assert changed.first == self._changes, "changes come in order"
        ended, added = np.where(changed.from_seq >= 0, changed.from_seq, NEVER).T
        self.unanswered += int(np.count_nonzero(changed.from_seq == UNANSWERED))
        self.at = np.concatenate([self.at, added])
        self.end = np.concatenate([self.end, np.full(added.shape, NEVER)])
        self.end[changed.first : changed.first + ended.shape[0]] = ended

    def standing(self, offered: int) -> list[int]:
        """Numbers that may still be registered after `offered` changes, some of which may have no answer yet."""
        known = np.flatnonzero((self.at != NEVER) & (self.end == NEVER)).tolist()
        return known + list(range(self.at.shape[0], len(self._first) + offered))


def report_of(changed: Changed, followed: FollowerAnswer, part: PostingShare, warm_up: float) -> dict[str, Any]:
    """The changes of a run for its report.

    Returns
    -------
    dict
        `rate`; `offered`, `done` (`added` and `ended`), `refused` by reason, `unanswered`.
        Of changes due after the warm-up, as `topology.core.metrics.latency_summary`: `answer`, from when a change was
        due until the server's answer was read; `effect`, from then until all updates were read that come before the
        first message for which the change counts.
        Of the process that sends them: how far it was behind, as of generators.

    Notes
    -----
    The next update shows that all before it were read. So `effect` is an upper bound where updates are rare, and is not
    known of a change behind the last update.
    """
    done, sent = changed.from_seq >= 0, changed.posted
    due_s = np.arange(done.shape[0])[:, None] / part.rate
    steady = done & (due_s >= warm_up)
    answer_s = changed.answered_s - (part.begin_s + due_s)
    through = np.searchsorted(followed.through_of, changed.from_seq)
    seen = steady & (changed.from_seq <= followed.received.boundary.max(initial=-1))
    seen &= through < followed.through_of.shape[0]
    read_s = np.append(followed.through_s, np.nan)[through]
    ended, added = done.sum(axis=0).tolist()
    return {
        "rate": part.rate,
        "offered": done.size,
        "done": ended + added,
        "added": added,
        "ended": ended,
        "refused": changed.refused,
        "unanswered": int(np.count_nonzero(changed.from_seq == UNANSWERED)),
        "answer": latency_summary(answer_s[steady]),
        "effect": latency_summary((read_s - (part.begin_s + due_s))[seen]),
        "behind_at_end_s": sent.behind_at_end_s,
        "furthest_behind_s": sent.furthest_behind_s,
        "blocked_s": sent.blocked_s,
        "processor_share": sent.processor_share,
    }


def shortcomings(changed: Changed) -> list[str]:
    """Why changes were not made as scheduled, a line each; empty if they were."""
    behind_s, unanswered = changed.posted.behind_at_end_s, int(np.count_nonzero(changed.from_seq == UNANSWERED))
    lines = [changed.posted.failure] if changed.posted.failure else []
    lines += [f"{times:,} changes of subscriptions: {reason}" for reason, times in changed.refused.items()]
    lines += [f"{unanswered:,} changes of subscriptions have no answer"] if unanswered else []
    return lines + ([f"changes of subscriptions are {behind_s:.1f} s behind"] if behind_s >= LATE_S else [])
