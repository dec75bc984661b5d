"""What `--to` takes, and what it says about the rest."""

import pytest

from gateway.sinks.postgres import PostgresSink
from gateway.sinks.uris import sink_of
from matching.errors import ConfigError

GOOD = "postgresql://anna:secret@db.example:6432/alerts"


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        (GOOD, "postgres/alerts.skyray"),
        (GOOD.replace("postgresql", "postgres"), "postgres/alerts.skyray"),
        (f"{GOOD}?schema=other&sslmode=require", "postgres/alerts.other"),
        ("postgresql:///alerts?host=/run/postgresql", "postgres/alerts.skyray"),
        ("postgresql://anna:p%40ss%2Fword@one,two:5433/a%20b", "postgres/a b.skyray"),
    ],
)
def test_uri_of_a_database_names_a_sink_without_its_address(uri, name):
    sink = sink_of(uri)
    assert isinstance(sink, PostgresSink) and sink.name == name and sink.exactly_once


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("alerts", "must begin with"),
        ("mysql://a/b", "must begin with"),
        ("postgresql://db.example:5432", "names no database"),
        (f"{GOOD}?schema=", "schema is empty"),
        (f"{GOOD}?schema=pg_catalog", "cannot be the name of a schema"),
        (f"{GOOD}?schema=a;b", "schema"),
        (f"{GOOD}?slmode=require", "slmode"),
        (f"{GOOD}#x", "has a #"),
        (f"{GOOD.replace('db.example', '[::1')}", "cannot be read"),
        ("postgresql://anna:secret@a:x/alerts", "port"),
        ("postgresql://anna:a/b@db/alerts", "%2F"),
        ("kafka://", "names no host"),
        ("kafka://h:1/", "names no topic"),
        ("kafka://h:1/a b", "cannot be the name of a topic"),
        ("kafka://h:0/a", "no host with a port"),
        ("kafka://anna:secret@h/a", "config=FILE"),
        ("kafka://h/a?group=x", "is no parameter"),
        ("kafka://h/a?create=0", "no number of partitions"),
        ("kafka://h/a?create=many", "no number of partitions"),
        ("nats://h/a.b", "cannot be the name of a stream"),
        ("nats://h/A?subject=.a", "cannot begin a subject"),
    ],
)
def test_bad_uri_says_what_is_wrong_without_the_password(uri, said):
    with pytest.raises(ConfigError, match=said) as refused:
        sink_of(uri)
    assert "secret" not in str(refused.value) and "--to" in str(refused.value)
