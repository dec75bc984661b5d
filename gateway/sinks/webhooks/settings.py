"""Options of `skyray serve` for webhooks."""

from dataclasses import dataclass
from typing import Annotated

import typer

from matching.errors import ConfigError


@dataclass(frozen=True)
class WebhookSettings:
    """What all webhooks of a server have in common. Raises ConfigError for a number out of its range."""

    webhook_allow_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-host",
            metavar="HOST",
            help="Host that webhooks may call wherever it is, also by http; may be repeated.",
        ),
    ] = None
    webhook_allow_private: Annotated[bool, "Let webhooks call private and loopback addresses"] = False
    webhook_allow_http: Annotated[bool, "Let webhooks call http URLs, unencrypted"] = False
    webhook_attempts: Annotated[int, "Attempts after which a delivery is dead"] = 10
    webhook_lasts_h: Annotated[float, "Hours after which a delivery is dead"] = 24.0
    webhook_retry_s: Annotated[float, "Seconds before the second attempt, at most; three times as many each time"] = (
        10.0
    )
    webhook_timeout_s: Annotated[float, "Seconds that an attempt may take"] = 10.0
    most_webhooks: Annotated[int, "Webhooks of one owner; 0: any number"] = 100

    def __post_init__(self) -> None:
        least = {"webhook_attempts": 1, "most_webhooks": 0}
        for name, value in vars(self).items():
            if isinstance(value, bool | list) or value is None:
                continue
            if not value >= least.get(name, 0.001):
                setting = name.removeprefix("webhook_")
                raise ConfigError(f"webhooks.{setting} {value}: give a number, at least {least.get(name, 0.001)}")
