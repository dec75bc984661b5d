"""What `gap` events say of updates that a client does not get."""

from gateway.serve.update_parts import Position


def lost_events(position: Position, boundary: int, was_pruned: bool = False) -> dict[str, object]:
    """Updates between a position and a boundary are gone or damaged, or no longer kept."""
    damaged = "files of updates are gone from the folder, or damaged; events go on behind them"
    return {
        "reason": "not_kept" if was_pruned else "lost",
        "after": position.text,
        "before": Position(boundary, 0).text,
        "detail": "updates that old are no longer kept; events go on behind them" if was_pruned else damaged,
        "do": "read /v1/subscriptions/ID/results anew",
    }


def unknown_position(position: Position) -> dict[str, object]:
    """A position that the stream does not have."""
    return {
        "reason": "unknown_position",
        "after": position.text,
        "detail": "the stream has not come so far: it is another stream, or its folder is not the one it was",
        "do": "read /v1/subscriptions/ID/results anew; events go on from now",
    }
