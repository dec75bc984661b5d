"""`--to` of `skyray live` and `skyray run`: the tables have what the folder has, also after what was killed or away."""

import json
from collections import Counter

import pytest

from tests.support.postgres import PostgresServer
from tests.support.processes import Command, small_run
from tests.support.serving import written

pytestmark = pytest.mark.postgis
#: The command line with parts that end at every checkpoint, however few updates they have.
SMALL_PARTS = "import bolts.sinks; bolts.sinks.SMALL_ROWS = 1; from gateway.entry import main; main()"
FIELDS = "as_of, subscription_id, message_id, seq, change, score"


@pytest.fixture
def server():
    with PostgresServer() as one:
        yield one


def stored(server, schema="skyray"):
    return Counter(server.ask(f"SELECT {FIELDS} FROM {schema}.updates"))


def ended(words, **given):
    with Command(words, **given) as command:
        return command.finish()


def test_run_delivers_at_its_end_and_again_what_is_missing(tmp_path, server):
    words = small_run(tmp_path, 600, 50)
    server.kill()
    to = ["--to", server.uri(), "--to", server.uri("second")]
    code, _, said = ended([*words, "--executor", "local", *to, "--set", "output.to_wait_s=0.5"])
    assert code == 75 and "wait" in said and "--resume" in said and "secret" not in said, said
    server.start()
    again = ["run", "--resume", tmp_path / "out", *to]
    for _ in range(2):
        code, _, said = ended(again)
        assert code == 0, said
        told = written(tmp_path / "out")
        assert stored(server) == stored(server, "second") == told and told.total() > 100


def test_run_delivers_at_checkpoints_and_what_a_killed_one_lacks_after_its_resume(tmp_path, server):
    words = [*small_run(tmp_path, 3_000, 50), "--executor", "local", "--to", server.uri()]
    with Command([*words, "--set", "input.rate=600", "--checkpoint-every", 0.2], script=SMALL_PARTS) as command:
        command.await_(lambda: count_of(server) > 100)
        assert json.loads((tmp_path / "out" / "run.json").read_text())["state"] == "running"
        command.process.kill()
        command.process.wait(20)
        early, told = stored(server), written(tmp_path / "out")
        assert (early - told).total() == 0 and early.total() > 100
    code, _, said = ended(["run", "--resume", tmp_path / "out", "--set", "input.rate=100000", "--to", server.uri()])
    assert code == 0, said
    told = written(tmp_path / "out")
    assert stored(server) == told and told.total() > 2 * early.total()


def count_of(server):
    """Updates that are there; 0 before there is a table."""
    if server.ask("SELECT to_regclass('skyray.updates')") == [(None,)]:
        return 0
    return server.ask("SELECT count(*) FROM skyray.updates")[0][0]


def test_live_delivers_with_its_checkpoints_and_ends_when_all_is_there(tmp_path, server):
    rows = [{"subscribe": {"subscription_id": "s1", "kind": "knn", "keywords": "ramen", "lon": 1, "lat": 1, "k": 3}}]
    rows += [{"id": f"m{n}", "text": "ramen", "lon": n % 20, "lat": n % 7} for n in range(400)]
    half = len(rows) // 2
    for life, some in enumerate((rows[:half], rows[half:])):
        source = tmp_path / f"lines {life}"
        source.write_text("".join(json.dumps(row) + "\n" for row in some))
        with source.open("rb") as lines:
            code, _, said = ended(
                [
                    "live",
                    "--out",
                    tmp_path / "out",
                    "--query-bolts",
                    1,
                    "--set",
                    "stream.batch_rows=20",
                    "--to",
                    server.uri(),
                ],
                source=lines.fileno(),
            )
        assert code == 0 and "postgres/alerts.skyray" in said and "event=delivers" in said, said
        told = written(tmp_path / "out")
        assert stored(server) == told and told.total() > 3
    inside = server.ask("SELECT seq FROM skyray.results ORDER BY score, seq")
    wanted = Counter(row[3] for row in told if row[4] == "enter") - Counter(row[3] for row in told if row[4] == "leave")
    assert sorted(seq for (seq,) in inside) == sorted(wanted) and len(inside) == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["serve", "--out", "x", "--to", "postgresql://a/b", "--to", "postgresql://c/b"], "named twice"),
        (["live", "--to", "postgresql://127.0.0.1/x"], "--out"),
    ],
)
def test_what_cannot_be_is_said_before_anything_begins(tmp_path, words, said, monkeypatch):
    code, _, found = ended([tmp_path / one if one in ("x", "y") else one for one in words])
    assert code == 2 and said in found, found
    assert list(tmp_path.iterdir()) == []


def test_server_with_a_wrong_password_ends_and_says_so_without_it(tmp_path, server):
    code, _, said = ended(
        ["serve", "--out", tmp_path / "out", "--port", 0, "--query-bolts", 1, "--to", server.uri(password="wr0ng")]
    )
    assert code == 2 and "authentication failed" in said and "wr0ng" not in said, said
