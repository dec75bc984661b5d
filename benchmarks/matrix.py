"""Digests of every configuration: routers, bolts, window indexes, engines and executors over one stream of real places.

    python -m benchmarks.matrix ETL_FOLDER [--kinds topk,skyline] [--executors local,ray] > digests.json
    python -m benchmarks.matrix ETL_FOLDER --against digests.json

A change that must keep results is held against the digests of the commit before it. Of each kind the first
configuration is verified by the oracle, on a sample; all others have to end with its digest. On Ray all kinds that a
router can place run together. The places are those of the demo: `skyray demo` leaves its ETL folder behind.
"""

import hashlib
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from benchmarks import command
from benchmarks.command import Tell, verdict
from distribution.routers import ROUTERS, placeable
from gateway.runs.verify import verify_run
from gateway.subscriptions.generate import generate_subscriptions
from matching.kind_table import Kind
from matching.kinds import KINDS
from topology.running import run
from topology.settings import RunConfig

_SEED = 7


def configurations(kind: Kind, bolts: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Of one kind: every router with every window index, then every engine behind the first router."""
    routers = [name for name in ROUTERS if placeable(name, KINDS, kind.name, False) is None]
    for router, query_bolts, index in product(routers, bolts, kind.windows or [None]):
        chosen = {} if index is None else {"window_index": {kind.name: index}}
        yield {"router": router, "query_bolts": query_bolts, **chosen}
    for engine in kind.engines:
        yield {"router": routers[0], "query_bolts": max(bolts), "engine": {kind.name: engine}}


def digest_of(etl: Path, files: Sequence[Path], out: Path, **settings: Any) -> str:
    """The digest of one run."""
    told = run(RunConfig(messages=etl, subscriptions=tuple(files), out=out, checkpoint_every=0, **settings))
    return told["digest"]


def bench(
    etl: Annotated[Path, "output folder of `skyray etl`, such as the demo's"],
    kinds: Annotated[tuple[str, ...], "one after the other"] = KINDS.names,
    executors: Annotated[tuple[str, ...], "local: each kind alone; ray: kinds together"] = ("local", "ray"),
    bolts: Annotated[tuple[int, ...], "query bolts; the other tasks that can be several are two"] = (1, 3),
    subscriptions: Annotated[int, "of each kind, a tenth of them of skyline"] = 2_000,
    messages: Annotated[int, "of the folder, from its first"] = 12_000,
    window: Annotated[str, "as of a run"] = "count:4000",
    batch: Annotated[str, "as of a run"] = "1000",
    sample: Annotated[int, "subscriptions of each kind that the oracle verifies"] = 500,
    against: Annotated[Path | None, "an earlier report: its digests must come again"] = None,
    tell: Tell = print,
) -> dict[str, Any]:
    """A row a configuration, and the digest that all configurations of the same subscriptions share."""
    # what papers and baselines have in common: most of them measure in the plane alone
    stream: dict[str, Any] = {"window": window, "batch": batch, "limit": messages, "distance": "plane"}
    several = {"tuple_bolts": 2, "distribution_bolts": 2, "aggregation_bolts": 2}
    rows: list[dict[str, Any]] = []
    compared = subscribers = 0
    inputs: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="skyray-matrix-") as scratch:
        files = {}
        for name in kinds:
            count = max(1, subscriptions // KINDS.named(name).recipe.share)
            files[name] = Path(scratch, f"{name}.jsonl")
            generate_subscriptions(etl, name, count, _SEED, files[name], max_frequency=1.0)
            inputs[name] = {"count": count, "sha256": hashlib.sha256(files[name].read_bytes()).hexdigest()}
        for name in kinds if "local" in executors else ():
            tell(f"{name}: one bolt of each, verified")
            out = Path(scratch, f"first-{name}")
            digest = digest_of(etl, [files[name]], out, executor="local", query_bolts=1, **stream)
            verified = verify_run(out, sample)
            if not verified.exact:
                raise SystemExit(f"{name}: {verified.render()}")
            compared += sum(verified.oracle_updates.values())
            subscribers += sum(verified.subscriptions.values())
            rows.append({"subscriptions": name, "executor": "local", "digest": digest, "verified": verified.as_json()})
            for each in configurations(KINDS.named(name), bolts):
                out = Path(scratch, f"{name}-{len(rows)}")
                settings = {"executor": "local", "seed": len(rows), "sink": "count", **several, **each}
                digest = digest_of(etl, [files[name]], out, **settings, **stream)
                rows.append({"subscriptions": name, "executor": "local", **each, "digest": digest})
                tell(str(rows[-1]))
        for router, query_bolts in product(ROUTERS, bolts) if "ray" in executors else ():
            able = [name for name in kinds if placeable(router, KINDS, name, False) is None]
            each = {"router": router, "query_bolts": query_bolts}
            settings = {"executor": "ray", "sink": "count", **several, **each}
            out = Path(scratch, f"ray-{len(rows)}")
            digest = digest_of(etl, [files[name] for name in able], out, **settings, **stream)
            rows.append({"subscriptions": "+".join(able), "executor": "ray", **each, "digest": digest})
            tell(str(rows[-1]))
    digests = {}
    for row in rows:
        digests.setdefault(row["subscriptions"], set()).add(row["digest"])
    shared = {name: sorted(found) for name, found in digests.items()}
    same = all(len(found) == 1 for found in shared.values())
    if against is not None:
        before = json.loads(against.read_text())
        changed = {name: [before["digests"].get(name), found] for name, found in shared.items()}
        changed = {name: both for name, both in changed.items() if both[0] != both[1]}
        if before["inputs"] != inputs:
            changed["inputs"] = [before["inputs"], inputs]
        same = same and not changed
        tell(f"against {before['made_by']['commit']}: {changed or 'the same digests'}")
    workload = {**stream, "several": several, "seed": _SEED}
    report = {"workload": workload, "inputs": inputs, "digests": shared, "configurations": len(rows), "rows": rows}
    return {**report, **verdict(same, compared, subscribers)}


if __name__ == "__main__":
    sys.exit(command.main(bench))
