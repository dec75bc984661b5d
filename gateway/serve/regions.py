"""Boxes that clients name in queries."""

from gateway.serve.problems import ApiError


def box_of(text: str) -> tuple[float, float, float, float]:
    """West, south, east, north in degrees; west above east crosses 180 degrees. Raises ApiError."""
    try:
        west, south, east, north = map(float, text.split(","))
        whole = abs(west) <= 180 and abs(east) <= 180 and -90 <= south <= north <= 90
    except ValueError:
        whole, (west, south, east, north) = False, (0.0,) * 4
    if not whole:
        raise ApiError(
            422,
            "bad_region",
            f"{text[:60]!r} is no box",
            "query region",
            "send west,south,east,north in degrees, south not above north; west above east crosses 180 degrees",
        )
    return west, south, east, north


def contains(box: tuple[float, float, float, float], lon: float, lat: float) -> bool:
    """Whether a closed box has a place; all in degrees."""
    west, south, east, north = box
    inside = west <= lon <= east if west <= east else lon >= west or lon <= east
    return inside and south <= lat <= north


def meet(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    """Whether two boxes in degrees have a place in common; those with west above east cross 180 degrees."""
    (west, south, east, north), (left, low, right, high) = one, other
    east, right = east + 360 * (west > east), right + 360 * (left > right)
    turns = (-360, 0, 360)
    return south <= high and low <= north and any(west <= right + turn and left + turn <= east for turn in turns)
