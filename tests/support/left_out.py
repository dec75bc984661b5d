"""What a session of tests leaves out, and how to get it: what this machine lacks, and tests that take longer.

`tests/conftest.py` counts. `python -m tests.support.left_out FILE...` adds up what several sessions have written with
`--left-out FILE` and prints it; with `--packages` alone it prints Debian's packages of what is missing. It needs the
standard library alone, so that packages can be fetched while the environment is made.
"""

import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks import runtimes
from tests.support import apache_kafka


class Need(NamedTuple):
    """Something that tests of a marker need: its name, whether it is there, and Debian's package, or a command."""

    what: str
    there: Callable[[], bool]
    package: str = ""
    command: str = ""


def _program(*names: str) -> bool:
    """Whether one of these programs is there; Debian has those of daemons where not everybody's PATH leads."""
    path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
    return any(shutil.which(name, path=path) for name in names)


def _postgis() -> bool:
    """Whether a server with PostGIS is named, or can be started for the session."""
    extensions = Path("/usr/share/postgresql").glob("*/extension/postgis.control")
    return bool(os.environ.get("PGHOST")) or (shutil.which("pg_virtualenv") is not None and any(extensions))


#: Marker -> what its tests need.
NEEDS: Mapping[str, Need] = {
    "browser": Need("Chromium", lambda: _program("chromium"), "chromium"),
    "caddy": Need("Caddy", lambda: _program("caddy"), "caddy"),
    "kafka": Need("Apache Kafka", apache_kafka.is_there, command="python -m tests.support.apache_kafka"),
    "lucene": Need("Lucene", lambda: bool(runtimes.jdk() and runtimes.lucene_jars()), command=runtimes.LUCENE_INSTALL),
    "nginx": Need("nginx", lambda: _program("nginx"), "nginx-light"),
    "postgis": Need("PostgreSQL with PostGIS", _postgis, "postgresql-postgis"),
    "promtool": Need("promtool", lambda: _program("promtool"), "prometheus"),
    "redis": Need("Redis", lambda: _program("redis-server"), "redis-server"),
    "sshd": Need("an SSH server", lambda: _program("sshd"), "openssh-server"),
    "spark": Need("Java", lambda: apache_kafka.java() is not None, "default-jre-headless"),
    "tile38": Need("Tile38", lambda: runtimes.tile38_server() is not None, command=runtimes.TILE38_INSTALL),
}
#: Marker of tests that a session may deselect -> what selects them; the first marker of a test counts.
TIERS: Mapping[str, str] = {
    "cluster": "make test-cluster",
    "long": "make test-long",
    "wide": "make test-long, or make test WIDE=1 for those without Ray",
    "slow": "make test WIDE=1",
}


def remedy(marker: str) -> str:
    """How to get what tests of a marker need."""
    need = NEEDS[marker]
    return need.command or f"apt-get install {need.package}"


def lines(counts: Mapping[str, int]) -> list[str]:
    """A line for each marker whose tests were left out."""
    told = [
        f"left out: {counts[name]:,} tests that need {NEEDS[name].what}: {remedy(name)}"
        for name in NEEDS
        if counts.get(name)
    ]
    return told + [f"left out: {counts[name]:,} {name} tests: {TIERS[name]}" for name in TIERS if counts.get(name)]


def main(arguments: Sequence[str]) -> None:
    """Print the sum of what sessions have left out, or packages; a session that was interrupted wrote no file."""
    if arguments == ["--packages"]:
        told = [need.package for need in NEEDS.values() if need.package and not need.there()]
    else:
        counts: Counter[str] = Counter()
        for path in map(Path, arguments):
            if path.is_file():
                counts.update(json.loads(path.read_text()))
        told = lines(counts)
    sys.stdout.writelines(f"{line}\n" for line in told)


if __name__ == "__main__":
    main(sys.argv[1:])
