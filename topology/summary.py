"""The report of a run: counts and digest first, then the papers' measures of routing. Written as `run.json`."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bolts.names import Digest
from matching.half_life import EPOCH_US
from matching.window import Window
from spouts.cuts import Cuts
from spouts.manifest import is_of_objects, world_of
from topology.core.metrics import RunReport
from topology.settings import RunConfig
from topology.sizing import chosen, overloaded


def summarise(config: RunConfig, report: RunReport, seconds: float) -> dict[str, Any]:
    """How a run went, as JSON-ready values; counts and digest first, then the papers' measures of routing."""
    parts = {name: [task.figures for task in part.tasks] for name, part in report.components.items()}
    delivery = delivered(parts["delivery"])
    routing = parts["distribution"]
    messages = sum(part["messages"] for part in routing)
    sent = np.sum([part["sent_to_each_query_task"] for part in routing], axis=0)
    taken = sum(part["subscriptions_taken"] for part in parts["query"])
    accepted = parts["subscriptions"][0]["accepted"]
    # in one process tasks take turns, so that one is busy while others cannot be
    busy = {name: max(task.busy_share for task in part.tasks) for name, part in report.components.items()}
    advice = overloaded(busy) if config.executor == "ray" else None
    return {
        "limit": config.limit,
        "kind_columns": parts["messages"][0].get("kind_columns", []),
        "latest_us": parts["messages"][0].get("latest_us"),
        "seconds": seconds,
        "chosen_bolts": chosen(config, {name: len(tasks) for name, tasks in parts.items()}),
        **({"advice": advice} if advice else {}),
        "digest": delivery["digest"],
        "delivery": delivery,
        "routing": {
            "router": config.router,
            "replication_ratio": taken / accepted if accepted else 0.0,
            "messages_sent_per_message": sum(part["sent"] for part in routing) / messages if messages else 0.0,
            "bytes_sent": sum(part["sent_bytes"] for part in routing),
            "signatures": signature_figures(config.signatures, parts, messages),
            "hits_sent": dict.fromkeys(parts["query"][0]["subscriptions"], 0)
            | _of_each_kind(parts["query"], "hits_sent"),
            **({"placement": placement} if (placement := parts["subscriptions"][0].get("placement")) else {}),
            **({"influence_keys": keys} if (keys := routing[0].get("influence_keys")) else {}),
            "raises_sent": sum(part["raises_sent"] for part in parts["query"]),
            "messages_of_each_query_bolt": sent.tolist(),
            "subscriptions_of_each_query_bolt": [part["subscriptions"] for part in parts["query"]],
        },
        "memory": {
            "operator_bytes": _of_each_kind(parts["query"], "operator_bytes"),
            "window_bytes": _of_each_kind(parts["tuples"], "window_bytes"),
            "order_bytes": _of_each_kind(parts["tuples"], "order_bytes"),
        },
        "spouts": {"messages": parts["messages"][0], "subscriptions": parts["subscriptions"][0]},
        "topology": report.as_dict(),
    }


def delivered(tasks: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The reports of all delivery tasks as one; complete up to the least batch of any of them."""
    first, *others = tasks
    if not others:
        return first
    whole = {**first, "tasks": len(tasks), "digest": Digest.sum_of([task["digest"] for task in tasks])}
    whole["updates"] = {change: sum(task["updates"][change] for task in tasks) for change in first["updates"]}
    for name in ("held_back", "results", "bytes_written", "message_ids_held", "id_bytes"):
        whole[name] = sum(task[name] for task in tasks)
    for name in ("complete_through", "batches", "acknowledged"):
        whole[name] = min(task[name] for task in tasks)
    return whole


def _of_each_kind(tasks: list[dict[str, Any]], figure: str) -> dict[str, int]:
    """A figure that tasks report by kind, summed over tasks."""
    return {kind: sum(part[figure].get(kind, 0) for part in tasks) for kind in tasks[0][figure]}


def began_with(config: RunConfig) -> dict[str, Any]:
    """The values of `run.json` that are known before the run, JSON-ready."""
    space = world_of(config.messages, config.world, config.projection, distance=config.distance)
    return {
        "messages": str(config.messages.resolve()),
        "subscriptions": [str(path.resolve()) for path in config.subscriptions],
        "window": config.window,
        **({"objects": True} if is_of_objects(config.messages, config.objects) else {}),
        "world": config.world,
        "projection": config.projection,
        "distance": config.distance,
        "max_distance_m": space.max_distance if space.on_sphere else None,
        "batch": config.batch,
        "boundaries": Cuts.parse(config.batch, Window.parse(config.window)).as_json(),
        "fading": {
            "half_life_s": config.decay_half_life,
            "log_base_per_s": math.log(2.0) / config.decay_half_life,
            "smoothing": config.decay_smoothing,
            "epoch_us": EPOCH_US,
        },
        "settings": config.as_json(),
    }


def signature_figures(mode: str, parts: dict[str, list[dict[str, Any]]], messages: int) -> dict[str, Any]:
    """What signatures cost and save.

    The optimum sends a message only where it matches a boolean subscription or is a candidate of a skyline one; it
    includes lost ones.
    """
    if mode == "off":
        return {"mode": mode}
    routing = parts["distribution"]
    requested, kept_back = (sum(part[f"signature_{name}"] for part in routing) for name in ("queried", "kept_back"))
    useful, lost = (sum(part[f"messages_{name}"] for part in parts["query"]) for name in ("met", "lost"))
    sent, each = requested - kept_back, max(1, messages)
    pairs = {kind: sum(part["pairs_lost"][kind] for part in parts["query"]) for kind in parts["query"][0]["pairs_lost"]}
    return {
        "mode": mode,
        "bytes": routing[0]["signature_bytes"],
        "patch_bytes": sum(part["signature_patch_bytes"] for part in routing),
        "queried_per_message": requested / each,
        "let_through_per_message": sent / each,
        "optimum_per_message": (useful + lost) / each,
        "false_positive_share": (sent - useful) / sent if sent else 0.0,
        "kept_back": kept_back,
        "lost": lost,
        "lost_share": lost / (useful + lost) if lost else 0.0,
        "lost_pairs": {kind: count for kind, count in pairs.items() if count},
    }
