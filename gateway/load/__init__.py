"""Load tests: generated messages at a set rate, for `skyray loadtest`.

`loadtest.py` runs a topology and reports throughput and latency; `check.py` compares a sample of its updates with the
bulk oracle; `ramp.py` searches the peak rate, `report.py` draws. `measuring.py` measures the costs behind
`skyray plan`. `remote.py` tests a running server: `generator.py` publishes, `changer.py` changes
subscriptions, `follower.py` reads updates, `recount.py` compares all of them with the bulk oracle. Read first:
`loadtest.py`, then `spouts/paced.py` for the schedule.
"""
