"""Number of cores that this process may use."""

import os


def cores() -> int:
    """Number of cores that the process is bound to if the system reports it, else of the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
