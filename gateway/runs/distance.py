"""Distances in km, for people."""

import math

EARTH_RADIUS_KM = 6371.0


def distance_km(lon_a: float, lat_a: float, lon_b: float, lat_b: float) -> float:
    """Great-circle distance in km on a sphere (haversine), for people to read; matching uses `matching.space`."""
    half_dlat, half_dlon = math.radians(lat_b - lat_a) / 2, math.radians(lon_b - lon_a) / 2
    cosines = math.cos(math.radians(lat_a)) * math.cos(math.radians(lat_b))
    chord = math.sin(half_dlat) ** 2 + cosines * math.sin(half_dlon) ** 2
    return 2 * EARTH_RADIUS_KM * math.asin(min(1.0, math.sqrt(chord)))


def kilometres(far: float | None) -> str:
    """A distance for people: decimals where they say something, that is below ten.

    >>> kilometres(1234.5), kilometres(9.87), kilometres(0.123), kilometres(None)
    ('1,234', '9.9', '0.12', '-')
    """
    if far is None:
        return "-"
    return f"{far:,.0f}" if far >= 9.95 else f"{far:.1f}" if far >= 0.995 else f"{far:.2f}"
