"""Live streams: lines in, updates out, for `skyray live`; and the `Engine` of the Python API.

`pipe.py` cuts lines into batches, `admission.py` checks them, `write_ahead_log.py` makes them durable,
`update_listener.py` takes what the topology publishes, `recording.py` leaves a run folder at the end. `engine.py`
matches in the caller's process. Read first: `pipe.py`.
"""
