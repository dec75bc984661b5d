"""Messages a second of a run whose folders are all in an object store, against the same run on this machine's disk.

    python -m benchmarks.stores [--messages N] [--subscriptions N] [--rounds N] > benchmarks/results/stores.json

The store is the S3 server of moto in a process beside the run, so that it takes processor time from it. Both write a
checkpoint every `--checkpoint-every` seconds; they take turns, in one process, and must have the same digest.
"""

import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Annotated, Any
from unittest import mock

from benchmarks import command
from benchmarks.command import Tell
from benchmarks.stopwatch import in_turns
from gateway.subscriptions.generate import generate_subscriptions
from tests.support.etl_folder import random_rows, write_etl
from tests.support.object_store import serving_objects
from topology.core.places import place
from topology.running import run
from topology.settings import RunConfig

_WORDS, _KINDS = 2_000, ("boolean", "topk")


def measure(
    messages: Annotated[int, "messages of the stream"] = 200_000,
    subscriptions: Annotated[int, "of each of two kinds"] = 10_000,
    checkpoint_every: Annotated[float, "seconds between checkpoints"] = 2.0,
    rounds: Annotated[int, "turns of each"] = 3,
    *,
    tell: Tell,
) -> dict[str, Any]:
    """Messages a second of each way, and their ratio."""
    with tempfile.TemporaryDirectory() as name, serving_objects() as server:
        folder, bucket = Path(name), server.new_bucket()
        etl = write_etl(folder / "etl", random_rows(messages, words=_WORDS, grid=1_000), words=_WORDS, files=4)
        files = [folder / f"{kind}.jsonl" for kind in _KINDS]
        for kind, file in zip(_KINDS, files, strict=True):
            generate_subscriptions(etl, kind, subscriptions, 1, file, max_frequency=1.0)
        uploaded = [server.upload(one, f"{bucket}/{one.name}") for one in files]
        inputs: dict[str, Any] = {"disk": (etl, files), "store": (server.upload(etl, f"{bucket}/etl"), uploaded)}
        outs = {"disk": str(folder / "runs"), "store": f"{bucket}/runs"}
        tell(f"{messages:,} messages and {subscriptions:,} subscriptions of each kind are made")
        digests: set[str] = set()

        def once(way: str, turn: int) -> float:
            given, paths = inputs[way]
            config = RunConfig(
                messages=given, subscriptions=tuple(paths), out=place(f"{outs[way]}/{turn}"), executor="local",
                checkpoint_every=checkpoint_every,
            )  # fmt: skip
            began = perf_counter()
            digests.add(run(config)["digest"])
            took = perf_counter() - began
            tell(f"{way}: {messages / took:,.0f} messages a second")
            return took

        with mock.patch.dict("os.environ", server.environment):
            once("disk", rounds)  # kernels are loaded
            seconds = in_turns(outs, rounds, once)
    rates = {way: messages / median(mine) for way, mine in seconds.items()}
    same = "the same digest" if len(digests) == 1 else "ANOTHER DIGEST"
    tell(f"the store has {rates['store'] / rates['disk']:.2f} of the disk's rate, and {same}")
    return {
        "messages": messages,
        "subscriptions": subscriptions * len(_KINDS),
        "checkpoint_every_s": checkpoint_every,
        "messages_per_s": rates,
        "seconds": seconds,
        "ratio": rates["store"] / rates["disk"],
        "exact": len(digests) == 1,
    }


if __name__ == "__main__":
    sys.exit(command.main(measure))
