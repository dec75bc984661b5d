"""Generated subscriptions with filters: as many as was said, taken by the loader, and satisfied by their messages."""

import json

import numpy as np
import pytest

from gateway import cli
from gateway.subscriptions.checking import check_subscriptions
from gateway.subscriptions.generate import generate_subscriptions
from matching.errors import ConfigError
from matching.kinds import KINDS
from tests.support.etl_folder import random_rows, write_etl

COUNT = 400
ATTRIBUTES = ("price:number", "type:category", "listed:time")
SHARES = {"circle": "circle_share", "polygon": "polygon_share", "where": "where_share", "not_keywords": "not_share"}


@pytest.fixture(scope="module")
def etl(tmp_path_factory):
    """Points in half of the world, some of them at its edges; a fifth of their attributes are missing."""
    rng, rows = np.random.default_rng(7), random_rows(300)
    for row in rows:
        row |= {"west": row["lon"], "east": row["lon"], "attribute_price": float(rng.integers(-3, 40)) * 1_000}
        row |= {"attribute_type": str(rng.choice(["house", "flat", "boat"])), "attribute_listed": row["seq"] * 10**12}
        for name in ("price", "type", "listed"):
            if rng.random() < 0.2:
                row[f"attribute_{name}"] = None
    return write_etl(tmp_path_factory.mktemp("generate") / "etl", rows, attributes=ATTRIBUTES)


def make(etl, path, kind, **options):
    report = generate_subscriptions(etl, kind, COUNT, 5, path, overwrite=True, max_frequency=1.0, **options)
    return report, [json.loads(line) for line in path.read_text().splitlines()]


def shares_of(kind, share=0.3):
    shapes = KINDS.named(kind).shapes
    round_ones = {"circle_share": share} if {"circle", "radius_m"} & set(shapes) else {}
    return round_ones | ({"polygon_share": share} if "polygon" in shapes else {}) | {
        "where_share": share, "not_share": share
    }  # fmt: skip


@pytest.mark.parametrize("kind", KINDS.names)
def test_generate_filters_are_as_many_as_said_and_every_row_is_accepted(etl, tmp_path, kind):
    path, shares = tmp_path / "a.jsonl", shares_of(kind)
    report, made = make(etl, path, kind, until_share=0.4, **shares)
    checked = check_subscriptions([path], etl, "earth")
    assert checked["accepted"] == COUNT, checked["rejected_by_reason"]
    for column, share in SHARES.items():
        has = sum(column in row or (column == "circle" and "radius_m" in row) for row in made)
        assert (90 < has < 150) if share in shares else not has, (column, has)
        assert report["filters"][column] == has
    plain = make(etl, tmp_path / "b.jsonl", kind, until_share=0.4)[1]
    moved = {*SHARES, "radius_m", "region"}
    assert [{name: row[name] for name in row if name not in moved} for row in made] == [
        {name: row[name] for name in row if name not in moved} for row in plain
    ], "the rest is that of the seed"
    again = make(etl, tmp_path / "c.jsonl", kind, until_share=0.4, **shares)[1]
    assert again == made


@pytest.mark.parametrize("kind", [kind.name for kind in KINDS.run])
def test_generate_filters_are_satisfied_by_the_message_that_they_come_from(etl, tmp_path, kind):
    """So every subscription matches a message at least; and it has all sorts of conditions."""
    path = tmp_path / "a.jsonl"
    _, made = make(etl, path, kind, **(shares_of(kind, 0.5) | {"where_share": 1.0}))
    for row in check_subscriptions([path], etl, "earth")["rows"]:
        assert row["messages"] >= 1, (row, made[row["line"] - 1])
    forms = {(name, *(one if isinstance(one, dict) else [type(one).__name__])) for row in made
             for name, one in row["where"].items()}  # fmt: skip
    assert {("price", "gte", "lte"), ("type", "str"), ("type", "list"), ("listed", "gte"), ("price", "exists")} <= forms
    assert {len(row["where"]) for row in made} == {1, 2, 3}
    for row in made:
        assert not set(row.get("not_keywords", ())) & set(row["keywords"])


def test_generate_command_has_the_shares_and_the_run_takes_them(etl, tmp_path, capsys):
    file = tmp_path / "a.jsonl"
    options = ["--circle-share", "0.5", "--polygon-share", "0.5", "--where-share", "0.5", "--not-share", "0.5"]
    command = ["subscriptions", "generate", "--messages", str(etl), "--kind", "boolean", "--count", "50"]
    assert cli.main([*command, "--out", str(file), *options, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["filters"]["circle"] + report["filters"]["polygon"] == 50


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("boolean", {"circle_share": 1.5}, "circle share 1.5: must lie between 0 and 1"),
        ("boolean", {"not_share": -0.1}, "not share -0.1: must lie between 0 and 1"),
        ("boolean", {"circle_share": 0.6, "polygon_share": 0.6}, "circle share 0.6 and polygon share 0.6: a sub"),
        ("skyline", {"circle_share": 0.1}, "circle share 0.1: only boolean, topk, decay and knn"),
        ("skyline", {"polygon_share": 0.1}, "polygon share 0.1: only boolean, topk, decay and knn"),
    ],
)  # fmt: skip
def test_generate_shares_that_cannot_be_are_refused(etl, tmp_path, kind, options, said):
    with pytest.raises(ConfigError, match=said):
        make(etl, tmp_path / "a.jsonl", kind, **options)
    assert not (tmp_path / "a.jsonl").exists()


def test_generate_conditions_on_messages_without_attributes_are_refused(tmp_path):
    plain = write_etl(tmp_path / "etl", random_rows(30))
    with pytest.raises(ConfigError, match="where share: the messages of .* have no attributes; .*--attribute"):
        make(plain, tmp_path / "a.jsonl", "topk", where_share=0.5)
