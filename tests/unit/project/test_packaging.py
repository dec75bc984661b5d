"""The distribution: every package listed, none shadowed, and rules that no linter checks."""

import ast
import importlib
import json
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from gateway.shell.packages import PACKAGES, check_packages, from_checkout, home
from matching.errors import ConfigError, PackagingError

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "gateway" / "serve" / "page"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def sources():
    """Every Python file of the installed packages."""
    return [file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))]


def test_packages_listed_are_exactly_those_on_disk():
    on_disk = {
        ".".join(file.parent.relative_to(ROOT).parts)
        for package in PACKAGES
        for file in (ROOT / package).rglob("__init__.py")
    }
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == on_disk


def test_packages_top_level_agree_with_pyproject():
    listed = {name.partition(".")[0] for name in PROJECT["tool"]["setuptools"]["packages"]}
    assert listed == set(PACKAGES)
    assert not listed & {"tests", "benchmarks", "deploy"}


def test_every_folder_with_code_is_a_package():
    loose = {file.parent for file in sources() if not (file.parent / "__init__.py").is_file()}
    assert not loose


#: Releases of these are numbered by date: a next major one says nothing.
BY_DATE = {"regex", "structlog", "packaging"}
#: Private parts of these are used, which a minor release may change.
PRIVATE = {"ray", "numba", "uvicorn"}


def requirements():
    """What the distribution requires, but for its own extras, in lists by the name of the extra, "" for the core."""
    extras = {"": PROJECT["project"]["dependencies"], **PROJECT["project"]["optional-dependencies"]}
    return {extra: [one for one in map(Requirement, lines) if one.name != "skyray"] for extra, lines in extras.items()}


@pytest.mark.parametrize(
    "requirement", [one for lines in requirements().values() for one in lines], ids=lambda one: one.name
)
def test_dependency_ranges_begin_at_the_tested_version_and_end_before_what_may_break(requirement):
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines())
    tested = Version({canonicalize_name(name): pin for name, pin in pins.items()}[canonicalize_name(requirement.name)])
    if requirement.name in BY_DATE:
        end = ""
    elif requirement.name in PRIVATE:
        end = f",<{tested.major}.{tested.minor + 1}"
    else:
        end = f",<{tested.major + 1}"
    assert requirement.specifier == SpecifierSet(f">={tested}{end}")


def test_core_needs_neither_ray_nor_spark_nor_a_plotting_library_and_all_has_every_extra_for_users():
    names = {extra: {one.name for one in lines} for extra, lines in requirements().items()}
    assert names[""].isdisjoint({"ray", "pyspark", "pandas", "matplotlib", "duckdb", "psycopg", "fastapi"})
    (every,) = PROJECT["project"]["optional-dependencies"]["all"]
    assert Requirement(every).extras == set(names) - {"", "all", "docs", "dev"}


def test_check_packages_ours_pass():
    check_packages()
    assert home() == ROOT


def test_check_packages_intruder_is_named(monkeypatch, tmp_path):
    (tmp_path / "topology").mkdir()
    (tmp_path / "topology" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "topology", raising=False)
    importlib.invalidate_caches()
    with pytest.raises(PackagingError) as caught:
        check_packages(["topology"])
    assert str(tmp_path) in str(caught.value)
    assert str(ROOT) in str(caught.value)


def test_check_packages_missing_one_is_named():
    with pytest.raises(PackagingError, match="no_such_package_of_ours"):
        check_packages(["no_such_package_of_ours"])


def test_from_checkout_without_checkout_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr("gateway.shell.packages.home", lambda: tmp_path)
    with pytest.raises(ConfigError, match="needs a checkout"):
        from_checkout("benchmarks.run", "`skyray bench`")


def test_source_builtin_hash_is_not_called():
    """`hash` of text differs from process to process: two tasks would disagree on where a word lives."""
    calls = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for file in sources()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "hash"
    ]
    assert not calls


def test_topology_init_is_empty():
    assert not ast.parse((ROOT / "topology" / "__init__.py").read_text()).body


def test_licences_are_ours_and_those_of_the_files_of_others():
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
    assert len(text.splitlines()) > 200
    vendored = json.loads((PAGE / "vendor" / "manifest.json").read_text())
    licences = {"Apache-2.0", *(entry["licence"] for entry in vendored.values())}
    assert set(PROJECT["project"]["license"].split(" AND ")) == licences
    files = [ROOT / "LICENSE", PAGE / "vendor" / "NOTICE", ROOT / "gateway" / "world" / "LICENSE"]
    assert [ROOT / name for name in PROJECT["project"]["license-files"]] == files
