"""Pure matching algorithms: flat numpy arrays and Numba kernels.

No Ray, no Spark, no input or output, no clock. Read on in `matching.model` (what the arrays are), then `matching.naive`
(what a right answer is), then the engines named in `matching.kinds`.
"""

import compiling as compiling  # registers the cache of kernels, before any module here imports Numba
