"""The way of the data as people type it: etl, subscriptions generate, run on both executors, verify, a false run.

What writes or judges is a process of its own; the remainder is typed in this one, which has the imports already.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gateway import cli

ROOT = Path(__file__).resolve().parents[2]
WORDS = ("ramen", "coffee", "museum", "harbour", "concert", "bakery", "market", "bridge", "library", "garden")

pytestmark = [pytest.mark.spark, pytest.mark.ray]


def skyray(*arguments):
    """Run a command with `--json` from the project's root and return its answer."""
    command = [sys.executable, "-m", "gateway.entry", *map(str, arguments), "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    return json.loads(done.stdout)


def typed(capsys, *arguments):
    """Exit code and answer of a command in this process; what it refuses, in words."""
    code = cli.main([*map(str, arguments), "--json"])
    out, err = capsys.readouterr()
    return code, json.loads(out) if out else err


def write_raw(file, rows):
    with file.open("w", encoding="utf-8") as out:
        for number in range(rows):
            text = " ".join(WORDS[(number * step + number // 7) % len(WORDS)] for step in (1, 3, 7))
            row = {"id": f"m{number}", "text": text, "lon": number * 37 % 360 - 180, "lat": number * 17 % 170 - 85}
            out.write(json.dumps(row) + "\n")
        out.write('{"id": "half", "text": "no place"}\nnot even JSON\n')


def test_cli_whole_way_is_exact_on_both_executors_and_a_false_run_is_found(tmp_path, capsys):
    write_raw(tmp_path / "raw.jsonl", 1500)
    manifest = skyray("etl", tmp_path / "raw.jsonl", "--out", tmp_path / "etl", "--master", "local[2]")
    assert (manifest["read"], manifest["kept"], manifest["rejected"]) == (1502, 1500, 2)

    files = []
    for kind in ("boolean", "topk"):
        files.append(tmp_path / f"{kind}.jsonl")
        code, answer = typed(
            capsys,
            *("subscriptions", "generate", "--messages", tmp_path / "etl", "--kind", kind, "--count", 60),
            *("--seed", 3, "--until-share", 0.2, "--out", files[-1]),
        )
        assert code == 0 and answer["count"] == 60

    reports = {}
    for executor, more in (("local", ()), ("ray", ("--router", "location", "--tuple-bolts", 2))):
        reports[executor] = skyray(
            *("run", "--messages", tmp_path / "etl", "--subscriptions", *files, "--out", tmp_path / executor),
            *("--executor", executor, "--window", "count:400", "--batch", 100, "--query-bolts", 2, *more),
        )
    assert reports["local"]["digest"] == reports["ray"]["digest"]
    assert sum(reports["ray"]["delivery"]["updates"].values()) > 1000
    local, ray = ((tmp_path / executor / "results.parquet").read_bytes() for executor in ("local", "ray"))
    assert local == ray

    verdict: Any = skyray("verify", tmp_path / "ray", "--all")
    assert verdict["exact"] is True
    assert min(verdict["oracle_updates"].values()) > 0

    shutil.copytree(tmp_path / "ray", tmp_path / "false", ignore=shutil.ignore_patterns("updates.list"))
    updates = next((tmp_path / "false" / "updates").glob("*.parquet"))
    table = pq.read_table(updates)
    pq.write_table(pa.concat_tables([table.slice(0, 500), table.slice(501)]), updates)
    code, verdict = typed(capsys, "verify", tmp_path / "false", "--all")
    assert code == 1 and verdict["exact"] is False
    assert sum(verdict["missing"].values()) == 1

    again = ("run", "--messages", tmp_path / "etl", "--subscriptions", *files, "--out", tmp_path / "ray")
    code, refused = typed(capsys, *again)
    assert code == 2 and "--overwrite" in refused
    nowhere = ("run", "--messages", tmp_path, "--subscriptions", *files, "--out", tmp_path / "new")
    code, missing = typed(capsys, *nowhere)
    assert code == 4 and "manifest.json" in missing
