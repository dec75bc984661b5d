"""Names of the files of updates: `part-00000.parquet`, or `part-00000-0001of0002.parquet` of several delivery tasks.

`bolts.sinks` makes the names. `gateway.serve.history`, `gateway.live.checkpointed` and `spark_etl.run_tables` parse
them, also while the run still writes. The format is public (`docs/formats.md`).
"""

from collections.abc import Iterable
from typing import NamedTuple


class PartName(NamedTuple):
    """Name of a file of updates; names sort by number, then task, the order in which readers apply the updates.

    number : int     with one delivery task counted from 0; with several the epoch of the checkpoint that ended the part
    task, tasks      delivery task that wrote the file, and number of delivery tasks
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


def whole_parts(names: Iterable[str]) -> list[PartName]:
    """Parse names, in the order in which readers apply updates; leaves the last number out if it is incomplete.

    The delivery tasks rename their parts of one number one after the other, task 0 last. So the last number is complete
    if it has a part of task 0.
    """
    parts = sorted(map(PartName.of, names))
    if parts and not any(part.task == 0 for part in parts if part.number == parts[-1].number):
        parts = [part for part in parts if part.number < parts[-1].number]
    return parts
