"""What sources (`--from`) and sinks (`--to`) of a broker share: URIs, and clients of the brokers."""
