"""One answer whatever the parallelism: run the same files on every corner of a matrix and compare.

    python -m benchmarks.matrix --messages ETL_DIR --subscriptions FILE... --out DIR

Runs executor x router x query bolts x tuple bolts x distribution bolts (all Ray corners in one Ray session), holds
the digest of the updates and the bytes of `results.parquet` of each corner against the first, and verifies the first
against the oracle. `--corners` takes a few named ones instead of all. Exit code 1 if anything differs, or if too little
was compared.
"""

import argparse
import hashlib
import itertools
import json
import logging
import shutil
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import ray

from benchmarks.provenance import provenance
from benchmarks.verified import verdict_of_run
from topology.running import run
from topology.settings import RunConfig


def corners(executors: list[str]) -> list[tuple[str, str, int, int, int]]:
    """Every corner: executor, router, query bolts, tuple bolts, distribution bolts."""
    return list(itertools.product(executors, ("hashing", "location"), (1, 2, 4), (1, 3), (1, 2)))


def run_corner(corner: tuple[str, str, int, int, int], options: argparse.Namespace) -> dict[str, Any]:
    """Run one corner; returns its digest, the checksum of its results, and what it took."""
    executor, router, query, tuples, distribution = corner
    out = Path(options.out, "-".join(map(str, corner)))
    shutil.rmtree(out, ignore_errors=True)
    config = RunConfig(
        messages=options.messages,
        subscriptions=tuple(options.subscriptions),
        out=out,
        window=options.window,
        executor=executor,  # type: ignore[arg-type]
        router=router,  # type: ignore[arg-type]
        query_bolts=query,
        tuple_bolts=tuples,
        distribution_bolts=distribution,
        batch=options.batch,
        limit=options.limit,
        seed=options.seed if executor == "local" else None,
    )
    begun = perf_counter()
    report = run(config)
    return {
        "corner": "-".join(map(str, corner)),
        "digest": report["digest"],
        "results": hashlib.sha256((out / "results.parquet").read_bytes()).hexdigest()[:16],
        "updates": sum(report["delivery"]["updates"].values()),
        "seconds": round(perf_counter() - begun, 1),
        "elapsed_s": round(report["topology"]["elapsed_s"], 2),
        "replication_ratio": report["routing"]["replication_ratio"],
        "messages_sent_per_message": report["routing"]["messages_sent_per_message"],
    }


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description="Run every corner of the matrix and compare the answers.")
    parser.add_argument("--messages", type=Path, required=True)
    parser.add_argument("--subscriptions", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--window", default="count:5000")
    parser.add_argument("--batch", type=int, default=1000)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--seed", type=int, default=1, help="interleaving of the local corners")
    parser.add_argument("--executors", nargs="+", default=["local", "ray"])
    parser.add_argument("--corners", nargs="+", help="such as ray-location-2-3-1, instead of all")
    parser.add_argument("--sample", type=int, help="verify so many subscriptions of each kind, instead of all")
    options = parser.parse_args()
    chosen = corners(options.executors)
    if options.corners:
        split = [name.split("-") for name in options.corners]
        chosen = [(executor, router, int(q), int(t), int(d)) for executor, router, q, t, d in split]
    if any(corner[0] == "ray" for corner in chosen):
        ray.init("local", include_dashboard=False, _node_ip_address="127.0.0.1", logging_level=logging.WARNING)
    rows = []
    try:
        for corner in chosen:
            rows.append(run_corner(corner, options))
            sys.stderr.write(json.dumps(rows[-1]) + "\n")
    finally:
        ray.shutdown()
    report = {
        "corners": rows,
        "digests": len({row["digest"] for row in rows}),
        "results": len({row["results"] for row in rows}),
        **verdict_of_run(Path(options.out, rows[0]["corner"]), options.sample),
        "made_by": provenance(),
    }
    sys.stdout.write(json.dumps(report, indent=1) + "\n")
    return 0 if report["digests"] == report["results"] == 1 and report["exact"] else 1


if __name__ == "__main__":
    sys.exit(main())
