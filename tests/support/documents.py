"""The documents as their readers take them: pages, blocks of commands, and what they link to."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
#: In the order somebody reads them who types along.
FIRST = ("docs/start.md", "docs/formats.md", "docs/subscribe.md", "docs/operate.md", "docs/recover.md")
PAGES = tuple(
    dict.fromkeys(
        [
            *FIRST,
            "README.md",
            *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))),
            "CONTRIBUTING.md",
            "deploy/README.md",
            "tests/fault/README.md",
        ]
    )
)

_FENCE = re.compile(r"^(?:<!-- not run: ([^\n]*) -->\n)?```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`]+)`")


class Block(NamedTuple):
    """A fenced block: its page, language, lines, and why no test types it (None: one does)."""

    page: str
    language: str
    lines: tuple[str, ...]
    not_run: str | None


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str) -> Iterator[Block]:
    for match in _FENCE.finditer(text_of(page)):
        lines = re.sub(r"\\\n\s*", "", match[3]).splitlines()
        yield Block(page, match[2], tuple(line for line in lines if line.strip()), match[1])


def prose(page: str) -> str:
    """A page without its fenced blocks."""
    return _FENCE.sub("", text_of(page))


def commands_in_prose(page: str) -> Iterator[str]:
    """What stands in backquotes and is a command line, and no mere name of one."""
    for match in _SPAN.finditer(prose(page)):
        line = " ".join(match[1].split())
        if re.match(r"(skyray|python|make) \S", line):
            # A list that a line of the page ends within goes on without a space.
            yield re.sub(r", (?=[a-z_,]+($| ))", ",", line)


def without_comment(line: str) -> str:
    return re.sub(r"\s+#\s.*$", "", line).strip()
