"""The fields of `run.json` that readers of a run need, validated.

Used by `gateway.runs.reader` and `gateway.runs.oracle_replay`; `topology.summary` writes it.
"""

from pathlib import Path
from typing import Annotated, Any

import msgspec

from matching.errors import ConfigError, InputError
from matching.space import Space
from matching.window import Window
from spouts.quarantine import Quarantine
from spouts.parquet import read_manifest
from topology.folder import FINISHED, REPORT, RunFolder

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_Finite = Annotated[float, msgspec.Meta(ge=-1e300, le=1e300)]
_Range = tuple[_Count, _Count]


class Fades(msgspec.Struct):
    """Decay of scores."""

    log_base_per_s: _Finite
    smoothing: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
    epoch_us: int = 0


class Facts(msgspec.Struct):
    """The fields that are read."""

    messages: str
    subscriptions: list[str]
    window: str
    world: str
    projection: str
    boundaries: dict[str, _Count | str | None]
    state: str = FINISHED
    digest: str | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=2**53)] | None = None
    latest_us: Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)] | None = None
    asked: list[str] = []
    fading: Fades | None = None
    aside: dict[str, list[_Range]] = {}

    @property
    def etl(self) -> Path:
        """The folder of the messages."""
        return Path(self.messages)

    def space(self) -> Space:
        """The world of the run. Raises ConfigError if it is none."""
        extent = (read_manifest(self.etl) or {}).get("extent")
        return Space.parse(self.world, tuple(extent) if extent else None, self.projection)

    def span(self) -> Window:
        """The window of the run. Raises ConfigError if it is none."""
        return Window.parse(self.window)

    def set_aside(self) -> Quarantine:
        """Messages and subscriptions in quarantine."""
        return Quarantine.of(self.aside)


def read_facts(folder: Path) -> tuple[Facts, dict[str, Any]]:
    """Read `run.json`: the validated fields, and all of it.

    Raises
    ------
    InputError
        If it is missing or damaged, or lacks a field.
    """
    report = RunFolder(folder).report()
    try:
        facts = msgspec.convert(report, Facts)
        facts.space()
        facts.span()
    except (msgspec.ValidationError, ConfigError, TypeError, ValueError) as error:
        raise InputError(
            "broken_file", f"{folder / REPORT}: lacks what a run says of itself ({error}); run again"
        ) from error
    return facts, report
