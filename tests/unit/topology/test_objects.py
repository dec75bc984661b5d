"""`topology.core.objects` over a real server: whole objects, and writes that come too late."""

import os

import pytest

from matching.errors import ConfigError
from tests.support.object_store import serving_objects
from topology.core.objects import Bucket, Taken, _store, split_uri
from topology.core.places import place


@pytest.fixture(scope="module")
def server():
    with serving_objects() as server:
        yield server


@pytest.fixture
def bucket(server, monkeypatch):
    _use(monkeypatch, server)
    return Bucket(f"{server.new_bucket()}/some/run")


def _use(monkeypatch, server, **more):
    for name, value in {**server.environment, **more}.items():
        monkeypatch.setenv(name, value)
    _store.cache_clear()


def test_object_that_is_created_twice_stays_the_first(bucket):
    tag = bucket.create("head.json", b"1")
    with pytest.raises(Taken, match="head.json"):
        bucket.create("head.json", b"2")
    assert bucket.read("head.json") == (b"1", tag)


def test_object_that_has_changed_is_not_replaced(bucket):
    first = bucket.create("head.json", b"1")
    second = bucket.replace("head.json", b"2", first)
    with pytest.raises(Taken):
        bucket.replace("head.json", b"3", first)
    with pytest.raises(Taken):
        bucket.replace("other.json", b"3", second)
    assert bucket.read("head.json") == (b"2", second)


def test_conditional_write_that_is_there_already_was_our_own(bucket):
    """The answer to the first try was lost; the client tries again."""
    tag = bucket.create("head.json", b"1")
    assert bucket.create("head.json", b"1") == tag
    later = bucket.replace("head.json", b"2", tag)
    assert bucket.replace("head.json", b"2", tag) == later


def test_names_begin_as_asked_and_deleted_ones_are_gone(bucket):
    for name in ("a-1", "a-2", "b/c", "b/d"):
        bucket.write(name, name.encode())
    assert bucket.names() == ["a-1", "a-2", "b/c", "b/d"]
    assert bucket.names("a-") == ["a-1", "a-2"] and bucket.names("b/") == ["b/c", "b/d"]
    bucket.delete("a-1", "b/c", "never")
    assert bucket.names() == ["a-2", "b/d"]


def test_object_is_there_once_its_file_is_closed(bucket):
    file = bucket.writing("large")
    pieces = [os.urandom(1 << 20) for _ in range(12)]
    for piece in pieces:
        file.write(piece)
    assert bucket.names() == []
    file.close()
    assert bucket.read("large").data == b"".join(pieces)
    assert bucket.read_range("large", 1 << 20, 10) == pieces[1][:10]


def test_path_reads_like_one_of_this_machine(bucket):
    bucket.write("messages/part-1.parquet", b"0123456789")
    bucket.write("manifest.json", b"{}")
    path = place(f"{bucket.uri}/")
    assert path == place(bucket.uri) and path.is_dir() and not path.is_file()
    assert [each.name for each in (path / "messages").glob("*.parquet")] == ["part-1.parquet"]
    part = path / "messages" / "part-1.parquet"
    assert part.exists() and part.stat().st_size == 10 and part.suffix == ".parquet"
    with part.open() as file:
        assert file.read(4) == b"0123" and file.seek(2) == 2 and file.read() == b"23456789"
    assert not (path / "other").exists()


def test_path_that_has_been_one_of_this_machine_is_an_address_again(tmp_path):
    from pathlib import Path

    assert str(place(Path("s3://bucket/run"))) == "s3://bucket/run"
    assert place(f"file://{tmp_path}") == tmp_path == place(tmp_path)


@pytest.mark.parametrize("uri", ["s3://", "s3:///run", "s3://B/run", "s3://bucket/../run"])
def test_address_that_is_none_is_refused(uri):
    with pytest.raises(ConfigError, match="s3://BUCKET/NAME"):
        split_uri(uri)


def test_missing_bucket_is_named(server, monkeypatch):
    _use(monkeypatch, server)
    for ask in (lambda each: each.read("a"), lambda each: each.names(), lambda each: each.create("a", b"")):
        with pytest.raises(OSError, match="s3://no-such.*no bucket no-such; make it first"):
            ask(Bucket("s3://no-such/run"))


def test_missing_object_is_named(bucket):
    with pytest.raises(FileNotFoundError, match=f"{bucket.uri}/a: is not there; check its name"):
        bucket.read("a")


def test_missing_keys_are_named(server, monkeypatch):
    _use(monkeypatch, server, AWS_METADATA_ENDPOINT="http://127.0.0.1:9")
    monkeypatch.setattr("topology.core.objects.PATIENCE_S", 1.0)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(OSError, match="no credentials were found; set AWS_ACCESS_KEY_ID"):
        Bucket("s3://bucket/run").read("a")


def test_endpoint_that_does_not_answer_is_named(server, monkeypatch):
    _use(monkeypatch, server, AWS_ENDPOINT_URL="http://127.0.0.1:9")
    monkeypatch.setattr("topology.core.objects.PATIENCE_S", 1.0)
    with pytest.raises(OSError, match=r"does not answer \(endpoint http://127.0.0.1:9\); check AWS_ENDPOINT_URL"):
        Bucket("s3://bucket/run").read("a")
