"""Where a figure comes from: commit, command, and how busy the machine was. Written into every report."""

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[1]


def provenance() -> dict[str, Any]:
    """`commit` (with `+` if files differ from it; None outside a checkout), `command`, `cores`, `load_average`."""
    cores = os.cpu_count() or 1
    # where things lie on this machine is nobody's business
    program, *words = sys.argv
    command = shlex.join([Path(program).name, *(Path(word).name if os.path.isabs(word) else word for word in words)])
    return {"commit": _commit(), "command": command, "cores": cores, "load_average": list(os.getloadavg())}


def _commit() -> str | None:
    """The commit of this checkout."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=_ROOT, check=True, capture_output=True, text=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "--short=12", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None
