"""The topology on Ray: every task an actor, payloads moved by calls from actor to actor.

The modules of this package are the only ones below `gateway` that import Ray. Every worker (a task, or several that
share a process: see `topology.core.tasks.worker`) is an actor named like `query:3`, in a namespace of its own for every
run. `topology.core.executors.driver` drives them, as it does the one worker of `topology.core.executors.local`; it
polls the status of each about four times a second, with one call outstanding for each. An actor that dies fails the
call, and one that misses heartbeats is lost (`topology.core.executors.heartbeat`).

When a Ray that the run has started itself loses its raylet or its control service, a run with checkpoints resumes in a
new Ray.
"""

from collections.abc import Callable, Sequence
from functools import partial

from matching.errors import TopologyError
from topology.core.api.plan import Plan
from topology.core.api.resources import NO_NEEDS, Needs
from topology.core.checkpoint.coordinator import Checkpoints
from topology.core.executors.actor_pool import ActorPool
from topology.core.executors.balancing import Balance
from topology.core.executors.connection import connected
from topology.core.executors.driver import Driver
from topology.core.executors.reservation import Reservation
from topology.core.failures import WorkersLost
from topology.core.metrics import RunReport, RunSnapshot, report_stage
from topology.core.tasks.worker import place


def run_ray(
    plan: Plan,
    address: str | None = None,
    on_progress: Callable[[RunSnapshot], None] | None = None,
    *,
    together: Sequence[Sequence[str]] = (),
    stop: Callable[[], bool] | None = None,
    seed: int = 0,
    poll_s: float = 0.25,
    stall_s: float = 60.0,
    start_s: float = 300.0,
    needs: Needs = NO_NEEDS,
    log_to_driver: bool = False,
    checkpoints: Checkpoints | None = None,
    silent_s: float = 5.0,
    balance: Balance | None = None,
    on_opened: Callable[[], None] = lambda: None,
) -> RunReport:
    """Run a topology on Ray to its end.

    Uses the Ray this process is connected to; else joins the cluster at `address`; else starts Ray on this machine,
    on loopback, and stops it afterwards, whatever other clusters run here (`topology.core.executors.connection`).

    Parameters
    ----------
    plan : Plan
        Its components' classes must be importable where the actors run.
    address : str, optional
        Of a running Ray cluster: HOST:PORT, or `auto`.
    on_progress : callable, optional
        Called with a `RunSnapshot` after each round of polling, and once at the end.
    together : sequence of groups of component names
        Tasks of one group with the same number share an actor (`topology.core.tasks.worker`): fewer calls, less memory,
        less parallelism. By default every task has an actor to itself. No result depends on it.
    stop : callable, optional
        Called in each round; once it returns True the stream ends before the next batch and the topology drains.
    seed : int
        Seeds `Context.rng`.
    poll_s : float
        Seconds between two rounds of polling.
    stall_s : float
        A process that misses heartbeats for this long ends a run without checkpoints, and parcels that are in flight
        for this long end any run. An `execute` may take as long as it likes.
    start_s : float
        How long the opening of all components may take.
    needs : Needs
        CPUs and memory that the tasks reserve, all of them before one starts. By default none: any number of tasks
        share the machine.
    log_to_driver : bool
        Whether Ray shows what worker processes print. `Context.log` always reaches this process's log.
    checkpoints : Checkpoints, optional
        Take checkpoints, and recover from the loss of actors and nodes.
    silent_s : float
        With checkpoints: an actor that misses heartbeats for this long is lost.
    balance : Balance, optional
        Rebalance uneven loads after a checkpoint; needs `checkpoints`.
    on_opened : callable
        Called once, when all components have opened.

    Returns
    -------
    RunReport

    Raises
    ------
    ConfigError
        If `address` is none, or the tasks reserve more than this machine has.
    TopologyError
        If no cluster answers there, what the tasks reserve is not there in time, a component fails, an actor dies or
        stalls, nothing moves although tasks have not ended, or a batch is never acknowledged: names component and task,
        and quotes the cause. All actors are gone by then, as they are after KeyboardInterrupt.
    """
    for part in plan.components:
        if part.class_name.startswith("__main__."):
            raise TopologyError(
                f"{part.kind} {part.name!r}: its class {part.class_name} stands in the main script, which actors "
                "cannot import: move it to a module"
            )
    placement = place(plan, together)
    driver = Driver(
        "ray", plan, on_progress, stop, checkpoints, on_opened, balance=balance, poll_s=poll_s, stall_s=stall_s
    )
    while True:
        report_stage(on_progress, "Ray")
        with connected(address, log_to_driver) as dead:
            on_wait = partial(report_stage, on_progress)
            reservation = Reservation(plan, placement, needs, address is not None, on_wait)
            silence_s = stall_s if checkpoints is None else silent_s
            pool = ActorPool(plan, placement, seed, reservation, silence_s, start_s, stall_s, dead)
            try:
                return driver.run(pool)
            except Exception as error:
                if (why := dead()) is None:
                    raise
                driver.lose_all(WorkersLost(set(), "Ray died", why), error)
