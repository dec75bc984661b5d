"""The commands, a file each: what it is asked, then what it does. `gateway.cli` puts them together."""
