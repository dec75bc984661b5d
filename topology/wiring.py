"""The topology of this product: which components there are and how they are wired.

    messages ──ids──▶ delivery
    messages ──▶ distribution ──parts──▶ query ──updates──▶ delivery
    subscriptions ──changes──▶ distribution, query, delivery
                 distribution ──window──▶ tuples ··partial··▶ aggregation ··answer··▶ query
                 query ··relax, raise, signature, influence··▶ distribution ··relaxed··▶ query
                 query ··window_query··▶ aggregation ··joined_query··▶ tuples

Dotted edges are feedback: they carry no end and no credit. `bolts.payloads` has the payload of each stream.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import numpy as np

from bolts.aggregation import AggregationBolt
from bolts.delivery import PART_ROWS, DeliveryBolt
from bolts.distribution import DistributionBolt
from bolts.kind_threads import threads_of
from bolts.query import QueryBolt
from bolts.tuples import TupleBolt
from distribution.keyword import KeywordRouter, PrefixRouter
from distribution.location import LocationRouter
from distribution.placed import PlacedRouter
from distribution.placement.costs import PlacementCosts, SampleCosts, UniformCosts
from distribution.router import Router
from distribution.routers import REBALANCING, has_replicas, placeable, router_named
from distribution.window_parts import window_load
from matching.errors import ConfigError, InputError
from matching.fields import Refusal
from matching.half_life import DecayParameters
from matching.kind_table import Kind, Kinds
from matching.kinds import KINDS
from matching.model import ANY_KEYWORD, KEYWORDS_BY_KIND, Float64
from matching.operator import OperatorContext
from matching.space import Space
from matching.validate import CONDITION_COLUMNS, ParsedSubscription, asks_no_word
from matching.vocabulary import Vocabulary
from matching.window import Window
from spouts.cuts import Cuts, read_ends
from spouts.live import LoggedMessages, LoggedSubscriptions
from spouts.manifest import is_of_objects, read_manifest, world_of
from spouts.parquet import ParquetSpout, read_points, read_span
from spouts.placing import PlacingSpout, read_first
from spouts.quarantine import EMPTY_QUARANTINE, Quarantine
from spouts.scan import scan_kinds, scan_rows
from spouts.subscriptions import SubscriptionSpout, load_vocabulary
from topology.core.api.builder import TopologyBuilder
from topology.core.api.component import Bolt, Spout
from topology.core.api.grouping import ALL, DIRECT
from topology.core.api.plan import Plan
from topology.engines import check_distance, check_window, filter_refusal, kinds_without_filters, kinds_without_objects
from topology.settings import CREDITS, LIVE_CREDITS, LiveConfig, RunConfig
from topology.sizing import BESIDE, beside
from topology.warmup import KernelWarmup

#: Small batches in flight, where settings give no number: at most, and how many messages they have together.
_MOST_CREDITS, _IN_FLIGHT = 32, 1_000
#: Messages by which `location` and tuple tasks balance the world.
_LOAD_SAMPLE = 20_000


def wire(
    messages: Spout,
    subscriptions: Spout,
    router: Router,
    space: Space,
    window: Window,
    delivery: Bolt,
    *,
    kinds: Kinds = KINDS,
    engines: Mapping[str, str] | None = None,
    window_indexes: Mapping[str, str] | None = None,
    options: Mapping[str, str] | None = None,
    used_kinds: Collection[str] | None = None,
    warmed_kinds: Collection[str] | None = None,
    fading: DecayParameters | None = None,
    distribution_bolts: int = 1,
    tuple_bolts: int = 1,
    aggregation_bolts: int = 1,
    delivery_bolts: int = 1,
    credits: int = 4,
    query_threads: int = 1,
    objects: bool = False,
    window_points: tuple[Float64, Float64] | tuple[()] = (),
) -> Plan:
    """Build the topology over any pair of spouts and any delivery bolt (tests and benchmarks bring their own).

    Parameters
    ----------
    kinds : Kinds
        Those there may be subscriptions of; spouts and router must know the same ones.
    engines, window_indexes : mapping of kind to name
        Other kinds use their defaults.
    options : mapping
        See `matching.operator.OperatorContext.options`.
    used_kinds : collection of str
        Kinds that have subscriptions, for which messages are indexed; by default any may have some, and messages are
        indexed for a kind once it needs them.
    warmed_kinds : collection of str
        Kinds whose kernels are prepared before the spouts open; by default those of `used_kinds`, else all.
    fading : DecayParameters
        How scores fade, for kinds that do; needed where there may be subscriptions of one.
    query_threads : int
        Threads in which a query bolt matches kinds beside each other (`bolts.kind_threads`).
    objects : bool
        The stream is one of objects (`spouts.versions`).
    window_points : x and y
        Points of the unit square (float64[n] each) by which tuple tasks divide the world, such as a sample of messages;
        else it is divided by area.

    Raises
    ------
    ConfigError
        For an unknown kind, engine, window index or option.
    TopologyError
        For numbers of tasks that cannot be.
    """
    engines, window_indexes, options = dict(engines or {}), dict(window_indexes or {}), dict(options or {})
    for name in [*engines, *window_indexes]:
        if not kinds.named(name).runs:
            raise ConfigError(f"kind {name}: has no engine, so there is nothing to choose for it")
    check_distance(kinds, space, engines)
    for kind in kinds.run:  # refuse unknown names here, not in an actor
        kind.make_operator(OperatorContext(space, window, options=options, fading=fading), engines.get(kind.name))
        if kind.windowed or kind.name in window_indexes:
            kind.window(window_indexes.get(kind.name))
    builder = TopologyBuilder("skyray")
    builder.spout("messages", messages, clock=True)
    placed = isinstance(router, PlacedRouter)
    builder.spout("subscriptions", PlacingSpout(subscriptions, router, kinds) if placed else subscriptions)
    load = window_load(*window_points)
    builder.bolt("distribution", DistributionBolt(router, kinds, objects, load), tasks=distribution_bolts)
    query = QueryBolt(router, space, window, engines, options, kinds, fading, query_threads, objects)
    builder.bolt("query", query, tasks=router.tasks)
    tuples = TupleBolt(space, 2 * credits + 2, window_indexes, used_kinds, kinds, objects, fading, load)
    builder.bolt("tuples", tuples, tasks=tuple_bolts)
    builder.bolt("aggregation", AggregationBolt(kinds), tasks=aggregation_bolts)
    builder.bolt("delivery", delivery, tasks=delivery_bolts)
    builder.edge("messages", "batches", "distribution", DIRECT)
    builder.edge("messages", "ids", "delivery", ALL)
    for receiver in ("distribution", "query", "delivery"):
        builder.edge("subscriptions", "changes", receiver, ALL)
    builder.edge("distribution", "parts", "query", DIRECT)
    builder.edge("distribution", "whole", "query", ALL)
    builder.edge("distribution", "window", "tuples", DIRECT)
    for stream in ("updates", "late", "results"):
        builder.edge("query", stream, "delivery", DIRECT)
    if delivery_bolts > 1:
        builder.edge("delivery", "gathered", "delivery", DIRECT, feedback=True)
    builder.edge("query", "window_query", "aggregation", DIRECT, feedback=True)
    builder.edge("aggregation", "collected", "aggregation", DIRECT, feedback=True)
    builder.edge("aggregation", "joined_query", "tuples", ALL, feedback=True)
    builder.edge("tuples", "partial", "aggregation", DIRECT, feedback=True)
    builder.edge("aggregation", "answer", "query", DIRECT, feedback=True)
    builder.edge("query", "relax", "distribution", ALL, feedback=True)
    builder.edge("query", "raise", "distribution", ALL, feedback=True)
    builder.edge("distribution", "relaxed", "query", DIRECT, feedback=True)
    if router.uses_influence:
        builder.edge("query", "influence", "distribution", ALL, feedback=True)
    if router.signatures is not None:
        builder.edge("query", "signature", "distribution", ALL, feedback=True)
    if router.exchanges_hits:
        builder.edge("query", "hits", "query", DIRECT, feedback=True)
    if router.replicates:
        builder.edge("distribution", "register", "query", DIRECT, feedback=True)
        builder.edge("query", "thresholds", "query", DIRECT, feedback=True)
    warmed_kinds = used_kinds if warmed_kinds is None else warmed_kinds
    # where tasks exchange hits, every task works on every kind
    used = None if warmed_kinds is None or router.exchanges_hits else tuple(sorted(warmed_kinds))
    named = tuple(engines.items()), tuple(window_indexes.items())
    # a stream that is served begins before any kernel is there, and hashes few names at a time
    hashing = ("names",) if warmed_kinds is None or len(warmed_kinds) else ()
    dealing = ("window parts",) if tuple_bolts > 1 else ()
    warmed = KernelWarmup(kinds.plain, *named, used, (*hashing, *dealing, *_routing_of(router)))
    return builder.acknowledged_by("delivery", "tuples").warmed_by(warmed).build(credits)


def _routing_of(router: Router) -> tuple[str, ...]:
    """The names in `ROUTING` of what a router needs."""
    needs = {
        "router location": isinstance(router, LocationRouter) and not router.uses_influence,
        "router influence": router.uses_influence,
        "router keyword": isinstance(router, KeywordRouter | PrefixRouter),
        "placement by cost": isinstance(router, PlacedRouter),
        "signatures": router.signatures is not None,
    }
    return tuple(name for name, needed in needs.items() if needed)


def space_of(config: RunConfig) -> Space:
    """The world of a run: the box of the settings, by default the extent of the messages.

    Raises
    ------
    InputError
        If the folder of the messages has no manifest.
    """
    if read_manifest(config.messages) is None:
        raise InputError(
            "no_manifest", f"{config.messages} has no manifest.json: give an output folder of `skyray etl`"
        )
    return world_of(config.messages, config.world, config.projection, distance=config.distance)


def router_of(
    config: RunConfig,
    space: Space,
    load: tuple[Float64, Float64] | None = None,
    vocabulary: Vocabulary | None = None,
    kinds: Kinds = KINDS,
) -> Router:
    """The router of a run. `location` balances the world by `load`, points of the unit square (float64[n] each).

    By default `load` is a sample of the messages. Without a vocabulary, routers that place by cost have no costs.

    Raises
    ------
    ConfigError
        For an unknown router, or signatures that it does not use.
    """

    def sample() -> tuple[Float64, Float64]:
        return load or read_points(config.messages, space, _LOAD_SAMPLE)

    def costs() -> PlacementCosts:
        assert vocabulary is not None
        return costs_of(config, space, vocabulary)

    known = None if vocabulary is None else costs
    return router_named(config.router, config.query_bolts, space, sample, config.signatures, kinds, known)


def costs_of(config: RunConfig, space: Space, vocabulary: Vocabulary) -> PlacementCosts:
    """Costs for placement: from the first messages, or from the vocabulary where there are too few."""
    sample = read_first(config.messages, space, config.placement_sample, config.follow)
    if len(sample) == config.placement_sample:
        return SampleCosts(space, sample)
    return UniformCosts(space, np.array(vocabulary.document_frequency), vocabulary.messages)


def fading_of(config: RunConfig, vocabulary: Vocabulary) -> DecayParameters:
    """How scores fade in a run."""
    counts, tokens = vocabulary.collection_count, vocabulary.total_tokens
    return DecayParameters.of(config.decay_half_life, config.decay_smoothing, counts, tokens)


def scan_subscriptions(
    config: RunConfig, vocabulary: Vocabulary, space: Space, kinds: Kinds = KINDS
) -> tuple[str, ...]:
    """The kinds of the files' subscriptions, before anything starts; a kind may be named that has none. O(bytes).

    Raises
    ------
    ConfigError
        With the router, the first subscription that it cannot place, its file and line, and the remedy; for an unknown
        window index.
    InputError
        Likewise for a subscription whose filter the window index does not serve; if a file is missing or cannot be read
        to its end.
    """
    limited = kinds_without_filters(kinds, config.window_index)
    if not limited and not any(placeable(config.router, kinds, kind.name, True, True) for kind in kinds.run):
        return scan_kinds(kinds.names, config.subscriptions)

    def suspects(row: Mapping[str, Any]) -> bool:
        if row.get("query") is not None:
            return True
        kind, needs_all = str(row.get("kind")), row.get("match") in (None, "all")
        if placeable(config.router, kinds, kind, not needs_all, asks_no_word(row.get("keywords"))) is not None:
            return True
        return kind in limited and any(row.get(name) is not None for name in CONDITION_COLUMNS)

    refuses = subscription_refusal(config, kinds)
    refused, used_kinds = scan_rows(suspects, refuses, config.subscriptions, vocabulary, space, kinds)
    if refused is not None:
        reason, detail = refused.refusal.reason, refused.refusal.detail
        what = (
            f"subscription {refused.subscription_id!r} ({refused.path}, line {refused.line}) {detail}, or leave such "
            "subscriptions out of the files"
        )
        raise ConfigError(what) if reason == "not_placeable" else InputError(reason, what)
    return used_kinds


def check_boundaries(config: RunConfig, cuts: Cuts) -> None:
    """Refuse boundaries that are another stream's. Raises ConfigError, or InputError as `read_ends`."""
    if not cuts.log:
        return
    ends, kept = read_ends(cuts.log), (read_manifest(config.messages) or {}).get("kept")
    logged = int(ends[-1]) + 1 if ends.shape[0] else 0
    if logged != kept:
        raise ConfigError(
            f"--batch log:{cuts.log}: has boundaries of {logged:,} messages, and {config.messages} has {kept or 0:,}; "
            "name those of the same stream"
        )


def credits_of(config: RunConfig, cuts: Cuts) -> int:
    """How many batches may be in flight in a run: by the settings, else by their size."""
    return credits_for(_usual_batch(config, cuts)) if config.credits is None else config.credits


def credits_for(batch: float | None) -> int:
    """How many batches of `batch` messages may be in flight; None: their size is unknown.

    The cost of a small batch is its calls between processes, which several in flight can share
    (`topology.core.tasks.worker`). Messages in flight, and those that tuple bolts keep for them, stay bounded.
    """
    return CREDITS if batch is None else int(np.clip(np.ceil(_IN_FLIGHT / max(batch, 1.0)), CREDITS, _MOST_CREDITS))


def _usual_batch(config: RunConfig, cuts: Cuts) -> float | None:
    """Mean messages of a batch, from manifests and logs only; None if unknown."""
    if cuts.log:
        ends = read_ends(cuts.log)
        return (int(ends[-1]) + 1) / ends.shape[0] if ends.shape[0] else None
    if not cuts.step_us:
        return float(cuts.messages)
    span = None if config.follow else read_span(config.messages)
    if span is None or not span[1]:
        return None
    usual = span[0] * cuts.step_us / 1e6 / span[1]
    return min(usual, cuts.messages or usual)


def subscription_refusal(
    config: RunConfig, kinds: Kinds = KINDS, most_terms: int = 0
) -> Callable[[ParsedSubscription], Refusal | None]:
    """A function of a checked subscription: why the tasks of a run cannot take it, None if they can.

    The router cannot place it (`not_placeable`), the window index does not serve its filter (`filter_not_served`), or
    the stream is one of objects and its engine serves none (`objects_not_served`).
    `most_terms` as in `filter_refusal`.

    Raises
    ------
    ConfigError
        For an unknown window index.
    """
    router, filter_refused = config.router, filter_refusal(kinds, config.window_index, most_terms, config.objects)
    without_objects = objects_refused(config, kinds) if config.objects else {}
    misplaced = {
        (kind.code, match, wordless): placeable(router, kinds, kind.name, match == ANY_KEYWORD, wordless)
        for kind in kinds
        for match in (KEYWORDS_BY_KIND, ANY_KEYWORD)
        for wordless in (False, True)
    }

    def check(parsed: ParsedSubscription) -> Refusal | None:
        found = misplaced[parsed.kind, parsed.match, not parsed.words]
        if found is not None:
            return Refusal("not_placeable", f"{found} (--router {router}); use --router hashing or location")
        refused = without_objects.get(kinds[parsed.kind].name) if without_objects else None
        return refused or filter_refused(parsed)

    return check


def objects_refused(config: RunConfig, kinds: Kinds) -> dict[str, Refusal]:
    """Kinds that a run over a stream of objects does not serve, and why a subscription is refused.

    Raises
    ------
    ConfigError
        For an unknown engine or window index.
    """
    refused = kinds_without_objects(kinds, config.engine)
    for kind in kinds.of_objects().run:
        if kind.replicated and has_replicas(config.router):
            why = (
                f"which --router {config.router} matches by replicas, and these serve no stream of objects (--objects)"
            )
            refused.setdefault(kind.name, Refusal("objects_not_served", f"is of kind {kind.name}, {why}"))
    return refused


def check_objects(config: RunConfig, kinds: Kinds, used_kinds: Collection[str]) -> None:
    """Refuse a stream of objects where its kinds or signatures do not serve one. Raises ConfigError."""
    refused = objects_refused(config, kinds)
    for name in used_kinds:
        if name in refused:
            raise ConfigError(f"a subscription {refused[name].detail}; leave such subscriptions out of the files")
    if config.signatures == "approximate":
        raise ConfigError("--signatures approximate: loses updates, and a stream of objects takes none that do")


def check_rebalance(config: RunConfig, router: Router) -> None:
    """Refuse to rebalance where that is impossible. Raises ConfigError, with what to do."""
    remedies = (
        (
            not router.rebalances,
            f"router {router.name} places by hash only: use --router {' or '.join(REBALANCING)}",
        ),
        (
            config.executor == "local",
            "the local executor has one process: use --executor ray",
        ),
        (config.query_bolts < 2, "there is one query bolt: use --query-bolts 2 or more"),
        (not config.checkpoint_every, "it needs checkpoints: use --checkpoint-every 10"),
    )
    for refused, why in remedies:
        if config.rebalance and refused:
            raise ConfigError(f"topology.rebalance: {why}, or leave it out")


def build_plan(config: RunConfig, quarantine: Quarantine = EMPTY_QUARANTINE, kinds: Kinds = KINDS) -> Plan:
    """The topology of a run, without quarantined rows; reads the manifest, the vocabulary and a sample of the messages.

    Where the router places by keyword, subscriptions are checked for some that it cannot place.

    Raises
    ------
    ConfigError, InputError, TopologyError
        With what is wrong, where, and what to do.
    """
    space, window = space_of(config), Window.parse(config.window)
    cuts = Cuts.parse(config.batch, window)
    check_boundaries(config, cuts)
    vocabulary: Vocabulary = load_vocabulary(config.messages)
    used_kinds = scan_subscriptions(config, vocabulary, space, kinds)
    objects = is_of_objects(config.messages, config.objects)
    if objects:
        check_objects(config, kinds, used_kinds)
        kinds = kinds.of_objects()
    check_window(window, objects)
    router = router_of(config, space, vocabulary=vocabulary, kinds=kinds)
    check_rebalance(config, router)
    # tasks may run in processes that were started in another folder, on Ray that was there before
    source, out = config.messages.absolute(), config.out.absolute()
    files = [path.absolute() for path in config.subscriptions]
    required = sorted({column for name in used_kinds for column in kinds.named(name).columns})
    messages = ParquetSpout(
        source, window, space, cuts, config.limit, config.follow, kind_columns=required, max_ahead_s=config.max_ahead,
        rate=config.rate, quarantine=quarantine, objects=objects,
    )  # fmt: skip
    subscriptions = SubscriptionSpout(
        files, vocabulary, space, rejects=out / "rejected.jsonl", kinds=kinds, quarantine=quarantine
    )
    credits = credits_of(config, cuts)
    return _wired(
        config, messages, subscriptions, router, space, vocabulary, kinds, credits, objects, used_kinds=used_kinds
    )


def build_live_plan(
    config: LiveConfig, log: str, listener: str | None, quarantine: Quarantine = EMPTY_QUARANTINE
) -> Plan:
    """The topology over a write-ahead log, which publishes updates at once.

    Parameters
    ----------
    config : LiveConfig
        Its `messages` are the ETL's folder with words and world, or an empty one; a router that needs a sample of
        messages takes these. Its `subscriptions` are not read.
    log : str
        Path (`spouts.log`).
    listener : str or None
        Path of a socket (`bolts.publishing`).

    Raises
    ------
    ConfigError, InputError, TopologyError
        As `build_plan`.
    """
    space, window = space_of(config), Window.parse(config.window)
    vocabulary = load_vocabulary(config.messages, config.most_terms)
    check_window(window, config.objects)
    kinds = KINDS.of_objects() if config.objects else KINDS
    router = router_of(config, space, vocabulary=vocabulary, kinds=kinds)
    check_rebalance(config, router)
    words = str(config.messages.absolute()), config.most_terms
    messages = LoggedMessages(log, *words, window, space, quarantine, config.objects)
    subscriptions = LoggedSubscriptions(log, *words, space, quarantine=quarantine)
    credits = config.credits or LIVE_CREDITS
    return _wired(
        config, messages, subscriptions, router, space, vocabulary, kinds, credits, config.objects,
        listener=listener, warmed_kinds=(),
    )  # fmt: skip


def bolts_beside(config: RunConfig, router: Router, kinds: Iterable[Kind]) -> dict[str, Any]:
    """Tasks beside the query bolts, as `wire` takes them: of the settings, else as `topology.sizing.beside` chooses."""
    chosen = beside(router.tasks, kinds, router.table().sends_all)
    return {setting: getattr(config, setting) or chosen[name] for name, setting in BESIDE.items()}


def _wired(
    config: RunConfig,
    messages: Spout,
    subscriptions: Spout,
    router: Router,
    space: Space,
    vocabulary: Vocabulary,
    kinds: Kinds,
    credits: int,
    objects: bool,
    used_kinds: Collection[str] | None = None,
    listener: str | None = None,
    warmed_kinds: Collection[str] | None = None,
) -> Plan:
    window = Window.parse(config.window)
    cumulative = tuple(kind.code for kind in kinds if kind.cumulative)
    rows = None if config.checkpoint_every else PART_ROWS
    out = str(config.out.absolute())
    delivery = DeliveryBolt(
        out, window, credits, config.sink, file_rows=rows, cumulative=cumulative, listener=listener, objects=objects
    )
    used = kinds.run if used_kinds is None else map(kinds.named, used_kinds)
    bolts = bolts_beside(config, router, used)
    points = read_points(config.messages, space, _LOAD_SAMPLE) if bolts["tuple_bolts"] > 1 else ()
    return wire(
        messages,
        subscriptions,
        router,
        space,
        window,
        delivery,
        engines=config.engine,
        window_indexes=config.window_index,
        options={"threshold_rule": config.threshold_rule},
        kinds=kinds,
        used_kinds=used_kinds,
        warmed_kinds=warmed_kinds,
        fading=fading_of(config, vocabulary),
        **bolts,
        credits=credits,
        query_threads=threads_of(config.query_threads, config.executor == "local"),
        objects=objects,
        window_points=points,
    )
