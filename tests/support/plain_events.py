"""Events of updates made one after another, for tests and benchmarks of those that make many at once."""

from collections.abc import Callable

import msgspec
import numpy as np

from gateway.serve.released import RANKS, LookUp, Released


def plain_rows(released: Released, look_up: LookUp, tag_of: Callable[[int], str]) -> list[dict[str, object]]:
    """The JSON objects of updates, field by field."""
    rows = []
    for row in range(len(released.seq)):
        seq, score = int(released.seq[row]), float(released.score[row])
        message, boundary = look_up([seq])[seq], int(released.boundary[row])
        tag, change = tag_of(boundary), next(name for name, rank in RANKS.items() if rank == released.order[row])
        rows.append(
            {
                "id": f"{boundary}-{int(released.place[row])}" + (f"-{tag}" if tag else ""),
                "change": change,
                **({"backfill": True} if change == "match" and released.as_of[row] > seq else {}),
                "subscription_id": released.names[int(released.who[row])].as_py(),
                "message_id": message.message_id,
                "seq": seq,
                "as_of": int(released.as_of[row]),
                "score": None if np.isnan(score) else score,
                "text": message.text,
                "lon": message.lon,
                "lat": message.lat,
            }
        )
    return rows


def plain_events(rows: list[dict[str, object]]) -> list[bytes]:
    """Server-Sent Events."""
    return [b"id: " + str(row["id"]).encode() + b"\ndata: " + msgspec.json.encode(row) + b"\n\n" for row in rows]


def plain_lines(rows: list[dict[str, object]]) -> list[bytes]:
    """Lines of JSON."""
    return [msgspec.json.encode(row) + b"\n" for row in rows]
