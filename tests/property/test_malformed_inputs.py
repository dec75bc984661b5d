"""Malformed input of each command: no traceback, a documented exit code, and the good rows beside it are kept."""

import io
import json
import shutil
import sys
from contextlib import redirect_stderr, redirect_stdout

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gateway import cli
from tests.support.examples import examples
from tests.support.small_runs import small_run

#: Of each, and of whole runs, which cost more.
MANY = settings(max_examples=examples(40, 100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
FEW = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
#: What `--help` promises, but for what only interrupts and other installations give.
DOCUMENTED = {0, 1, 2, 3, 4, 5, 6}

OPTIONS = (
    "--k --count --seed --kind --region-share --until-share --match -1 0 1 nan 1e9 99999999999999999999 knn any 0.5"
)
GOOD = {"subscription_id": "good", "kind": "topk", "keywords": "w11", "lon": 1, "lat": 2, "k": 3, "alpha": 0.5}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=5), each, max_size=3),
    max_leaves=6,
)
columns = st.sampled_from([*GOOD, "region", "match", "at", "until", "unsubscribe", "note", "keyword"])
#: Rows that are nearly right, rows of anything, and lines that are no rows.
rows = st.dictionaries(columns, json_values, max_size=4).map(
    lambda changes: GOOD | {"subscription_id": "odd"} | changes
)
lines = (
    rows.map(lambda row: json.dumps(row).encode())
    | json_values.map(lambda value: json.dumps(value).encode())
    | st.binary(max_size=40)
    | rows.map(lambda row: json.dumps(row).encode()[:-3])
)
files = st.lists(lines, max_size=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return small_run(tmp_path_factory.mktemp("malformed"), per_kind=2).parent


def ask(*arguments):
    """Exit code, standard output and standard error of a command; fails at anything but a documented end."""
    out, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(errors):
        code = cli.main(list(map(str, arguments)))
    assert code in DOCUMENTED, (arguments, code, errors.getvalue())
    assert "Traceback" not in out.getvalue() + errors.getvalue(), (arguments, errors.getvalue())
    assert (code < 2) == (not errors.getvalue()), "an error is told, and only then"
    return code, out.getvalue(), errors.getvalue()


def with_good(path, bad):
    """A file of bad lines with good ones between."""
    good = [json.dumps(GOOD | {"subscription_id": f"good {place}"}).encode() for place in range(len(bad) + 1)]
    path.write_bytes(b"\n".join(line for pair in zip(good, [*bad, b""], strict=True) for line in pair))
    return {f"good {place}" for place in range(len(bad) + 1)}


@MANY
@given(bad=files)
@example(
    bad=[
        b"\x1f\x8b",
        b"PAR1",
        b"\xef\xbb\xbf{",
        b"[" * 9999,
        b'{"k": 1e999}',
        b'{"\\ud800": 1}',
        b"subscription_id,kind",
    ]
)
def test_check_any_lines_are_judged_and_good_ones_accepted(folder, bad):
    path = folder / "check.jsonl"
    names = with_good(path, bad)
    code, out, _ = ask("subscriptions", "check", path, "--messages", folder / "etl", "--json")
    report = json.loads(out)
    accepted = {row.get("subscription_id") for row in report["rows"] if row["verdict"] == "accepted"}
    assert names <= accepted and code == (1 if report["rejected"] else 0)
    assert report["accepted"] + report["rejected"] == len(report["rows"])


@MANY
@given(content=st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")))
@example(content=b"\x1f\x8b\x08\x00broken")
@example(content=b"\x28\xb5\x2f\xfdbroken")
@example(content=b"PAR1broken")
@example(content=b'subscription_id;kind\n"a')
@example(content=b"")
def test_check_any_file_is_answered(folder, content):
    path = folder / "any"
    path.write_bytes(content)
    code, *_ = ask("subscriptions", "check", path, "--messages", folder / "etl")
    assert code in (0, 1, 4)


@MANY
@given(bad=files, text=st.text(max_size=40), place=st.text(max_size=12) | st.sampled_from(["1,2", "-1,-2"]))
def test_match_any_message_and_file_are_answered(folder, bad, text, place):
    path = folder / "match.jsonl"
    names = with_good(path, bad)
    code, out, _ = ask(
        "match", "--subscriptions", path, "--messages", folder / "etl", f"--text=w11 {text}", f"--at={place}", "--json"
    )
    assert code in (0, 2)
    if code == 0:
        assert names <= {one["subscription_id"] for one in json.loads(out)["reached"]}


@FEW
@given(bad=st.lists(lines, min_size=8, max_size=12))
def test_run_any_lines_are_rejected_and_good_ones_matched(folder, bad):
    path, out = folder / "run.jsonl", folder / "made"
    names = with_good(path, bad)
    code, told, _ = ask(
        *("run", "--messages", folder / "etl", "--subscriptions", path, "--out", out, "--overwrite", "--json"),
        *("--executor", "local", "--window", "count:60", "--set", "output.sink=jsonl", "--limit", "50"),
    )
    assert code == 0
    updates = [json.loads(line) for part in (out / "updates").iterdir() for line in part.read_text().splitlines()]
    assert names <= {row["subscription_id"] for row in updates}
    counts = json.loads(told)["spouts"]["subscriptions"]
    assert counts["rejected"] == sum(counts["rejected_by_reason"].values())


@pytest.fixture(scope="module")
def spoilt(folder):
    """A copy of the run, to be spoilt again and again."""
    shutil.copytree(folder / "run", folder / "spoilt")
    return folder / "spoilt"


FACTS = "messages subscriptions window world projection boundaries fading aside asked latest_us limit state digest"
facts_of = st.sampled_from(FACTS.split())


@MANY
@given(changes=st.dictionaries(facts_of, json_values, min_size=1, max_size=3), command=st.integers(0, 3))
@example(changes={"subscriptions": "none"}, command=0)
@example(changes={"messages": 5}, command=1)
@example(changes={"world": "1,1,1,1"}, command=2)
@example(changes={"boundaries": {"batch": -1}}, command=1)
@example(changes={"limit": -3}, command=1)
@example(changes={"latest_us": "x"}, command=1)
@example(changes={"quarantined": [1]}, command=1)
@example(changes={"fading": {}}, command=3)
def test_any_run_json_is_answered(folder, spoilt, changes, command):
    facts = json.loads((folder / "run" / "run.json").read_text())
    (spoilt / "run.json").write_text(json.dumps(facts | changes))
    ask(*_reading(spoilt)[command])


@MANY
@given(
    content=st.binary(max_size=100) | json_values.map(lambda value: json.dumps(value).encode()),
    command=st.integers(0, 3),
)
def test_any_bytes_for_run_json_are_answered(spoilt, content, command):
    (spoilt / "run.json").write_bytes(content)
    assert ask(*_reading(spoilt)[command])[0] == 4


def _reading(run):
    return [
        ["show", run],
        ["explain", run, "mine", "seq:3"],
        ["show", run, "--updates", "--json"],
        ["verify", run, "--sample", "3"],
    ]


@MANY
@given(data=st.data())
def test_any_damage_to_files_of_a_run_is_answered(folder, data):
    """Bytes changed, cut off or put in, in one of its files or in one of the ETL's."""
    run, etl = folder / "hurt" / "run", folder / "hurt" / "etl"
    shutil.rmtree(folder / "hurt", ignore_errors=True)
    shutil.copytree(folder / "run", run)
    shutil.copytree(folder / "etl", etl)
    facts = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(facts | {"messages": str(etl)}))
    files = sorted(path for top in (run / "updates", etl) for path in top.rglob("*") if path.is_file())
    path = data.draw(st.sampled_from([*files, run / "results.parquet"]))
    content = path.read_bytes()
    place = data.draw(st.integers(0, len(content)))
    more = data.draw(st.binary(max_size=8))
    path.write_bytes(
        content[:place] + more + content[place + data.draw(st.sampled_from([0, len(more), len(content)])) :]
    )
    ask(*_reading(run)[data.draw(st.integers(0, 3))])
    ask("subscriptions", "check", folder / "knn.jsonl", "--messages", etl)


TEXTS = {
    "run/results.parquet": ["subscription_id", "message_id"],
    "run/updates": ["subscription_id", "message_id"],
    "etl/messages": ["message_id", "object_id", "text"],
    "etl/vocabulary.parquet": ["term"],
}


@pytest.mark.parametrize(("name", "column"), [(name, column) for name in TEXTS for column in TEXTS[name]])
def test_text_that_is_not_utf8_in_a_file_of_a_run_is_answered(folder, tmp_path, name, column):
    run, etl = tmp_path / "run", tmp_path / "etl"
    shutil.copytree(folder / "run", run)
    shutil.copytree(folder / "etl", etl)
    facts = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(facts | {"messages": str(etl)}))
    path = tmp_path / name if name.endswith(".parquet") else min((tmp_path / name).glob("*.parquet"))
    table = pq.read_table(path)
    spoilt = [b"\x80", *table[column].cast(pa.binary()).to_pylist()[1:]]
    table = table.set_column(table.column_names.index(column), column, pa.array(spoilt, pa.binary()).view(pa.string()))
    pq.write_table(table, path)
    codes = [ask(*command)[0] for command in _reading(run)]
    codes.append(ask("subscriptions", "check", folder / "knn.jsonl", "--messages", etl)[0])
    generated = ["--kind", "topk", "--count", "3", "--out", tmp_path / "generated.jsonl"]
    codes.append(ask("subscriptions", "generate", "--messages", etl, *generated)[0])
    again = ["--subscriptions", folder / "knn.jsonl", "--out", tmp_path / "again", "--executor", "local"]
    codes.append(ask("run", "--messages", etl, *again, "--window", "count:60")[0])
    assert 4 in codes, "somebody reads that column, and says so"


@MANY
@given(arguments=st.lists(st.sampled_from(OPTIONS.split()) | st.text(max_size=5), max_size=6))
def test_generate_any_options_are_answered(folder, arguments):
    fixed = ["--messages", folder / "etl", "--out", folder / "generated.jsonl", "--overwrite"]
    ask(
        "subscriptions",
        "generate",
        "--kind",
        "topk",
        "--count",
        "3",
        *fixed,
        *(one for one in arguments if one != "--help"),
    )


@MANY
@given(
    command=st.sampled_from(["show", "explain", "match", "verify", "run", "topology", "config", "doctor", "version"]),
    arguments=st.lists(st.text(max_size=6).filter(lambda text: text not in ("-h", "--help")), max_size=4),
)
def test_any_arguments_are_answered(tmp_path_factory, monkeypatch_module, command, arguments):
    if command in ("doctor", "version") and not any(one.startswith("-") for one in arguments):
        arguments = ["--no-such", *arguments]  # without any they answer, and look around the machine
    if command in ("topology", "config"):  # without any they print their help
        arguments = ["show", "--no-such", *arguments]
    ask(command, *arguments)


@pytest.fixture(scope="module")
def monkeypatch_module(tmp_path_factory):
    """An empty folder to be in, whatever the arguments name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("empty"))
        patch.setattr(sys, "argv", ["skyray"])
        yield patch
