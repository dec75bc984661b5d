"""Load tests of a topology and of a running server, with messages generated at a set rate: `skyray loadtest`."""
