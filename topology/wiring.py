"""The topology of this product: which components there are and how they are wired.

    messages ──▶ distribution ──parts──▶ query ──updates──▶ delivery
    subscriptions ──changes──▶ distribution, query, delivery
                 distribution ──window──▶ tuples ··partial··▶ aggregation ··refilled··▶ query
                 query ··relax, raise, signature··▶ distribution ··relaxed··▶ query ··ask··▶ tuples

Dotted edges are feedback: they carry no end and no credit. What travels on each stream stands in `bolts.payloads`. A
message's way goes on in `spouts.parquet`, then `bolts.distribution`; `topology.running` starts what is wired here.
"""

from collections.abc import Mapping
from functools import cache, partial
from typing import Any

import distribution.keyword
import distribution.location
import distribution.signatures.warmup
from bolts.aggregation import AggregationBolt
from bolts.delivery import DeliveryBolt
from bolts.distribution import DistributionBolt
from bolts.query import QueryBolt
from bolts.replicated import ReplicatedQueryBolt
from bolts.tuples import TupleBolt
from distribution.hashing import HashingRouter
from distribution.keyword import KeywordRouter, PrefixRouter
from distribution.location import LocationRouter
from distribution.router import Router
from distribution.signatures.signature import spec_of
from matching import registry
from matching.errors import ConfigError, InputError
from matching.model import Float64
from matching.space import Space
from matching.text import Vocabulary
from matching.topk import thresholds, window_indexes
from matching.warmup import defaults, warmup
from matching.window import Window
from spouts.kinds import first_that, may_ask_for
from spouts.parquet import ParquetSpout, read_manifest, read_points
from spouts.subscriptions import SubscriptionSpout, load_vocabulary
from topology.core.builder import TopologyBuilder
from topology.core.component import Bolt, Spout
from topology.core.grouping import ALL, DIRECT
from topology.core.plan import Plan
from topology.settings import RunConfig

#: Kinds that the query bolts answer.
KINDS_RUN = ("boolean", "topk", "skyline")
ROUTERS = ("hashing", "location", "keyword", "prefix")
#: Routers that can make use of signatures.
SIGNING = ("hashing", "location")
#: Routers that place a boolean subscription by one of its keywords, and have replicas for top-k ones alone.
BY_KEYWORD = ("keyword", "prefix")
_LOAD_SAMPLE = 20_000


def wire(
    messages: Spout,
    subscriptions: Spout,
    router: Router,
    space: Space,
    window: Window,
    delivery: Bolt,
    *,
    engines: dict[str, str] | None = None,
    threshold_rule: str | None = None,
    window_index: str | None = None,
    distribution_bolts: int = 1,
    tuple_bolts: int = 1,
    aggregation_bolts: int = 1,
    credits: int = 4,
    skylines: bool = True,
) -> Plan:
    """Build the topology over any pair of spouts and any delivery bolt (tests and benchmarks bring their own).

    `skylines`: whether there may be skyline subscriptions, for which the tuple bolts then hold a window of its own.

    Raises
    ------
    ConfigError
        For an engine, a threshold rule or a window index nobody knows.
    TopologyError
        For numbers of tasks that cannot be.
    """
    engines = engines or {}
    for kind, name in engines.items():
        registry.factory(kind, name)  # refuse an unknown one here, not in an actor
    thresholds.rule(threshold_rule)
    window_indexes.window_index(window_index)
    builder = TopologyBuilder("skyray")
    builder.spout("messages", messages, clock=True)
    builder.spout("subscriptions", subscriptions)
    builder.bolt("distribution", DistributionBolt(router), tasks=distribution_bolts)
    query = ReplicatedQueryBolt if router.replicates else QueryBolt
    builder.bolt("query", query(router, space, window, engines, threshold_rule), tasks=router.tasks)
    tuples = TupleBolt(space.max_distance, 2 * credits + 2, window_index, skylines)
    builder.bolt("tuples", tuples, tasks=tuple_bolts)
    builder.bolt("aggregation", AggregationBolt(), tasks=aggregation_bolts)
    builder.bolt("delivery", delivery)
    builder.edge("messages", "batches", "distribution", DIRECT)
    for receiver in ("distribution", "query", "delivery"):
        builder.edge("subscriptions", "changes", receiver, ALL)
    builder.edge("distribution", "parts", "query", DIRECT)
    builder.edge("distribution", "whole", "query", ALL)
    builder.edge("distribution", "window", "tuples", DIRECT)
    builder.edge("distribution", "ids", "delivery", ALL)
    for stream in ("updates", "late", "results"):
        builder.edge("query", stream, "delivery", ALL)
    builder.edge("query", "relax", "distribution", ALL, feedback=True)
    builder.edge("query", "raise", "distribution", ALL, feedback=True)
    builder.edge("distribution", "relaxed", "query", DIRECT, feedback=True)
    if router.signatures is not None:
        builder.edge("query", "signature", "distribution", ALL, feedback=True)
    builder.edge("query", "ask", "tuples", ALL, feedback=True)
    builder.edge("tuples", "partial", "aggregation", DIRECT, feedback=True)
    builder.edge("aggregation", "refilled", "query", DIRECT, feedback=True)
    builder.edge("query", "ask_skyline", "tuples", ALL, feedback=True)
    builder.edge("tuples", "partial_skyline", "aggregation", DIRECT, feedback=True)
    builder.edge("aggregation", "refilled_skyline", "query", DIRECT, feedback=True)
    if router.shares_skylines:
        builder.edge("query", "found_skyline", "query", DIRECT, feedback=True)
    if router.replicates:
        builder.edge("distribution", "register", "query", DIRECT, feedback=True)
        builder.edge("query", "hits", "query", DIRECT, feedback=True)
        builder.edge("query", "thresholds", "query", DIRECT, feedback=True)
    chosen = {kind: (engines.get(kind, name),) for kind, (name,) in defaults().items() if kind in KINDS_RUN}
    chosen["window"] = (window_indexes.window_index(window_index).name,)
    return builder.acknowledged_by("delivery").warmed_by(partial(warm_up, tuple(chosen.items()))).build(credits)


@cache  # a process that runs several topologies has its kernels already
def warm_up(engines: tuple[tuple[str, tuple[str, ...]], ...]) -> None:
    """Compile, or load from the cache, the kernels of engines and routers; once a node, before the spouts open."""
    warmup(dict(engines))
    distribution.location.warmup()
    distribution.keyword.warmup()
    distribution.signatures.warmup.warmup()


def space_of(config: RunConfig) -> Space:
    """The world of a run: the box asked for, by default the extent of the messages.

    Raises
    ------
    InputError
        If the folder of the messages has no manifest.
    """
    manifest = read_manifest(config.messages)
    if manifest is None:
        raise InputError(
            "no_manifest", f"{config.messages} has no manifest.json: give an output folder of `skyray etl`"
        )
    extent = manifest.get("extent")
    return Space.parse(config.world, tuple(extent) if extent else None, config.projection)


def router_of(config: RunConfig, space: Space, load: tuple[Float64, Float64] | None = None) -> Router:
    """The router of a run. `location` balances the world by `load`, points of the unit square (float64[n] each).

    By default `load` is a sample of the messages.

    Raises
    ------
    ConfigError
        For a router nobody knows.
    """
    if config.signatures != "off" and config.router not in SIGNING:
        raise ConfigError(
            f"signatures {config.signatures}: router {config.router} sends by keyword and has no use for them; "
            f"use {' or '.join(SIGNING)}, or leave signatures off"
        )
    signatures = spec_of(config.signatures, space)
    if config.router == "hashing":
        return HashingRouter(config.query_bolts, signatures)
    if config.router == "keyword":
        return KeywordRouter(config.query_bolts)
    if config.router == "prefix":
        return PrefixRouter(config.query_bolts)
    if config.router == "location":
        load = load or read_points(config.messages, space, _LOAD_SAMPLE)
        return LocationRouter(config.query_bolts, space, *load, signatures)
    raise ConfigError(f"router {config.router!r}: choose one of {', '.join(ROUTERS)}")


def check_placeable(config: RunConfig, vocabulary: Vocabulary, space: Space) -> None:
    """Refuse files with subscriptions that the router cannot place, before anything starts. O(bytes of the files).

    Raises
    ------
    ConfigError
        That names the router, the first such subscription, where it stands, and the remedy.
    InputError
        If a file is missing or cannot be read to its end.
    """
    if config.router not in BY_KEYWORD:
        return
    asked = first_that(_needs_another_router, config.subscriptions, vocabulary, space)
    if asked is not None:
        raise ConfigError(
            f"--router {config.router}: subscription {asked.subscription_id!r} ({asked.path}, line {asked.line}) "
            f"{asked.finding}; use --router hashing or location, or leave such subscriptions out of the files"
        )


def _needs_another_router(row: Mapping[str, Any]) -> str | None:
    """Why routers by keyword cannot place a subscription, if they cannot."""
    if row.get("kind") == "skyline":
        return "is of kind skyline, which this router cannot place"
    if row.get("match") == "any":
        return 'has "match": "any", and this router places it by one of its keywords'
    return None


def build_plan(config: RunConfig) -> Plan:
    """The topology that the settings ask for; reads the manifest, the vocabulary and a sample of the messages.

    Where the router places by keyword, the subscriptions are looked through for some that it cannot place.

    Raises
    ------
    ConfigError, InputError, TopologyError
        With what is wrong, where, and what to do.
    """
    space, window = space_of(config), Window.parse(config.window)
    vocabulary: Vocabulary = load_vocabulary(config.messages)
    check_placeable(config, vocabulary, space)
    # tasks may run in processes that were started in another folder, on Ray that was there before
    source, out = config.messages.absolute(), config.out.absolute()
    files = [path.absolute() for path in config.subscriptions]
    messages = ParquetSpout(source, window, space, config.batch, limit=config.limit, follow=config.follow)
    subscriptions = SubscriptionSpout(files, vocabulary, space, rejects=out / "rejected.jsonl")
    delivery = DeliveryBolt(str(out), window, config.credits, sink=config.sink)
    return wire(
        messages,
        subscriptions,
        router_of(config, space),
        space,
        window,
        delivery,
        engines=config.engine,
        threshold_rule=config.threshold_rule,
        window_index=config.window_index,
        distribution_bolts=config.distribution_bolts,
        tuple_bolts=config.tuple_bolts,
        aggregation_bolts=config.aggregation_bolts,
        credits=config.credits,
        skylines=may_ask_for("skyline", config.subscriptions),
    )
