"""Load tests: generated messages at a set rate, for `skyray loadtest`.

`loadtest.py` runs a topology and reports throughput and latency; `check.py` compares a sample of its updates with the
bulk oracle; `ramp.py` searches the peak rate, `report.py` draws. `planning.py` is the model behind `skyray plan`, whose
constants `measuring.py` measures. `remote.py` tests a running server: `generator.py` publishes, `changer.py` changes
subscriptions, `follower.py` reads updates, `recount.py` compares all of them with the bulk oracle. Read first:
`loadtest.py`, then `spouts/paced.py` for the schedule.
"""
