"""From due to read by clients of `skyray serve`, beside PostGIS with NOTIFY and Redis, in turns.

    pg_virtualenv -o shared_buffers=1GB -o fsync=off -o autovacuum=off python -m benchmarks.push

A producer publishes at a steady rate, whether a server keeps up or not; an event's latency is from when its message was
due until its client has read it. Loads: `steady` is the rate, `quiet` a tenth of it, `slow_client` the rate while one
more client of `skyray` follows everything and reads a line a second. The books of all clients are held against the
oracle (`benchmarks.push_load`); the servers are in `benchmarks.push_ways`. Processor time of the server, of the
processes that read, and of the producer is in cores, apart. Clients have one process, which waits for sockets.
"""

import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

from benchmarks import command
from benchmarks.command import verdict
from benchmarks.push_load import Subscriptions, books, expected, latencies, make_messages, make_subscriptions, words_of
from benchmarks.push_ways import WAYS, Paced, Way
from benchmarks.stopwatch import in_turns, medians

#: Milliseconds, and the share by which a slow client may change the others' latency.
GOALS = {"steady_p99_ms": 250.0, "quiet_p50_ms": 15.0, "slow_client_change": 0.10}
#: Seconds that what is under way may take after the last message was due, and for what a slow client has left.
_DRAIN_S, _REST_S = 12.0, 10.0
_LATENCIES = ("p50_ms", "p99_ms", "p99_9_ms")
_SPENT = ("server_cores", "clients_cores", "producer_cores", "behind_ms")


def bench(
    subscriptions: Annotated[int, "in all, of one word and a box each"] = 100_000,
    clients: Annotated[int, "each follows as many of them"] = 1_000,
    rate: Annotated[float, "messages a second, and about as many events"] = 5_000.0,
    seconds: Annotated[float, "of each turn, without the warm-up"] = 8.0,
    warm_up: Annotated[float, "seconds before them"] = 1.0,
    rounds: Annotated[int, "turns of each"] = 3,
    ways: Annotated[tuple[str, ...], "in turns"] = tuple(WAYS),
    seed: Annotated[int, "of subscriptions and messages"] = 0,
    tell: command.Tell = print,
) -> dict[str, Any]:
    """Latency and books by way and load: medians over turns, and whether goals are met; absent peers by name."""
    there = make_subscriptions(subscriptions, seed)
    absent = {name: why for name in ways if (why := WAYS[name].absence())}
    for name, why in absent.items():
        tell(f"{name} left out: {why}")
    names = [name for name in ways if name not in absent]
    with ExitStack() as stack:
        running: dict[str, Way] = {}
        for name in names:
            tell(f"starting {name}")
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="skyray-push-")))
            running[name] = stack.enter_context(WAYS[name](there, clients, folder))
        loads = {"steady": rate, "quiet": rate / 10, "slow_client": rate}
        turns = [(n, load) for n in names for load in loads if load != "slow_client" or running[n].has_slow_client]

        def one(turn: tuple[str, str], number: int) -> dict[str, Any]:
            name, load = turn
            row = _turn(running[name], there, load, loads[load], (seconds, warm_up), (seed, number, rounds))
            tell(f"turn {number + 1} of {rounds}: {name}, {load}: {row}")
            return row

        measured = _measured(in_turns(turns, rounds, one))
    workload = {"subscriptions": subscriptions, "clients": clients, "rate": rate, "seconds": seconds}
    workload |= {"warm_up": warm_up, "words": words_of(subscriptions), "seed": seed}
    judged = measured.get("skyray") or next(iter(measured.values()))
    own = {each: judged[each] for each in ("exact", "compared", "compared_subscriptions", "warning") if each in judged}
    return {"workload": workload, "absent": absent, "measured": measured, "goals": _goals(measured), **own}


def _turn(
    way: Way, there: Subscriptions, load: str, rate: float, spans: tuple[float, float], seeds: tuple[int, int, int]
) -> dict[str, Any]:
    """Connect clients, publish, and hold what they have read against the oracle."""
    seconds, warm_up = spans
    seed, number, rounds = seeds
    count = round(rate * (seconds + warm_up))
    messages = make_messages(count, words_of(len(there.word)), (seed * rounds + number) * 2 + (load == "slow_client"))
    wanted = expected(there, messages)
    with way.collector() as collector:
        slow = way.slow_client() if load == "slow_client" else None
        paced = Paced(rate, count)
        spent_s, own_s, begun_s = way.processor_s(), time.process_time(), time.monotonic()
        accepted = way.publish(messages, wanted, paced, slow.look if slow else lambda: None)
        own_s = time.process_time() - own_s
        got = collector.end(len(wanted), _DRAIN_S)
        took_s, spent_s = time.monotonic() - begun_s, way.processor_s() - spent_s
    row = latencies(got.received, paced.begun_s, rate, round(rate * warm_up))
    row |= {"server_cores": spent_s / took_s, "clients_cores": got.processor_s / took_s}
    row |= {"producer_cores": own_s / took_s, "behind_ms": 1e3 * paced.behind_s}
    row |= {"messages": count, "accepted": accepted, "ended": got.ended}
    row |= books(wanted, got.received, way.a_client)
    row["subscriptions"] = len(set(wanted[:, 0].tolist()))
    if slow is not None:
        row |= {"slow_lines": slow.lines, "slow_gap": slow.end(_REST_S)}
    return row


def _measured(every: dict[Any, list[dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """By way, of each load medians and turns; and whether all of its books were the oracle's."""
    measured: dict[str, dict[str, Any]] = {}
    for (name, load), turns in every.items():
        figures = medians([{each: row[each] for each in (*_LATENCIES, *_SPENT) if each in row} for row in turns])
        longest = max((row["longest_ms"] for row in turns if "longest_ms" in row), default=None)
        measured.setdefault(name, {})[load] = figures | {"longest_ms": longest, "turns": turns}
    for loads in measured.values():
        rows = [row for load in loads.values() for row in load["turns"]]
        same = all(row["missing"] == row["extra"] == row["repeated"] == row["ended"] == 0 for row in rows)
        same = same and all(row["accepted"] == row["messages"] for row in rows)
        loads |= verdict(same, sum(row["expected"] for row in rows), max(row["subscriptions"] for row in rows))
    return measured


def _goals(measured: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """What was to be reached, what was, and whether it is."""
    if "skyray" not in measured:
        return {}
    steady, quiet, slow = (measured["skyray"][load] for load in ("steady", "quiet", "slow_client"))
    if not all("p99_ms" in load for load in (steady, quiet, slow)):
        return {}
    reached = {"steady_p99_ms": steady["p99_ms"], "quiet_p50_ms": quiet["p50_ms"]}
    reached["slow_client_change"] = slow["p99_ms"] / steady["p99_ms"] - 1
    told = {each: {"goal": GOALS[each], "reached": at, "met": at <= GOALS[each]} for each, at in reached.items()}
    gaps = [row["slow_gap"] for row in slow["turns"]]
    return told | {"slow_client_gap": {"goal": len(gaps), "reached": sum(gaps), "met": all(gaps)}}


if __name__ == "__main__":
    sys.exit(command.main(bench))
