"""The fence of a run in an object store: one object, `committed.json`, that only the present driver can replace.

It names the checkpoints and the files of the run. A driver that begins or resumes a run claims it with its incarnation;
from then on every commit is a conditional write against the tag of the last commit. A driver that was believed dead and
wakes again has an old tag, so that the store refuses its commit; the files that it has written have its incarnation in
their names, and `committed.json` does not name them. Readers list the files of a run here, never in the store.
"""

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matching.errors import CheckpointError, InUseError
from topology.core.objects import Bucket, Object, Taken

COMMITTED = "committed.json"
FORMAT = 1
#: Incarnations that one start of a driver counts through while it recovers by itself.
INCARNATION_STEP = 1_000_000
#: Checkpoints of a run that are kept: if the newest proves damaged there is another.
KEPT = 2
_INCARNATION = re.compile(r"\.(\d+)\.(?:frame|json|parquet|jsonl)$")


class Committed(NamedTuple):
    """Contents of `committed.json`.

    incarnation : int    with which the driver has claimed the run
    commits : int    how often it has been written, so that no two of its contents are the same
    checkpoints : tuple of str    manifests, the oldest first, in the folder of checkpoints
    outputs : tuple of str    files of updates and results, by their paths in the folder of the run
    """

    incarnation: int = -1
    commits: int = 0
    checkpoints: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


class Fence:
    """The claim of this process on the run of a folder.

    Parameters
    ----------
    root : str
        URI of the folder.
    """

    def __init__(self, root: str):
        self._bucket = Bucket(root)
        self._tag = ""
        self.state = Committed()

    def claim(self, incarnation: int, resumes: bool) -> Committed:
        """Become the driver of the run, with this incarnation or, if it was claimed with that, a later one.

        Returns what was committed before.

        A run that begins anew has nothing committed; one that resumes keeps checkpoints and parts, but no results.

        Raises
        ------
        InUseError
            If another process claims it at the same time.
        OSError
            If the store does not answer.
        """
        before, tag = read_committed(self._bucket)
        incarnation = max(incarnation, INCARNATION_STEP * (before.incarnation // INCARNATION_STEP + 1))
        kept = tuple(name for name in before.outputs if not name.startswith("results."))
        now = Committed(incarnation, before.commits, before.checkpoints, kept) if resumes else Committed(incarnation)
        self._tag = tag
        self._write(now._replace(commits=before.commits + 1))
        return before

    def commit(self, outputs: Iterable[str], checkpoint: str | None = None) -> None:
        """Commit files, by their paths in the folder, and the manifest that covers them.

        Raises
        ------
        InUseError
            If another process has claimed the run since.
        OSError
            If the store does not answer.
        """
        state = self.state
        more = tuple(name for name in outputs if name not in state.outputs)
        if not more and checkpoint is None:
            return
        checkpoints = state.checkpoints if checkpoint is None else (*state.checkpoints, checkpoint)[-KEPT:]
        self._write(state._replace(outputs=state.outputs + more, checkpoints=checkpoints, commits=state.commits + 1))

    def is_held(self) -> bool:
        """Whether no other process has claimed the run since. Raises OSError."""
        return read_committed(self._bucket)[1] == self._tag

    def forget(self) -> None:
        """Commit that there is nothing, to begin again from the start of the stream. Raises as `commit`."""
        self._write(self.state._replace(outputs=(), checkpoints=(), commits=self.state.commits + 1))

    def put_back(self, before: Committed) -> None:
        """Commit what was there before the claim. Raises as `commit`."""
        self._write(before._replace(incarnation=self.state.incarnation, commits=self.state.commits + 1))

    def inside(self, path: str) -> str:
        """The path in the folder, of a whole one."""
        return path.removeprefix(f"{self._bucket.uri}/")

    def may_remove(self, name: str) -> bool:
        """Whether a file is of this process or of one before it, by the incarnation in its name."""
        found = _INCARNATION.search(name)
        return found is not None and int(found[1]) < self.state.incarnation + INCARNATION_STEP

    def is_mine(self, name: str) -> bool:
        """Whether a file is of this process."""
        found = _INCARNATION.search(name)
        return found is not None and 0 <= int(found[1]) - self.state.incarnation < INCARNATION_STEP

    def _write(self, state: Committed) -> None:
        data = json.dumps({"format": FORMAT, **state._asdict()}, indent=1).encode()
        try:
            if self._tag:
                self._tag = self._bucket.replace(COMMITTED, data, self._tag)
            else:
                self._tag = self._bucket.create(COMMITTED, data)
        except Taken:
            raise self._lost() from None
        self.state = state

    def _lost(self) -> InUseError:
        return InUseError(
            f"{self._bucket.uri}: another process has begun or resumed this run, so that this one commits nothing "
            "more; let that one run"
        )


#: Claims of this process, by the URI of the folder.
_CLAIMS: dict[str, Fence] = {}


def claim(root: str, incarnation: int, resumes: bool) -> tuple[Fence, Committed]:
    """Claim the run of a folder for this process; raises as `Fence.claim`."""
    fence = Fence(root)
    before = fence.claim(incarnation, resumes)
    _CLAIMS[root] = fence
    return fence, before


def fence_of(folder: str) -> Fence | None:
    """The claim of this process on the run whose folder this is, or is in; None if it has none."""
    return next((fence for root, fence in _CLAIMS.items() if folder == root or folder.startswith(f"{root}/")), None)


def committed_files(folder: str) -> list[str]:
    """Names of files that readers of a folder see, which is a run's or one in it: those that are committed. Ascending.

    Raises OSError if the store does not answer.
    """
    parent, _, name = folder.rstrip("/").rpartition("/")
    for root, prefix in ((folder.rstrip("/"), ""), (parent, f"{name}/")):
        if root.count("/") < 3:
            continue
        state, tag = read_committed(Bucket(root))
        if tag:
            inside = (each.removeprefix(prefix) for each in state.outputs if each.startswith(prefix))
            return sorted(each for each in inside if "/" not in each)
    return []


def fetch_committed(root: str, place: Path) -> None:
    """Copy the committed files of a run that are not there yet to a folder of this machine; results get the name that
    they have in such a folder. Raises as `read_committed`."""
    bucket = Bucket(root)
    for name in read_committed(bucket)[0].outputs:
        target = place / ("results.parquet" if name.startswith("results.") else name)
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            hidden = target.with_name(f".{target.name}")
            hidden.write_bytes(bucket.read(name).data)
            hidden.rename(target)


def read_committed(bucket: Bucket) -> tuple[Committed, str]:
    """What is committed of a run, and the tag of the object, empty if there is none.

    Raises
    ------
    CheckpointError
        If the object is no such one.
    OSError
        If the store does not answer.
    """
    try:
        found: Object = bucket.read(COMMITTED)
    except FileNotFoundError:
        return Committed(), ""
    try:
        body = json.loads(found.data)
        if body.pop("format") != FORMAT:
            raise ValueError("another format")
        state = Committed(int(body["incarnation"]), int(body["commits"]), *map(_names, _lists(body)))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(
            f"{bucket.uri}/{COMMITTED}: does not say what is committed ({error}); run again, with --overwrite"
        ) from error
    return state, found.tag


def _lists(body: dict[str, Any]) -> tuple[Any, Any]:
    return body["checkpoints"], body["outputs"]


def _names(values: Sequence[Any]) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ValueError("no list of names")
    return tuple(values)
