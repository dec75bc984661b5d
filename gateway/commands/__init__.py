"""The commands, a file each: its options, then what it does. `gateway.cli` puts them together."""
