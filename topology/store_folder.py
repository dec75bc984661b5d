"""The folder of a run in an object store: `run.json` and `committed.json`, both replaced only if they are unchanged.

There is no lock. A process that begins or resumes a run claims it (`topology.core.checkpoint.fence`), also where the
one before still lives: that one then commits nothing more, and ends with an error at its next commit. `topology.folder`
is the same on a disk of this machine.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from matching.errors import ConfigError, DeliveryError, InputError, InUseError
from topology.core.checkpoint.fence import COMMITTED, Committed, Fence, claim
from topology.core.objects import Object, Taken
from topology.core.places import StorePath, place
from topology.folder import REPORT, RunFolder, decoded_report, encoded_report

REJECTS = "rejected.jsonl"
#: Times that the report is written while a process before this one writes its last.
_TRIES = 5


def run_folder(path: "str | os.PathLike[str] | StorePath") -> RunFolder:
    """The folder of a run, by where it is; nothing is read yet."""
    found = place(path)
    return StoreFolder(found) if isinstance(found, StorePath) else RunFolder(found)


class StoreFolder(RunFolder):
    """The output folder of one run."""

    path: Any

    def __init__(self, path: StorePath):
        super().__init__(path)  # type: ignore[arg-type]
        self._bucket = path.bucket
        self._fence: Fence | None = None
        self._before = Committed()
        self._report: Object | None = None

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Nothing is locked: `claim` decides."""
        with self._asking():
            yield

    @contextlib.contextmanager
    def beginning(self, overwrite: bool) -> Iterator[Callable[[], None]]:
        """See `RunFolder.beginning`: the objects of the run that is replaced stay until this one has opened."""
        self.check(overwrite)
        with self._asking():
            self._report = self._read_report()
        before, opened = self._report, False

        def note_opened() -> None:
            nonlocal opened
            opened = True
            assert self._fence is not None
            mine = self._fence.is_mine
            self._remove(lambda name: not mine(name))

        try:
            yield note_opened
        except BaseException:
            if not opened and self._fence is not None:
                with contextlib.suppress(OSError, InUseError):
                    self._take_back(before)
            raise

    def check(self, overwrite: bool) -> None:
        """As `RunFolder.check`; raises InputError if the store does not answer."""
        with self._asking():
            names = self._bucket.names()
        if not names or (REPORT not in names and COMMITTED in names):  # or it was claimed, and its process died
            return
        if not overwrite:
            raise ConfigError(f"output folder {self.path} is in use: name another, or add --overwrite to replace it")
        if REPORT not in names:
            raise ConfigError(f"output folder {self.path} holds something that is no run of skyray: remove it yourself")

    def claim(self, incarnation: int) -> int:
        """Become the driver of the run, to resume it. Raises InUseError if another process is faster."""
        with self._asking():
            self._fence, self._before = claim(str(self.path), incarnation, resumes=True)
            self._report = self._read_report()
        return self._incarnation

    def claim_new(self) -> int:
        """Become the driver of a run that begins; its first incarnation. Raises as `claim`."""
        with self._asking():
            self._fence, self._before = claim(str(self.path), 0, resumes=False)
        return self._incarnation

    def has_parts(self) -> bool:
        """Whether a part of the updates is committed."""
        return self._fence is not None and bool(self._fence.state.outputs)

    def drop_incomplete_parts(self) -> None:
        """Nothing: parts of all tasks are committed together."""

    def drop_results(self) -> None:
        """Nothing: `claim` has dropped them."""

    def writer(self) -> int | None:
        """Unknown, since there is no lock."""
        return None

    def state(self) -> str:
        """The state of the run as it says; a driver that has died still says that it is running."""
        return str(self.report().get("state"))

    def empty(self) -> None:
        """Commit that the run has nothing, and remove what this process has written."""
        assert self._fence is not None
        with self._asking():
            self._fence.forget()
            self._remove(self._fence.is_mine)  # a run that this one replaces stays until it has opened

    def clear_hidden(self) -> None:
        """Remove what processes before this one have written and not committed."""
        fence = self._fence
        if fence is None:
            return
        with self._asking():
            named = {*fence.state.outputs}
            self._remove(
                lambda name: name not in named and not name.startswith("checkpoints/") and not fence.is_mine(name)
            )

    def report(self) -> dict[str, Any]:
        with self._asking():
            found = self._read_report()
        if found is None:
            raise InputError("no_run", f"{self.path}: has no run.json; name the --out of a `skyray run`")
        return decoded_report(found.data, f"{self.path}/{REPORT}")

    def write_report(self, state: str, values: Mapping[str, Any]) -> None:
        """Write `run.json`. Raises InUseError if another process has claimed the run."""
        data = encoded_report(state, values)
        if self._report is not None and self._report.data == data:
            return
        for _ in range(_TRIES):
            try:
                if self._report is None:
                    tag = self._bucket.create(REPORT, data)
                else:
                    tag = self._bucket.replace(REPORT, data, self._report.tag)
            except Taken:  # a process before this one has had the last word, or one after it
                self._report = self._read_report()
                if self._fence is None or not self._fence.is_held():
                    break
            else:
                self._report = Object(data, tag)
                return
        raise InUseError(f"{self.path}: another process has begun or resumed this run; let that one run")

    def append_rejects(self, lines: str) -> None:
        with self._asking():
            try:
                before = self._bucket.read(REJECTS).data
            except FileNotFoundError:
                before = b""
            self._bucket.write(REJECTS, before + lines.encode())

    @property
    def _incarnation(self) -> int:
        assert self._fence is not None
        return self._fence.state.incarnation

    def _read_report(self) -> Object | None:
        try:
            return self._bucket.read(REPORT)
        except FileNotFoundError:
            return None

    def _take_back(self, report: Object | None) -> None:
        """Restore the run that was there before this one, which has not opened; else leave nothing."""
        assert self._fence is not None
        if report is None:
            self._bucket.delete(REPORT)
        elif self._report is not None:
            self._bucket.replace(REPORT, report.data, self._report.tag)
        self._fence.put_back(self._before)
        self._remove(self._fence.is_mine)
        if report is None:
            self._bucket.delete(REJECTS, COMMITTED)

    def _remove(self, wanted: Callable[[str], bool]) -> None:
        """Remove such objects, but none of a process that has claimed the run since."""
        assert self._fence is not None
        self._bucket.delete(*(name for name in self._bucket.names() if wanted(name) and self._fence.may_remove(name)))

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise DeliveryError(str(error)) from error
