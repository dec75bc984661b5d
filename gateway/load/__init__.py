"""Load tests: generated messages at a set rate, for `skyray loadtest`.

`loadtest.py` runs a topology of its own, `remote.py` tests a running server: `senders.py` publishes and changes
subscriptions, `follower.py` reads updates. Of both, `check.py` compares updates with the bulk oracle, `ramp.py`
searches the peak rate, and `report.py` draws. `measuring.py` measures the costs behind `skyray plan`. Read first:
`loadtest.py`, then `spouts/paced.py` for the schedule.
"""
