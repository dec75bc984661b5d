"""What each kind takes of memory in a run of several: `python -m benchmarks.mixed OPTIONS`, those of `skyray run`.

The run is local whatever the options say, so that the rooms of all query bolts lie in this process; at its end their
arrays are counted by kind, with what an array has in reserve. Prints JSON.
"""

import contextlib
import json
import os
import sys
from collections import Counter

from bolts.query import QueryBolt
from gateway.cli import main as skyray


class _Counted:
    """Bytes and subscriptions of each kind's rooms, counted when their bolts finish."""

    def __init__(self):
        self.size_bytes, self.subscriptions = Counter(), Counter()

    def count(self, bolt: QueryBolt) -> None:
        for code, room in bolt.rooms.items():
            name = bolt.kinds[code].name
            self.size_bytes[name] += sum(array.nbytes for array in room.arrays().values())
            self.subscriptions[name] += len(room)

    def told(self) -> dict[str, dict[str, float]]:
        return {
            name: {
                "subscriptions": count,
                "size_bytes": self.size_bytes[name],
                "bytes_per_subscription": self.size_bytes[name] / max(1, count),
            }
            for name, count in self.subscriptions.items()
        }


def main() -> int:
    """Run and print; the status of the run."""
    counted, finish = _Counted(), QueryBolt.finish

    def finish_counted(self: QueryBolt) -> None:
        finish(self)
        counted.count(self)

    QueryBolt.finish = finish_counted
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        status = skyray(["run", *sys.argv[1:], "--executor", "local"])
    print(json.dumps({"kinds": counted.told()}, indent=1))
    return status


if __name__ == "__main__":
    sys.exit(main())
