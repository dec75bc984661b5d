"""Runs that have been written: reading, showing, explaining and verifying a run folder.

`reader.py` reads a folder in any state (`Run`); `showing.py` joins updates with texts for `skyray show`,
`explaining.py` and `match_rules.py` say why a message is in a result, `verify.py` and `oracle_replay.py` compare a run
with the oracle. Read first: `reader.py`, then `showing.py`.
"""
