"""The end of a live stream: `run.json` says how far its log goes, which is read where it is (`spouts.history`)."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gateway.live.admission import Admission
from gateway.live.write_ahead_log import WriteAheadLog
from gateway.shell.terminal import writing_to
from matching.kind_table import Kind
from matching.space import Space

#: Fields of `run.json` that say where the inputs are: those of a stream are in its folder.
_PATHS = ("messages", "subscriptions", "boundaries")


def record(wal: WriteAheadLog, admission: Admission, state: str, summary: Mapping[str, Any]) -> None:
    """Write `run.json` with `summary` and how far the log goes. The log is not read. Raises DeliveryError."""
    with writing_to(wal.folder):
        of_log = wal.next_seq, wal.mark_count
        facts = facts_of(wal.folder, wal.settings, admission.space, admission.kinds_met, *of_log)
        facts["log_bytes"] = wal.size_bytes
        no_paths = {name: value for name, value in summary.items() if name not in _PATHS}
        wal.run.write_report(state, {**no_paths, **facts})


def facts_of(
    folder: Path, settings: Mapping[str, Any], space: Space, kinds: Iterable[Kind], messages: int, marks: int
) -> dict[str, Any]:
    """The fields of `run.json` (`gateway.runs.reader`) in which a live stream differs from a run over files.

    `kinds` are those of its subscriptions; clock marks are among the `messages`.
    """
    return {
        "live": settings,
        "window": settings["window"],
        "world": f"{space.west!r},{space.south!r},{space.east!r},{space.north!r}",
        "projection": space.projection,
        "distance": space.distance,
        "kind_columns": sorted({column for kind in kinds for column in kind.columns}),
        "messages_taken": messages - marks,
        "clock_marks": marks,
        "limit": None,
        "settings": {"out": str(folder), "sink": "parquet"},
    }


def paths_of(folder: Path) -> dict[str, Any]:
    """The fields of `run.json` that say where the inputs are: all are in the folder of the stream."""
    here = str(folder.resolve())
    return {"messages": here, "subscriptions": [here], "boundaries": {"logged": here}}
