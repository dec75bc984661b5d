"""Runs that have been written: reading, showing, explaining and verifying a run folder."""
