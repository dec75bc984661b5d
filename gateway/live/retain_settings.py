"""Settings of what is kept of a live stream (`gateway.live.retaining`)."""

from dataclasses import dataclass
from typing import Annotated

from matching.errors import ConfigError
from matching.window import duration_s


@dataclass(frozen=True)
class RetainSettings:
    """What of a stream is kept; with several limits whichever keeps less. Raises ConfigError."""

    retain_messages: Annotated[int | None, "Messages that are kept, and the updates since them; by default all"] = None
    retain_age: Annotated[str, "How long messages and updates are kept, such as 30d or 12h; by default for ever"] = ""
    retain_gb: Annotated[float | None, "Gigabytes that log, updates and index may take; by default any number"] = None
    retain_repeats: Annotated[
        int, "Messages that are kept in any case: a message that is sent again is known as long as it is kept"
    ] = 1_000_000
    retain_hold_gb: Annotated[
        float, "Gigabytes of updates that are kept beyond the limits for webhooks and sinks that have not read them"
    ] = 10.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, int | float) and not value >= 0:
                raise ConfigError(f"retain.{name.removeprefix('retain_')} {value}: give a number, at least 0")
        _ = self.age_s

    @property
    def age_s(self) -> float | None:
        """`retain_age` in seconds. Raises ConfigError."""
        try:
            found = duration_s(self.retain_age) if self.retain_age else None
        except ValueError:
            found = -1.0
        if found is not None and not 0.0 <= found < 1e12:
            raise ConfigError(f"retain.age {self.retain_age}: give a time, such as 30d, 12h or 90 (seconds)")
        return found

    @property
    def keeps_all(self) -> bool:
        return self.retain_messages is None and not self.retain_age and self.retain_gb is None
