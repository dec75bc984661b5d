"""The ETL with Spark up: time of every stage, over made messages as a file of JSON Lines.

    python -m benchmarks.etl [--rows 50000] [--rounds 7] > results.json

A first run warms Java and the Python workers. Beside the time of a stage is the processor time of this process, of Java
and of the workers, which other load changes little. What every run has kept and counted is held against the file, and
its output against that of the first by digest.
"""

import json
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Annotated, Any

import numpy as np
import psutil

from benchmarks import command
from benchmarks.command import Tell
from benchmarks.workload import Messages, make_messages
from spark_etl.job import EtlOptions, EtlProgress, run_etl
from spark_etl.session import spark_session


def write_raw(made: Messages, path: Path) -> None:
    """Write messages as `skyray etl` reads them: a line each, one a second."""
    batch = made.batch
    with path.open("w", encoding="utf-8") as file:
        for row, (first, end) in enumerate(zip(batch.term_offsets, batch.term_offsets[1:], strict=False)):
            words = np.repeat(batch.terms[first:end], batch.counts[first:end]).tolist()
            said = {"id": f"m{row}", "lon": float(batch.west[row]), "lat": float(batch.south[row]), "time": 10**9 + row}
            file.write(json.dumps(said | {"text": " ".join(f"w{word}" for word in words)}) + "\n")


class StageTimes:
    """Listener of a run: seconds of each stage, and of the processors of this process, Java and Spark's workers."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._before = self._spent()

    def __call__(self, progress: EtlProgress) -> None:
        if progress.seconds is None:
            return
        spent = self._spent()
        self.seconds[progress.stage] = progress.seconds
        self.seconds |= {f"{progress.stage}_{who}": spent[who] - self._before[who] for who in spent}
        self._before = spent

    @staticmethod
    def _spent() -> dict[str, float]:
        this = psutil.Process()
        found = {"driver": sum(this.cpu_times()[:2]), "java": 0.0, "workers": 0.0}
        for child in this.children(recursive=True):
            with suppress(psutil.Error):  # it has ended
                found["java" if child.name() == "java" else "workers"] += sum(child.cpu_times()[:2])
        return found


def bench(
    rows: Annotated[int, "messages in the file"] = 50_000,
    rounds: Annotated[int, "timed runs"] = 7,
    seed: Annotated[int, "of the messages"] = 0,
    tell: Tell = print,
) -> dict[str, Any]:
    """Seconds of a run and of each stage, medians over all timed runs, and each run."""
    made = make_messages(rows, seed, timed=True)
    wanted = {
        "kept": rows,
        "total_tokens": int(made.batch.counts.sum()),
        "vocabulary_size": np.unique(made.batch.terms).shape[0],
    }
    told, outputs = [], []
    with tempfile.TemporaryDirectory(prefix="skyray-etl-") as folder:
        raw = Path(folder) / "messages.jsonl"
        write_raw(made, raw)
        options = EtlOptions(inputs=(str(raw),), out=str(Path(folder) / "out"), overwrite=True)
        with spark_session(options, Path(folder) / "spark") as spark:
            for turn in range(rounds + 1):
                begun, stages = perf_counter(), StageTimes()
                manifest = run_etl(options, stages, spark)
                told.append({"seconds": perf_counter() - begun, **stages.seconds})
                outputs.append({name: manifest[name] for name in wanted} | {"files": manifest["files"]})
                tell(f"run {turn} of {rounds}: {told[-1]}")
    exact = all(one == wanted | {"files": outputs[0]["files"]} for one in outputs)
    medians = {name: median(one[name] for one in told[1:]) for name in told[0]}
    return {"rows": rows, **medians, "first": told[0], "runs": told[1:], "exact": exact}


if __name__ == "__main__":
    from benchmarks import etl

    sys.exit(command.main(etl.bench))
