"""The tests of a commit on two cores: `python -m tests.halves`; with `--wide` also slow ones, as CI has them.

Three sessions of pytest run beside each other. Two have the tests that need neither Ray nor the product as a process,
one from the first file on and one from the last (`tests/support/sharing.py`); the latter begins with those of a
browser, all of which are slow. The third has the rest, and gets help when they are done. So the cores are busy until
the end, however the tests grow. Each Ray serves a whole session, and each process loads a kernel once. The output of
the third is shown as it comes, that of the others at the end.
"""

import argparse
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.support import left_out

#: What needs no Ray. Of these `--wide` runs `wide` rows as well as `slow` tests, of all others `slow` tests.
PLAIN = [
    "tests/unit",
    "tests/property",
    "tests/baselines",
    *(f"tests/end_to_end/test_{name}.py" for name in ("routers", "etl", "etl_alone")),
    *(f"tests/fault/test_{name}.py" for name in ("damaged_checkpoints", "going_on", "live_kills", "simulation")),
]
#: A page mostly waits, for a server or for Chromium: other tests use the cores meanwhile.
BROWSER = ["tests/browser"]
REST = ["tests", *(word for path in (*PLAIN, *BROWSER) for word in ("--ignore", path))]
WIDE = ["-m", "not long and not cluster"]
SLOW = ["-m", "not wide and not long and not cluster"]
_FINE = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)


class Halves:
    """Two halves of the tests, the sessions that run them, and how these end.

    Attributes
    ----------
    codes : list of int     of the sessions that have ended
    """

    def __init__(self, plain: Sequence[str], rest: Sequence[str], browser: Sequence[str], scratch: Path):
        self.codes: list[int] = []
        self._parts = {"plain": plain, "rest": rest, "browser": browser}
        self._scratch = scratch
        self._marks = scratch / "marks"
        self._marks.mkdir()
        self._ended: set[str] = set()
        self._logs: list[Path] = []

    def run(self) -> None:
        """The rest in one session, what is plain in two: a third of the time of a test it waits for something."""
        others = [
            threading.Thread(target=self._plain),
            threading.Thread(target=self._browser_and_plain),
        ]
        for other in others:
            other.start()
        try:
            self._session("rest", [], False)
            self._ended.add("rest")
        finally:
            for other in others:
                other.join()
            for log in self._logs:
                sys.stdout.write(log.read_text(errors="replace"))
            sys.stdout.flush()

    def _plain(self) -> None:
        code = self._session("plain", [], True)
        if code in (*_FINE, pytest.ExitCode.TESTS_FAILED) and "rest" not in self._ended:
            self._session("rest", ["--from-the-end"], True)

    def _browser_and_plain(self) -> None:
        if not self._parts["browser"] or self._session("browser", [], True) in (*_FINE, pytest.ExitCode.TESTS_FAILED):
            self._session("plain", ["--from-the-end"], True)

    def _session(self, part: str, more: list[str], quiet: bool) -> int:
        name = f"{part}-helped" if more else part
        words = [*self._parts[part], "--shared", str(self._marks), *more]
        words += ["-o", f"cache_dir=.pytest_cache/{name}"] if quiet else []  # the other one is for `pytest --lf`
        # what was left out is counted where a part is collected first
        words += ["--left-out", str(self._scratch / (f"{name}.not-counted" if more else name))]
        log = self._scratch / f"{name}.log" if quiet else None
        code = session(["-p", "tests.support.sharing", *words], log)
        self._logs += [log] if log else []
        self.codes.append(code)
        return code


def session(words: Sequence[str], log: Path | None = None) -> int:
    """A session of pytest, shown or with its output in a file; its exit code."""
    # what is not shown waits for nobody: it leaves the cores to the session that starts and kills processes
    polite = [] if log is None else ["nice", "-n", "3"]
    with nullcontext() if log is None else log.open("wb") as out:
        return subprocess.call([*polite, sys.executable, "-m", "pytest", *words], stdout=out, stderr=out)


def main() -> int:
    """Everything; 0 if all of it has passed."""
    parser = argparse.ArgumentParser(prog="python -m tests.halves", description=__doc__.splitlines()[0])
    parser.add_argument("--wide", action="store_true", help="with slow tests, and the wide rows of those without Ray")
    options = parser.parse_args()
    sys.stdout.write(f"{' '.join((*BROWSER, *PLAIN))} run beside the rest; their report follows at the end\n")
    sys.stdout.flush()
    # An interrupt reaches the sessions by itself, and they end in their own time; a handler is not inherited.
    signal.signal(signal.SIGINT, lambda *_: None)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        whole = [*WIDE, *PLAIN], [*SLOW, *REST], [*SLOW, *BROWSER]
        # without slow tests the rest counts those of a browser, and leaves them out
        halves = Halves(*whole if options.wide else (PLAIN, REST[:-2], []), scratch)
        halves.run()
        left_out.main([str(scratch / name) for name in ("plain", "rest", "browser")])
    return int(any(code not in _FINE for code in halves.codes))


if __name__ == "__main__":
    sys.exit(main())
