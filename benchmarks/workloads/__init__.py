"""Whole loads in folders: a stream and subscriptions of all kinds, for `skyray run` and `skyray loadtest --workload`.

    python -m benchmarks.workloads.alerts alerts --subscriptions 1000000
    skyray loadtest --workload alerts --hold 60s --executor local

`alerts` says what a load has, `stream` writes messages; `gateway.load.workload` reads the folder.
"""
