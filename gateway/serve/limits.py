"""Limits of the callers of a server: settings of `skyray serve`."""

from dataclasses import dataclass
from typing import Annotated

from matching.errors import ConfigError


@dataclass(frozen=True)
class Limits:
    """Limits of one caller: a key, or an address if the server needs no key. 0 stands for no limit.

    Raises
    ------
    ConfigError
        For a number below zero.
    """

    most_requests_per_s: Annotated[int, "Requests a second of one key; 0: any number."] = 0
    most_messages_per_s: Annotated[int, "Messages a second of one key; 0: any number."] = 0
    most_subscriptions: Annotated[int, "Active subscriptions of one owner; 0: any number."] = 0
    most_streams: Annotated[int, "Open streams of updates of one key; 0: any number."] = 2_000
    most_streams_in_all: Annotated[int, "Open streams of updates of all keys; 0: any number."] = 8_000
    most_connections: Annotated[int, "Connections in all."] = 10_000

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            least = 1 if name == "most_connections" else 0
            if value < least:
                raise ConfigError(f"limits.{name} {value}: give a whole number, at least {least}")
