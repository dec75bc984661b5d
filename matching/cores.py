"""Number of cores that this process may use. Used by `bolts.kind_threads` and `gateway.shell.doctor`."""

import os


def cores() -> int:
    """Those that the process is bound to, where the system says so, else all of the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
