"""The PostgreSQL sink and a real server: whole boundaries, results by replay, the fence, and errors."""

import json
import random
import re
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.serve.update_parts import Position
from gateway.sinks.postgres import PostgresSink
from gateway.sinks.stream import SinkAway
from matching.errors import ConfigError, DeliveryError
from tests.support.postgres import PASSWORD, USER, PostgresServer
from tests.support.sink_contract import Receiver, SinkContract, boundary_of, chunk_of

pytestmark = pytest.mark.postgis
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def server():
    with PostgresServer() as one:
        yield one


class Schema(Receiver):
    """A schema of a server."""

    def __init__(self, server, name):
        self.server, self.name = server, name

    def sink(self):
        return PostgresSink(self.server.dsn(), self.name)

    def ask(self, statement, *given):
        return self.server.ask(statement.replace("skyray.", f"{self.name}."), *given)

    def ids(self):
        rows = self.ask("SELECT boundary || '-' || place FROM skyray.updates ORDER BY boundary, place")
        return [one for (one,) in rows]

    def results(self):
        return sorted(self.ask("SELECT subscription_id, message_id, seq, score FROM skyray.results"))

    def cut(self):
        self.server.ask("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'skyray'")


@pytest.fixture
def receiver(server):
    schema = Schema(server, f"s{random.randrange(10**9)}")
    yield schema
    server.ask(f"DROP SCHEMA IF EXISTS {schema.name} CASCADE")


class TestPostgresSink(SinkContract):
    pass


def of_objects(last_seq, *changes):
    """The chunk of a boundary of a stream of objects: subscription, change, seq, object."""
    updates = boundary_of(last_seq, [one[:3] for one in changes])
    names = {one[:3]: one[3] for one in changes}
    return chunk_of(*(replace(one, object_id=names[one.subscription_id, one.change, one.seq]) for one in updates))


def test_postgres_results_of_objects_have_each_once_in_its_last_version(receiver):
    """An object stays in the result in a version that no update names, and leaves as that one."""
    with closing(receiver.sink()) as sink:
        sink.open("stream")
        sink.deliver(of_objects(1, ("s", "enter", 0, "a"), ("s", "enter", 1, "b"), ("t", "enter", 0, "a")))
        sink.deliver(of_objects(4, ("s", "leave", 2, "a"), ("s", "change", 3, "b")))
        assert receiver.results() == [("s", "m3", 3, 0.375), ("t", "m0", 0, 0.0)]
        sink.deliver(of_objects(7, ("s", "enter", 5, "b"), ("t", "leave", 0, "a")))
        assert receiver.results() == [("s", "m5", 5, 0.625)]
    named = receiver.ask("SELECT seq, object_id FROM skyray.updates WHERE subscription_id = 's' ORDER BY seq")
    assert named == [(0, "a"), (1, "b"), (2, "a"), (3, "b"), (5, "b")]


def test_postgres_tables_of_an_earlier_release_get_the_column_of_objects(receiver):
    with closing(receiver.sink()) as sink:
        sink.open("stream")
        sink.deliver(chunk_of(*SinkContract.FIRST))
    for table in ("updates", "results"):
        receiver.ask(f"ALTER TABLE skyray.{table} DROP COLUMN object_id")
    with closing(receiver.sink()) as sink:
        assert sink.open("stream") is not None
        sink.deliver(chunk_of(*SinkContract.SECOND))
    assert [row[2] for row in receiver.results()] == [2, 8]


def replayed(updates):
    """What is in each result after these updates, one after the other."""
    inside = {}
    for one in updates:
        row = json.loads(one.data)
        key = row["subscription_id"], row["seq"]
        if row["change"] == "enter":
            inside[key] = (row["subscription_id"], row["message_id"], row["seq"], row["score"])
        elif row["change"] == "leave":
            inside.pop(key, None)
    return sorted(inside.values())


def test_rows_are_the_updates_field_by_field(receiver):
    sink = receiver.sink()
    sink.open("one")
    sink.deliver(chunk_of(*boundary_of(3, [("s1", "match", 1), ("s2", "enter", 2)])))
    sink.close()
    rows = receiver.ask("SELECT * FROM skyray.updates ORDER BY boundary, place")
    assert rows == [
        (3, 0, "match", "s1", "m1", 1, 3, None, 1.0, 89.0, "ramen \t\\N 'ü' 1\n", ""),
        (3, 1, "enter", "s2", "m2", 2, 3, 0.25, 2.0, 88.0, "ramen \t\\N 'ü' 2\n", ""),
    ]
    result = ("s2", 2, "m2", 3, 0.25, 2.0, 88.0, "ramen \t\\N 'ü' 2\n", "")
    assert receiver.ask("SELECT * FROM skyray.results") == [result]
    assert receiver.ask("SELECT stream, boundary, place, as_of FROM skyray.stream") == [("one", 3, 1, 3)]


@pytest.mark.parametrize("size", [1, 7, 1_000])
def test_results_are_those_of_replay_at_every_boundary_however_chunks_are_cut(receiver, size):
    chance, inside, sink, seen = random.Random(size), {}, receiver.sink(), []
    sink.open("one")
    last = -1
    for _ in range(12):
        last += chance.randrange(1, 20)
        changes = []
        for name in ("s1", "s2", "s3"):
            there = inside.setdefault(name, set())
            gone = {seq for seq in there if chance.random() < 0.3}
            come = {chance.randrange(last + 1) for _ in range(4)} - (there - gone)  # some leave and enter at once
            changes += [(name, "leave", seq) for seq in gone] + [(name, "enter", seq) for seq in come]
            inside[name] = there - gone | come
        changes += [("s4", "match", chance.randrange(last + 1))]
        updates = boundary_of(last, changes)
        for first in range(0, len(updates), size):
            some = updates[first : first + size]
            sink.deliver(chunk_of(*some, ends=first + size >= len(updates)))
            if first + size < len(updates):
                assert receiver.results() == replayed(seen)  # as of the boundary before, until this one is whole
        seen += updates
        assert receiver.results() == replayed(seen)
    sink.close()
    assert receiver.ids() == [one.position for one in seen] and len(receiver.results()) > 10


def test_older_process_is_kept_out_by_the_fence(receiver):
    older, newer = receiver.sink(), receiver.sink()
    older.open("one")
    older.deliver(chunk_of(*SinkContract.FIRST))
    newer.open("one")
    with pytest.raises(SinkAway):  # its session was ended
        older.deliver(chunk_of(*SinkContract.SECOND))
    older.close()
    newer.deliver(chunk_of(*SinkContract.SECOND))
    before = receiver.ids()
    newer.close()
    # a session that nobody ended, as of a process behind a network that broke and healed
    older.open("one")
    receiver.ask("UPDATE skyray.stream SET fence = fence + 1")
    with pytest.raises(DeliveryError, match="another process"):
        older.deliver(chunk_of(through=20))
    older.close()
    assert receiver.ids() == before


def test_newer_process_ends_the_transaction_that_an_older_one_has_left_open(receiver):
    older, newer = receiver.sink(), receiver.sink()
    older.open("one")
    older.deliver(chunk_of(*SinkContract.FIRST[:1], ends=False))  # holds the lock, and hangs
    assert newer.open("one") is None
    newer.deliver(chunk_of(*SinkContract.FIRST))
    assert len(receiver.ids()) == 3
    older.close()
    newer.close()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"password": "wrong"}, "authentication failed"),
        ({"database": "none"}, "does not exist"),
        ({"user": "nobody"}, "authentication failed"),
    ],
)
def test_connection_that_the_server_refuses_is_an_error_of_configuration(server, given, said):
    with pytest.raises(ConfigError, match=said) as refused:
        PostgresSink(server.dsn(**given)).open("one")
    assert PASSWORD not in str(refused.value)


def test_server_that_is_not_there_is_away():
    with pytest.raises(SinkAway, match="refused"):
        PostgresSink(f"postgresql://{USER}@127.0.0.1:1/alerts").open("one")
    with pytest.raises(SinkAway, match="resolve"):
        PostgresSink("postgresql://nowhere.invalid/alerts").open("one")


def test_user_without_rights_learns_which_it_needs(server, receiver):
    role = f"{receiver.name}_role"
    server.ask(f"CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'")
    try:
        theirs = PostgresSink(server.dsn(user=role), receiver.name)
        with pytest.raises(ConfigError, match="needs CREATE on the database"):
            theirs.open("one")
        mine = receiver.sink()
        mine.open("one")
        mine.deliver(chunk_of(*SinkContract.FIRST))
        mine.close()
        server.ask(f"GRANT USAGE ON SCHEMA {receiver.name} TO {role}")
        server.ask(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {receiver.name} TO {role}")
        assert theirs.open("one") == Position(3, 2)  # it can make no table, and needs to make none
        theirs.deliver(chunk_of(*SinkContract.SECOND))
        server.ask(f"REVOKE INSERT ON {receiver.name}.updates FROM {role}")
        with pytest.raises(ConfigError, match="INSERT"):
            theirs.deliver(chunk_of(*boundary_of(12, [("s1", "match", 11)])))
        theirs.close()
    finally:
        server.ask(f"DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.mark.parametrize("code", ["disk_full", "too_many_connections", "deadlock_detected", "admin_shutdown"])
def test_what_passes_is_away_and_all_of_the_chunk_comes_later(receiver, code):
    sink = receiver.sink()
    sink.open("one")
    sink.deliver(chunk_of(*SinkContract.FIRST))
    receiver.ask(
        f"CREATE FUNCTION skyray.refuse() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{code}'; END $$;"
        "CREATE TRIGGER refuse BEFORE INSERT ON skyray.results FOR EACH ROW EXECUTE FUNCTION skyray.refuse()"
    )
    before = receiver.ids(), receiver.results()
    with pytest.raises(SinkAway):
        sink.deliver(chunk_of(*SinkContract.SECOND))
    assert (receiver.ids(), receiver.results()) == before
    receiver.ask("DROP TRIGGER refuse ON skyray.results")
    sink.close()
    assert sink.open("one") == Position(3, 2)
    sink.deliver(chunk_of(*SinkContract.SECOND))
    sink.close()
    assert receiver.results() == replayed([*SinkContract.FIRST, *SinkContract.SECOND])


def test_tables_that_somebody_changed_are_refused(receiver):
    sink = receiver.sink()
    sink.open("one")
    sink.deliver(chunk_of(*SinkContract.FIRST))
    receiver.ask("UPDATE skyray.stream SET boundary = 0")  # a position before updates that are there
    with pytest.raises(ConfigError, match="not as Skyray made them"):
        sink.deliver(chunk_of(*SinkContract.FIRST))
    sink.close()
    receiver.ask("UPDATE skyray.stream SET format = 99")
    with pytest.raises(ConfigError, match="format 99"):
        sink.open("one")
    receiver.ask("DROP TABLE skyray.stream")
    receiver.ask("CREATE TABLE skyray.stream (a int)")
    with pytest.raises(ConfigError, match="not as Skyray made them"):
        sink.open("one")


def test_server_that_hangs_is_away_in_bounded_time(receiver, monkeypatch):
    sink = receiver.sink()
    sink.open("one")
    sink.deliver(chunk_of(*SinkContract.FIRST))
    with receiver.server.connect() as other:
        other.execute("BEGIN")
        other.execute(f"LOCK TABLE {receiver.name}.updates")
        monkeypatch.setattr("gateway.sinks.postgres._ALL_S", 0.2)
        with pytest.raises(SinkAway):
            sink.deliver(chunk_of(*SinkContract.SECOND))
    sink.close()


def test_query_of_the_documents_answers(receiver):
    text = (ROOT / "docs" / "connect.md").read_text()
    (query,) = re.findall(r"```sql\n(.*?)```", text, re.DOTALL)
    sink = receiver.sink()
    sink.open("one")
    sink.deliver(chunk_of(*boundary_of(9, [("shop-1", "enter", 4), ("shop-1", "enter", 8), ("other", "enter", 5)])))
    sink.close()
    rows = receiver.ask(query)
    assert [(name, rank, score) for name, rank, _, score in rows] == [("shop-1", 1, 1.0), ("shop-1", 2, 0.5)]
