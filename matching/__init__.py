"""Pure matching algorithms: flat numpy arrays and Numba kernels.

No Ray, no Spark, no input or output, no clock.
"""

import compiling as compiling  # registers the cache of kernels, before any module here imports Numba
