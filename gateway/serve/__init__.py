"""The HTTP door of a live stream: `skyray serve`.

writer.py       requests become lines of the write-ahead log, many requests with one fsync
releasing.py    the topology's updates become boundaries, each complete and in a fixed order
released.py     released updates as columns, and the bytes of their events
update_log.py   released boundaries: the latest in memory, earlier ones in the parts on disk (`update_parts.py`)
hub.py          clients that follow, each with a queue of its own
word_index.py   subscriptions by word, for questions
asking.py       results, explain, match, preview, answered from the log
app.py          the API, with its routes in `message_routes.py`, `subscription_routes.py`, ...; `door.py` is what
                they share, `models.py` describes what they take and answer, `problems.py` their errors
access.py       who may do what: `keys.py` has the keys, `limits.py` what callers may at most
server.py       uvicorn in a thread; `starting.py` answers there until the stream is open
"""
