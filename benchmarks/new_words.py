"""A live stream that starts without words beside one that starts with those of the ETL.

    python -m benchmarks.new_words ETL MESSAGES [--kinds topk,knn] [--rounds 3]

ETL is the folder that `skyray etl` made of MESSAGES, lines of JSON. Both are `skyray live` processes with the same
subscriptions, which take turns, and differ in `--vocabulary` alone: what the empty one pays is that each word is
admitted when it first comes. Timed is from the first update on the pipe, when kernels are there, to the end. The
folder of each is held against the oracle (`gateway.runs.verify`), with its own words and weights: rare words weigh
otherwise where they were admitted early, so that the two may have other updates.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Annotated, Any

from benchmarks import command
from benchmarks.command import ROOT, verdict
from benchmarks.stopwatch import in_turns
from gateway.runs.verify import verify_run
from gateway.subscriptions.generate import generate_subscriptions
from matching.errors import TopologyError
from matching.kinds import KINDS

#: Subscriptions of a kind that are compared with the oracle.
_SAMPLE = 800
_WAYS = ("with_etl", "empty")


def bench(
    etl: Annotated[Path, "output folder of `skyray etl`"],
    messages: Annotated[Path, "what it was made of: lines of JSON"],
    kinds: Annotated[tuple[str, ...], "each by itself"] = KINDS.names,
    subscriptions: Annotated[int, "of a kind"] = 20_000,
    rounds: Annotated[int, "turns of each"] = 3,
    tell: command.Tell = print,
) -> dict[str, Any]:
    """How long the stream takes without words at the start, over how long with the ETL's; by kind."""
    measured = {}
    for kind in kinds:
        with tempfile.TemporaryDirectory(prefix="skyray-words-") as name:
            folder = Path(name)
            generate_subscriptions(etl, kind, subscriptions, 0, folder / "subscriptions.jsonl")

            def one(way: str, turn: int, kind: str = kind, folder: Path = folder) -> dict[str, Any]:
                start = ["--vocabulary", str(etl)] if way == "with_etl" else []
                out = folder / f"{way}-{turn}"
                seconds = _stream(messages, ["--subscriptions", str(folder / "subscriptions.jsonl"), *start], out)
                row: dict[str, Any] = {"seconds": seconds}
                if turn == 0:
                    found = verify_run(out, sample=_SAMPLE, seed=0)
                    compared = sum(found.oracle_updates.values()), sum(found.subscriptions.values())
                    row |= {"messages": found.messages, **verdict(found.exact, *compared)}
                tell(f"{kind}, turn {turn + 1} of {rounds}: {way}: {row}")
                return row

            turns = in_turns(_WAYS, rounds, one)
        judged = [turns[way][0] for way in _WAYS]
        seconds = {way: [turn["seconds"] for turn in turns[way]] for way in _WAYS}
        ratios = [empty / full for full, empty in zip(seconds["with_etl"], seconds["empty"], strict=True)]
        measured[kind] = {
            "messages": judged[0]["messages"],
            "seconds": seconds,
            "ratio": {"median": median(ratios), "turns": ratios},
            "exact": all(each["exact"] for each in judged),
            "compared": min(each["compared"] for each in judged),
            "compared_subscriptions": min(each["compared_subscriptions"] for each in judged),
        }
    return {"subscriptions": subscriptions, "measured": measured, "exact": all(r["exact"] for r in measured.values())}


def _stream(messages: Path, options: list[str], out: Path) -> float:
    """Seconds from the first update of `skyray live` over these messages to its end. Raises TopologyError."""
    words = [sys.executable, "-m", "gateway.cli", "live", "--world", "earth", "--out", str(out), *options]
    log = out.with_suffix(".log")
    with (
        open(messages, "rb") as lines,
        open(log, "wb") as said,
        subprocess.Popen(words, stdin=lines, stdout=subprocess.PIPE, stderr=said, cwd=ROOT) as live,
    ):
        assert live.stdout is not None, "it is a pipe"
        while (line := live.stdout.readline()) and b'"change"' not in line:
            pass
        begun = perf_counter()
        while live.stdout.read(1 << 20):
            pass
        seconds = perf_counter() - begun
    if live.returncode:
        raise TopologyError(f"`skyray live` ended with {live.returncode}: {log.read_text()[-2000:]}")
    return seconds


if __name__ == "__main__":
    sys.exit(command.main(bench))
