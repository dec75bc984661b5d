"""Message sources: streams of a broker that `skyray live` and `skyray serve` read by themselves, with `--from`.

How far a source was read is in the write-ahead log, in the record of the batch that has the messages, so that each is
in the log once.
"""
