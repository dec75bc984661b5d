"""Names of files of updates: which number and which delivery task, and which of them can be read.

Written by `bolts.sinks`; read by whatever reads a run folder, also while the run writes to it.
"""

from collections.abc import Iterable
from typing import NamedTuple


class PartName(NamedTuple):
    """Name of a file of updates: by its number, then its task, names sort in the order in which updates are applied.

    number : int     of one task: ascending. Of several tasks: of the checkpoint that ended the part
    task, tasks      that wrote it, and how many there were
    suffix : str
    """

    number: int
    task: int = 0
    tasks: int = 1
    suffix: str = "parquet"

    @property
    def stem(self) -> str:
        writer = "" if self.tasks == 1 else f"-{self.task:04d}of{self.tasks:04d}"
        return f"part-{self.number:05d}{writer}"

    @property
    def text(self) -> str:
        return f"{self.stem}.{self.suffix}"

    @classmethod
    def of(cls, name: str) -> "PartName":
        """Raises ValueError for what is no name of a part."""
        stem, _, suffix = name.partition(".")
        _, number, *writer = stem.split("-")
        task, tasks = map(int, writer[0].split("of")) if writer else (0, 1)
        return cls(int(number), task, tasks, suffix)


def whole_parts(names: Iterable[str]) -> list[PartName]:
    """The parts by these names in the order in which updates are applied, without a last number that lacks some.

    Of each number the part of the first task gets its name last: where it is missing, others may be, too.
    """
    parts = sorted(map(PartName.of, names))
    if parts and not any(part.task == 0 for part in parts if part.number == parts[-1].number):
        parts = [part for part in parts if part.number < parts[-1].number]
    return parts
