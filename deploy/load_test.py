"""Load test of a deployed topology: `python deploy/load_test.py --rate 5000 --address HEAD:6379 --out report.json`.

Needs skyray installed here and on every node (`deploy/README.md`); it is `skyray loadtest` by another name.
"""

import sys

from gateway.cli import main

if __name__ == "__main__":
    sys.exit(main(["loadtest", *sys.argv[1:]]))
