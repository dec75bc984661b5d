"""Settings of a run: one frozen model, and a note of where each value came from.

`gateway.shell.settings` reads the environment and files; building `RunConfig(...)` reads neither.
"""

import difflib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    PrivateAttr,
    ValidationError,
    field_validator,
    model_validator,
)

from matching.errors import ConfigError
from matching.extras import require_ray
from matching.half_life import HALF_LIFE_S, LONGEST_HALF_LIFE_S, SHORTEST_HALF_LIFE_S, SMOOTHING
from matching.space import EARTH, Space
from matching.window import Window
from topology.core.places import StorePath, place
from topology.given import Given

#: A task is an actor of about 130 MB: more than this on one machine is a typing error.
MAX_TASKS = 4096
#: Seconds after the start of a run, or live after their arrival, that messages may be dated, unless settings say more.
MAX_AHEAD_S = 86_400.0
#: Batches in flight, where neither settings nor the size of batches give a number.
CREDITS = 4
#: Batches in flight of a live stream, where a batch grows while no credit is left: more of them only wait in queues,
#: and with one a process would be idle.
LIVE_CREDITS = 2
#: In the folder of a stream, the keys of its server, which may be there before the stream.
KEYS = "keys.json"
#: Terms that a live stream may admit, and the largest number that a user may give: ids stay below 2**31.
MOST_TERMS, MOST_TERMS_LIMIT = 1_000_000, 100_000_000


def _placed(value: Any) -> Any:
    if not isinstance(value, str | os.PathLike | StorePath):
        raise ValueError("give a path, or s3://BUCKET/NAME")
    try:
        return place(value)
    except ConfigError as error:
        raise ValueError(str(error)) from None


#: A path of this machine, or an address in an object store: a `StorePath` then, with what readers need of a `Path`.
Place = Annotated[Path, PlainValidator(_placed), PlainSerializer(str)]
Tasks = Annotated[int, Field(ge=1, le=MAX_TASKS)]
#: What one task of a component reserves on Ray.
Cpus = Annotated[float, Field(ge=0.0, le=4096.0)]
MemoryMib = Annotated[float, Field(ge=0.0, le=1e8)]


def _of_one_process(values: Mapping[str, Any]) -> int:
    """How many tasks match subscriptions, where settings give no number: by the valid settings before it."""
    return 1 if values.get("executor") == "local" and values.get("router") == "hashing" else 2


def _beside_address(values: Mapping[str, Any]) -> Literal["local", "ray"]:
    """Where tasks run, where settings do not say: on the cluster that they name."""
    return "ray" if values.get("address") else "local"


def _chosen(what: str) -> Any:
    return Field(
        default=None, description=f"tasks that {what}; by default as many as suit kinds, router and query bolts"
    )


def _reserved(what: str, by: str) -> Any:
    return Field(default=0.0, description=f"{what} that {by} reserves on Ray, all tasks or none; 0: nothing")


RouterName = Literal["hashing", "location", "keyword", "prefix", "influence", "kop", "sop", "dkm-sks", "ps2stream"]


_SIGNATURES = (
    "summaries of regional subscriptions that query tasks send to routers, to get fewer messages; cuckoo, cuckoo+text: "
    "as spatial, with the cells in a cuckoo filter in place of a bitmap; minwise: keywords by min-wise hashing"
)


class RunConfig(BaseModel):
    """The settings of `skyray run`.

    Raises
    ------
    pydantic.ValidationError
        When built directly with values that do not fit; `load_config` turns that into a `ConfigError`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True)

    messages: Place = Field(description="output folder of `skyray etl`, a path or s3://BUCKET/NAME")
    subscriptions: tuple[Place, ...] = Field(
        min_length=1, description="subscription files, JSON Lines or Parquet, paths or s3://"
    )
    out: Place = Field(description="folder for updates, results and the report of the run, a path or s3://BUCKET/NAME")
    window: str = Field(
        default="count:20000",
        description="how much of the stream is kept: count:N messages, or time:SECONDS (also time:90s, 5m, 1h, 2d)",
    )
    objects: bool = Field(
        default=False,
        description="every message is a version of its object_id, and results are over the living objects as they are",
    )
    address: str | None = Field(
        default=None,
        description="Ray cluster to join: HOST:PORT, or auto (RAY_ADDRESS, else what ray start began); else one's own",
    )
    executor: Literal["local", "ray"] = Field(
        default_factory=_beside_address,
        description="where tasks run: local, in one process and deterministic, or on ray; by default on ray with "
        "--address, else local",
    )
    router: RouterName = Field(
        default="hashing",
        description="which task gets a subscription: by hash, place, keyword or prefix (these two refuse what they "
        "cannot place), by place with messages only where a result may change (influence), or by expected cost: kop of "
        "keywords, sop of places, dkm-sks of both, ps2stream of parts of the world",
    )
    placement_sample: int = Field(
        default=10_000, ge=1, description="first messages by which kop, sop, dkm-sks and ps2stream estimate costs"
    )
    signatures: Literal["off", "spatial", "spatial+text", "cuckoo", "cuckoo+text", "minwise", "approximate"] = Field(
        default="off",
        description=f"{_SIGNATURES}; approximate: minwise read as an estimate, which LOSES updates and counts them, "
        "with --allow-loss",
    )
    allow_loss: bool = Field(default=False, description="accept that signatures lose updates (approximate)")
    query_bolts: Tasks = Field(
        default_factory=_of_one_process,
        description="tasks that match subscriptions; by default 2, and 1 on local with router hashing, where a second "
        "one would only take its turn",
    )
    query_threads: int = Field(
        default=0,
        ge=0,
        description="threads in which a query bolt matches kinds beside each other; 0: one on ray, on local as many as "
        "there are cores",
    )
    tuple_bolts: Tasks | None = _chosen("store the window, each its share of the messages, and answer queries of it")
    distribution_bolts: Tasks | None = _chosen("route messages")
    aggregation_bolts: Tasks | None = _chosen("merge partial answers of the window")
    delivery_bolts: Tasks | None = _chosen("write updates, each those of its subscriptions")
    engine: dict[str, str] = Field(
        default_factory=dict, description="engine for a kind, KIND=NAME; the default otherwise"
    )
    threshold_rule: Literal["cost", "k_max", "sma", "rank"] = Field(
        default="cost", description="how result buffers set their thresholds; results do not depend on it"
    )
    window_index: dict[str, str] = Field(
        default_factory=dict,
        description="how the window is searched for a kind, KIND=NAME; results do not depend on it",
    )
    world: str = Field(
        default="extent",
        description="what is covered: WEST,SOUTH,EAST,NORTH in degrees, earth, or extent (of the messages)",
    )
    projection: Literal["plate-carree", "equal-area"] = Field(
        default="plate-carree", description="how the world is made flat; with --distance plane"
    )
    distance: Literal["sphere", "plane"] = Field(
        default="sphere",
        description="how far is far: great-circle metres, or Euclidean in the projected world as in the papers",
    )
    batch: str = Field(
        default="auto",
        description="what lies between two boundaries: N messages, time:SECONDS (also 90s, 5m, 1h) of stream time, "
        "log:PATH as a live stream logged; auto: 5000 messages, and of a time: window at most a tenth",
    )
    decay_half_life: float = Field(
        default=HALF_LIFE_S,
        ge=SHORTEST_HALF_LIFE_S,
        le=LONGEST_HALF_LIFE_S,
        description="seconds in which a score that fades falls to half",
    )
    decay_smoothing: float = Field(
        default=SMOOTHING,
        ge=0.0,
        le=1.0,
        description="weight of the whole collection in the texts of scores that fade",
    )
    max_ahead: float = Field(
        default=MAX_AHEAD_S,
        ge=0.0,
        le=1e12,
        description="messages dated more than this many seconds after the start (live: after arrival) are left out, "
        "where times matter",
    )
    checkpoint_every: float = Field(
        default=10.0,
        ge=0.0,
        le=86_400.0,
        description="seconds between two checkpoints; 0: none, so that a failure ends the run",
    )
    checkpoints: str | None = Field(
        default=None,
        description="folder of checkpoints, a path or s3://BUCKET/NAME; in the output folder by default",
    )
    restarts: int = Field(
        default=5, ge=0, le=1000, description="how often the same failure at the same place is recovered from"
    )
    rebalance: bool = Field(
        default=False,
        description="move subscriptions between query bolts after a checkpoint, where their loads are "
        "uneven (routers location, influence, kop, sop, dkm-sks, ps2stream; executor ray)",
    )
    credits: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="batches in flight at most; by default 4, or as many as make 1,000 messages, 32 at most",
    )
    rate: float | None = Field(
        default=None, gt=0.0, le=1e9, description="messages a second at most; by default as fast as they are matched"
    )
    limit: int | None = Field(default=None, ge=1, description="stop after this many messages")
    placement: Literal["auto", "spread", "shared"] = Field(
        default="auto", description="an actor for each task, or one for all light tasks; auto: by the machine's cores"
    )
    query_cpus: Cpus = _reserved("CPUs", "each task that matches subscriptions")
    query_memory_mib: MemoryMib = _reserved("memory in MiB", "each task that matches subscriptions")
    tuple_cpus: Cpus = _reserved("CPUs", "each task that stores the window")
    tuple_memory_mib: MemoryMib = _reserved("memory in MiB", "each task that stores the window")
    distribution_cpus: Cpus = _reserved("CPUs", "each task that routes messages")
    distribution_memory_mib: MemoryMib = _reserved("memory in MiB", "each task that routes messages")
    aggregation_cpus: Cpus = _reserved("CPUs", "each task that merges partial answers")
    aggregation_memory_mib: MemoryMib = _reserved("memory in MiB", "each task that merges partial answers")
    delivery_cpus: Cpus = _reserved("CPUs", "each task that writes updates")
    delivery_memory_mib: MemoryMib = _reserved("memory in MiB", "each task that writes updates")
    spout_cpus: Cpus = _reserved("CPUs", "each source, of messages and of subscriptions,")
    spout_memory_mib: MemoryMib = _reserved("memory in MiB", "each source, of messages and of subscriptions,")
    reserve_wait: float = Field(
        default=600.0,
        ge=0.0,
        le=1e6,
        description="seconds that the start waits at most, where a cluster lacks the CPUs and memory to reserve",
    )
    sink: Literal["parquet", "jsonl", "count"] = Field(
        default="parquet", description="form of the updates; count: digest only"
    )
    seed: int | None = Field(default=None, ge=0, description="order in which the local executor interleaves tasks")
    overwrite: bool = Field(default=False, description="replace what an earlier run left in the output folder")
    strict: bool = Field(
        default=False, description="end the run when a component fails on a message, instead of setting that aside"
    )
    follow: bool = Field(default=False, description="start before `skyray etl` has ended, and wait for what it writes")

    _origins: dict[str, str] = PrivateAttr(default_factory=dict)

    @field_validator("subscriptions", mode="before")
    @classmethod
    def _split_paths(cls, value: Any) -> Any:
        if isinstance(value, str):
            return json.loads(value) if value.lstrip().startswith("[") else [part for part in value.split(",") if part]
        return value

    @field_validator("engine", "window_index", mode="before")
    @classmethod
    def _split_names(cls, value: Any) -> Any:
        """From the environment and the command line: `KIND=NAME,KIND=NAME`."""
        if isinstance(value, str):
            value = [part for part in value.split(",") if part]
        if not isinstance(value, list | tuple):
            return value
        chosen: dict[str, str] = {}
        for part in value:
            kind, equals, name = part.partition("=")
            if not (kind and equals and name):
                raise ValueError(f"{part!r} is not KIND=NAME")
            if chosen.setdefault(kind, name) != name:
                raise ValueError(f"{kind} is given twice, {chosen[kind]} and {name}")
        return chosen

    @field_validator("batch", mode="before")
    @classmethod
    def _check_batch(cls, value: Any) -> Any:
        text = str(value) if type(value) is int else value
        if isinstance(text, str):
            number = re.fullmatch("[0-9]{1,7}", text) and 1 <= int(text) <= 1_000_000
            if not (number or text == "auto" or re.fullmatch("time:[0-9]+([.][0-9]+)?[smhd]?|log:.+", text)):
                raise ValueError("give N messages, 1 to 1,000,000, time:SECONDS of stream time, log:PATH, or auto")
        return text

    @field_validator("window")
    @classmethod
    def _check_window(cls, value: str) -> str:
        try:
            return str(Window.parse(value)) and value
        except ConfigError as error:
            raise ValueError(str(error)) from None

    @field_validator("world")
    @classmethod
    def _check_world(cls, value: str) -> str:
        try:
            Space.parse(value, EARTH)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return value

    @model_validator(mode="after")
    def _check_loss(self) -> Self:
        if self.signatures == "approximate" and not self.allow_loss:
            raise ValueError("--signatures approximate: loses updates; add --allow-loss, or take minwise")
        return self

    @property
    def origins(self) -> dict[str, str]:
        """Setting -> "command line", a variable of the environment, a line of a TOML file, or "default"."""
        return {name: self._origins.get(name, "default") for name in type(self).model_fields}

    def as_json(self) -> dict[str, Any]:
        """The settings as JSON values."""
        return self.model_dump(mode="json")


class LiveConfig(RunConfig):
    """The settings of `skyray live` and `skyray serve`, which lose nothing: signatures that do are for `skyray run`."""

    signatures: Literal["off", "spatial", "spatial+text", "cuckoo", "cuckoo+text", "minwise"] = Field(
        default="off", description=_SIGNATURES
    )

    most_terms: int = Field(
        default=MOST_TERMS,
        ge=0,
        le=MOST_TERMS_LIMIT,
        description="new words that are admitted at most, a tenth of them for subscriptions alone; beyond it those of "
        "messages are left out, and subscriptions that have some are refused; 0: none is admitted",
    )

    synonyms: Path | None = Field(
        default=None,
        description="file of words that stand for each other, a group a line (bike, bicycle or tv => television); they "
        "are written out when a subscription comes",
    )


def load_config(options: Mapping[str, Any]) -> RunConfig:
    """The settings of a run: those that are given, and defaults.

    Parameters
    ----------
    options : mapping
        None: not given. A `Given` says where each was set.

    Raises
    ------
    ConfigError
        For an unknown setting, a value that does not fit, a required one that is missing; the message names the setting
        and where it was set.
    """
    return _build(options, {}, RunConfig)


#: Settings that may change when a run is resumed: no result depends on them.
CHANGEABLE = frozenset(
    {
        *("executor", "address", "placement", "query_bolts", "tuple_bolts", "distribution_bolts", "aggregation_bolts"),
        *("query_threads", "router", "placement_sample", "signatures", "engine", "window_index"),
        *("threshold_rule", "allow_loss", "credits", "seed"),
        *("checkpoint_every", "restarts", "rate", "strict", "rebalance", "reserve_wait", "delivery_bolts"),
        *("query_cpus", "tuple_cpus", "distribution_cpus", "aggregation_cpus", "delivery_cpus", "spout_cpus"),
        *("query_memory_mib", "tuple_memory_mib", "distribution_memory_mib"),
        *("aggregation_memory_mib", "delivery_memory_mib", "spout_memory_mib"),
    }
)

#: Settings of earlier releases, on which no result depended: a run that was begun with one is resumed without it.
_FORMER = frozenset({"window_parts"})


def resumed(options: Mapping[str, Any], before: Mapping[str, Any]) -> RunConfig:
    """The settings of a resumed run.

    Parameters
    ----------
    options : mapping
        As of `load_config`; only those of the command line count.
    before : mapping
        Settings that the run began with.

    Raises
    ------
    ConfigError
        For a setting that cannot change, and as `load_config`.
    """
    given = Given(options).of_command_line()
    fixed = sorted(name for name in given if name in RunConfig.model_fields and name not in CHANGEABLE)
    if fixed:
        raise ConfigError(
            f"{_spelled(given, fixed[0])} cannot change when a run is resumed; leave it out (these can: "
            f"{', '.join(sorted(CHANGEABLE))})"
        )
    if given.get("executor") == "local":  # one process: no load to rebalance
        given.setdefault("rebalance", False)
    kept = {name: value for name, value in before.items() if name not in given and name not in _FORMER}
    return _build(given, kept, RunConfig)


#: Settings that a live stream does not take, or names otherwise.
NOT_LIVE = frozenset(
    {
        *("messages", "subscriptions", "out", "batch", "checkpoints", "rate", "limit"),
        *("address", "sink", "overwrite", "follow", "allow_loss"),
    }
)


def live_config(options: Mapping[str, Any], vocabulary: Path, out: Path, **more: Any) -> LiveConfig:
    """The settings of a live stream: those that are given, and defaults.

    Parameters
    ----------
    options : mapping
        Settings that are not in `NOT_LIVE`.
    **more
        Settings that users cannot give.

    Raises
    ------
    ConfigError
        As `load_config`, and where Ray is chosen and not installed.
    """
    fixed = {"messages": vocabulary, "subscriptions": (out / "subscriptions.jsonl",), "out": out, **more}
    config = _build(options, fixed, LiveConfig)
    if config.executor == "ray":
        require_ray()
    return config


_Config = TypeVar("_Config", bound=RunConfig)


def _build(options: Mapping[str, Any], fixed: Mapping[str, Any], model: type[_Config]) -> _Config:
    """The model of the given options, and of settings that nobody gave."""
    given = Given(options)
    try:
        config = model(**{name: value for name, value in given.items() if value is not None} | dict(fixed))
    except ValidationError as error:
        raise ConfigError(_explain(error, given)) from None
    config._origins.update({name: given.origin(name) for name in given if given[name] is not None})
    return config


def _spelled(given: Given, name: str) -> str:
    """A setting as the command line spells it."""
    return given.spelled.get(name, "--" + name.replace("_", "-"))


def _explain(error: ValidationError, given: Given) -> str:
    """One line for all faults: which setting, where it was set, what is wrong."""
    faults = []
    for fault in error.errors(include_url=False, include_context=False):
        name = str(fault["loc"][0]) if fault["loc"] else ""
        message = fault["msg"].removeprefix("Value error, ")
        if not name or fault["type"] == "extra_forbidden":
            close = difflib.get_close_matches(name, RunConfig.model_fields, n=1)
            hint = f"; did you mean {close[0]}?" if close else "; `skyray config show` lists the settings"
            faults.append(f"unknown setting {name!r}{hint}" if name else message)
            continue
        option = _spelled(given, name)
        if fault["type"] == "missing":
            faults.append(f"{option} is required")
            continue
        value = fault["input"]
        number = isinstance(value, str) and value.isdigit()
        repeated = not isinstance(value, int) and repr(value) in message
        shown = "" if repeated else f" {value}" if number else f" {value!r}"
        origin = given.origin(name) if name in given else "default"
        faults.append(f"{option}{shown} (from {origin}): {message[0].lower()}{message[1:]}")
    return "; ".join(faults)
