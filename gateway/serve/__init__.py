"""The HTTP door of a live stream: `skyray serve`.

    writer.py       requests become lines of the write-ahead log, many requests with one fsync
    releasing.py    the topology's updates become boundaries, each complete and in a fixed order
    history.py      released boundaries: the latest in memory, earlier ones in the parts on disk
    hub.py          one queue for each client that follows
    app.py          the API, its routes in `message_routes.py`, `subscription_routes.py`, `update_routes.py`, ...
    server.py       uvicorn in a thread

Read first: `gateway/commands/serve.py`, then `writer.py`.
"""
