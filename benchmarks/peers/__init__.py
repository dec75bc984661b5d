"""What a user would take instead: databases and libraries behind the interface of an engine (`benchmarks.peers.base`).

`skyray bench boolean --engines cell_term,postgis,duckdb` times them in the same run as engines. One that cannot run
here is reported with the line that installs it. Read on in `benchmarks.peers.postgis`.
"""

from dataclasses import replace

from benchmarks.peers.base import Absence, Peer
from benchmarks.peers.duckdb import DuckDB
from benchmarks.peers.postgis import PostGIS, PostGISRegion
from matching.kind_table import Kind

#: Name to class; each says of which kind it is an opponent.
PEERS: dict[str, type[Peer]] = {peer.name: peer for peer in (PostGIS, PostGISRegion, DuckDB)}


def with_peers(kind: Kind) -> Kind:
    """A kind that has its peers among its engines, behind its own."""
    return replace(kind, engines={**kind.engines, **{name: p for name, p in PEERS.items() if p.kind == kind.name}})


__all__ = ["PEERS", "Absence", "Peer", "with_peers"]
