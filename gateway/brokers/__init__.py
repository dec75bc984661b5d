"""What sources (`--from`) and sinks (`--to`) of a broker share.

    uris.py                parts of a URI, and what is wrong with it
    nats_client.py         a client of NATS in a thread of its own
    kafka_properties.py    the file that `config=` names

Read first: `gateway.sources` and `gateway.sinks`, which stand on it.
"""
