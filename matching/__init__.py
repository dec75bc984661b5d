"""Pure matching algorithms: flat numpy arrays and Numba kernels.

No Ray, no Spark, no input or output, no clock. Read on in `matching.model` (what the arrays are), then
`matching.naive` (what a right answer is), then the engines named in `matching.kinds`.

Importing this package points Numba's on-disk cache at a folder whose name carries a hash of every source file of
the package. Numba notices an edit to the kernel it cached but not an edit to a kernel that one calls in another
file, and would go on returning the old answer.
"""

import hashlib
import os
import tempfile
from importlib.metadata import version
from pathlib import Path


def _kernel_cache_dir() -> str:
    """Folder for compiled kernels, one for each state of the sources and each Numba version."""
    digest = hashlib.sha256(version("numba").encode())
    root = Path(__file__).parent
    for source in sorted(root.rglob("*.py")):
        digest.update(source.relative_to(root).as_posix().encode())
        digest.update(source.read_bytes())
    base = os.environ.get("SKYRAY_KERNEL_CACHE")
    if base is None:
        base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        if not os.access(Path(base).parent, os.W_OK):
            base = tempfile.gettempdir()
    return str(Path(base) / "skyray-kernels" / digest.hexdigest()[:16])


os.environ["NUMBA_CACHE_DIR"] = _kernel_cache_dir()
os.environ.setdefault("NUMBA_NUM_THREADS", "1")  # one kernel is one core: parallelism is tasks, never prange
