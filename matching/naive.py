"""The oracle: what every answer must be, in plain Python.

Everything else in this project is a faster way to compute what stands here. The file shares no code with any engine:
it takes batches as Python numbers (`matching.naive_rows`), writes every score and every test out itself, and recomputes
each result from all messages eligible for it. It ships with the product, because `skyray verify` compares finished runs
with it, and it is slow on purpose: about 100,000 messages against 500 subscriptions in a minute or less.

Read the functions first (what counts as a match, what a score is), then the `NaiveResult` classes (what one
subscription's result is), then `Oracle.advance` (when changes and updates happen).

Rules:

- A change at seq q acts before message q. `boolean`, `knn` and `decay` follow that to the message; `topk` and
  `skyline` start from the window and show any change at the next boundary.
- Updates of all kinds but `boolean` are the set difference between the results at two successive boundaries. A
  subscription that has ended has no result, so its messages leave at the boundary of the batch in which it ended.
- Ties: `topk` ranks the newer message (higher seq) first; `knn` and `decay` keep the older, a newcomer must be
  strictly better; coincident messages of a skyline all stay.
- A message is alive at a boundary while its life is greater than the floor. One that comes too late never enters.
- A message without a time (`NO_FLOOR`) is in no window that goes by time, and `decay` does not see it.
- Beside `boolean`, a message can only matter to a subscription with which it shares a keyword, or which has none.
- Some terms of a message are for matching alone (the bare word of its hashtags, say): they have no weight and no count,
  and `skyline` does not know them.
- A subscription without keywords meets every visible message; `topk` and `decay` then rank by place, as with alpha 1.
  What has no text may be visible, and what is not visible (a deletion, a mark of a clock, what was set aside) has none.
- A message that does not satisfy the filter of a subscription does not exist for it (`matching.naive_filters`).
- In a stream of objects every visible row is a version of its object and replaces the one before at its seq; a deletion
  (`op` 1) ends it; any other row that is not visible was set aside, and changes nothing. The result of a `boolean`
  subscription is the set of living objects that match; its updates are the differences at each seq. One that is new
  has what is there in its result, which is not told; one that has ended gives no leaves.
- A subscription gets the updates that it asks for: by default `enter` and `leave`; `change` is of a version that takes
  the place of another in the result. With conditions on the version before it has no result: it gets a `match` of each
  version that matches and satisfies these against the version that it replaces.
- There the other kinds start from the living versions, whatever the window leaves of them, and show any change at the
  next boundary. An object that is in a result before and after, in whatever versions, neither leaves nor enters; one
  that was deleted in between and came again does both. A deletion takes no place in a count window.
"""

import heapq
import math
from collections.abc import Collection, Iterator, Mapping

from matching.errors import TopologyError
from matching.model import (
    ANY_KEYWORD,
    BOOLEAN,
    CHANGE,
    DECAY,
    ENTER,
    KNN,
    LEAVE,
    MATCH,
    SKYLINE,
    TOPK,
    MessageBatch,
    Removals,
    SubscriptionTable,
)
from matching.naive_filters import NaiveInstruction, happened, holds
from matching.naive_rows import (
    DecayModel,
    Extras,
    NaiveMessage,
    NaiveSubscription,
    NaiveUpdate,
    Result,
    messages_of,
    subscriptions_of,
)
from matching.naive_shapes import metres
from matching.window import NO_FLOOR, Boundary, Window

# ------------------------------------------------------------------------------------------------- what is a match


def carried_for(subscription: NaiveSubscription, message: NaiveMessage) -> Collection[int]:
    """The terms that a subscription may find a message by: of `skyline`, whose results are by words shared, those that
    count as words."""
    return message.weights if subscription.kind == SKYLINE else message.carried


def common_terms(subscription: NaiveSubscription, message: NaiveMessage) -> list[int]:
    """Keywords of the subscription that the message carries, ascending."""
    carried = carried_for(subscription, message)
    return sorted(term for term in subscription.weights if term in carried)


def meets(subscription: NaiveSubscription, message: NaiveMessage) -> bool:
    """Whether they share a keyword, or the subscription asks for every visible message."""
    return message.visible if subscription.wordless else bool(common_terms(subscription, message))


def alpha_of(subscription: NaiveSubscription) -> float:
    """The weight of the place: 1 without keywords."""
    return 1.0 if subscription.wordless else subscription.alpha


def passes(subscription: NaiveSubscription, message: NaiveMessage) -> bool:
    """Whether a message satisfies the filter of a subscription; a range message counts with its centre."""
    return first_failed(subscription, message) is None


def first_failed(subscription: NaiveSubscription, message: NaiveMessage) -> NaiveInstruction | None:
    """The first instruction of the filter that a message does not satisfy."""
    lon, lat = (message.west + message.east) / 2.0, (message.south + message.north) / 2.0
    failed = (
        one for one in subscription.filter if not holds(one, lon, lat, message.carried, message.keys, message.order)
    )
    return next(failed, None)


def asks_for(subscription: NaiveSubscription, change: int) -> bool:
    """Whether a subscription to objects asks for updates of a kind (`matching.model.CHANGES`)."""
    for one in subscription.filter:
        if one.name == "asked":
            return one.argument // 2**change % 2 == 1
    return change in (ENTER, LEAVE)


def boxes(region: tuple[float, float, float, float]) -> list[tuple[float, float, float, float]]:
    """The one or two rectangles of a region: two if it crosses the antimeridian (west > east)."""
    west, south, east, north = region
    if west > east:
        return [(west, south, 180.0, north), (-180.0, south, east, north)]
    return [region]


def boxes_meet(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> bool:
    """Whether two closed rectangles share a point; a border or corner is enough."""
    return a[0] <= b[2] and b[0] <= a[2] and a[1] <= b[3] and b[1] <= a[3]


def boolean_match(subscription: NaiveSubscription, message: NaiveMessage) -> bool:
    """All keywords contained, or one where one is enough (`ANY_KEYWORD`), and the region met by point or rectangle;
    without keywords the message has to be visible.

    Nothing wraps: a point at longitude 180 is not at -180, though a region across the antimeridian contains both."""
    place = (message.west, message.south, message.east, message.north)
    contained = (
        [message.visible] if subscription.wordless else [term in message.carried for term in subscription.weights]
    )
    return (any(contained) if subscription.match == ANY_KEYWORD else all(contained)) and any(
        boxes_meet(box, place) for box in boxes(subscription.region)
    )


def distance(subscription: NaiveSubscription, message: NaiveMessage) -> float:
    """Great-circle metres on the sphere, in the plane Euclidean in the unit square; the score of `knn`."""
    if subscription.vector is not None and message.vector is not None:
        return metres(subscription.vector, message.vector)
    dx = subscription.x - message.x
    dy = subscription.y - message.y
    return math.sqrt(dx * dx + dy * dy)


def proximity(subscription: NaiveSubscription, message: NaiveMessage, max_distance: float) -> float:
    """1 where both are at one place, 0 at the subscription's own radius, or at MaxDist if it names none."""
    farthest = max_distance if subscription.radius_m is None else subscription.radius_m
    return 1.0 - distance(subscription, message) / farthest


def topk_score(subscription: NaiveSubscription, message: NaiveMessage, max_distance: float) -> float:
    """Weighted sum of spatial proximity and tf-idf cosine."""
    spatial = proximity(subscription, message, max_distance)
    text = 0.0
    for term in common_terms(subscription, message):
        text += subscription.weights[term] * message.weights.get(term, 0.0)  # one for matching alone weighs nothing
    return alpha_of(subscription) * spatial + (1.0 - alpha_of(subscription)) * text


def decay_key(subscription: NaiveSubscription, message: NaiveMessage, max_distance: float, model: DecayModel) -> float:
    """ln(spatial-keyword relevance) + event time * ln D: ranks as the decaying score does, at any time.

    The text relevance is the product, over all keywords of the subscription in ascending term id, of the smoothed
    probability of the keyword in the message. A relevance of zero or less gives minus infinity.
    """
    length = max(1, sum(message.counts.values()))  # all its words may be for matching alone
    text = 1.0
    for term in sorted(subscription.weights):
        in_message = message.counts.get(term, 0) / length
        in_collection = model.collection_count.get(term, 0) / model.total_tokens if model.total_tokens else 0.0
        text *= (1.0 - model.smoothing) * in_message + model.smoothing * in_collection
    spatial = proximity(subscription, message, max_distance)
    relevance = alpha_of(subscription) * spatial + (1.0 - alpha_of(subscription)) * text
    if relevance <= 0.0:
        return -math.inf
    return math.log(relevance) + (message.event_time_us - model.epoch_us) / 1e6 * model.log_base_per_s


def skyline_scores(subscription: NaiveSubscription, message: NaiveMessage) -> tuple[float, float] | None:
    """(spatial, text) relevance, or None for a message outside the region.

    Spatial: 1 at the centre of the region, 0 at its corners, linear in degrees between (a region is a rectangle
    in degrees whatever the projection). Text: Jaccard. A range message stands at the centre of its rectangle.
    """
    west, south, east, north = subscription.region
    lon, lat = (message.west + message.east) / 2.0, (message.south + message.north) / 2.0
    if not (west <= lon <= east and south <= lat <= north):
        return None
    dx, dy = lon - (west + east) / 2.0, lat - (south + north) / 2.0
    width, height = east - west, north - south
    half_diagonal = math.sqrt(width * width + height * height) / 2.0
    spatial = 1.0 if half_diagonal == 0.0 else max(0.0, 1.0 - math.sqrt(dx * dx + dy * dy) / half_diagonal)
    common = len(common_terms(subscription, message))
    return spatial, common / (len(subscription.weights) + len(message.weights) - common)


def dominates(a: tuple[float, float], b: tuple[float, float]) -> bool:
    """Whether a is at least as good as b in both relevances and not equal to it."""
    return a[0] >= b[0] and a[1] >= b[1] and a != b


# ------------------------------------------------------------------------------------- the result of one subscription


class NaiveResult:
    """Messages eligible for the result of one subscription, and its last result (`reported`: score by seq)."""

    from_window = False  # whether it starts from the window and follows its expiry, or starts empty and never expires

    def __init__(self, subscription: NaiveSubscription, max_distance: float, decay: DecayModel | None):
        self.subscription = subscription
        self.max_distance = max_distance
        self.decay = decay
        self.reported: dict[int, float] = {}
        self.changed = True  # something came or went since the last boundary
        self.least_life: float = math.inf  # of the result: while the floor is below, expiry changes nothing

    def offer(self, message: NaiveMessage) -> None:
        """Take notice of a message that shares a keyword."""
        raise NotImplementedError

    def withdraw(self, seq: int) -> None:
        """Forget a message that was deleted or replaced (only `skyline` listens)."""

    def ranked(self, floor: int) -> list[tuple[int, float, float]]:
        """The result, best first: (seq, score, text score or NaN)."""
        raise NotImplementedError


class TopK(NaiveResult):
    """The k best of the window; of equal scores the newer first."""

    from_window = True

    def __init__(self, subscription: NaiveSubscription, max_distance: float, decay: DecayModel | None):
        super().__init__(subscription, max_distance, decay)
        self.scored: list[tuple[float, int, int]] = []  # score, seq, life of every eligible message of the window
        self.best: list[tuple[float, int, int]] = []
        self.ranked_count = 0  # how many of `scored` the last ranking has seen

    def offer(self, message: NaiveMessage) -> None:
        score = topk_score(self.subscription, message, self.max_distance)
        self.scored.append((score, message.seq, message.life))

    def ranked(self, floor: int) -> list[tuple[int, float, float]]:
        if self.least_life <= floor:  # one of the best has gone: all that are alive compete again
            self.scored = [entry for entry in self.scored if entry[2] > floor]
            pool = self.scored
        else:  # none has gone, so nothing that was beaten before can come back: the best against what is new
            pool = self.best + [entry for entry in self.scored[self.ranked_count :] if entry[2] > floor]
        self.best = heapq.nlargest(self.subscription.k, pool)  # by score, then by seq, which is unique
        self.ranked_count = len(self.scored)
        self.least_life = min((life for _, _, life in self.best), default=math.inf)
        return [(seq, score, math.nan) for score, seq, _ in self.best]


class Decay(NaiveResult):
    """The k best ever since registration by the log key; of equal keys the older first."""

    def __init__(self, subscription: NaiveSubscription, max_distance: float, decay: DecayModel | None):
        super().__init__(subscription, max_distance, decay)
        self.best: list[tuple[float, int]] = []

    def offer(self, message: NaiveMessage) -> None:
        if message.event_time_us == NO_FLOOR:
            return
        if self.decay is None or (message.weights and not message.counts):
            what = "decay model" if self.decay is None else f"counts for message {message.seq}"
            raise TopologyError(f"decay subscription {self.subscription.number}: the oracle was given no {what}")
        self.best.append((decay_key(self.subscription, message, self.max_distance, self.decay), message.seq))
        self.best.sort(key=lambda entry: (-entry[0], entry[1]))
        del self.best[self.subscription.k :]

    def ranked(self, floor: int) -> list[tuple[int, float, float]]:
        return [(seq, key, math.nan) for key, seq in self.best]


class Knn(NaiveResult):
    """The k nearest since registration; of equal distances the older first."""

    def __init__(self, subscription: NaiveSubscription, max_distance: float, decay: DecayModel | None):
        super().__init__(subscription, max_distance, decay)
        self.nearest: list[tuple[float, int]] = []

    def offer(self, message: NaiveMessage) -> None:
        self.nearest.append((distance(self.subscription, message), message.seq))
        self.nearest.sort()
        del self.nearest[self.subscription.k :]

    def ranked(self, floor: int) -> list[tuple[int, float, float]]:
        return [(seq, far, math.nan) for far, seq in self.nearest]


class OfObjects(NaiveResult):
    """The k best of the living versions: of a stream of objects, in which any of them may end at any time."""

    from_window = True
    sign = 1.0  # of the order of scores: 1 if more is better
    newer_first = False  # of equal scores

    def __init__(self, subscription: NaiveSubscription, max_distance: float, decay: DecayModel | None):
        super().__init__(subscription, max_distance, decay)
        self.scored: dict[int, tuple[float, int]] = {}  # seq: (score, life)

    def score(self, message: NaiveMessage) -> float | None:
        """The score of a version, None for one that the kind does not see."""
        raise NotImplementedError

    def offer(self, message: NaiveMessage) -> None:
        score = self.score(message)
        if score is not None:
            self.scored[message.seq] = (score, message.life)

    def withdraw(self, seq: int) -> None:
        self.scored.pop(seq, None)

    def ranked(self, floor: int) -> list[tuple[int, float, float]]:
        self.scored = {seq: entry for seq, entry in self.scored.items() if entry[1] > floor}
        order = sorted(
            (-self.sign * score, -seq if self.newer_first else seq, seq) for seq, (score, _) in self.scored.items()
        )
        best = [seq for *_, seq in order[: self.subscription.k]]
        self.least_life = min((self.scored[seq][1] for seq in best), default=math.inf)
        return [(seq, self.scored[seq][0], math.nan) for seq in best]


class NaiveTopKOfObjects(OfObjects):
    """As `TopK`."""

    newer_first = True

    def score(self, message: NaiveMessage) -> float | None:
        return topk_score(self.subscription, message, self.max_distance)


class NaiveKnnOfObjects(OfObjects):
    """As `Knn`, of all living objects: not only of those since registration."""

    sign = -1.0

    def score(self, message: NaiveMessage) -> float | None:
        return distance(self.subscription, message)


class NaiveDecayOfObjects(OfObjects):
    """As `Decay`, of all living objects; each fades since the time of its current version."""

    def score(self, message: NaiveMessage) -> float | None:
        if message.event_time_us == NO_FLOOR:
            return None
        assert self.decay is not None, "a decay subscription needs a decay model"
        return decay_key(self.subscription, message, self.max_distance, self.decay)


class Skyline(NaiveResult):
    """All messages of the window inside the region that no other dominates, by spatial relevance then seq."""

    from_window = True

    def __init__(self, subscription: NaiveSubscription, max_distance: float, decay: DecayModel | None):
        super().__init__(subscription, max_distance, decay)
        self.scored: dict[int, tuple[tuple[float, float], int]] = {}  # seq: ((spatial, text), life)

    def offer(self, message: NaiveMessage) -> None:
        scores = skyline_scores(self.subscription, message)
        if scores is not None:
            self.scored[message.seq] = (scores, message.life)

    def withdraw(self, seq: int) -> None:
        self.scored.pop(seq, None)

    def ranked(self, floor: int) -> list[tuple[int, float, float]]:
        self.scored = {seq: entry for seq, entry in self.scored.items() if entry[1] > floor}
        self.least_life = min((life for _, life in self.scored.values()), default=math.inf)
        # Of equal text scores only the nearest can stay, and messages with the same pair of scores stay or go together.
        nearest: dict[float, float] = {}
        for (spatial, text), _ in self.scored.values():
            nearest[text] = max(spatial, nearest.get(text, 0.0))
        pairs = {(spatial, text) for text, spatial in nearest.items()}
        best = {pair for pair in pairs if not any(dominates(other, pair) for other in pairs)}
        kept = [(-scores[0], seq, scores[1]) for seq, (scores, _) in self.scored.items() if scores in best]
        return [(seq, -negative, text) for negative, seq, text in sorted(kept)]


#: How each kind but `boolean` keeps its result.
STANDINGS: dict[int, type[NaiveResult]] = {TOPK: TopK, DECAY: Decay, KNN: Knn, SKYLINE: Skyline}
#: The same in a stream of objects.
STANDINGS_OF_OBJECTS = STANDINGS | {TOPK: NaiveTopKOfObjects, DECAY: NaiveDecayOfObjects, KNN: NaiveKnnOfObjects}


# --------------------------------------------------------------------------------------------------------- the oracle


class Oracle:
    """All five kinds over one stream, fed batch by batch in the order of seq.

    Parameters
    ----------
    window : Window or None
        With a window the oracle works out every floor itself and refuses a boundary that says otherwise; None trusts
        the boundaries.
    max_distance : float
        Largest distance within the world box (`matching.space.Space.max_distance`).
    decay : DecayModel, optional
        Needed as soon as a `decay` subscription meets a message.
    standings : mapping of kind to Standing class, optional
        For tests of the oracle itself: a broken class must be caught.
    objects : bool
        The stream is one of objects.

    Notes
    -----
    O(eligible pairs) a batch, and O(m log m) for each windowed subscription whose result lost a message, m being the
    eligible messages of its window.
    """

    def __init__(
        self,
        window: Window | None,
        max_distance: float,
        decay: DecayModel | None = None,
        standings: Mapping[int, type[NaiveResult]] | None = None,
        objects: bool = False,
    ):
        self.objects = objects
        self._living: dict[object, NaiveMessage] = {}  # the living version of each object
        self.window = window
        self.max_distance = max_distance
        self.decay = decay
        self.standings = (STANDINGS_OF_OBJECTS if objects else STANDINGS) | dict(standings or {})
        self._subscriptions: dict[int, NaiveSubscription] = {}
        self._by_term: dict[int, set[int]] = {}
        self._wordless: set[int] = set()
        self._standing: dict[int, NaiveResult] = {}
        self._ended: list[NaiveResult] = []
        self._kept: list[NaiveMessage] = []  # the window, and what expired since it was last swept
        self._sweep_at = 1024
        self._version: dict[object, int] = {}  # object to the seq of its current version, of kept messages
        self._replaced: set[int] = set()  # seqs of older versions and of deletions
        self._successor: dict[int, int] = {}  # of versions of a stream of objects replaced since the last boundary
        self._newest_life = NO_FLOOR
        self._boundary: Boundary | None = None
        self._placed: list[int] = []  # the newest seqs that have a place in a count window over objects

    def advance(
        self,
        boundary: Boundary,
        messages: MessageBatch,
        added: SubscriptionTable,
        removed: Removals,
        extras: Extras | None = None,
    ) -> list[NaiveUpdate]:
        """Publish one batch with the changes that take effect inside it.

        Parameters
        ----------
        boundary : Boundary            the end of this batch
        messages : MessageBatch        ascending seq within the boundary; gaps are messages without any keyword
        added, removed                 in the order of `at`; see `ChangeList`
        extras : Extras, optional      more columns of the same rows

        Returns
        -------
        list of Update
            The matches by seq, then the boundary's events by subscription; within a subscription, leaves first.

        Raises
        ------
        TopologyError
            For a boundary that does not follow the last one or has another floor than the window gives, a number
            that is used twice, or the removal of a subscription that is not there.
        """
        rows = list(messages_of(messages, extras))
        self._check(boundary, rows)
        changes: list[tuple[int, NaiveSubscription | int]] = [(new.at, new) for new in subscriptions_of(added)]
        changes += zip(removed.at.tolist(), removed.number.tolist(), strict=True)
        # At one seq an addition goes first: a subscription that ends where it begins is there before it is removed.
        changes.sort(key=lambda change: (change[0], isinstance(change[1], int)))
        updates: list[NaiveUpdate] = []
        done = 0
        for message in rows:
            while done < len(changes) and changes[done][0] <= message.seq:
                self._change(changes[done][1])
                done += 1
            updates += self._publish(message)
        for _, change in changes[done:]:
            self._change(change)
        self._boundary = boundary
        updates += self._differences(boundary)
        self._sweep(boundary.floor)
        return updates

    def results(self) -> list[Result]:
        """All results as of the last boundary, by number and rank."""
        floor = self._boundary.floor if self._boundary else NO_FLOOR
        return [
            Result(number, rank, seq, score, text)
            for number in sorted(self._standing)
            for rank, (seq, score, text) in enumerate(self._standing[number].ranked(floor), start=1)
        ]

    def _check(self, boundary: Boundary, rows: list[NaiveMessage]) -> None:
        """Refuse a boundary out of order, a message outside it, or a floor that the window does not give."""
        last = self._boundary or Boundary(-1, 0, boundary.first_seq - 1, NO_FLOOR)
        if boundary.first_seq != last.last_seq + 1 or boundary.last_seq < last.last_seq:
            raise TopologyError(f"{boundary} does not follow {last}: feed every batch once, in order")
        seqs = [boundary.first_seq - 1, *(row.seq for row in rows), boundary.last_seq + 1]
        if any(later <= earlier for earlier, later in zip(seqs, seqs[1:], strict=False)):
            raise TopologyError(f"messages of {boundary} are not in ascending seq inside it")
        floor = boundary.floor
        if self.window is not None and self.window.kind == "living":
            floor = NO_FLOOR
        elif self.window is not None and self.window.kind == "count" and self.objects:
            deletions = {row.seq for row in rows if row.op == 1}
            seqs_here = range(boundary.first_seq, boundary.last_seq + 1)
            self._placed = [*self._placed, *(seq for seq in seqs_here if seq not in deletions)]
            self._placed = self._placed[-self.window.length - 1 :]
            floor = self._placed[0] if len(self._placed) > self.window.length else -1
        elif self.window is not None and self.window.kind == "count":
            floor = boundary.last_seq - self.window.length
        elif self.window is not None:
            # A batch from which a caller dropped rows may lack the newest message: the floor can then be higher.
            self._newest_life = max([self._newest_life, *(row.life for row in rows)])
            floor = max(floor, self._newest_life - self.window.length)
        if floor != boundary.floor or floor < last.floor:
            raise TopologyError(f"{boundary} has a wrong floor: {floor} follows from window {self.window} and {last}")

    def _change(self, change: NaiveSubscription | int) -> None:
        """Register a subscription, or end the one with this number."""
        if isinstance(change, NaiveSubscription):
            self._register(change)
            return
        subscription = self._subscriptions.pop(change, None)
        if subscription is None:
            raise TopologyError(f"subscription {change} cannot be removed: it was never added, or removed before")
        for term in subscription.weights:
            self._by_term[term].discard(change)
        self._wordless.discard(change)
        if change in self._standing:
            self._ended.append(self._standing.pop(change))

    def _register(self, new: NaiveSubscription) -> None:
        if new.number in self._subscriptions:
            raise TopologyError(f"subscription {new.number} cannot be added: the number is in use")
        self._subscriptions[new.number] = new
        for term in new.weights:
            self._by_term.setdefault(term, set()).add(new.number)
        if new.wordless:
            self._wordless.add(new.number)
        if new.kind == BOOLEAN:
            return
        standing = self.standings[new.kind](new, self.max_distance, self.decay)
        self._standing[new.number] = standing
        if standing.from_window:
            for message in self._living.values() if self.objects else self._kept:
                if meets(new, message) and passes(new, message) and not self._hidden(new.kind, message.seq):
                    standing.offer(message)

    def _publish(self, message: NaiveMessage) -> Iterator[NaiveUpdate]:
        """One message meets every subscription with which it shares a keyword, or that has none."""
        if self.objects:
            yield from self._change_object(message)
            return
        self._replace(message)
        self._kept.append(message)
        met: set[int] = set(self._wordless) if message.visible else set()
        for term in message.carried:
            met |= self._by_term.get(term, set())
        for number in sorted(met):
            subscription = self._subscriptions[number]
            if not (meets(subscription, message) and passes(subscription, message)):
                continue
            if subscription.kind == BOOLEAN:
                if boolean_match(subscription, message):
                    yield NaiveUpdate(message.seq, number, message.seq, MATCH, math.nan)
            elif not self._hidden(subscription.kind, message.seq):
                self._standing[number].offer(message)
                self._standing[number].changed = True

    def _change_object(self, row: NaiveMessage) -> Iterator[NaiveUpdate]:
        """The updates of a row of a stream of objects: the version before and the one after it are both tested."""
        if row.op != 1 and not row.visible:
            return
        before, after = self._living.pop(row.object_id, None), None if row.op == 1 else row
        if after is not None:
            self._living[row.object_id] = after
        for number, subscription in sorted(self._subscriptions.items()):
            if subscription.kind != BOOLEAN:
                continue
            was, now = (
                each is not None
                and meets(subscription, each)
                and passes(subscription, each)
                and boolean_match(subscription, each)
                for each in (before, after)
            )
            change, seq = (CHANGE, row.seq) if was else (ENTER, row.seq)
            if was and not now:
                assert before is not None
                change, seq = LEAVE, before.seq
            if asks_for(subscription, MATCH):
                if before is None or after is None:
                    continue
                if not all(happened(one, before.keys, after.keys) for one in subscription.filter):
                    continue
                change, was, seq = MATCH, False, row.seq
            if (was or now) and asks_for(subscription, change):
                yield NaiveUpdate(row.seq, number, seq, change, math.nan)
        for number, standing in self._standing.items():
            if before is not None:
                standing.withdraw(before.seq)
                standing.changed = True
            subscription = self._subscriptions[number]
            if after is not None and meets(subscription, after) and passes(subscription, after):
                standing.offer(after)
                standing.changed = True
        if before is not None and after is not None:
            self._successor[before.seq] = after.seq

    def _replace(self, message: NaiveMessage) -> None:
        """A new version of an object, or its deletion, ends the current version for `skyline`."""
        older = self._version.get(message.object_id)
        if older is not None:
            self._replaced.add(older)
            for standing in self._standing.values():
                standing.withdraw(older)
                standing.changed = True
        if message.op == 1:
            self._replaced.add(message.seq)
        self._version[message.object_id] = message.seq

    def _hidden(self, kind: int, seq: int) -> bool:
        """Other kinds than `skyline` take versions and deletions for messages like any other."""
        return kind == SKYLINE and seq in self._replaced

    def _differences(self, boundary: Boundary) -> Iterator[NaiveUpdate]:
        """Enter and leave events between the last boundary and this one."""
        for standing in self._ended:
            for seq, score in standing.reported.items():
                yield NaiveUpdate(boundary.last_seq, standing.subscription.number, seq, LEAVE, score)
        self._ended = []
        for number, standing in sorted(self._standing.items()):
            # Unless something came, was withdrawn, or can have expired, the result is what it was.
            if not standing.changed and standing.least_life > boundary.floor:
                continue
            now = {seq: score for seq, score, _ in standing.ranked(boundary.floor)}
            present = {seq: self._present(seq) for seq in standing.reported}
            for seq in sorted(standing.reported):
                if present[seq] not in now:
                    yield NaiveUpdate(boundary.last_seq, number, seq, LEAVE, standing.reported[seq])
            for seq in sorted(now.keys() - set(present.values())):
                yield NaiveUpdate(boundary.last_seq, number, seq, ENTER, now[seq])
            if asks_for(standing.subscription, CHANGE):
                for seq in sorted(now.keys() & set(present.values()) - standing.reported.keys()):
                    yield NaiveUpdate(boundary.last_seq, number, seq, CHANGE, now[seq])
            standing.reported = now
            standing.changed = False
        self._successor = {}

    def _present(self, seq: int) -> int:
        """The version of an object that stands now, of the one that stood at the last boundary; in a stream of
        messages, and of an object that was deleted since, that one itself."""
        while seq in self._successor:
            seq = self._successor[seq]
        return seq

    def _sweep(self, floor: int) -> None:
        """Drop expired messages now and then; a dead one that is kept longer is harmless, every result filters."""
        if len(self._kept) < self._sweep_at:
            return
        self._kept = [message for message in self._kept if message.life > floor]
        self._sweep_at = max(1024, 2 * len(self._kept))
        alive = {message.seq for message in self._kept}
        self._replaced &= alive
        self._version = {name: seq for name, seq in self._version.items() if seq in alive}
