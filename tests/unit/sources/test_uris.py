"""What `--from` names, and what an error says of one that is wrong."""

import pytest

from gateway.sources.uris import source_of
from matching.errors import ConfigError, EngineError


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("nats://h:4222/POSTS?consumer=skyray", "nats/POSTS"),
        ("nats://user:secret@h/POSTS", "nats/POSTS"),
        ("nats://[::1]:4222,other/POSTS", "nats/POSTS"),
        ("kafka://a:9092,b:9093/posts.v1?group=skyray", "kafka/posts.v1"),
    ],
)
def test_uri_names_a_source(uri, name):
    assert source_of(uri).name == name


@pytest.mark.parametrize(
    ("uri", "what"),
    [
        ("posts", "must begin with nats:// or kafka://"),
        ("amqp://h/x", "must begin with nats:// or kafka://"),
        ("nats://h:4222", "names no stream"),
        ("kafka://h:9092/", "names no topic"),
        ("nats:///POSTS", "names no host"),
        ("nats://h:port/POSTS", "'h:port' is no host with a port"),
        ("nats://h:99999/POSTS", "'h:99999' is no host with a port"),
        ("nats://h/a.b", "'a.b' cannot be the name of a stream"),
        ("nats://h/a/b", "'a/b' cannot be the name of a stream"),
        ("nats://h/POSTS?group=g", "'group' is no parameter of it; these are: consumer"),
        ("nats://h/POSTS?consumer=", "consumer is empty"),
        ("nats://h/POSTS?consumer=a.b", "'a.b' cannot be the name of a consumer"),
        ("kafka://h/t?consumer=c", "'consumer' is no parameter of it; these are: config, group"),
        ("kafka://u:p@h/t", "config=FILE"),
        ("nats://h/POSTS#1", "has a #"),
    ],
)
def test_wrong_uri_says_what_is_wrong_and_shows_a_right_one(uri, what):
    with pytest.raises(ConfigError) as caught:
        source_of(uri)
    text = str(caught.value)
    assert what in text and "for example" in text
    assert "nats://127.0.0.1:4222/POSTS" in text or "kafka://127.0.0.1:9092/posts" in text


@pytest.mark.parametrize("password", ["secret", "sec/secret", "sec@secret"])
def test_password_is_not_shown(password):
    with pytest.raises(ConfigError) as caught:
        source_of(f"nats://user:{password}@h/a.b")
    assert "secret" not in str(caught.value) and "***" in str(caught.value)


@pytest.mark.parametrize(("scheme", "module"), [("nats", "nats"), ("kafka", "confluent_kafka")])
def test_missing_package_says_what_to_install(scheme, module, monkeypatch):
    monkeypatch.setattr("matching.extras.find_spec", lambda name: None if name == module else True)
    with pytest.raises(ConfigError, match=rf"pip install 'skyray\[{scheme}\]'"):
        source_of(f"{scheme}://h/name")


def test_properties_of_kafka_come_from_a_file(tmp_path):
    from gateway.brokers.uris import read_properties

    path = tmp_path / "kafka.properties"
    path.write_text("# of the cluster\nsecurity.protocol = SASL_SSL\n\nsasl.password=a=b\n")
    assert read_properties(str(path)) == {"security.protocol": "SASL_SSL", "sasl.password": "a=b"}
    path.write_text("security.protocol\n")
    with pytest.raises(ConfigError, match="line 1: must be NAME=VALUE"):
        read_properties(str(path))
    with pytest.raises(EngineError, match="cannot be read"):
        read_properties(str(tmp_path / "absent"))
    path.write_text("no.such.property=1\n")
    with pytest.raises(ConfigError, match=r"no\.such\.property"):
        source_of(f"kafka://127.0.0.1:1/posts?config={path}").open({})
