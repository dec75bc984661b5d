"""Names of the files of updates: `part-00000.parquet`, or `part-00000-0001of0002.parquet` of several delivery tasks.

`bolts.sinks` makes the names. `gateway.serve.history`, `gateway.live.checkpointed` and `spark_etl.run_tables` parse
them, also while the run still writes. The format is public (`docs/formats.md`).

Beside their folder is a list of them, `updates.list`, to which `topology.core.checkpoint.storage` appends a line when a
file gets its name. So a reader sees that a file was changed or removed. Files of earlier releases are in no list.

Where the oldest files were removed, `part-00011-0000of0000.parquet` has the `enter` updates up to the last of them that
no `leave` has ended: who applies all files in order gets the same results.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import xxhash

#: Suffix of the list, behind the name of the folder of updates.
PARTS_LIST = ".list"


class ListedPart(NamedTuple):
    """A file of updates as it was written.

    size_bytes : int
    xxh3 : str           of its bytes, in hexadecimal
    rows, last_as_of     its updates, and the largest `as_of` of them, -1 without any
    """

    size_bytes: int
    xxh3: str
    rows: int
    last_as_of: int

    @classmethod
    def of(cls, data: Any, rows: int, last_as_of: int) -> "ListedPart":
        """A file with these bytes and updates."""
        return cls(len(data), xxhash.xxh3_64_hexdigest(data), rows, last_as_of)

    def is_whole(self, data: Any) -> bool:
        """Whether these bytes are the file's. 5 to 10 GB/s."""
        return len(data) == self.size_bytes and xxhash.xxh3_64_hexdigest(data) == self.xxh3


def listed_line(name: str, facts: Mapping[str, Any]) -> bytes:
    """A line of the list: JSON with `name` and the fields of `ListedPart`, and a checksum of it."""
    line = json.dumps({"name": name, **facts})
    return f"{line} {xxhash.xxh3_64_hexdigest(line.encode())}\n".encode()


def listed_parts(data: bytes) -> dict[str, ListedPart]:
    """The files of a list by name, the last line of each; damaged lines say nothing. O(its bytes)."""
    found = {}
    for line in data.splitlines():
        text, _, checksum = line.rpartition(b" ")
        if xxhash.xxh3_64_hexdigest(text).encode() == checksum:
            facts = json.loads(text)
            name = facts.pop("name")
            found[name] = ListedPart(**facts)
    return found


class PartName(NamedTuple):
    """Name of a file of updates; names sort by number, then task, the order in which readers apply the updates.

    number : int     with one delivery task counted from 0; with several the epoch of the checkpoint that ended the part
    task, tasks      delivery task that wrote the file, and number of delivery tasks; 0 tasks of a base: what stands by
                     the parts up to that number, which were removed
    suffix : str     without the dot
    """

    number: int
    task: int = 0
    tasks: int = 1
    suffix: str = "parquet"

    @property
    def stem(self) -> str:
        """The name without the suffix."""
        writer = "" if self.tasks == 1 else f"-{self.task:04d}of{self.tasks:04d}"
        return f"part-{self.number:05d}{writer}"

    @property
    def is_base(self) -> bool:
        return not self.tasks

    @property
    def text(self) -> str:
        """The whole name."""
        return f"{self.stem}.{self.suffix}"

    @classmethod
    def of(cls, name: str) -> "PartName":
        """Parse a name. Raises ValueError for any other name."""
        stem, _, suffix = name.partition(".")
        _, number, *writer = stem.split("-")
        task, tasks = map(int, writer[0].split("of")) if writer else (0, 1)
        return cls(int(number), task, tasks, suffix)


def is_base(name: str) -> bool:
    """Whether a file of updates is a base."""
    return PartName.of(name).is_base


def whole_parts(names: Iterable[str]) -> list[PartName]:
    """Parse names, in the order in which readers apply updates; leaves the last number out if it is incomplete.

    The delivery tasks rename their parts of one number one after the other, task 0 last. So the last number is complete
    if it has a part of task 0.
    """
    parts = sorted(map(PartName.of, names))
    if parts and not any(part.task == 0 for part in parts if part.number == parts[-1].number):
        parts = [part for part in parts if part.number < parts[-1].number]
    return parts
