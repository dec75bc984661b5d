"""Decides when an update of a subscription with `tell` is told: at once, held for a digest, or not at all.

The `Teller` reads the log of updates from its position on, once for all who are told. What it decides is a *telling*:
one or more updates of a subscription, or the digest of a window, with an id. A step is decided without any effect, is
stored in one transaction with the position and the state behind it, and counts then (`gateway.sinks.told_store`). So a
process that dies between two steps has decided nothing, or all: no telling is repeated or lost. Held updates are not
stored: that there are some, behind which position, is; they are read from the log again.

Updates that were logged before a process began are told by the clock as it was when the process before it wrote last:
a digest that became due while nothing ran has all that belongs to it, and no more.
"""

import heapq
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
import xxhash

from gateway.serve.registry import Registry
from gateway.serve.released import ReleasedUpdate
from gateway.serve.update_log import UpdateLog
from gateway.serve.update_parts import END, Position
from matching.telling import AT_ONCE, TellingRule, telling_of, wall_clock

#: Messages with which a new one is compared, the last that were told.
COMPARED = 100
#: Updates that a telling has at most, and their bytes: of a larger digest those that came last.
MOST_TOLD, MOST_TOLD_BYTES = 1_000, 512 * 1024
#: Held updates that are read again at a time, about.
_READ_AGAIN = 20_000
#: Seconds after which the time is stored although nothing else is.
_STORE_S = 5.0
#: A time that is farther ahead is of a clock that was set back: no window is so long.
_FAR_S = 2 * 86_400.0
#: A clock that shows so much less than before was set back.
_BACK_S = 600.0

Pair = tuple[int, int]


class Standing(msgspec.Struct, omit_defaults=True):
    """What is stored of a subscription that is told by `tell`; positions are (boundary, index).

    spans : list of (since, ends)    updates behind `since` and up to `ends` are told so; None: until now
    held_after : position or None    held updates are behind it, up to that of the teller
    held : int                       how many
    due_s : float or None            when they are told; None while it is paused
    last_due_s : float               of the last digest
    hour, told : int                 how many updates were told one by one in an hour, counted from 1970
    recent : list of int             seqs of the messages that were told last
    """

    spans: list[tuple[Pair, Pair | None]]
    held_after: Pair | None = None
    held: int = 0
    due_s: float | None = None
    last_due_s: float = 0.0
    hour: int = 0
    told: int = 0
    recent: list[int] = []

    @property
    def is_open(self) -> bool:
        return bool(self.spans) and self.spans[-1][1] is None


class Told(NamedTuple):
    """A telling.

    told_id : str            the same whenever it is sent
    subscription_id, owner : str
    through : Position       behind its last update
    told_s : float           when it was decided, in seconds since 1970
    head : bytes             what it is, as JSON: `window`, counts and so on
    rows : bytes             its updates, each a line of JSON
    """

    told_id: str
    subscription_id: str
    owner: str
    through: Position
    told_s: float
    head: bytes
    rows: bytes


class TellingStep(NamedTuple):
    """What a step has decided: states that change (None: forgotten), tellings, and the position and time behind it."""

    position: Position
    clock_s: float
    changed: dict[str, Standing | None]
    told: list[Told]
    settings: dict[str, TellingRule | None]


class Teller:
    """See the module; for one thread, but `tells`.

    Parameters
    ----------
    words : callable
        The words of a text.
    logged_before : int
        Seq of the last message that was logged before this process.
    position : Position or None
        Where the process before it was; None: nothing was stored.
    reached : Position
        Updates up to here were told otherwise, as none of them was for the teller.
    clock_s : float
        When that was.
    standings : dict
        What it stored.
    overrides : dict of str to (int, Any)
        `tell` of subscriptions that was set later: for the one of this number, in place of its column.
    wall : callable
        Seconds since 1970.
    """

    def __init__(
        self,
        log: UpdateLog,
        subscriptions: Registry,
        words: Callable[[str], Collection[str]],
        logged_before: int,
        position: Position | None,
        reached: Position,
        clock_s: float,
        standings: dict[str, Standing],
        overrides: dict[str, tuple[int, Any]],
        wall: Callable[[], float],
    ):
        self.standings, self.overrides = standings, overrides
        self._log, self._subscriptions = log, subscriptions
        self._words, self.wall = words, wall
        self.logged_before, self._clock_s = logged_before, clock_s
        self.settings = {name: found for name in standings if (found := self._setting_of(name)) is not None}
        self._changes = {*standings, *subscriptions.tells}
        self._open = {name for name, one in standings.items() if one.is_open}
        self.closed = standings.keys() - self._open  # told as their updates come again, but not long since
        self._due = [(one.due_s, name) for name, one in standings.items() if one.due_s is not None]  # a heap
        heapq.heapify(self._due)
        self._texts: dict[str, deque[frozenset[str]]] = {}
        self.position = log.head if position is None else position
        if position is None and subscriptions.tells:
            self.position = min(log.head, self._first())
        self.position = max(self.position, reached)

    def _first(self) -> Position:
        """Before the first update of a subscription that is told by `tell`."""
        found = [self._subscriptions.get(name) for name in list(self._subscriptions.tells)]
        return Position(min(one.at for one in found if one is not None) - 1, END)

    def tells(self, name: str, position: Position) -> bool:
        """Whether the update at a position is told by the teller, and so by nothing else; not beyond its position."""
        standing = self.standings.get(name)
        return standing is not None and is_told_so(standing, position)

    @property
    def held(self) -> int:
        """How many updates wait, of all subscriptions; for any thread."""
        return sum(one.held for one in list(self.standings.values()))

    @property
    def needs(self) -> list[Position]:
        """Positions behind which updates are still to be read; for any thread."""
        held = [one.held_after for one in list(self.standings.values()) if one.held_after is not None]
        return [self.position, *(Position(*each) for each in held)]

    @property
    def idle(self) -> bool:
        """Whether no subscription has ever had a `tell`: all updates are told as they come."""
        return not (self.standings or self._changes or self._subscriptions.tells_changed)

    def step(self, reached: Position) -> TellingStep | None:
        """What is to be told now; None if nothing has changed. Changes nothing: `take` does, once it is stored.

        `reached` is a position that all have who ask `tells`.
        """
        subscriptions = self._subscriptions
        while subscriptions.tells_changed:
            self._changes.add(subscriptions.tells_changed.popleft())
        if self.idle:
            self.position = self._log.head
            return None
        changes, self._changes = self._changes | self._replaced(), set()
        catching_up = self.position.boundary < self.logged_before or self._log.head < self.position
        wall_s = self.wall()
        now_s = min(self._clock_s or wall_s, wall_s) if catching_up else wall_s
        deciding = _Deciding(self, now_s)
        for name in changes:
            deciding.change(name, self._setting_of(name))
        if not catching_up:
            deciding.ring(self._due_at(now_s))
        behind = deciding.read()
        deciding.forget(reached)
        changed, told = deciding.changed, deciding.told
        stored_s = self._clock_s if catching_up else wall_s
        unchanged = not changed and not told
        if unchanged and (behind == self.position or (not catching_up and wall_s < self._clock_s + _STORE_S)):
            self._set(deciding.settings)
            self.position = behind  # what is stored lags: it is read again after a crash, and decides nothing again
            return None
        return TellingStep(behind, stored_s, changed, told, deciding.settings)

    def take(self, step: TellingStep) -> None:
        """Count a step, which is stored."""
        self.position, self._clock_s = step.position, step.clock_s
        self._set(step.settings)
        for name, standing in step.changed.items():
            if standing is None:
                self.standings.pop(name, None)
                self._texts.pop(name, None)
            else:
                self.standings[name] = standing
                if standing.due_s is not None:
                    heapq.heappush(self._due, (standing.due_s, name))
            is_open = standing is not None and standing.is_open
            (self._open.add if is_open else self._open.discard)(name)
            (self.closed.discard if is_open or standing is None else self.closed.add)(name)

    def _due_at(self, now_s: float) -> list[str]:
        """Subscriptions that may be due; they are so until a step has told them. After a clock was set back, all."""
        if now_s < self._clock_s - _BACK_S:
            return [name for name, one in self.standings.items() if one.due_s is not None]
        found = []
        while self._due and self._due[0][0] <= now_s:
            due_s, name = heapq.heappop(self._due)
            if (one := self.standings.get(name)) is not None and one.due_s == due_s:
                found.append((due_s, name))
        for one in found:
            heapq.heappush(self._due, one)  # until it is stored
        return [name for _, name in dict.fromkeys(found)]

    def change(self, name: str, number: int, tell: Any) -> None:
        """`tell` of the subscription of a number is set, which is stored; None: its column counts again."""
        if tell is None:
            self.overrides.pop(name, None)
        else:
            self.overrides[name] = number, tell
        self._subscriptions.tells_changed.append(name)

    def tell_of(self, name: str, number: int) -> Any:
        """`tell` of the subscription of a number, as it was given; None: its updates are told as they come."""
        override = self.overrides.get(name)
        return override[1] if override is not None and override[0] == number else self._column_of(name)

    def _column_of(self, name: str) -> Any:
        return self._subscriptions.tells.get(name)

    def _setting_of(self, name: str) -> TellingRule | None:
        """How a subscription is told now; None: as its updates come."""
        one = self._subscriptions.get(name)
        tell = None if one is None else self.tell_of(name, one.number)
        found = AT_ONCE if tell is None else telling_of(tell)  # a zone may be gone from this machine
        return None if isinstance(found, str) or found == AT_ONCE else found

    def _set(self, settings: Mapping[str, TellingRule | None]) -> None:
        for name, setting in settings.items():
            if setting is None:
                self.settings.pop(name, None)
            else:
                self.settings[name] = setting

    def _replaced(self) -> set[str]:
        """Subscriptions that were ended or replaced since their `tell` was set."""
        found = set()
        for name, (number, _) in list(self.overrides.items()):
            one = self._subscriptions.get(name)
            if one is None or one.number != number:
                self.overrides.pop(name, None)
                found.add(name)
        return found

    def texts_of(self, name: str, recent: Iterable[int]) -> deque[frozenset[str]]:
        """Words of the messages that were told last."""
        if name not in self._texts:
            found = self._log.parts.look_up(sorted(set(recent)))
            self._texts[name] = deque((frozenset(self._words(found[seq].text)) for seq in recent), COMPARED)
        return self._texts[name]

    def refuse(self, step: TellingStep) -> None:
        """A step cannot be stored: it is decided anew."""
        self._changes |= step.settings.keys()
        for name in step.changed:
            self._texts.pop(name, None)


class _Deciding:
    """One step."""

    def __init__(self, teller: Teller, now_s: float):
        self._teller, self._now_s = teller, now_s
        self.changed: dict[str, Standing | None] = {}
        self.told: list[Told] = []
        self.settings: dict[str, TellingRule | None] = {}

    def _of(self, name: str) -> Standing:
        """A copy of what stands of a subscription, to be changed."""
        standing = self.changed.get(name)
        if standing is None:
            before = self._teller.standings.get(name)
            standing = Standing([]) if before is None else msgspec.structs.replace(
                before, spans=[*before.spans], recent=[*before.recent]
            )  # fmt: skip
            self.changed[name] = standing
        return standing

    def _setting(self, name: str) -> TellingRule | None:
        return self.settings[name] if name in self.settings else self._teller.settings.get(name)

    def change(self, name: str, setting: TellingRule | None) -> None:
        """The setting of a subscription may be another now; what is held is held by the new one."""
        self.settings[name] = setting
        before = self._teller.standings.get(name)
        position = self._teller.position
        place = position.boundary, position.index
        if setting is None:
            if before is not None and before.is_open:
                standing = self._of(name)
                standing.spans[-1] = standing.spans[-1][0], place
                standing.due_s = self._now_s if standing.held else None
            return
        if before is None or not before.is_open:
            self._of(name).spans.append((place, None))
        elif before.held and (setting != self._teller.settings.get(name) or (before.due_s is None) != setting.paused):
            standing, after_s = self._of(name), self._after(before)
            until_s = setting.holds_until(after_s, standing.told if self._is_this_hour(standing) else 0)
            standing.due_s = None if setting.paused else until_s or self._now_s

    def ring(self, maybe: Iterable[str]) -> None:
        """Tell what is held and due, of some subscriptions and those that this step has changed."""
        standings = self._teller.standings
        names = [name for name in dict.fromkeys([*maybe, *self.changed]) if name in self.changed or name in standings]
        due = [name for name in names if self._is_due(name, self.changed.get(name) or standings[name])]
        while due:
            count, group = 0, []
            while due and (not group or count < _READ_AGAIN):
                group.append(due.pop())
                count += self._of(group[-1]).held
            self._tell_held(group)

    def read(self) -> Position:
        """Decide on the updates behind the position, as many as are read at a time; returns the position behind."""
        teller, now_s = self._teller, self._now_s
        opened = {name for name, one in self.changed.items() if one is not None and one.is_open}
        names = {name for name in teller._open | opened if name not in self.changed or name in opened}
        position, head = teller.position, teller._log.head
        if not names or position >= head:
            return max(position, head)
        updates, behind, _ = teller._log.read_whole(position, names)
        at_once: dict[str, list[ReleasedUpdate]] = {}
        for update in updates:
            name, place = update.subscription_id, Position.of(update.position)
            setting = self._setting(name)
            if setting is None or name not in names:
                continue
            standing = self._of(name)
            told = standing.told if self._is_this_hour(standing) else 0
            until_s = None if setting.paused or standing.held else setting.holds_until(self._after(standing), told)
            if setting.paused or standing.held or until_s is not None:
                if not standing.held:
                    standing.held_after, standing.due_s = (place.boundary, place.index - 1), until_s
                standing.held += 1
            elif self._is_new(name, setting, standing, update):
                standing.hour, standing.told = int(now_s // 3600), told + 1
                at_once.setdefault(name, []).append(update)
        for name, some in at_once.items():
            self._tell(name, some, len(some), 0, "", some[0].position)
        return behind

    def forget(self, reached: Position) -> None:
        """Forget subscriptions that are told as they come again, and were so before a position."""
        for name, one in [*self.changed.items()] + [(name, self._teller.standings.get(name)) for name in self._ended()]:
            if one is not None and not one.is_open and not one.held and one.spans[-1][1] <= reached:  # type: ignore[operator]
                self.changed[name] = None

    def _ended(self) -> list[str]:
        return [name for name in self._teller.closed if name not in self.changed]

    def _after(self, standing: Standing) -> float:
        """Behind which moment the next window ends: a window that was told ends no second time."""
        last_s = standing.last_due_s
        return max(self._now_s, last_s) if last_s < self._now_s + _FAR_S else self._now_s

    def _is_this_hour(self, standing: Standing) -> bool:
        return standing.hour == int(self._now_s // 3600)

    def _is_due(self, name: str, standing: Standing) -> bool:
        """Whether it is told now; in quiet hours it becomes due at their end."""
        due_s = standing.due_s
        if not standing.held or due_s is None or self._now_s < due_s <= self._now_s + _FAR_S:
            return False
        setting = self._setting(name)
        if setting is not None and not setting.at and (end_s := setting.quiet_until(self._now_s)) is not None:
            self._of(name).due_s = end_s
            return False
        return True

    def _is_new(self, name: str, setting: TellingRule | None, standing: Standing, update: ReleasedUpdate) -> bool:
        """Whether no message like it was told lately; it counts as told then. Exact."""
        if setting is None or not setting.similar:
            return True
        if update.change == "leave":
            return False
        words = frozenset(self._teller._words(update.text))
        texts = self._teller.texts_of(name, standing.recent)
        if any(are_similar(words, one, setting.similar) for one in texts):
            return False
        texts.append(words)
        standing.recent = [*standing.recent, update.seq][-COMPARED:]
        return True

    def _tell_held(self, names: list[str]) -> None:
        """Digests of what is held of some subscriptions."""
        log, until = self._teller._log, self._teller.position
        after = {name: Position(*(self._of(name).held_after or until)) for name in names}
        found: dict[str, deque[ReleasedUpdate]] = {name: deque(maxlen=MOST_TOLD) for name in names}
        new, alike = Counter[str](), Counter[str]()
        position, lost = min(after.values()), False
        while position < until:
            updates, behind, is_lost = log.read_whole(position, set(names))
            lost |= is_lost
            for update in updates:
                name, place = update.subscription_id, Position.of(update.position)
                if not (after[name] < place <= until and is_told_so(self._of(name), place)):
                    continue
                if self._is_new(name, self._setting(name), self._of(name), update):
                    new[name] += 1
                    found[name].append(update)
                else:
                    alike[name] += 1
            if behind == position:
                break
            position = behind
        for name in names:
            standing = self._of(name)
            due_s = self._now_s if standing.due_s is None or standing.due_s > self._now_s else standing.due_s
            setting = self._setting(name) or AT_ONCE
            window = wall_clock(setting.zone, due_s)
            if new[name] or lost:
                instant = datetime.fromtimestamp(due_s, UTC)
                key = instant.strftime("%Y%m%dT%H%M%S" + (".%f" if instant.microsecond else "") + "Z")
                self._tell(name, list(found[name]), new[name], alike[name], window, key, lost)
            standing.held, standing.held_after, standing.due_s, standing.last_due_s = 0, None, None, due_s

    def _tell(
        self,
        name: str,
        updates: list[ReleasedUpdate],
        count: int,
        alike: int,
        window: str,
        key: str,
        lost: bool = False,
    ) -> None:
        rows, size = deque[bytes](), 0
        for update in reversed(updates):
            if rows and size + len(update.data) > MOST_TOLD_BYTES:
                break
            rows.appendleft(update.data + b"\n")
            size += len(update.data) + 1
        told_id = f"{xxhash.xxh3_64_hexdigest(name.encode())}@{key}"
        head: dict[str, Any] = {"id": told_id, "subscription_id": name, "window": window or None, "count": count}
        head |= {"left_out": count - len(rows)} if count > len(rows) else {}
        head |= {"similar": alike} if alike else {}
        head |= {"lost": True} if lost else {}
        through = Position.of(updates[-1].position) if updates else self._teller.position
        owner = self._teller._subscriptions.owner_of(name)
        encoded = msgspec.json.encode(head)
        self.told.append(Told(told_id, name, owner, through, self._now_s, encoded, b"".join(rows)))


def is_told_so(standing: Standing, position: Position) -> bool:
    """Whether an update at a position was to be told by `tell`."""
    return any(since < position and (ends is None or position <= ends) for since, ends in standing.spans)


def are_similar(one: frozenset[str], other: frozenset[str], least: float) -> bool:
    """Whether the Jaccard similarity of two sets is at least so large; two empty ones are the same."""
    few, many = sorted((len(one), len(other)))
    if few < least * many:  # cannot be: the intersection is no larger than the smaller, the union no smaller
        return False
    common = len(one & other)
    return common >= least * (few + many - common)
