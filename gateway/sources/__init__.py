"""Message sources: streams of a broker that `skyray live` and `skyray serve` read by themselves, with `--from`.

`source.py` says what a source is; `nats.py`, `kafka.py` and `folder.py` are three; `uris.py` makes one of what `--from`
names.
`feed.py` reads it in a thread and hands each message to the gate that lines and requests pass. How far a source was
read is in the write-ahead log, in the record of the batch that has the messages, so that each is in the log once. Read
first: `source.py`.
"""
