"""Load test of a deployed topology: `python deploy/load_test.py --rate 5000 --address HEAD:6379 --out report.json`.

Needs skyray installed here and on every node (`deploy/README.md`); all it does is in `gateway.loadtest`.
"""

import sys

from gateway.loadtest import main

if __name__ == "__main__":
    sys.exit(main())
