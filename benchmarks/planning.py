"""What `skyray plan` foretells beside topologies that are simulated, of up to 256 query bolts.

    python -m benchmarks.planning [--kinds boolean,topk] [--bolts 4,16,64,256] > benchmarks/results/planning.json

Constants are fitted to topologies with 1 and 16 query bolts (`gateway.load.measuring`), then topologies with more run
in one process, packing booked to the tasks that would do it. Bytes between tasks are counted, so that they are the same
on a busy machine; microseconds are of processor time, so that what others had does not count. All topologies of a kind
must tell the same updates, by digest.
"""

import sys
from itertools import product
from typing import Annotated, Any

from benchmarks import command
from benchmarks.command import Tell
from gateway.load.measuring import TASKS, fitted, sizes_of, steady_work
from gateway.load.planning import COMPONENTS, Constants, Work


def beside(found: Constants, real: Work) -> dict[str, Any]:
    """A row: microseconds and bytes a message, foretold and real; of a mean task of each component."""
    n, tasks = real.subscriptions, real.query_tasks
    return {
        "query_bolts": tasks,
        "subscriptions": n,
        "bytes": {"foretold": found.moved(n, tasks), "real": real.bytes_moved},
        "us": {name: {"foretold": found.busy(name, n, tasks), "real": 1e6 * real.busy_s[name]} for name in COMPONENTS},
        "off_bytes": found.moved(n, tasks) / real.bytes_moved - 1,
    }


def bench(
    kinds: Annotated[tuple[str, ...], "one after the other"] = ("boolean", "topk"),
    bolts: Annotated[tuple[int, ...], "query bolts that are simulated"] = (4, 16, 64, 256),
    subscriptions: Annotated[int, "of a kind that the demo has no fewer of"] = 40_000,
    messages: Annotated[int, "in the window, and timed"] = 5_000,
    rounds: Annotated[int, "of each topology, of which the quickest counts"] = 2,
    tell: Tell = print,
) -> dict[str, Any]:
    """Each kind's rows, and whether all topologies of a size told the same."""
    measured, same = [], True
    for kind in kinds:
        sizes = sizes_of(kind, subscriptions)
        points = []
        for n, tasks in product(sizes, TASKS):
            tell(f"{kind}: {n:,} subscriptions on {tasks} query bolts, to fit")
            points.append(steady_work(kind, n, tasks, messages, rounds))
        found, told, rows = fitted(points, 0), {point.digest for point in points[len(TASKS) :]}, []
        for tasks in bolts:
            tell(f"{kind}: {sizes[1]:,} subscriptions on {tasks} query bolts")
            real = steady_work(kind, sizes[1], tasks, messages, rounds)
            told.add(real.digest)
            rows.append(beside(found, real))
        same &= len(told) == 1
        measured.append({"kind": kind, "same_updates": len(told) == 1, "constants": found._asdict(), "rows": rows})
    return {"messages": messages, "rounds": rounds, "measured": measured, "exact": same}


if __name__ == "__main__":
    sys.exit(command.main(bench))
