"""Compile every kernel before the stream starts, so that the first batch is no slower than the next.

`topology.core.executors.ray` warms up each node with the engines of the run; `topology.preparing` warms up a kind of a
live stream; `make setup` and `make test` run `python -m topology.warmup`, which compiles the default engines that the
cache lacks, with `--prebuilt` for a wheel. Afterwards Numba loads the kernels from its cache on disk in a fraction of
the time. The warm-up runs every kind in `matching.local_engine` on tiny inputs that reach every kernel: growth,
removal, range messages, objects that end, refills, expiry, both kinds of window, a restore. A new kernel, or a new
argument type of one, needs an input here that reaches it. With an empty cache the warm-up takes minutes, so it reports
progress (`Warmed`).
"""

import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from inspect import getfile
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import distribution.influence
import distribution.keyword
import distribution.location
import distribution.name_hash
import distribution.placed
import distribution.signatures.warmup
import distribution.splitting
from compiling import kernel_cache
from matching.conditions import WITHIN
from matching.filter_programs import Instruction, joined_programs, program_of
from matching.filters import FilterStore, circle_instruction, filters_of, passing, polygon_instruction
from matching.geo.polygons import Rings
from matching.geo.sphere import ball_box, unit_vectors
from matching.half_life import DecayParameters
from matching.iso_times import iso_times
from matching.kind_table import Kind, Kinds
from matching.kinds import KINDS
from matching.languages import in_language
from matching.local_engine import LocalEngine
from matching.model import NO_KEYS, NO_MESSAGES, TERM, MessageBatch, Names, Removals, SubscriptionTable
from matching.operator import OperatorContext, OperatorInput, WindowQuery
from matching.sample_rows import sample_messages, subscriptions
from matching.space import EARTH, Space
from matching.storage.marks import Marker
from matching.storage.sorting import index_pairs
from matching.vocabulary import Vocabulary
from matching.window import Boundary, Window
from matching.words.message_words import MessageWords, weigh

_SPACE = Space(*EARTH)
#: A half-life of one microsecond, the step of the messages' times: every score halves from message to message.
_FADING = DecayParameters.of(1e-6, 0.2, np.array([2, 1, 1]), 4, 0)
_BATCHES, _SIZE, _COMING = 8, 8, 10
# Subscriptions added in three batches, and messages of each batch. The first batch fills the posting lists; the second
# exceeds their capacity, so that lists move. The third adds more than it removes and exceeds the pool, two fifths of
# which are dead by then, so that the pool is compacted.
_MANY, _MANY_MESSAGES = (1200, 200, 1500), 128


#: Name of the part for the texts of messages, beside the names of kinds.
WORDS = "words"
#: Parts of the warm-up for what is sent where.
ROUTING: Mapping[str, Callable[[], None]] = {
    "names": distribution.name_hash.warmup,
    "router location": distribution.location.warmup,
    "router influence": distribution.influence.warmup,
    "router keyword": distribution.keyword.warmup,
    "placement by cost": distribution.placed.warmup,
    "signatures": distribution.signatures.warmup.warmup,
    "window parts": distribution.splitting.warmup,
}
#: A part of a warm-up: its name for people, and the function that runs its kernels.
Part = tuple[str, Callable[[], None]]


class Warmed(NamedTuple):
    """Progress of a warm-up.

    done, of : int    parts done, all parts
    compiled : int    kernels compiled so far; the others were in the cache
    part : str        name of the last part done
    """

    done: int
    of: int
    compiled: int
    part: str


def warmup(
    kinds: Kinds = KINDS,
    engines: Mapping[str, str] | None = None,
    windows: Mapping[str, str] | None = None,
    all_of_them: bool = False,
) -> None:
    """Compile, or load from the cache, the kernels of kinds. Up to 20 seconds for an engine that is not in the cache.

    Parameters
    ----------
    kinds : Kinds
    engines, windows : mapping of kind to name
        The engine, and the window index, of each kind; the default for kinds left out.
    all_of_them : bool
        Warm up every engine and every window index instead.
    """
    for _, warm in parts(kinds, engines or {}, windows or {}, all_of_them):
        warm()


def parts(
    kinds: Kinds,
    engines: Mapping[str, str],
    windows: Mapping[str, str],
    all_of_them: bool = False,
    used: Collection[str] | None = None,
) -> Iterator[Part]:
    """The parts of the warm-up of texts and kinds; with `used` those named there, of `ROUTING` too. See `warmup`."""
    yield from ((name, warm) for name, warm in ROUTING.items() if used is not None and name in used)
    if used is None or WORDS in used:
        yield WORDS, _warm_words
    for kind in kinds.run:
        if used is None or kind.name in used:
            yield from _parts_of(kind, engines, windows, all_of_them)


def _parts_of(kind: Kind, engines: Mapping[str, str], windows: Mapping[str, str], all_of_them: bool) -> Iterator[Part]:
    for name in kind.engines if all_of_them else (kind.chosen(engines.get(kind.name)),):
        yield f"{kind.name}, engine {name}", partial(warm_engine, kind, name)
    for name in kind.windows if all_of_them else (windows.get(kind.name),) if kind.windowed else ():
        yield f"{kind.name}, window index {name or next(iter(kind.windows))}", partial(_warm_window, kind, name)
    if "circle" in kind.shapes:
        yield "filters", partial(_warm_filters, kind)


#: What this process has compiled: one that runs several topologies has its kernels already.
_WARM: set[tuple[Any, ...]] = set()


class KernelWarmup(NamedTuple):
    """The warm-up of a run: called, it compiles its kernels, or loads them from the cache, and yields its progress.

    kinds : Kinds
    engines, windows : tuples of kind and name
    used_kinds : tuple of str or None    None: all, and texts
    routing : tuple of str               of `ROUTING`
    """

    kinds: Kinds
    engines: tuple[tuple[str, str], ...]
    windows: tuple[tuple[str, str], ...]
    used_kinds: tuple[str, ...] | None
    routing: tuple[str, ...]

    def __call__(self) -> Iterator[Warmed]:
        wanted = (self.kinds.names, *self[1:])
        if wanted in _WARM:
            return
        named = dict(self.engines), dict(self.windows)
        kinds = parts(self.kinds, *named, used=self.used_kinds)
        yield from in_turn([*parts(self.kinds, *named, used=self.routing), *kinds])
        for stamp in self._stamps():
            _note(stamp)
        _WARM.add(wanted)

    def is_done(self) -> bool:
        """Whether the cache of this machine has all these kernels, so that a process loads them when it needs them."""
        return all(stamp is not None and stamp.exists() for stamp in self._stamps())

    def _stamps(self) -> list[Path | None]:
        used = [*(kind.name for kind in self.kinds.run), WORDS] if self.used_kinds is None else self.used_kinds
        engines, windows = dict(self.engines), dict(self.windows)
        return [stamp_of(name, engines.get(name), windows.get(name), self.kinds) for name in (*used, *self.routing)]


def in_turn(parts: Sequence[Part]) -> Iterator[Warmed]:
    """Warm up part by part, and report progress after each."""
    with kernel_cache.compilations() as compiled:
        for number, (name, warm) in enumerate(parts, 1):
            warm()
            yield Warmed(number, len(parts), compiled(), name)


def _warm_words() -> None:
    """Cut texts, one of which the kernel is not sure of, and enter more tokens than the table has room for."""
    vocabulary = Vocabulary.of_counts([], most_terms=1)
    words = MessageWords(vocabulary)
    many = " ".join(f"word{number} long-{number:09}" for number in range(3_000))
    cut = words.cut(Names.of(["&eacute; &amp; 東京 #ramen", in_language("#ramen", "german"), many]))
    weigh(words.terms(cut), vocabulary.idf)
    words.distinct(cut, np.array([0, 3]))
    iso_times(["2018-10-10T20:19:24Z"])
    index_pairs(np.zeros(1, np.int64), np.zeros(1, TERM), 1)


def part_names() -> list[str]:
    """Names of the kinds that run, `WORDS`, and those of `ROUTING`."""
    return [*(kind.name for kind in KINDS.run), WORDS, *ROUTING]


def not_in_cache() -> list[str]:
    """The parts whose kernels, for kinds those of default engines, are not known to be in the cache."""
    stamps = {name: stamp_of(name) for name in part_names()}
    return [name for name, stamp in stamps.items() if stamp is None or not stamp.exists()]


def stamp_of(name: str, engine: str | None = None, window: str | None = None, kinds: Kinds = KINDS) -> Path | None:
    """The file that says that the kernels of a kind, of `WORDS` or of `ROUTING` are in the cache, by all sources.

    Parameters
    ----------
    name : str
    engine, window : str, optional
        Names of the kind's engine and window index; None for the default.
    kinds : Kinds

    Returns
    -------
    Path or None
        None if there is no cache, nothing is compiled here, or an engine's source is not the project's.
    """
    made: list[Any] = [ROUTING[name]] if name in ROUTING else []
    if name in kinds:
        kind = kinds.named(name)
        made = [kind.engine(engine), *([kind.window(window)] if kind.windowed else [])]
    try:
        sources = {Path(getfile(each)) for each in made} | {Path(__file__)}
    except TypeError:  # a built-in has no source
        return None
    if not all(path.is_relative_to(kernel_cache.ROOT) for path in sources):
        return None
    return kernel_cache.stamp_of([name, engine, window], {path.relative_to(kernel_cache.ROOT) for path in sources})


def _warm_in_parallel(names: Sequence[str], all_of_them: bool) -> Iterator[Warmed]:
    """Warm up in one process for each core: the compiler takes one core, and kinds share few kernels."""
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        warming = {pool.submit(warm_named, name, all_of_them): name for name in names}
        compiled = 0
        for number, done in enumerate(as_completed(warming), 1):
            compiled += done.result()
            yield Warmed(number, len(warming), compiled, warming[done])


def warm_named(
    name: str,
    all_of_them: bool = False,
    engines: Mapping[str, str] | None = None,
    windows: Mapping[str, str] | None = None,
) -> int:
    """Warm up a kind, or texts, and touch its stamp for other processes; returns the number of kernels compiled."""
    engines, windows = engines or {}, windows or {}
    compiled = max(warmed.compiled for warmed in in_turn(list(parts(KINDS, engines, windows, all_of_them, [name]))))
    _note(stamp_of(name, engines.get(name), windows.get(name)))
    return compiled


def _note(stamp: Path | None) -> None:
    """Note for other processes that kernels are in the cache."""
    if stamp is not None and not stamp.exists():
        stamp.touch(mode=0o600)


def warm_engine(kind: Kind, name: str) -> None:
    """Warm up one engine of a kind: growth, refills, changes inside a batch, ended objects, expiry and a restore."""
    unit_vectors(np.zeros(1), np.zeros(1))  # spouts compute these for messages
    for window in (Window("count", 12), Window("time", 12)):
        engine = LocalEngine([kind], _SPACE, window, engines={kind.name: name}, fading=_FADING, window_tasks=2)
        boundary, messages = Boundary(-1, 0, -1, -1), NO_MESSAGES
        for batch in range(_BATCHES):
            first = batch * _SIZE
            coming = np.arange(batch * _COMING, (batch + 1) * _COMING)
            # of each batch's subscriptions one is removed in the same batch, one never, the others a batch later
            gone = np.concatenate([coming[: _COMING - 2] - _COMING if batch else coming[:0], coming[-1:]])
            removed = Removals(gone, np.full(gone.shape[0], kind.code, np.int8), np.full(gone.shape[0], first + 4))
            boundary = Boundary(batch, first, first + _SIZE - 1, window.floor(first + _SIZE - 1, first + _SIZE - 1))
            messages = sample_messages(first, _SIZE, ranges=kind.place == "region" and batch % 2 == 1)
            ended = sample_messages(first - 4, 4, ranges=False) if batch and kind.needs_ended else NO_MESSAGES
            engine.process(boundary, messages, subscriptions(kind, coming, first + 2), removed, ended)
        states = engine.states()
        again = LocalEngine([kind], _SPACE, window, engines={kind.name: name}, fading=_FADING)
        again.restore(boundary, messages, states)
        again.results()
    # lists long enough for trees and blocks, and more hits than an engine's buffer holds
    window, none = Window("count", _MANY_MESSAGES), np.zeros(0, np.int64)
    operator = kind.make_operator(OperatorContext(_SPACE, window, fading=_FADING), name)
    following = 0
    for batch, coming in enumerate(_MANY):
        first = batch * _MANY_MESSAGES
        added, following = subscriptions(kind, np.arange(following, following + coming), 0), following + coming
        gone = np.arange(_MANY[0] // 2) if batch == len(_MANY) - 1 else none
        removed = Removals(gone, np.full(gone.shape[0], kind.code, np.int8), np.full(gone.shape[0], first + 4))
        boundary = Boundary(batch, first, first + _MANY_MESSAGES - 1, first - 1)  # all of the batch live
        home, assigned = np.zeros(len(added), np.int64), np.ones(len(added), np.bool_)
        messages = sample_messages(first, _MANY_MESSAGES, ranges=False)
        operator.close(
            operator.match(OperatorInput(boundary, messages, NO_MESSAGES, added, home, assigned, removed)).own_hits, []
        )


def _warm_window(kind: Kind, name: str | None) -> None:
    """Warm up a window index: messages indexed and not yet indexed, some expired; a query as of an earlier boundary."""
    index, operator = kind.window(name)(_SPACE, 1), kind.make_operator(OperatorContext(_SPACE, Window("count", 300)))
    home, assigned = np.zeros(10, np.int64), np.ones(10, np.bool_)
    none = np.zeros(0, np.int64)
    removed = Removals(none, none.astype(np.int8), none)
    before, query = None, None
    for batch in range(4):
        boundary = Boundary(batch, batch * 200, batch * 200 + 199, batch * 200 - 101)
        messages = sample_messages(batch * 200, 200, ranges=False)
        index.store(boundary, messages, np.arange(batch * 200 - 30, batch * 200 + 10, 3))
        if batch:
            table = subscriptions(kind, np.arange(batch * 10, batch * 10 + 10), batch * 200)
            batch_input = OperatorInput(boundary, messages, NO_MESSAGES, table, home, assigned, removed)
        else:
            batch_input = OperatorInput(
                boundary, messages, NO_MESSAGES, subscriptions(kind, none, 0), none, assigned[:0], removed
            )
        for request in operator.close(operator.match(batch_input).own_hits, []).window_requests:
            query = request.query
        for _ in range(12 if query is not None and batch < 3 else 2):
            if query is not None:
                index.merge([index.answer(WindowQuery(before or boundary, batch, query.rows))] * 2)
        before = boundary
    kind.window(name)(_SPACE).load(Boundary(3, 600, 799, 499), sample_messages(600, 200, ranges=False), none)


def _warm_filters(kind: Kind) -> None:
    """Warm up the kernels that check shapes, test the filters of a batch, and compute marks."""
    ring = np.array([0.0, 1.0, 1.0, 0.0])
    shapes = circle_instruction(0.0, 0.0, 1e6), polygon_instruction(Rings(np.array([0, 4]), ring, ring[::-1].copy()))
    ball_box(0.0, 0.0, 1e6)
    offsets, words = joined_programs([program_of([shape]) for shape in shapes])
    slots, rows = np.tile(np.arange(2, dtype=np.int32), 4), np.repeat(np.arange(4, dtype=np.int32), 2)
    passing(filters_of(offsets, words), slots, rows, sample_messages(0, 4, ranges=False))
    table, store = subscriptions(kind, np.arange(2), 0), FilterStore()
    columns: Any = table._asdict() | {"filter_offsets": offsets, "filter_words": words}
    store.insert(SubscriptionTable(**columns), slots[:2])
    marker = Marker(store)
    marker.learn()
    marker.of_slots(slots[:2])
    marker.of_messages(NO_KEYS, 1)
    _warm_marks(kind)


def _warm_marks(kind: Kind) -> None:
    """Warm up an index whose postings have marks, with writable and with read-only messages: two signatures."""
    operator, none = kind.make_operator(OperatorContext(_SPACE, Window("count", 4))), np.zeros(0, np.int64)
    offsets, words = joined_programs([program_of([Instruction(WITHIN, 0, [0, 1])])] * 4)
    removed = Removals(none, none.astype(np.int8), none)
    for batch in range(3):
        table = subscriptions(kind, np.arange(4 * batch, 4 * batch + 4), 4 * batch)
        columns: Any = table._asdict() | {"filter_offsets": offsets, "filter_words": words}
        given: Any = sample_messages(4 * batch, 4, ranges=batch == 2)._asdict() | {"keys": np.zeros((4, 1), np.int64)}
        if batch:  # copies, since empty columns are shared by all tables
            given = {name: column.copy() for name, column in given.items()}
            for column in given.values():
                column.setflags(write=False)
        operator.match(
            OperatorInput(
                Boundary(batch, 4 * batch, 4 * batch + 3, 4 * batch - 1), MessageBatch(**given), NO_MESSAGES,
                SubscriptionTable(**columns), np.zeros(4, np.int64), np.ones(4, np.bool_), removed,
            )
        )  # fmt: skip


def prebuild() -> None:
    """Compile the defaults into the folder from which a wheel takes them (`kernel_cache.prebuilt`)."""
    if not kernel_cache.runs_portable():
        sys.stdout.write("no kernels are compiled ahead for processors like this one\n")
        return
    if not kernel_cache.PORTABLE.items() <= os.environ.items():
        arguments = [sys.executable, "-m", "topology.warmup", "--prebuilt"]
        os.execve(sys.executable, arguments, os.environ | kernel_cache.PORTABLE)
    main(False)
    with kernel_cache.collected() as place:
        for name in part_names():
            # in a process of its own: in one that has a kernel for a wider type Numba would convert to that
            child = get_context("fork").Process(target=warm_named, args=(name,))
            child.start()
            child.join()
            if child.exitcode == 0 and (stamp := stamp_of(name)) is not None:
                (place / stamp.name).touch()


def main(all_of_them: bool) -> None:
    """Compile what the cache lacks, and say how far it is; without a word if it lacks nothing."""
    names = part_names() if all_of_them else not_in_cache()
    if not names:
        return
    begun = time.perf_counter()
    sys.stdout.write("compiling kernels, unless they are cached: a few minutes the first time\n")
    for warmed in _warm_in_parallel(names, all_of_them):
        sys.stdout.write(
            f"{time.perf_counter() - begun:7.1f} s  kernels: {warmed.done} of {warmed.of} parts ready ({warmed.part})\n"
        )
        sys.stdout.flush()
    sys.stdout.write(f"kernels ready in {time.perf_counter() - begun:.1f} s\n")


if __name__ == "__main__":
    prebuild() if "--prebuilt" in sys.argv else main("--all" in sys.argv)
