"""Whole loads in folders: a stream and subscriptions of all kinds, for `skyray run` and `benchmarks.headline`.

    python -m benchmarks.workloads.alerts alerts --subscriptions 1000000
    python -m benchmarks.headline --workload alerts

`alerts` says what a load has, `stream` writes messages; `folder` reads them for `gateway.load.loadtest`.
"""
