"""The doctor finds faults that are really there, and each fault has a remedy."""

import importlib.metadata
import json
import os
import stat

import pytest

import gateway.cli as cli
from gateway.shell import doctor
from matching.extras import EXTRAS


def found(name, findings):
    return next(finding for finding in findings if finding.name == name)


def fake_java(folder, says):
    folder.mkdir(parents=True)
    program = folder / "java"
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


@pytest.mark.parametrize(
    ("says", "state"),
    [
        ('openjdk version "17.0.15" 2025-04-15', "ok"),
        ('openjdk version "21" 2023-09-19', "ok"),
        ('java version "1.8.0_402"', "fail"),
        ('openjdk version "11.0.2" 2019-01-15', "fail"),
        ("what?", "fail"),
    ],
)
def test_doctor_java_version_is_read_and_judged(monkeypatch, tmp_path, says, state):
    fake_java(tmp_path / "bin", says)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    finding = found("Java", doctor.examine(tmp_path))
    assert finding.state == state
    assert ("install a JDK" in finding.remedy) == (state == "fail")


def test_doctor_java_missing_is_a_fault_with_remedy(monkeypatch, tmp_path):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    finding = found("Java", doctor.examine(tmp_path))
    assert finding.state == "fail"
    assert "JAVA_HOME" in finding.found
    assert "apt install" in finding.remedy


def test_doctor_java_home_wrong_is_a_fault(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    assert found("Java", doctor.examine(tmp_path)).state == "fail"


@pytest.mark.parametrize(
    ("constant", "value", "name"),
    [
        ("MIN_MEMORY_BYTES", 2**60, "memory"),
        ("MIN_SHARED_BYTES", 2**60, "shared memory"),
        ("MIN_DISK_BYTES", 2**60, "disk for runs"),
        ("MIN_CORES", 10_000, "cores"),
        ("NEWEST_PYTHON", (3, 0), "Python"),
    ],
)
def test_doctor_too_little_is_reported_with_remedy(monkeypatch, tmp_path, constant, value, name):
    monkeypatch.setattr(doctor, constant, value)
    finding = found(name, doctor.examine(tmp_path))
    assert finding.state in ("warn", "fail")
    assert finding.remedy


def test_doctor_folder_that_is_not_there_yet_is_judged_by_its_parent(tmp_path):
    assert str(tmp_path) in found("disk for runs", doctor.examine(tmp_path / "a" / "b")).found


def test_cli_doctor_fault_gives_exit_code_1(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    assert cli.main(["doctor", "--json"]) == 1
    payload = json.loads(capsys.readouterr().out)
    assert payload["ok"] is False
    assert any(finding["name"] == "Java" and finding["remedy"] for finding in payload["findings"])


def test_cli_doctor_prints_each_finding(monkeypatch, tmp_path, capsys):
    fake_java(tmp_path / "bin", 'openjdk version "17.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    cli.main(["doctor"])
    printed = capsys.readouterr().out
    for name in ("Python", "Java", "cores", "memory", "shared memory", "disk for runs", "kernel cache", "open files"):
        assert name in printed
    assert os.fspath(tmp_path) in printed


def test_doctor_names_the_extras_that_are_there(tmp_path):
    findings = doctor.examine(tmp_path)
    for name in ("ray", "spark", "map", "demo", "bench"):
        assert found(f"extra {name}", findings) == (f"extra {name}", "ok", f"for {EXTRAS[name].purpose}", "")


@pytest.mark.parametrize(("package", "state"), [("numpy", "warn"), ("ray", "warn"), ("pytest", "ok")])
def test_doctor_version_outside_the_range_is_named_for_the_core_and_the_extras_that_are_there(
    monkeypatch, tmp_path, package, state
):
    version = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.0" if name == package else version(name))
    finding = found("dependencies", doctor.examine(tmp_path))
    assert finding.state == state
    assert (f"{package} 1.0 is not" in finding.found) == (state == "warn")


def test_doctor_core_package_that_is_missing_is_a_fault(monkeypatch, tmp_path):
    version = importlib.metadata.version

    def absent(name):
        if name == "xxhash":
            raise importlib.metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(importlib.metadata, "version", absent)
    finding = found("dependencies", doctor.examine(tmp_path))
    assert finding.state == "fail" and finding.found == "missing: xxhash"
