"""Files of subscriptions: generating them from messages and checking them, for `skyray subscriptions`.

`generate.py` draws subscriptions of a kind from an ETL folder; `checking.py` says of each row of a file whether a run
takes it and how many messages it would match. Read first: `checking.py`.
"""
