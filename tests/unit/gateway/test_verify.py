"""Verification of finished runs: a right one is exact, and every single thing done to it is found out."""

import io
import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from bolts.sinks import RESULT_SCHEMA, UPDATE_SCHEMA
from gateway.runs.oracle_replay import choose, score_bits
from gateway.runs.reader import RunReader
from gateway.runs.verify import verify_run
from gateway.subscriptions.generate import generate_subscriptions
from matching.errors import CheckpointError, ConfigError, InputError
from matching.model import CHANGES
from matching.naive_rows import DecayModel
from tests.support.etl_folder import random_rows, write_etl, write_lines
from tests.support.live_streams import write_ends
from tests.support.naive_tables import message, run, subscription
from topology import running
from topology.settings import RunConfig

MESSAGES, BATCH = 240, 25


@pytest.fixture(scope="module")
def etl(tmp_path_factory) -> Path:
    return write_etl(tmp_path_factory.mktemp("verify") / "etl", random_rows(MESSAGES, late_s=20))


@pytest.fixture(scope="module")
def files(etl) -> list[Path]:
    """Boolean and topk subscriptions, some of which end, are replaced, come late or are unsubscribed by an event."""
    made = []
    for kind, options in (("boolean", {"region_share": 0.6}), ("topk", {"k": 4})):
        made.append(etl.parent / f"{kind}.jsonl")
        generate_subscriptions(
            etl, kind, 40, 9, made[-1], until_share=0.3, max_keywords=2, **options, max_frequency=1.0
        )
    more = etl.parent / "more.jsonl"
    rows = [json.loads(line) for path in made for line in path.read_text().splitlines()[:12]]
    with more.open("w") as file:
        for place, row in enumerate(rows):
            row.pop("until", None)
            row["at"] = 20 + 7 * place
            row["alpha"] = 0.25
            file.write(json.dumps(row) + "\n")
        file.write(json.dumps({"unsubscribe": "topk-9-20", "at": 130}) + "\n")
    return [*made, more]


def execute(etl: Path, files: list[Path], out: Path, **options) -> Path:
    options = {"window": "count:60", "batch": BATCH, "executor": "local"} | options
    running.run(RunConfig(messages=etl, subscriptions=tuple(files), out=out, **options))
    return out


@pytest.fixture(scope="module")
def finished(etl, files) -> Path:
    return execute(etl, files, etl.parent / "finished")


@pytest.fixture
def copy(finished, tmp_path) -> Path:
    shutil.copytree(finished, tmp_path / "run", ignore=shutil.ignore_patterns("updates.list"))
    return tmp_path / "run"


def updates_of(folder: Path) -> list[dict]:
    return [row for path in sorted((folder / "updates").iterdir()) for row in pq.read_table(path).to_pylist()]


def write_updates(folder: Path, rows: list[dict]) -> None:
    shutil.rmtree(folder / "updates", ignore_errors=True)
    (folder / "updates").mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows, UPDATE_SCHEMA), folder / "updates" / "part-00000.parquet")


def change_results(folder: Path, change) -> None:
    path = folder / "results.parquet"
    rows = pq.read_table(path).to_pylist()
    change(rows)
    pq.write_table(pa.Table.from_pylist(rows, RESULT_SCHEMA), path)


# -------------------------------------------------------------------------------------------------- right runs


def test_verify_whole_run_is_exact_and_not_vacuous(finished):
    report = verify_run(finished)
    assert report.exact, report.render()
    assert (report.messages, report.boundaries) == (MESSAGES, -(-MESSAGES // BATCH))
    assert report.oracle_updates == report.delivered_updates
    assert min(report.oracle_updates.values()) > 100 and report.oracle_results > 50
    assert set(report.oracle_updates) == {"boolean", "topk"}
    assert (report.vacuous, report.sampled) == ([], False)
    assert str(report.render()).startswith("exact: 10")
    json.dumps(report.as_json())


def test_verify_sample_takes_so_many_of_each_kind_over_all_messages(finished):
    report = verify_run(finished, sample=7, seed=3)
    assert report.exact and report.sampled
    assert report.messages == MESSAGES
    assert all(7 <= count <= 14 for count in report.subscriptions.values()), "a replaced one has two numbers"
    assert 0 < sum(report.oracle_updates.values()) < sum(verify_run(finished).oracle_updates.values())


def test_verify_sample_follows_the_seed(finished):
    drawn = [choose(RunReader(finished).changes, 7, seed).ids.to_pylist() for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize(
    "options",
    [
        {"window": "time:45"},
        {"sink": "jsonl"},
        {"limit": 111, "batch": 10},
        {"world": "-100,-60,100,60", "projection": "equal-area", "distance": "plane"},
        {"router": "location", "query_bolts": 3, "tuple_bolts": 2},
    ],
    ids=str,
)
def test_verify_run_with_other_settings_is_exact(etl, files, tmp_path, options):
    report = verify_run(execute(etl, files, tmp_path / "run", **options))
    assert report.exact, report.render()
    assert min(report.oracle_updates.values()) > 20


def test_verify_logged_boundaries_are_those_of_the_run(finished, copy):
    ends = np.minimum(np.arange(BATCH, MESSAGES + BATCH, BATCH), MESSAGES) - 1
    facts = json.loads((copy / "run.json").read_text())
    facts["boundaries"] = {"logged": "stream"}
    (copy / "run.json").write_text(json.dumps(facts))

    def log(last: np.ndarray) -> None:
        write_ends(copy / "stream", last.tolist())

    log(ends)
    assert verify_run(copy).exact
    log(np.insert(ends, 3, ends[2]))  # an empty batch tells nothing new
    assert verify_run(copy).exact
    log(np.delete(ends, 3))
    assert not verify_run(copy).exact
    log(ends[::-1])
    with pytest.raises(CheckpointError, match="is damaged at byte"):
        verify_run(copy)


def test_verify_reports_progress(finished):
    seen = []
    verify_run(finished, on_progress=lambda **figures: seen.append(figures))
    assert [figures["messages"] for figures in seen][-1] == MESSAGES
    assert seen[-1]["updates"] == sum(verify_run(finished).oracle_updates.values())


@pytest.fixture(scope="module")
def changing(etl) -> Path:
    """A run in which every id is in turn of another kind, now and then of none."""
    rows = []
    for number in range(20):
        name, words = f"id {number}", [f"w{11 - number % 4}"]
        region, point = {"region": [-170, -80, 170, 80]}, {"lon": 9.0 * number - 90.0, "lat": 10.0, "k": 3}
        for place, kind in enumerate(("topk", "boolean", "knn", "skyline", "topk")):
            row = {"subscription_id": name, "kind": kind, "keywords": words, "at": 48 * place + number}
            rows.append(row | (region if kind in ("boolean", "skyline") else point))
            if kind == "topk":
                rows[-1]["alpha"] = 0.5
            if number % 3 == place:
                rows.append({"unsubscribe": name, "at": row["at"] + 30})
    path = write_lines(etl.parent / "changing.jsonl", *rows)
    return execute(etl, [path], etl.parent / "changing")


def test_verify_updates_of_ids_that_change_their_kind_are_counted_under_the_kind_of_their_time(changing):
    report = verify_run(changing)
    assert report.exact, report.render()
    assert report.delivered_updates == report.oracle_updates
    assert set(report.oracle_updates) == {"boolean", "topk", "knn", "skyline"}
    assert min(report.oracle_updates.values()) > 50


def test_verify_what_is_missing_of_an_id_that_changes_its_kind_is_of_the_kind_of_its_time(changing, tmp_path):
    copied = tmp_path / "run"
    shutil.copytree(changing, copied, ignore=shutil.ignore_patterns("updates.list"))
    rows = updates_of(copied)
    write_updates(copied, [row for row in rows if row["change"] != "match"])
    report = verify_run(copied)
    assert report.delivered_updates == report.oracle_updates | {"boolean": 0}
    assert report.missing == dict.fromkeys(report.missing, 0) | {"boolean": report.oracle_updates["boolean"]}
    assert not sum(report.extra.values())


# -------------------------------------------------------------------------------------------- runs tampered with


def drop(rows, place):
    del rows[place]


def repeat(rows, place):
    rows.append(rows[place])


def nudge_score(rows, place):
    rows[place]["score"] = float(np.nextafter(rows[place]["score"], 2.0))


def tell_late(rows, place):
    rows[place]["as_of"] += BATCH


def swap_change(rows, place):
    rows[place]["change"] = "leave" if rows[place]["change"] == "enter" else "enter"


def other_message(rows, place):
    rows[place]["seq"] -= 1
    rows[place]["message_id"] = f"message {rows[place]['seq']}"


def other_subscriber(rows, place):
    number = int(rows[place]["subscription_id"].rsplit("-", 1)[1])
    rows[place]["subscription_id"] = f"topk-9-{(number + 1) % 40}"


TAMPERED = [(drop, "boolean"), (repeat, "boolean"), (tell_late, "boolean")]
TAMPERED += [(tamper, "topk") for tamper in (drop, repeat, tell_late, other_message, other_subscriber)]


@pytest.mark.parametrize(("tamper", "kind"), TAMPERED)
def test_verify_one_update_tampered_with_is_found(copy, tamper, kind):
    rows = updates_of(copy)
    places = [place for place, row in enumerate(rows) if row["subscription_id"].startswith(kind)]
    tamper(rows, places[len(places) // 2])
    write_updates(copy, rows)
    report = verify_run(copy)
    assert not report.exact
    wrong = (sum(report.missing.values()), sum(report.extra.values()))
    assert wrong == {"drop": (1, 0), "repeat": (0, 1)}.get(tamper.__name__, (1, 1))
    assert len(report.examples) == sum(wrong)
    assert "NOT EXACT" in str(report.render())


@pytest.mark.parametrize("tamper", [nudge_score, swap_change])
def test_verify_one_score_or_change_tampered_with_is_found(copy, tamper):
    rows = updates_of(copy)
    tamper(rows, next(place for place, row in enumerate(rows) if row["change"] == "enter"))
    write_updates(copy, rows)
    report = verify_run(copy)
    assert not report.exact
    assert (report.missing["topk"], report.extra["topk"]) == (1, 1)


def test_verify_wrong_message_id_with_the_right_seq_is_found(copy):
    rows = updates_of(copy)
    rows[5]["message_id"] = "message 999"
    write_updates(copy, rows)
    report = verify_run(copy)
    assert not report.exact and "id of another message" in report.faults[0]


def test_verify_seq_beyond_the_stream_is_found(copy):
    rows = updates_of(copy)
    rows.append(rows[-1] | {"seq": MESSAGES})
    write_updates(copy, rows)
    report = verify_run(copy)
    assert not report.exact and "beyond the stream" in str(report.render())


def test_verify_update_for_an_unknown_subscription_is_found_even_by_a_sample(copy):
    rows = updates_of(copy)
    rows.append(rows[0] | {"subscription_id": "nobody"})
    write_updates(copy, rows)
    report = verify_run(copy, sample=2)
    assert not report.exact and "do not have" in report.faults[0]


def test_verify_match_told_to_a_topk_subscription_is_found(copy):
    rows = updates_of(copy)
    rows.append(rows[0] | {"subscription_id": "topk-9-3", "change": "match", "score": None})
    write_updates(copy, rows)
    assert verify_run(copy).extra["topk"] == 1


def test_verify_names_ids_as_they_are(copy):
    rows = updates_of(copy)
    rows[0]["message_id"] = "[/bold] [link=x]"
    write_updates(copy, rows)
    change_results(copy, lambda results: results[0].update(subscription_id="[/red]"))
    shown = io.StringIO()
    Console(file=shown).print(verify_run(copy).render())
    assert "NOT EXACT" in shown.getvalue()


def test_verify_no_updates_at_all_is_not_exact(copy):
    write_updates(copy, [])
    report = verify_run(copy)
    assert not report.exact
    assert report.missing == report.oracle_updates


def drop_result(rows):
    del rows[3]


def repeat_result(rows):
    rows.append(rows[3])


def nudge_result(rows):
    rows[3]["score"] += 1e-12


def swap_ranks(rows):
    pair = next(place for place, row in enumerate(rows) if row["rank"] == 2)
    rows[pair]["rank"], rows[pair - 1]["rank"] = 1, 2


def invent_text_score(rows):
    rows[3]["text_score"] = 0.5


def misname_result(rows):
    rows[3]["message_id"] = "message 999"


def unknown_result(rows):
    rows.append(rows[3] | {"subscription_id": "nobody"})


@pytest.mark.parametrize(
    "tamper",
    [drop_result, repeat_result, nudge_result, swap_ranks, invent_text_score, misname_result, unknown_result],
)
def test_verify_results_tampered_with_are_found(copy, tamper):
    change_results(copy, tamper)
    report = verify_run(copy)
    assert not report.exact
    assert report.missing_results or report.extra_results or report.faults
    assert not sum(report.missing.values()) and not sum(report.extra.values())


def test_verify_results_that_updates_do_not_lead_to_are_named(copy):
    change_results(copy, drop_result)
    assert "1 messages only by the updates, 0 only in the file" in str(verify_run(copy).render())


def test_verify_subscriptions_changed_after_the_run_are_found(copy, tmp_path):
    facts = json.loads((copy / "run.json").read_text())
    other = tmp_path / "other.jsonl"
    other.write_text("".join(Path(facts["subscriptions"][1]).read_text().replace('"k":4', '"k":3')))
    facts["subscriptions"][1] = str(other)
    (copy / "run.json").write_text(json.dumps(facts))
    assert not verify_run(copy).exact


@pytest.mark.parametrize("fact", ["messages", "window", "boundaries", "world", "subscriptions"])
def test_verify_run_that_does_not_say_what_it_did_is_refused(copy, fact):
    facts = json.loads((copy / "run.json").read_text())
    del facts[fact]
    (copy / "run.json").write_text(json.dumps(facts))
    with pytest.raises(InputError, match=fact):
        verify_run(copy)


def test_verify_folder_without_a_finished_run_is_refused(tmp_path):
    with pytest.raises(InputError, match="run.json"):
        verify_run(tmp_path)


def test_verify_run_that_kept_no_updates_is_refused(copy):
    shutil.rmtree(copy / "updates")
    with pytest.raises(InputError, match="keeps updates"):
        verify_run(copy)


@pytest.mark.parametrize("name", ["results.parquet", "updates/part-00000.parquet"])
def test_verify_damaged_file_is_named(copy, name):
    (copy / name).write_bytes(b"PAR1 and no more")
    with pytest.raises(InputError, match=name):
        verify_run(copy)


def test_verify_nulls_where_none_may_be_are_refused(copy):
    rows = updates_of(copy)
    rows[0]["seq"] = None
    write_updates(copy, rows)
    with pytest.raises(InputError, match="1 nulls"):
        verify_run(copy)


def test_verify_sample_below_one_is_refused(finished):
    with pytest.raises(ConfigError):
        verify_run(finished, sample=0)


def test_verify_run_in_which_nothing_happened_says_so(etl, tmp_path):
    nobody = tmp_path / "nobody.jsonl"
    row = {"subscription_id": "a", "kind": "boolean", "keywords": ["unheard"], "region": [0, 0, 1, 1]}
    nobody.write_text(json.dumps(row) + "\n")
    report = verify_run(execute(etl, [nobody], tmp_path / "run"))
    assert report.exact and report.vacuous == ["boolean"]
    assert "nothing to compare for boolean" in str(report.render())


def test_score_bits_are_equal_when_scores_are():
    scores = np.array([0.0, -0.0, np.nan, -np.nan, 0.1, np.nextafter(0.1, 1)])
    bits = score_bits(scores).tolist()
    assert bits[0] == bits[1] and bits[2] == bits[3] and bits[4] != bits[5]


# ------------------------------------------------------------ kinds that need more columns than a batch of messages


def test_verify_decay_knn_and_skyline_are_asked_with_times_counts_and_versions(tmp_path):
    """A run folder made of the oracle's own answers, which was given every column by hand."""
    rows = random_rows(80, seed=4)
    for row in rows[20::7]:
        row["object_id"] = rows[row["seq"] - 9]["object_id"]
        row["op"] = row["seq"] % 2
    etl = write_etl(tmp_path / "etl", rows)
    space = json.loads((etl / "manifest.json").read_text())["extent"]
    made = []
    for kind, options in (("decay", {"k": 3}), ("knn", {}), ("skyline", {"region_share": 0.8})):
        made.append(tmp_path / f"{kind}.jsonl")
        generate_subscriptions(etl, kind, 15, 2, made[-1], until_share=0.2, **options, max_frequency=1.0)
    folder = tmp_path / "run"
    folder.mkdir()
    facts = {
        "messages": str(etl),
        "subscriptions": [str(path) for path in made],
        "window": "count:30",
        "world": ",".join(map(str, space)),
        "projection": "plate-carree",
        "batch": 8,
        "limit": None,
        "boundaries": {"batch": 8},
        "fading": {"log_base_per_s": 0.01, "smoothing": 0.4, "epoch_us": 5},
    }
    (folder / "run.json").write_text(json.dumps(facts))

    started = RunReader(folder)
    changes = started.changes
    counts = dict(enumerate(np.asarray(started.vocabulary.collection_count).tolist()))
    model = DecayModel(0.01, 0.4, counts, started.vocabulary.total_tokens, 5)
    updates, results = by_hand(rows, started, changes, model)
    names = changes.names.strings()
    write_updates(
        folder,
        [
            {
                "as_of": row.as_of,
                "subscription_id": names[row.number],
                "message_id": f"message {row.seq}",
                "seq": row.seq,
                "change": CHANGES[row.change],
                "score": row.score,
            }
            for row in updates
        ],
    )
    standing = [
        {
            "subscription_id": names[row.number],
            "rank": row.rank,
            "message_id": f"message {row.seq}",
            "seq": row.seq,
            "score": row.score,
            "text_score": None if np.isnan(row.text_score) else row.text_score,
        }
        for row in results
    ]
    pq.write_table(pa.Table.from_pylist(standing, RESULT_SCHEMA), folder / "results.parquet")
    report = verify_run(folder)
    assert report.exact, report.render()
    assert set(report.oracle_updates) == {"decay", "knn", "skyline"}
    assert min(report.oracle_updates.values()) > 30
    del facts["fading"]
    (folder / "run.json").write_text(json.dumps(facts))
    with pytest.raises(ConfigError, match="fading"):
        verify_run(folder)


def by_hand(rows, started, changes, model):
    """The oracle fed with Python values, every column spelled out."""
    messages = []
    for row in rows:
        weights = dict(zip(row["terms"], row["weights"], strict=True))
        x, y = (float(one) for one in started.space.project(row["lon"], row["lat"]))
        box = (row["west"], row["south"], row["east"], row["north"])
        counts = dict(zip(row["terms"], row["counts"], strict=True))
        made = message(row["seq"], weights, x, y, box, None, counts, row["event_time"], row["object_id"], row["op"])
        messages.append(made)
    wanted = []
    for place, row in enumerate(changes.table.number.tolist()):
        table = changes.table.take(np.array([place]))
        weights = dict(zip(table.terms.tolist(), table.weights.tolist(), strict=True))
        kind = int(table.kind[0])
        made = subscription(
            row, kind, weights, int(table.at[0]), float(table.x[0]), float(table.y[0]),
            tuple(table.region[0].tolist()), int(table.k[0]), float(table.alpha[0]), int(table.match[0]),
        )  # fmt: skip
        wanted.append(made)
    ended = list(zip(changes.removed.number.tolist(), changes.removed.at.tolist(), strict=True))
    ended = [pair for pair in ended if pair[1] < len(rows)]
    oracle, updates = run(
        messages, wanted, ended, "count:30", 8, started.space.max_distance, decay=model
    )  # fmt: skip
    return updates, oracle.results()
