"""What is logged, as the values of each event."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import structlog
from structlog.testing import LogCapture


@contextmanager
def log_events() -> Iterator[list[Any]]:
    """The events of the block: `event`, `log_level` and what else they have."""
    found = LogCapture()
    structlog.configure(processors=[found])
    try:
        yield found.entries
    finally:
        structlog.reset_defaults()
