"""Stemming in streams that start without words: the stems of the ETL, in every life of the folder."""

import json

import pytest

import skyray
from gateway.live.vocabulary_files import empty_start
from gateway.runs.explaining import explain
from gateway.runs.verify import verify_run
from matching.errors import ConfigError
from matching.kinds import KINDS
from matching.validate import RawMessage
from spark_etl.options import EtlOptions
from spark_etl.rows import CleanRow, RowCleaner
from spouts.subscriptions import load_vocabulary
from tests.support.beside import wide_subscription
from tests.support.etl_folder import random_rows, write_etl
from tests.support.live_streams import digest_of_run
from tests.support.processes import Command

PLACE = {"lon": 1, "lat": 1}
TEXT = "Ponies #running running, houses"


def etl_terms(text: str) -> set[str]:
    """Terms of a text as the ETL has them with --stem english."""
    cleaner = RowCleaner(EtlOptions(inputs=("x",), out="y", stem_language="english"))
    clean = cleaner.clean(RawMessage(text=text, lon=1, lat=1))
    assert isinstance(clean, CleanRow)
    return set(clean.counts)


def test_command_stems_an_empty_start_as_the_etl_does(tmp_path):
    """Subscriptions of one life find messages of the next, by other forms of their words."""
    out = tmp_path / "out"
    stamp = {"time": 1_577_836_800, **PLACE}
    subscribed = [{"subscribe": wide_subscription(kind, kind.name, ["pony", "house"])} for kind in KINDS.run]
    for life, lines in enumerate(([*subscribed, {"id": "m0", "text": TEXT, **stamp}],
                                  [{"id": "m1", "text": "a pony housed", **stamp}])):  # fmt: skip
        source = tmp_path / f"lines{life}.jsonl"
        source.write_text("".join(json.dumps(row) + "\n" for row in lines))
        with (
            open(source) as file,
            Command(["live", "--stem", "english", "--out", out], source=file.fileno()) as command,
        ):
            code, told, said = command.finish(120)
        assert code == 0, said
        updates = [row for row in map(json.loads, told.splitlines()) if row.get("message_id") == f"m{life}"]
        assert {row["subscription_id"] for row in updates} == {kind.name for kind in KINDS.run}
    terms = set(load_vocabulary(out).terms)
    assert terms == etl_terms(TEXT) | etl_terms("a pony housed") and "poni" in terms and "#running" in terms
    assert load_vocabulary(out).stem_language == "english"
    verdict = verify_run(out)
    assert verdict.exact and not verdict.vacuous and sorted(verdict.subscriptions) == sorted(KINDS.names)
    assert sorted(explain(out, "topk", "m1")["words"]) == ["hous", "poni"]
    assert digest_of_run(out, tmp_path / "again") == json.loads((out / "run.json").read_text())["digest"]


def test_empty_start_keeps_its_stems(tmp_path):
    assert load_vocabulary(empty_start(tmp_path, (), "english"), 10).stem_language == "english"
    for stem in ("", "german"):
        with pytest.raises(ConfigError, match="was begun with --stem english; give the same, or another folder"):
            empty_start(tmp_path, (), stem)
    folded = tmp_path / "folded"
    assert load_vocabulary(empty_start(folded, (), "", True), 10).keyword_terms("Café") == ["cafe"]
    with pytest.raises(ConfigError, match="was begun with input.fold_accents; give the same, or another folder"):
        empty_start(folded)
    plain = empty_start(tmp_path / "plain")
    assert load_vocabulary(plain, 10).stem_language == ""
    with pytest.raises(ConfigError, match="was begun without --stem"):
        empty_start(tmp_path / "plain", (), "english")
    with pytest.raises(ConfigError, match="was begun without input.fold_accents"):
        empty_start(tmp_path / "plain", (), "", True)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--stem", "klingon"), "stem language 'klingon' is not known"),
        (("--stem", "english", "--vocabulary", "etl"), "--stem: the stream has the words of its --vocabulary"),
        (
            ("--set", "input.fold_accents=true", "--vocabulary", "etl"),
            "input.fold_accents: the stream has the words of",
        ),
    ],
)
def test_command_stem_that_cannot_be_is_refused_and_leaves_nothing(tmp_path, more, said):
    write_etl(tmp_path / "etl", random_rows(20))
    more = [tmp_path / "etl" if one == "etl" else one for one in more]
    with Command(["live", "--out", tmp_path / "out", *more]) as command:
        code, told, wrong = command.finish(60)
    assert (code, told) == (2, "") and said in wrong
    assert not (tmp_path / "out" / "journal").exists()


def test_engine_stems_as_the_etl_does(tmp_path):
    for sample in ((), ["houses and ponies"]):
        engine = skyray.Engine(sample, stemming="english")
        engine.subscribe(wide_subscription(KINDS.named("topk"), "s", ["pony"]))
        (update,) = engine.publish({"id": "m", "text": TEXT, **PLACE})
        assert update["subscription_id"] == "s" and engine.results("s")[0]["words"] == ["poni"]
        known = {*engine.vocabulary.terms, *engine.vocabulary.admitted}
        assert known == etl_terms(TEXT) | set().union(*map(etl_terms, sample))
    with pytest.raises(ConfigError, match="stem language 'klingon' is not known"):
        skyray.Engine(stemming="klingon")
    with pytest.raises(ConfigError, match="stemming: is that of the vocabulary's folder; leave it out"):
        skyray.Engine(write_etl(tmp_path / "etl", random_rows(20)), stemming="english")


def test_command_and_engine_fold_accents_as_the_etl_does(tmp_path):
    subscribed = wide_subscription(KINDS.named("boolean"), "s", ["cafe"])
    rows = [{"subscribe": subscribed}, {"id": "m", "text": "Un CAFÉ", **PLACE}]
    (tmp_path / "lines.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with (
        open(tmp_path / "lines.jsonl") as file,
        Command(
            ["live", "--set", "input.fold_accents=true", "--out", tmp_path / "out"], source=file.fileno()
        ) as command,
    ):
        code, told, _ = command.finish(120)
    assert code == 0 and [row["message_id"] for row in map(json.loads, told.splitlines()) if "message_id" in row] == [
        "m"
    ]
    assert verify_run(tmp_path / "out").exact
    engine = skyray.Engine(["Un café"], fold_accents=True)
    engine.subscribe(subscribed)
    assert engine.vocabulary.terms == ["cafe", "un"]
    assert [update["subscription_id"] for update in engine.publish(rows[1])] == ["s"]
    with pytest.raises(ConfigError, match="fold_accents: is that of the vocabulary's folder; leave it out"):
        skyray.Engine(write_etl(tmp_path / "etl", random_rows(20)), fold_accents=True)
