"""Load tests: generated messages at a set rate, for `skyray loadtest`.

`loadtest.py` runs a topology and reports throughput and latency; `check.py` compares a sample of its updates with the
bulk oracle. Read first: `loadtest.py`, then `spouts/paced.py` for the schedule.
"""
