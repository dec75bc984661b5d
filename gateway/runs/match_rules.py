"""Match rules: why a message is, or is not, in the result of a subscription, by the rules of `matching.naive`.

Scores and predicates are the oracle's own functions; this module adds which rule decided, the parts of the score and
the better messages. A test compares every verdict with the oracle.
"""

import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from matching.errors import ConfigError
from matching.model import ANY_KEYWORD, BOOLEAN, DECAY, KNN, SKYLINE, TOPK
from matching.naive import (
    alpha_of,
    boxes,
    boxes_meet,
    carried_for,
    common_terms,
    decay_key,
    distance,
    dominates,
    first_failed,
    meets,
    passes,
    proximity,
    skyline_scores,
    topk_score,
)
from matching.naive_filters import NaiveInstruction
from matching.naive_rows import DecayModel, NaiveMessage, NaiveSubscription
from matching.window import NO_FLOOR


class Scene(NamedTuple):
    """The input of a verdict about one subscription, as of a boundary.

    messages : sequence of NaiveMessage    ascending seq; all that share a keyword and may matter, perhaps others
    last_seq, floor : int             the boundary
    end : int or None                 the seq before which the subscription ended
    ends : mapping                    seq of a message whose object has ended -> seq that ended it
    max_distance : float              `matching.space.Space.max_distance`
    decay : DecayModel or None        needed for scores that fade
    objects : bool                    the stream is one of objects, of which kinds with results rank those that live
    """

    messages: Sequence[NaiveMessage]
    last_seq: int
    floor: int
    end: int | None
    ends: Mapping[int, int]
    max_distance: float
    decay: DecayModel | None = None
    objects: bool = False

    @property
    def alive(self) -> list[NaiveMessage]:
        """The messages that are in the window, of a stream of objects those of them that live."""
        gone = self.ends if self.objects else ()
        return [each for each in self.messages if each.life > self.floor and each.seq not in gone]


class Rival(NamedTuple):
    """A message that ranks before another; `text_score` is NaN but for skylines."""

    seq: int
    score: float
    text_score: float = math.nan


@dataclass
class Verdict:
    """Whether a message is in a result, and why.

    in_result : bool       at the boundary; of `boolean`: matched
    reason : str           a code: in_result, matched, or one of `REASONS`
    met : bool             whether the message has a keyword, or none is asked for
    common, missing        terms of the subscription that the message has, or lacks
    parts : dict           name -> value of each part of the score
    by_term : dict         term -> what it adds to (for fading scores: multiplies into) the text score
    score : float or None  as results have it; None where there is none
    rank : int or None     among all eligible messages
    threshold : float      score of the k-th of them, None while there are fewer
    rivals : list          messages that rank before it, best first; of a skyline: that dominate it
    failed : NaiveInstruction or None    the first part of the filter that the message does not satisfy
    clause : str           what of the query the message does not satisfy, in words; set by those who know the query
    """

    in_result: bool = False
    reason: str = ""
    met: bool = False
    common: list[int] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    parts: dict[str, float] = field(default_factory=dict)
    by_term: dict[int, float] = field(default_factory=dict)
    score: float | None = None
    rank: int | None = None
    threshold: float | None = None
    rivals: list[Rival] = field(default_factory=list)
    failed: NaiveInstruction | None = None
    clause: str = ""


class Lives:
    """Which messages have been ended, by a later version of their object or as a deletion.

    Attributes
    ----------
    ends : dict of int to int
        Seq of a message -> seq of the one that ended it.
    """

    def __init__(self) -> None:
        self.ends: dict[int, int] = {}
        self._current: dict[str, int] = {}  # object -> seq of its version

    def take(self, seq: int, object_id: str, deleted: bool) -> None:
        """Take the next message; of a stream of objects none that is set aside."""
        if (earlier := self._current.get(object_id)) is not None:
            self.ends.setdefault(earlier, seq)  # a deletion has ended it already
        if deleted:
            self.ends[seq] = seq
        self._current[object_id] = seq

    def keep(self, seqs: Container[int]) -> None:
        """Forget all other messages."""
        self.ends = {seq: by for seq, by in self.ends.items() if seq in seqs}
        self._current = {name: seq for name, seq in self._current.items() if seq in seqs}


#: Code -> what it means, for people.
REASONS = {
    "not_reached": "the run has not come to the message",
    "not_registered": "the run has not come to where the subscription begins",
    "no_common_word": "the message has none of the keywords",
    "not_visible": "the message is a deletion, a clock mark, set aside, or in quarantine: it meets nobody",
    "missing_keyword": "the message lacks a keyword, and all are needed",
    "outside_region": "the message lies outside the region",
    "outside_circle": "the message lies outside the circle",
    "outside_polygon": "the message lies outside the polygon",
    "excluded_word": "the message has a word that it must not have",
    "too_few_keywords": "the message has too few of these words",
    "where": "the message does not satisfy a condition",
    "query": "the message does not satisfy the query",
    "missing_word": "the message lacks a word as it is written",
    "before_registration": "the message came before the subscription, which starts empty",
    "after_end": "the subscription had ended before the message came",
    "subscription_ended": "the subscription has ended, and its result is empty",
    "object_ended": "a later version of the message's object, or its deletion, has ended it",
    "out_of_window": "the message has left the window, or came too late for it",
    "no_time": "the message has no time, which the window, or a score that fades, goes by",
    "rivals": "k messages are better, which fill the result",
    "dominated": "another message is no farther from the middle, has as much in common, and more of one of the two",
}


def judge(scene: Scene, subscription: NaiveSubscription, message: NaiveMessage) -> Verdict:
    """Whether a message is in a result as of a boundary, and why.

    Raises
    ------
    ConfigError
        For a kind that the oracle does not have.

    Notes
    -----
    O(messages of the scene); of a skyline too, but only with those that are alive.
    """
    if subscription.kind not in _JUDGES:
        raise ConfigError(f"kind {subscription.kind}: has no match rules")
    verdict = Verdict(met=meets(subscription, message), common=common_terms(subscription, message))
    carried = carried_for(subscription, message)
    verdict.missing = [term for term in sorted(subscription.weights) if term not in carried]
    reason = ""
    if message.seq > scene.last_seq:
        reason = "not_reached"
    elif subscription.at > scene.last_seq:
        reason = "not_registered"
    elif not verdict.met:
        reason = _why_not_met(subscription)
    verdict.failed = first_failed(subscription, message)
    if not reason and verdict.failed is not None:
        reason = _REASON_OF.get(verdict.failed.name, "where")
    if not reason and scene.objects and subscription.kind != BOOLEAN and message.seq in scene.ends:
        reason = "subscription_ended" if _has_ended(scene) else "object_ended"
    found = _JUDGES[subscription.kind](scene, subscription, message, verdict)
    verdict.reason = reason or found
    verdict.in_result = verdict.reason in ("in_result", "matched")
    return verdict


def _needs_all(subscription: NaiveSubscription) -> bool:
    return subscription.kind == BOOLEAN and subscription.match != ANY_KEYWORD


def _why_not_met(subscription: NaiveSubscription) -> str:
    if subscription.wordless:
        return "not_visible"
    return "missing_keyword" if _needs_all(subscription) else "no_common_word"


def _boolean(scene: Scene, subscription: NaiveSubscription, message: NaiveMessage, verdict: Verdict) -> str:
    if verdict.missing and _needs_all(subscription):
        return "missing_keyword"
    if not verdict.met:
        return _why_not_met(subscription)
    place = (message.west, message.south, message.east, message.north)
    if not any(boxes_meet(box, place) for box in boxes(subscription.region)):
        return "outside_region"
    if message.seq < subscription.at:
        return "before_registration"
    if scene.end is not None and message.seq >= scene.end:
        return "after_end"
    return "matched"


def _topk(scene: Scene, subscription: NaiveSubscription, message: NaiveMessage, verdict: Verdict) -> str:
    def score(each: NaiveMessage) -> float:
        return topk_score(subscription, each, scene.max_distance)

    if verdict.met:
        _spatial(scene, subscription, message, verdict)
        own = message.weights
        verdict.by_term = {term: subscription.weights[term] * own.get(term, 0.0) for term in verdict.common}
        verdict.parts |= {"text": sum(verdict.by_term.values()), "alpha": alpha_of(subscription)}
        verdict.score = score(message)
    if _has_ended(scene):
        return "subscription_ended"
    found = _among(scene.alive, subscription, message, verdict, score, best=lambda value, seq: (-value, -seq))
    return found or _not_alive(message)


def _decay(scene: Scene, subscription: NaiveSubscription, message: NaiveMessage, verdict: Verdict) -> str:
    model = scene.decay
    if model is None:
        raise ConfigError("scores fade, but run.json has no 'fading'")

    def score(each: NaiveMessage) -> float:
        return decay_key(subscription, each, scene.max_distance, model)

    timed = message.event_time_us != NO_FLOOR
    if verdict.met and timed:
        _spatial(scene, subscription, message, verdict)
        length = max(1, sum(message.counts.values()))
        for term in sorted(subscription.weights):
            here = (1.0 - model.smoothing) * (message.counts.get(term, 0) / length)
            share = model.collection_count.get(term, 0) / model.total_tokens if model.total_tokens else 0.0
            verdict.by_term[term] = here + model.smoothing * share
        text = math.prod(verdict.by_term.values())
        alpha = alpha_of(subscription)
        relevance = alpha * verdict.parts["spatial"] + (1.0 - alpha) * text
        time = (message.event_time_us - model.epoch_us) / 1e6 * model.log_base_per_s
        verdict.parts |= {"text": text, "alpha": alpha, "relevance": relevance, "time": time}
        verdict.score = score(message)
    if _has_ended(scene):
        return "subscription_ended"
    if not timed:
        return "no_time"
    timed_scene = scene._replace(messages=[each for each in scene.messages if each.event_time_us != NO_FLOOR])
    return _since_registration(
        timed_scene, subscription, message, verdict, score, best=lambda value, seq: (-value, seq)
    )


def _knn(scene: Scene, subscription: NaiveSubscription, message: NaiveMessage, verdict: Verdict) -> str:
    if verdict.met:
        verdict.score = verdict.parts[_distance_name(subscription)] = distance(subscription, message)
    if _has_ended(scene):
        return "subscription_ended"
    return _since_registration(
        scene,
        subscription,
        message,
        verdict,
        lambda each: distance(subscription, each),
        best=lambda far, seq: (far, seq),
    )


def _skyline(scene: Scene, subscription: NaiveSubscription, message: NaiveMessage, verdict: Verdict) -> str:
    own = skyline_scores(subscription, message)
    if own is None:
        return "outside_region"
    if verdict.met:
        verdict.score = own[0]
        verdict.parts |= {"spatial": own[0], "text": own[1]}
    if _has_ended(scene):
        return "subscription_ended"
    if message.seq in scene.ends:
        return "object_ended"
    if message.life <= scene.floor:
        return _not_alive(message)
    for each in scene.messages:
        alive = each.life > scene.floor and each.seq not in scene.ends
        if alive and meets(subscription, each) and passes(subscription, each):
            scores = skyline_scores(subscription, each)
            if scores is not None and dominates(scores, own):
                verdict.rivals.append(Rival(each.seq, *scores))
    verdict.rivals.sort(key=lambda rival: (-rival.score, rival.seq))
    return "dominated" if verdict.rivals else "in_result"


#: Reasons by the name of the instruction that failed; instructions with other names test attributes.
_REASON_OF = {
    "circle": "outside_circle",
    "polygon": "outside_polygon",
    "without": "excluded_word",
    "at least": "too_few_keywords",
    "either": "query",
    "neither": "query",
    "phrase": "query",
}
#: Reasons that a filter has.
FILTER_REASONS = frozenset((*_REASON_OF.values(), "where"))

_JUDGES: dict[int, Callable[[Scene, NaiveSubscription, NaiveMessage, Verdict], str]] = {
    BOOLEAN: _boolean,
    TOPK: _topk,
    DECAY: _decay,
    KNN: _knn,
    SKYLINE: _skyline,
}


def _spatial(scene: Scene, subscription: NaiveSubscription, message: NaiveMessage, verdict: Verdict) -> None:
    far = distance(subscription, message)
    verdict.parts |= {
        _distance_name(subscription): far,
        "spatial": proximity(subscription, message, scene.max_distance),
    }


def _distance_name(subscription: NaiveSubscription) -> str:
    return "distance" if subscription.vector is None else "distance_m"


def _not_alive(message: NaiveMessage) -> str:
    return "no_time" if message.life == NO_FLOOR else "out_of_window"


def _has_ended(scene: Scene) -> bool:
    return scene.end is not None and scene.end <= scene.last_seq


def _since_registration(
    scene: Scene,
    subscription: NaiveSubscription,
    message: NaiveMessage,
    verdict: Verdict,
    score: Callable[[NaiveMessage], float],
    best: Callable[[float, int], tuple[float, int]],
) -> str:
    if scene.objects:
        return _among(scene.alive, subscription, message, verdict, score, best) or _not_alive(message)
    eligible = [each for each in scene.messages if each.seq >= subscription.at]
    return _among(eligible, subscription, message, verdict, score, best) or "before_registration"


def _among(
    eligible: Sequence[NaiveMessage],
    subscription: NaiveSubscription,
    message: NaiveMessage,
    verdict: Verdict,
    score: Callable[[NaiveMessage], float],
    best: Callable[[float, int], tuple[float, int]],
) -> str:
    """`in_result` or `rivals` by the rank of a message among the eligible; "" if it is not eligible."""
    ranked = sorted(
        ((score(each), each.seq) for each in eligible if meets(subscription, each) and passes(subscription, each)),
        key=lambda entry: best(*entry),
    )
    if len(ranked) >= subscription.k:
        verdict.threshold = ranked[subscription.k - 1][0]
    before = next((place for place, (_, seq) in enumerate(ranked) if seq == message.seq), None)
    if before is None:
        return ""
    verdict.rank = before + 1
    verdict.rivals = [Rival(seq, value) for value, seq in ranked[:before]]
    return "in_result" if before < subscription.k else "rivals"
