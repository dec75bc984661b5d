"""Runtimes of peers that are no Python packages: where they are on this machine, and how to get them.

All lie outside of the checkout, where Maven and Go put them. It needs the standard library alone.
"""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

#: The first Java that runs this Lucene.
LUCENE, JAVA = "10.3.0", 21
LUCENE_INSTALL = (
    f"mvn dependency:get -Dartifact=org.apache.lucene:lucene-monitor:{LUCENE} (Java {JAVA} or later: the PATH's, that "
    "of JAVA_HOME, or one in /usr/lib/jvm)"
)
TILE38_INSTALL = "go build ./cmd/tile38-server in a checkout of github.com/tidwall/tile38, and put it on the PATH"


def jdk(least: int = JAVA) -> tuple[Path, str] | None:
    """The folder of a JDK that is new enough and its version: of `JAVA_HOME`, of the PATH, or one of Debian's."""
    for folder in _jdks():
        if (folder / "bin/javac").exists() and (folder / "release").exists():
            version = re.search(r'JAVA_VERSION="((\d+)[^"]*)', (folder / "release").read_text())
            if version and int(version[2]) >= least:
                return folder, version[1]
    return None


def _jdks() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home)
    if java := shutil.which("java"):
        yield Path(java).resolve().parent.parent
    yield from sorted(Path("/usr/lib/jvm").glob("*"))


def lucene_jars() -> list[Path]:
    """The jars of Lucene in Maven's repository; none unless its Monitor is there."""
    jars = sorted(Path.home().glob(f".m2/repository/org/apache/lucene/*/{LUCENE}/*.jar"))
    return jars if any(jar.name.startswith("lucene-monitor") for jar in jars) else []


def tile38_server() -> str | None:
    """The program, where it is on the PATH or where Go installs programs."""
    return shutil.which("tile38-server") or shutil.which("tile38-server", path=str(Path.home() / "go/bin"))
