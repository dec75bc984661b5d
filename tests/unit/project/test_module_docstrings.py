"""Module docstrings name users that there are: `Used by` is compared with the imports."""

import re
from collections import defaultdict
from pathlib import Path

from gateway.shell.packages import PACKAGES

ROOT = Path(__file__).resolve().parents[3]
_DOCSTRING = re.compile(r'"""(.*?)"""', re.DOTALL)
#: The clause behind "Used by": up to the end of a sentence, a semicolon or a colon.
_USED_BY = re.compile(r"[Uu]sed by(.*?)(?:[.;:] |\.$|$)")
_NAME = re.compile(r"`([a-z_]+(?:\.[a-z_]+)+)`")
_IMPORT = re.compile(r"^ *from ([\w.]+) import (?:\(([^)]*)\)|(.*))$|^ *import ([\w.]+)", re.MULTILINE)


def sources() -> dict[str, str]:
    """Source of every module of the installed packages, by its dotted name."""
    files = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py")]
    names = [file.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".") for file in files]
    texts = [file.read_text(encoding="utf-8") for file in files]
    return {name.removesuffix(".__init__"): text for name, text in zip(names, texts, strict=True)}


def importers(texts: dict[str, str]) -> dict[str, set[str]]:
    """Module -> the modules that import it or a name of it."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, text in texts.items():
        for module, inner, outer, whole in _IMPORT.findall(text):
            found[module or whole].add(name)
            for each in re.findall(r"[A-Za-z_]\w*", inner or outer):
                found[f"{module}.{each}"].add(name)
    return found


def docstring(text: str) -> str:
    """The docstring of a module's source in one line; empty if there is none."""
    found = _DOCSTRING.match(text)
    return " ".join(found[1].split()) if found else ""


def false_claims(texts: dict[str, str]) -> list[str]:
    """A line for each module that a docstring names as a user and that does not import the module."""
    users, wrong = importers(texts), []
    for name, text in texts.items():
        for clause in _USED_BY.findall(docstring(text)):
            for claimed in _NAME.findall(clause):
                is_user = any(user == claimed or user.startswith(f"{claimed}.") for user in users[name])
                if claimed in texts and not is_user:
                    wrong.append(f"{name}: used by {claimed}, which does not import it")
    return wrong


def test_module_docstrings_name_users_that_import_them():
    texts = sources()
    assert sum("sed by `" in docstring(text) for text in texts.values()) > 200, "the test finds no claims"
    assert false_claims(texts) == []


def test_false_claims_a_planted_one_is_found():
    texts = {
        "matching.a": '"""A. Used by `matching.b` and `matching.c`; read on in `matching.d`."""\n',
        "matching.b": "from matching import (\n    a,\n)\n",
        "matching.c": "import matching.d\n",
        "matching.d": "",
    }
    assert false_claims(texts) == ["matching.a: used by matching.c, which does not import it"]
