"""What runs a plan: `local.run_local` in one process, deterministic by seed, and `ray.run_ray` on Ray actors.

`driver.Driver` is the loop of both. An executor places workers (`topology.core.tasks.worker`) and says how calls and
parcels reach them: on Ray `actor_pool.ActorPool` (all actors of a run) and `actors.WorkerActor` (one of them). Read
`driver.py` first, then `local.py`, then `ray.py`, for polling and recovery.
"""
