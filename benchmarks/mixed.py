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


def main() -> int:
    """Run and print; the status of the run."""
    size_bytes, subscriptions, finish = Counter(), Counter(), QueryBolt.finish

    def finish_counted(self: QueryBolt) -> None:
        finish(self)
        for code, room in self.rooms.items():
            name = self.kinds[code].name
            size_bytes[name] += sum(array.nbytes for array in room.arrays().values())
            subscriptions[name] += len(room)

    QueryBolt.finish = finish_counted
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        status = skyray(["run", *sys.argv[1:], "--executor", "local"])
    kinds = {
        name: {"subscriptions": count, "size_bytes": taken, "bytes_per_subscription": taken / max(1, count)}
        for (name, count), taken in zip(subscriptions.items(), size_bytes.values(), strict=True)
    }
    print(json.dumps({"kinds": kinds}, indent=1))
    return status


if __name__ == "__main__":
    sys.exit(main())
