"""Compiles kernels and caches them on disk; imports nothing of ours.

Importing this package registers the cache of compiled kernels with Numba (`compiling.kernel_cache`). Kernels are
functions decorated by `compiling.njit`.
"""

import os
import sys

# Numba reads the variable when it is imported, and its own locators come after ours.
LOCATORS = (
    "compiling.kernel_cache.KernelLocator,UserProvidedCacheLocator,InTreeCacheLocator,UserWideCacheLocator,"
    "IPythonCacheLocator,ZipCacheLocator"
)
if "numba" in sys.modules:
    sys.modules["numba"].config.CACHE_LOCATOR_CLASSES = LOCATORS  # type: ignore[attr-defined]
else:
    os.environ["NUMBA_CACHE_LOCATOR_CLASSES"] = LOCATORS
os.environ.setdefault("NUMBA_NUM_THREADS", "1")  # one kernel is one core: parallelism is tasks, never prange
