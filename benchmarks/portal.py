"""A portal of saved searches on `skyray serve`: from due to read by the clients of the searches, through a kill.

    python -m benchmarks.portal MESSAGES [--searches 6000000] [--clients 2000] [--seconds 600] [--kills 1]

The workload is `benchmarks.workloads.portal` over MESSAGES, lines of JSON with `text`, `lon` and `lat`: a stream of
objects with edits and ends, and searches of all kinds. One producer sends lines in one request. First as fast as they
are taken (`peak_messages_s`), then at a share of that, or at `--rate`; the server is killed `--kills` times and started
again. Each client follows `--a-client` searches by Server-Sent Events and connects again behind its last one.

The clients' books, all together, have to be the updates that the folder has of their searches (`missing`, `extra`,
`repeated`), and `skyray verify` holds a sample of all searches against the oracle. Latency counts from when a message
was due until a client has read the update, of messages that were not due around a kill; how long nobody heard anything
(`stall_s`) and how long updates were late behind a kill (`catch_up_s`) are apart.
"""

import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from benchmarks import command
from benchmarks.push_clients import Reading, collect
from benchmarks.push_load import Received
from benchmarks.push_ways import Collector
from benchmarks.sustained import Producer, send_part
from benchmarks.way_in import lines_of
from benchmarks.workloads.portal import ATTRIBUTES, Searches, listings_of
from tests.support.processes import Command
from tests.support.serving import NDJSON, Served, free_port
from tests.support.serving import lines_of as rows_of

#: Subscriptions of a request; messages that are due at one time.
_AT_ONCE, _GROUP = 20_000, 100
#: Id of the message before all others.
_FIRST = "m4000000000"
#: Share of the peak that is held, and seconds of the run before it.
_HELD, _PEAK_S = 0.8, 10.0
#: Seconds that updates may take behind the last message, and `skyray verify`.
_DRAIN_S, _VERIFY_S = 300.0, 1_800.0
#: An update is late behind a kill while it comes more than so many seconds after it was due.
_LATE_S = 1.0


pc: Any = pyarrow.compute  # its functions are made when it is imported, which type checkers cannot see


class Kill(NamedTuple):
    """When a server was killed, and when it was ready again (monotonic seconds)."""

    at_s: float
    ready_s: float


def bench(
    messages: Annotated[Path, "lines of JSON with a text and a place"],
    searches: Annotated[int, "of all kinds"] = 6_000_000,
    matches: Annotated[float, "searches without words that a listing has, about"] = 3.0,
    clients: Annotated[int, "that follow searches of their own"] = 2_000,
    a_client: Annotated[int, "searches of a client"] = 500,
    rate: Annotated[float, "messages a second; 0: a share of the peak, which is found first"] = 0.0,
    seconds: Annotated[float, "of sending at that rate"] = 600.0,
    kills: Annotated[int, "of the server, evenly over them"] = 1,
    sample: Annotated[int, "searches that `skyray verify` judges"] = 2_000,
    limit: Annotated[int, "different listings at most"] = 100_000,
    options: Annotated[str, "further options of `skyray serve`, separated by blanks"] = "",
    seed: Annotated[int, "of listings and searches"] = 0,
    tell: command.Tell = print,
) -> dict[str, Any]:
    """Messages a second, latency at the clients, memory, and the books."""
    listings = listings_of(lines_of(messages, limit), seed)
    made = Searches(listings, searches, matches, seed)
    tell(f"{len(listings.tails):,} listings, searches: {made.kinds}")
    port, killed, peak, memory = free_port(), [], 0.0, 0
    producer = Producer(listings, group=_GROUP)
    spent_s = run_s = 0.0
    attributes = [word for each in ATTRIBUTES for word in ("--attribute", each)]
    with tempfile.TemporaryDirectory(prefix="skyray-portal-") as scratch:
        out = Path(scratch) / "out"
        words = out, "--objects", "--world", "earth", "--column", "time=time", *attributes, *options.split()
        with Served(*words, port=port) as served:
            began_s = time.monotonic()
            for first in range(0, searches, _AT_ONCE):
                rows = [made.row(number) for number in range(first, min(searches, first + _AT_ONCE))]
                refused = served.call("POST", "/v1/subscriptions", rows_of(rows), **NDJSON)
                assert b'"refused"' not in refused.body, refused.body[:1_000]
            subscribed_s = time.monotonic() - began_s
            row = {"id": _FIRST, "text": "first", "lon": 0, "lat": 0, "time": 1_767_225_600}
            base = served.call("POST", "/v1/messages?wait=delivered", row).json["seq"] + 1
            tell(f"subscribed in {subscribed_s:.1f} s")
            if not rate:
                took_s, _ = send_part(served, producer, port, 0.0, _PEAK_S, False)
                peak = producer.acknowledged / took_s
                tell(f"{peak:,.0f} messages a second as fast as they are taken")
            before, held = producer.acknowledged, rate or _HELD * peak
            with _clients(port, searches, clients, a_client) as collector:
                for left in range(kills, -1, -1):
                    if left < kills:
                        served = Served(*words, port=port).__enter__()
                        killed[-1] = Kill(killed[-1].at_s, time.monotonic())
                        tell(f"killed, ready again in {killed[-1].ready_s - killed[-1].at_s:.1f} s")
                    took_s, more_s = send_part(served, producer, port, held, seconds / (kills + 1), left > 0)
                    run_s, spent_s = run_s + took_s, spent_s + more_s
                    if left:
                        killed.append(Kill(time.monotonic(), 0.0))
                    else:
                        memory = psutil.Process(served.process.pid).memory_info().rss
                        served.end(_DRAIN_S)
                got = collector.end(2**62, 5.0)
        expected = _updates(out / "updates", clients * a_client, base + before)
        judged = _books(expected, got.received, a_client, base + before)
        tell(f"{len(expected):,} updates: {judged}")
        with Command(["verify", out, "--sample", sample]) as verifying:
            code, said, error = verifying.finish(_VERIFY_S)
    tell(said or error)
    right = code == 0 and not any(judged.values()) and not producer.refused
    return {
        "workload": {
            "searches": made.kinds, "matches": matches, "clients": clients, "a_client": a_client, "seconds": seconds,
            "kills": kills, "listings": len(listings.tails), "seed": seed, "options": options,
        },
        "peak_messages_s": peak,
        "messages_per_s": (producer.acknowledged - before) / run_s,
        "server_us_a_message": 1e6 * spent_s / max(1, producer.acknowledged - before),
        "updates_a_message": len(expected) / max(1, producer.acknowledged - before) * searches / (clients * a_client),
        "clients_cores": got.processor_s / run_s,
        **_latency(producer, got.received, base, before, killed),
        "subscribed_s": subscribed_s,
        "memory_bytes": memory,
        "refused": producer.refused,
        **judged,
        "verified": code == 0,
        **command.verdict(right, len(expected), len(np.unique(expected[:, 0]))),
    }  # fmt: skip


def _clients(port: int, searches: int, clients: int, a_client: int) -> Collector:
    """The process of all clients; client c follows the searches from c * a_client on."""
    assert clients * a_client <= searches, f"{clients} clients of {a_client} searches: there are {searches} alone"
    requests = []
    for first in range(0, clients * a_client, a_client):
        query = "&".join(f"subscription=s{number}" for number in range(first, first + a_client))
        requests.append(
            f"GET /v1/updates?{query} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n\r\n".encode()
        )
    event = rb'"subscription_id":"s(\d+)","message_id":"m(\d+)"[^\n]*?"as_of":(\d+)[^\n]*\n\n'
    return Collector(collect, Reading("127.0.0.1", port, tuple(requests), b"event: progress", 1, event, True))


def _updates(folder: Path, searches: int, first_seq: int) -> np.ndarray:
    """What clients are to have read: search, message and `as_of` of updates of the first searches, int64[n, 3]."""
    parts = [np.zeros((0, 3), np.int64)]
    for path in sorted(folder.glob("*.parquet")):
        table = pq.read_table(path, columns=["subscription_id", "message_id", "as_of"])
        table = table.filter(pc.greater_equal(table["as_of"], first_seq))
        names = [_numbers(table[name]) for name in ("subscription_id", "message_id")]
        rows = np.stack([*names, table["as_of"].to_numpy()], axis=1)
        parts.append(rows[rows[:, 0] < searches])
    return np.concatenate(parts)


def _numbers(ids: pa.ChunkedArray) -> np.ndarray:
    """`s17` and `m17` are 17."""
    text = ids.cast(pa.string())
    return pc.utf8_slice_codeunits(text, 1, 2**31 - 1).cast(pa.int64()).to_numpy()


def _books(expected: np.ndarray, got: Received, a_client: int, first_seq: int) -> dict[str, int]:
    """Updates that no client has, that the folder has not or another client has, and that one has again."""
    assert got.as_of is not None
    rows = np.stack([got.subscription, got.message, got.as_of], axis=1)
    astray = int(np.sum(got.subscription // a_client != got.client))
    ours = rows[rows[:, 2] >= first_seq]  # those before are of the time in which the clients connected
    had, times = np.unique(ours, axis=0, return_counts=True)
    wanted = np.unique(expected, axis=0)
    both = np.concatenate([had, wanted])
    common = len(both) - len(np.unique(both, axis=0))
    return {"missing": len(wanted) - common, "extra": len(had) - common + astray, "repeated": int((times - 1).sum())}


def _latency(
    producer: Producer, got: Received, base: int, first: int, killed: list[Kill]
) -> dict[str, float | list[float]]:
    """Milliseconds from due to read outside of kills, and seconds of silence and of lateness behind each kill.

    What caused an update was due with the message of its `as_of`; message n has seq `base` + n.
    """
    assert got.as_of is not None
    due_s = np.array(producer.due_s)
    cause = got.as_of - base
    known = (cause >= first) & (cause // _GROUP < len(due_s))
    at_s, due_s = got.at_s[known], due_s[cause[known] // _GROUP]
    order = np.argsort(at_s)
    at_s, late_s = at_s[order], (at_s - due_s)[order]
    around, stalls, behind = np.zeros(len(at_s), bool), [], []
    for kill in killed:
        after = at_s > kill.at_s
        stalls.append(float(at_s[after][0] - kill.at_s) if after.any() else float("inf"))
        lateness = at_s[after & (late_s > _LATE_S) & (at_s < kill.ready_s + _DRAIN_S)]
        until_s = float(lateness[-1]) if len(lateness) else kill.ready_s
        behind.append(until_s - kill.at_s)
        around |= (at_s > kill.at_s - _LATE_S) & (at_s <= until_s)
    found: dict[str, float | list[float]] = {"stall_s": stalls, "catch_up_s": behind, "around_kills": int(around.sum())}
    if not around.all():
        p50, p99, p999 = np.percentile(1e3 * late_s[~around], [50, 99, 99.9]).tolist()
        found |= {"p50_ms": p50, "p99_ms": p99, "p99_9_ms": p999}
    return found


if __name__ == "__main__":
    sys.exit(command.main(bench))
