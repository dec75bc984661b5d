"""Routers: which query tasks get a subscription, and which of them get a message.

router.py       what a router and its routing table are; `routers.py` has the routers by name
hashing.py, keyword.py (also `prefix`), location.py, influence.py    the routers
placed.py       routers that place subscriptions by measured cost; `placement/` has the plans
signatures/     summaries of a query task's subscriptions: a message that none of them can match is not sent
splitting.py    cuts a batch into the parts of all query tasks
"""
