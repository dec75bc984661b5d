"""Webhooks: batches of updates by POST, signed as Standard Webhooks (https://www.standardwebhooks.com).

settings.py    options of `skyray serve`
model.py       a webhook, and a delivery
store.py       `sinks.sqlite`: webhooks with their positions, deliveries, counts
signing.py     secrets and signatures
guard.py       which addresses may be called
sending.py     one attempt
retries.py     when the next one is
dispatch.py    from the cursor to attempts, each webhook at its own pace
service.py     the thread in which all of it runs, and what routes ask of it
routes.py      `/v1/webhooks`
figures.py     figures for Prometheus
"""
