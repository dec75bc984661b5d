"""What runs a plan: `local.run_local` in one process, deterministic by seed, and `ray.run_ray` on Ray actors.

On Ray the two classes to know are `actor_pool.ActorPool` (all actors of a run) and `actors.WorkerActor` (one of them).
Read `local.py` first, then `ray.py`, for polling and recovery.
"""
