"""What a user would take instead: databases and libraries behind the interface of an engine (`benchmarks.peers.base`).

`skyray bench boolean --engines cell_term,postgis,duckdb` times them in the same run as engines. One that
cannot run here is reported with the line that installs it. Read on in `benchmarks.peers.postgis`.
"""

from collections.abc import Mapping

from benchmarks.peers.base import Absence, Peer
from benchmarks.peers.duckdb import DuckDB
from benchmarks.peers.postgis import PostGIS, PostGISRegion

#: Name to class; each says of which kind it is an opponent.
PEERS: Mapping[str, type[Peer]] = {peer.name: peer for peer in (PostGIS, PostGISRegion, DuckDB)}

__all__ = ["PEERS", "Absence", "Peer"]
