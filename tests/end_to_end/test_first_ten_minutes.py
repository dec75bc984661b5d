"""A stranger's first ten minutes: data with columns of unknown names, subscriptions by hand, a mistake in every step.

Each mistake is answered in one line that says what to do, with the exit code that `--help` promises, and the next step
does what the line said.
"""

import json
import os
import random
import re
import subprocess
import sys

import pytest

from tests.support.documents import ROOT

pytestmark = pytest.mark.spark

WORDS = ("Café", "crème", "open", "late", "bakery", "closed", "tea")
ETL = ("etl", "shops.csv", "--delimiter", ";", "--column", "text=remark", "--column", "id=shop")
PLACED = (*ETL, "--column", "lat=breite", "--column", "lon=laenge", "--column", "time=wann")
FORM = ("--time-format", "%d.%m.%Y %H:%M")
MADE = ("subscriptions", "generate", "--count", "10", "--seed", "3", "--kind")
RUN = ("run", "--executor", "local", "--subscriptions", "mine.jsonl", "topk.jsonl", "--messages")

#: Words of the command, exit code, and what is said: after a mistake on standard error, else in the answer.
STEPS = (
    (("etl", "shop.csv", "--out", "etl"), 4, r"did you mean shops.csv\?"),
    (("etl", "shops.csv", "--out", "etl"), 4, "it has shop;remark.*--delimiter ';'"),
    (
        ("etl", "shops.csv", "--delimiter", ";", "--out", "etl"),
        4,
        "no column lat, lon, text; .*--column text=NAME --column lat=NAME",
    ),
    (
        (*ETL, "--column", "lat=laenge", "--column", "lon=breite", "--dry-run", "50"),
        4,
        "50 coordinate_out_of_range.*right way round",
    ),
    (
        (*ETL, "--column", "lat=breite", "--column", "lon=laenge", "--column", "time=when", "--out", "etl"),
        4,
        "no column when .*remark, breite",
    ),
    ((*PLACED, "--require-time", "--dry-run", "50"), 4, "bad_time.*how times are written with --time-format"),
    ((*PLACED, "--time-format", "%d.%Q", "--out", "etl"), 2, "time format '%d.%Q'.*such as '%d/%m/%Y %H:%M'"),
    ((*PLACED, *FORM, "--time_form", "x", "--out", "etl"), 2, "--time-format"),
    ((*PLACED, *FORM), 2, "name the output directory, or look at the data with --dry-run"),
    ((*PLACED, *FORM, "--fold-accents", "--dry-run", "50"), 0, "2025-12-01T18:00:00Z"),
    ((*PLACED, *FORM, "--fold-accents", "--out", "etl"), 0, "bad_csv +1"),
    ((*PLACED, *FORM, "--out", "etl"), 2, "already in use; .*--overwrite"),
    ((*MADE, "topkk", "--messages", "etl", "--out", "topk.jsonl"), 2, "choose one of boolean, topk"),
    ((*MADE, "topk", "--messages", "shops.csv", "--out", "topk.jsonl"), 4, "give what `skyray etl` wrote"),
    ((*MADE, "topk", "--messages", "etl", "--out", "no/topk.jsonl"), 6, "make its folder first"),
    ((*MADE, "topk", "--messages", "etl", "--out", "topk.jsonl"), 0, "10 topk subscriptions"),
    ((*RUN, "etl", "--window", "20000", "--out", "run"), 2, "count:20000, time:3600 or time:1h"),
    ((*RUN, "etl", "--router", "hash", "--out", "run"), 2, "'hashing', 'location'"),
    ((*RUN, "raw", "--out", "run"), 4, "give an output folder of `skyray etl`|give a directory"),
    (("run", "--messages", "etl", "--subscriptions", "min.jsonl", "--out", "run"), 4, "min.jsonl does not exist: name"),
    ((*RUN, "etl", "--out", "run"), 0, "rejected"),
    ((*RUN, "etl", "--out", "run"), 2, "--overwrite"),
    (("verify", "runs"), 4, "name the --out of a finished `skyray run`"),
    (("verify", "etl"), 4, "name the --out of a `skyray run`"),
    (("verify", "run", "--all"), 0, "exact: 11 subscriptions"),
)

NEAR = {"keywords": "cafe", "lon": 116.5, "lat": 48.5, "k": 10, "alpha": 0.5}
BOX = [115, 47, 118, 50]
#: Reason, and the row that has it; None for the one that is good.
BY_HAND = (
    (None, {"subscription_id": "good", "kind": "boolean", "keywords": "cafe", "region": BOX}),
    ("bad_k", {"subscription_id": "s1", "kind": "topk", **NEAR, "k": "ten"}),
    ("coordinate_out_of_range", {"subscription_id": "s2", "kind": "topk", **NEAR, "lon": 48.5, "lat": 116.5}),
    ("unknown_kind", {"subscription_id": "s3", "kind": "topkk", **NEAR}),
    ("no_known_keyword", {"subscription_id": "s4", "kind": "topk", **NEAR, "keywords": "kaffee"}),
    ("unknown_column", {"subscription_id": "s5", "kind": "knn", **NEAR, "alpah": 0.5}),
    ("bad_alpha", {"subscription_id": "s6", "kind": "topk", **NEAR, "alpha": 50}),
    ("missing_id", {"kind": "knn", **NEAR}),
    ("wrong_place", {"subscription_id": "s7", "kind": "knn", "keywords": "cafe", "region": BOX, "k": 3}),
    ("not_json", "{'subscription_id': 's8', 'kind': 'topk'}"),
)


def skyray(folder, words):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    command = [sys.executable, "-m", "gateway.entry", *words]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.wide
def test_stranger_every_mistake_is_answered_with_what_to_do(tmp_path):
    rng = random.Random(3)
    rows = [
        f"Shop {n};{' '.join(rng.choices(WORDS, k=3))};{48.2 + rng.random():.4f};{116.3 + rng.random():.4f};"
        f"{1 + n % 28}.12.2025 18:{n:02}"
        for n in range(60)
    ]
    (tmp_path / "shops.csv").write_text("\n".join(["shop;remark;breite;laenge;wann", *rows, "Shop x;too;few", ""]))
    (tmp_path / "raw").mkdir()
    by_hand = (row if isinstance(row, str) else json.dumps(row) for _, row in BY_HAND)
    (tmp_path / "mine.jsonl").write_text("".join(f"{row}\n" for row in by_hand))
    for words, code, said in STEPS:
        done = skyray(tmp_path, words)
        shown = f"skyray {' '.join(words)}\n[{done.returncode}] {done.stdout}{done.stderr}"
        assert done.returncode == code, shown
        assert "Traceback" not in done.stderr, shown
        if code:
            assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1 and not done.stdout, shown
        assert re.search(said, done.stderr if code else done.stdout), shown

    told = [json.loads(line) for line in (tmp_path / "run" / "rejected.jsonl").read_text().splitlines()]
    expected = [(line, reason) for line, (reason, _) in enumerate(BY_HAND, 1) if reason]
    assert [(row["line"], row["reason"]) for row in told] == expected
    assert all(len(row["what"]) > 10 for row in told)
    # What stands as `cafe` in the file of subscriptions is `Café` in the messages.
    report = json.loads((tmp_path / "run" / "run.json").read_text())
    assert report["delivery"]["updates"]["match"] > 10
