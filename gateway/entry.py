"""Entry point of `skyray`: handles Ctrl-C during the import of `gateway.cli`, which takes half a second.

Named in `pyproject.toml` as the script `skyray`.
"""

import os
import signal
import sys
from types import FrameType


def main() -> int:
    """Run one command; see `gateway.cli.main`."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else SIGINT is ignored, and stays so
        signal.signal(signal.SIGINT, _leave)
    from gateway.cli import main as run

    return run()


def _leave(_number: int, _frame: FrameType | None) -> None:
    """Exit at once: nothing has been started yet."""
    sys.stderr.write("error: interrupted\n")
    sys.stderr.flush()
    os._exit(128 + signal.SIGINT)


if __name__ == "__main__":
    sys.exit(main())
