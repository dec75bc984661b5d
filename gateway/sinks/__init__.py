"""Sinks: updates delivered to other systems, each at least once and with ids that never change.

    stream.py         what a sink of all updates is: a topic, a stream, a table
    pump.py           the thread of such a sink, at the pace of its receiver
    committed.py      committed parts as what it reads, where no server is
    postgres.py       tables of updates and standing results, exactly once
    kafka.py          all updates into a topic of Kafka, in transactions that have the position too
    nats.py           all updates into a stream of NATS JetStream, which says how far it has come
    cloudevents.py    the CloudEvents attributes of an update
    uris.py           what `--to` names
    webhooks/         batches by HTTP, signed as Standard Webhooks; its outbox is durable

A sink imports from `gateway.serve` what updates and positions are; `gateway.serve` imports no sink.
"""
