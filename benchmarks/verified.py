"""The verdict of a whole run: `skyray verify` compares, `benchmarks.verdict` says whether that was enough."""

from pathlib import Path
from typing import Any

from benchmarks.verdict import verdict
from gateway.verify import verify_run


def verdict_of_run(run_dir: Path, sample: int | None) -> dict[str, Any]:
    """What `verdict` says of a finished run: of so many subscriptions of each kind, or of all."""
    verified = verify_run(run_dir, sample=sample, all=sample is None)
    return verdict(verified.exact, sum(verified.oracle_updates.values()), sum(verified.subscriptions.values()))
