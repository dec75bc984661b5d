"""The Python client of `skyray serve`: `skyray.Client` and `skyray.AsyncClient`.

    with skyray.Client("http://127.0.0.1:8080") as client:
        client.subscribe(kind="boolean", keywords="ramen", region=[139, 35, 140, 36], subscription_id="s1")
        client.publish({"text": "ramen, open late", "lon": 139.69, "lat": 35.68}, wait="delivered")
        for update in client.updates(subscription="s1", since="begin"):
            print(update.change, update.message_id)

`requests` says what is sent and how an answer is read; `flows` what takes several requests: trying again, rows in
groups, pages, and a stream of updates that outlives its connection. `awaiting` has every method; `blocking` carries out
the same coroutines over a library that blocks, so that they never wait for an event loop.
Guide: docs/python.md.
"""
