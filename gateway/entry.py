"""Entry point of `skyray`: handles signals during the import of `gateway.cli`, which takes half a second.

Named in `pyproject.toml` as the script `skyray`.
"""

import os
import signal
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import FrameType, ModuleType

#: Commands that work with Spark, DuckDB or figures, which may need pandas, or that say what is installed.
_WITH_PANDAS = frozenset(("bench", "demo", "doctor", "etl", "feed", "feed-demo"))


def main() -> int:
    """Run one command; see `gateway.cli.main`."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else SIGINT is ignored, and stays so
        signal.signal(signal.SIGINT, _leave)
    if sys.argv[1:2] in (["serve"], ["live"]) and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # they end so whenever they are told to
    if _WITH_PANDAS.isdisjoint(sys.argv[1:2]):
        sys.meta_path.insert(0, _NoPandas())
    from gateway.cli import main as run

    return run()


class _NoPandas(MetaPathFinder):
    """Makes pandas appear not to be installed.

    pyarrow imports it, where it is, to see whether what becomes an array is one of its tables: as much time as half of
    all other imports of a command.
    """

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        """Nobody else is asked for pandas."""
        if fullname == "pandas":
            raise ModuleNotFoundError("No module named 'pandas', which this command does without", name="pandas")


def _leave(_number: int, _frame: FrameType | None) -> None:
    """Exit at once: nothing has been started yet."""
    sys.stderr.write("error: interrupted\n")
    sys.stderr.flush()
    os._exit(128 + signal.SIGINT)


if __name__ == "__main__":
    sys.exit(main())
