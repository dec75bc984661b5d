"""Small folders of interrupted live streams as releases wrote them, packed, with the numbers of their formats.

    python -m tests.support.kept_folders

adds one of this release, where there is none with its numbers: after every change of a format, and before the next one.
"""

import json
import sys
import tarfile
import tempfile
from pathlib import Path

import numpy as np

from gateway.live.vocabulary_files import empty_start
from matching.kinds import KINDS
from tests.support.beside import random_message, random_subscription, wide_subscription
from tests.support.live_streams import Stream
from topology.folder import FORMATS

KEPT = Path(__file__).parent / "kept"
#: Name of a packed folder -> the digest of its stream once it has gone on, by the release that wrote it.
DIGESTS = KEPT / "digests.json"
#: Name of one of this release.
CURRENT = "-".join(f"{name}-{number}" for name, number in FORMATS.items())
_WINDOW, _NOW_S = "count:20", 1_577_900_000


def stream_of(folder: Path) -> Stream:
    """A life of the stream."""
    return Stream(empty_start(folder), folder, window=_WINDOW, now=lambda: _NOW_S)


def take_batches(stream: Stream, first: int, last: int) -> None:
    """The stream's batches of these numbers: changes of subscriptions of every kind, and 15 messages each."""
    for number in range(first, last):
        rng = np.random.default_rng(number)
        rows = [{"subscribe": random_subscription(rng, int(rng.integers(9)))} for _ in range(4)]
        if number == 0:
            rows = [{"subscribe": wide_subscription(kind, kind.name, ["w0", "w1"])} for kind in KINDS.run]
        rows += [_without_hashtags(random_message(rng, number * 15 + place)) for place in range(15)]
        for row in rows:
            stream.take(row)
        assert not stream.refused, stream.refused
        stream.pipe.close_batch()


def _without_hashtags(row: dict) -> dict:
    """A message whose updates are those of all releases: by some a hashtag is its word, too."""
    return row | {"text": row["text"].replace("#", "")}


def begin(folder: Path) -> None:
    """A stream that is interrupted after four batches."""
    stream = stream_of(folder)
    take_batches(stream, 0, 4)
    stream.interrupt(stream.match())


def go_on(folder: Path) -> tuple[Stream, str]:
    """The last life of a stream, of three more batches; it and the digest."""
    stream = stream_of(folder)
    take_batches(stream, 4, 7)
    return stream, stream.finish(stream.match())


def unpack(name: str, folder: Path) -> Path:
    """Unpack a folder into another one."""
    with tarfile.open(KEPT / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    (found,) = folder.iterdir()
    return found


def digests() -> dict[str, str]:
    """The digest of each kept folder."""
    return json.loads(DIGESTS.read_text()) if DIGESTS.exists() else {}


def keep(name: str, kept: Path = KEPT) -> None:
    """Make a folder of this release, and pack it."""
    with tempfile.TemporaryDirectory() as scratch:
        whole, folder = Path(scratch, "whole"), Path(scratch, name)
        for one in (whole, folder):
            one.mkdir()
            begin(one)
        kept.mkdir(exist_ok=True)
        with tarfile.open(kept / f"{name}.tar.xz", "w:xz") as archive:
            archive.add(folder, name, filter=_plain)
        _, digest = go_on(whole)
    found = json.loads((kept / DIGESTS.name).read_text()) if (kept / DIGESTS.name).exists() else {}
    (kept / DIGESTS.name).write_text(json.dumps({**found, name: digest}, indent=1, sort_keys=True) + "\n")


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """An entry without what the machine adds to it; the lock and the index are left out, which are made again."""
    parts = Path(entry.name).parts
    if parts[-1] == ".lock" or "index" in parts:
        return None
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


if __name__ == "__main__":
    if CURRENT in digests():
        sys.exit(f"{CURRENT}: is there")
    keep(CURRENT)
