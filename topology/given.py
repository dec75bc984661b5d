"""The settings that a user gave, and where each was set."""

from collections.abc import Iterable, Mapping
from typing import Any

#: Origin of options and of `--set`.
COMMAND_LINE = "command line"


class Given(dict[str, Any]):
    """Settings that a user gave, by name; the rest have their defaults.

    Attributes
    ----------
    origins : dict
        Setting -> where it was set: a variable, a line of a file; without an entry the command line.
    spelled : dict
        Setting -> how the command line spells it, `--query-bolts` or `--set topology.credits`.
    """

    def __init__(self, values: Mapping[str, Any] | Iterable[tuple[str, Any]] = ()):
        super().__init__(values)
        self.origins: dict[str, str] = dict(getattr(values, "origins", {}))
        self.spelled: dict[str, str] = dict(getattr(values, "spelled", {}))

    def __or__(self, other: Mapping[str, Any]) -> "Given":  # type: ignore[override]
        joined = Given(self)
        joined.update(other)
        joined.origins = {name: origin for name, origin in self.origins.items() if name not in other}
        return joined

    def origin(self, name: str) -> str:
        """Where a given setting was set."""
        return self.origins.get(name, COMMAND_LINE)

    def of_command_line(self) -> "Given":
        """The settings that were given on the command line."""
        typed = Given(self)
        for name in self:
            if self.origin(name) != COMMAND_LINE:
                del typed[name]
        return typed
