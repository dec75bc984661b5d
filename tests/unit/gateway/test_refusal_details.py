"""What is wrong with a shape or a condition, and where, reaches people at every place where a row may be refused."""

import json

import pytest

import skyray
from gateway import cli
from gateway.subscriptions.checking import check_subscriptions
from gateway.subscriptions.preview import preview_subscriptions
from matching.errors import InputError
from tests.support.etl_folder import random_rows, write_etl, write_lines
from tests.support.live_streams import Stream

SQUARE = [[0, 0], [4, 0], [4, 4], [0, 4], [0, 0]]


def row(number: int, **columns) -> dict:
    return {"subscription_id": f"s{number}", "kind": "boolean", "keywords": "w11", **columns}


def polygon(*rings) -> dict:
    return {"polygon": {"type": "Polygon", "coordinates": list(rings)}}


REGION = {"region": [-90, -45, 90, 45]}
#: Rows that are refused, their reason, and what people have to read.
REFUSED = [
    (polygon(SQUARE, [[1, 1], [2, 1], [2, "x"], [1, 1]]), "coordinate_not_number", "polygon 0, ring 1, position 2"),
    (polygon(SQUARE, SQUARE[:-1]), "bad_polygon", "polygon 0, ring 1 ends at another place than it begins"),
    (polygon([[0, 0], [4, 4], [4, 0], [0, 4], [0, 0]]), "invalid_polygon", "Self-intersection[2 2]"),
    ({"circle": {"lon": 1, "lat": 1}}, "bad_circle", "missing: radius_m"),
    ({"circle": {"lon": 1, "lat": 1, "radius_m": "far"}}, "bad_radius", "radius_m is 'far'"),
    ({**REGION, "where": {"price": {"below": 3}}}, "bad_where", "price: 'below' is no operator"),
    ({**REGION, "where": {"price": {"lte": "cheap"}}}, "bad_attribute", "price lte: 'cheap' is no number"),
    ({**REGION, "where": {"type": {"gte": "flat"}}}, "bad_where", "type gte: categories have no order"),
    ({**REGION, "where": {"type": ["flat", [1]]}}, "bad_attribute", "type: list is no category"),
    ({**REGION, "where": {"beds": 3}}, "unknown_attribute", "'beds'; there are price, type"),
    ({**REGION, "where": {"type": {"exists": "no"}}}, "bad_where", "type exists: 'no' is neither true nor false"),
    ({**REGION, "keyword": "w11"}, "unknown_column", "'keyword' is no column"),
]
ROWS = [row(number, **columns) for number, (columns, _, _) in enumerate(REFUSED)]


@pytest.fixture(scope="module")
def etl(tmp_path_factory):
    rows = random_rows(60)
    for one in rows:
        one |= {"attribute_price": 3.0, "attribute_type": "flat"}
    folder = tmp_path_factory.mktemp("refused") / "etl"
    return write_etl(folder, rows, attributes=("price:number", "type:category"))


@pytest.fixture
def file(tmp_path):
    return write_lines(tmp_path / "s.jsonl", *ROWS)


def checked(found: list[dict]) -> None:
    for one, (_, reason, what) in zip(found, REFUSED, strict=True):
        assert one["reason"] == reason and what in one["what"], one


def test_check_names_what_is_wrong_where(etl, file, capsys):
    checked(check_subscriptions([file], etl)["rows"])
    assert cli.main(["subscriptions", "check", str(file), "--messages", str(etl)]) == 1
    shown = "".join(capsys.readouterr().out.split())
    assert "polygon0,ring1,position2" in shown and "pricelte:'cheap'isnonumber" in shown


def test_preview_names_what_is_wrong_where(etl, file, capsys):
    checked(list(preview_subscriptions([file], etl)))
    assert cli.main(["preview", "--subscriptions", str(file), "--messages", str(etl)]) == 1
    assert "polygon 0, ring 1, position 2" in capsys.readouterr().out


def test_run_names_what_is_wrong_where(etl, file, tmp_path, capsys):
    good = write_lines(tmp_path / "good.jsonl", row(99, **REGION))
    command = ["run", "--messages", str(etl), "--out", str(tmp_path / "run"), "--executor", "local", "--overwrite"]
    assert cli.main([*command, "--subscriptions", str(file)]) == 4, "nothing is left to match"
    said = capsys.readouterr()
    assert "polygon 0, ring 1, position 2" in said.err
    checked([json.loads(line) for line in (tmp_path / "run" / "rejected.jsonl").read_text().splitlines()])
    assert cli.main([*command, "--subscriptions", str(file), str(good)]) == 0
    said = capsys.readouterr()
    assert "polygon 0, ring 1, position 2" in said.out
    report = json.loads((tmp_path / "run" / "run.json").read_text())["spouts"]["subscriptions"]
    first = report["first_rejected"]
    assert len(first) == 5 and report["rejected"] == len(ROWS)
    for number, one in enumerate(first):
        assert (one["file"], one["line"], one["subscription_id"]) == (str(file), number + 1, f"s{number}")
        assert one["reason"] == REFUSED[number][1] and REFUSED[number][2] in one["what"]
    assert cli.main(["show", str(tmp_path / "run"), "s1"]) == 2
    assert "ring 1 ends at another place" in capsys.readouterr().err


def test_match_names_what_is_wrong_where(etl, file, capsys):
    options = ["match", "--subscriptions", str(file), "--messages", str(etl), "--text", "w11", "--at", "1,1"]
    assert cli.main(options) == 0
    assert "polygon 0, ring 1, position 2" in capsys.readouterr().out
    assert cli.main([*options, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [one["reason"] for one in answer["first_rejected"]] == [reason for _, reason, _ in REFUSED[:5]]
    assert sum(answer["rejected"].values()) == len(ROWS)


def test_live_replies_name_what_is_wrong_where(etl, tmp_path):
    stream = Stream(etl, tmp_path / "out", window="count:40", checkpoint_every=0.0)
    for one in ROWS:
        stream.take({"subscribe": one})
    assert stream.take(row(99, **REGION) | {"text": "w11"}) is None
    checked(stream.refused[: len(ROWS)])


def test_engine_errors_name_what_is_wrong_where(etl):
    engine = skyray.Engine(etl)
    for one, (_, reason, what) in zip(ROWS, REFUSED, strict=True):
        with pytest.raises(InputError) as error:
            engine.subscribe(one)
        assert error.value.reason_code == reason
        assert what in str(error.value), error.value
