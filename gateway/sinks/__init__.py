"""Sinks: updates of `skyray serve` delivered to other systems, each at least once and with ids that never change.

    contract.py       what a sink is: it takes a batch of updates, and answers with an outcome
    cursor.py         a place in the stream of released updates, and what is behind it
    stream.py         what a sink of all updates is: a topic, a stream, a table
    cloudevents.py    the CloudEvents attributes of an update
    kafka.py          all updates into a topic of Kafka, in transactions that have the position too
    webhooks/         batches by HTTP, signed as Standard Webhooks; its outbox is durable

A sink imports from `gateway.serve` what updates and positions are; `gateway.serve` imports no sink.
Read first: `contract.py`, then `webhooks/dispatch.py`.
"""
