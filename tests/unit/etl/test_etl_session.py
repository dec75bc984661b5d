"""Finding Java before Spark does."""

import os
import socket

import pytest

from matching.errors import ConfigError
from spark_etl.session import check_java, check_master


def fake_java(folder, body):
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\n" + body + "\n")
    java.chmod(0o755)
    return str(java)


@pytest.fixture
def no_java(tmp_path, monkeypatch):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty") + os.pathsep + str(tmp_path / "bin"))


def test_check_java_none_names_the_remedy(no_java):
    with pytest.raises(ConfigError, match="no java on the PATH.*openjdk-17"):
        check_java()


@pytest.mark.parametrize("said", ["1.8.0_392", "11.0.21"])
def test_check_java_too_old_names_version_and_remedy(no_java, tmp_path, said):
    fake_java(tmp_path, f"""echo 'openjdk version "{said}" 2023' >&2""")
    version = said.removeprefix("1.").split(".")[0]
    with pytest.raises(ConfigError, match=f"is Java {version}: install Java 17"):
        check_java()


def test_check_java_new_enough_is_found(no_java, tmp_path):
    java = fake_java(tmp_path, """echo 'openjdk version "21" 2023-09-19' >&2""")
    assert check_java() == java


def test_check_java_broken_java_home_is_named(no_java, tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="JAVA_HOME.*does not run"):
        check_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    fake_java(tmp_path, "exit 3")
    with pytest.raises(ConfigError, match="does not run"):
        check_java()


def test_check_master_that_is_down_is_named_at_once():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        check_master(f"spark://127.0.0.1:{port}")
        check_master(f"spark://nowhere.invalid:1,127.0.0.1:{port}")
    for master in (f"spark://127.0.0.1:{port}", "spark://127.0.0.1"):
        with pytest.raises(ConfigError, match=f"{master}: no Spark master answers"):
            check_master(master)
    check_master("local[2]")
