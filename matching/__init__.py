"""Pure matching algorithms: flat numpy arrays and Numba kernels.

No Ray, no Spark, no input or output, no clock. Read on in `matching.model` (what the arrays are), then
`matching.naive` (what a right answer is), then the engines named in `matching.kinds`.

Importing this package registers the cache of compiled kernels with Numba (`matching.kernel_cache`).
"""

import os
import sys

# Numba reads the variable when it is imported, and its own locators come after ours.
_LOCATORS = (
    "matching.kernel_cache.KernelLocator,UserProvidedCacheLocator,InTreeCacheLocator,UserWideCacheLocator,"
    "IPythonCacheLocator,ZipCacheLocator"
)
if "numba" in sys.modules:
    sys.modules["numba"].config.CACHE_LOCATOR_CLASSES = _LOCATORS  # type: ignore[attr-defined]
else:
    os.environ["NUMBA_CACHE_LOCATOR_CLASSES"] = _LOCATORS
os.environ.setdefault("NUMBA_NUM_THREADS", "1")  # one kernel is one core: parallelism is tasks, never prange
