"""The room of `knn`: the k nearest messages since registration that share a keyword.

Less distance is better, so keys are distances with their sign turned. What happens to them is the same for every kind
whose results only get better: read on in `matching.lasting.room`.
"""

from matching.lasting.room import LastingRoom


class KnnRoom(LastingRoom):
    """Nearest-neighbour subscriptions of one query task; see `matching.lasting.room.LastingRoom`."""

    sign = -1.0
