"""How far apart two places are, as people are told it."""

import math

EARTH_RADIUS_KM = 6371.0


def distance_km(lon_a: float, lat_a: float, lon_b: float, lat_b: float) -> float:
    """Great-circle distance in km on a sphere (haversine), for people to read; matching uses `matching.space`."""
    half_dlat, half_dlon = math.radians(lat_b - lat_a) / 2, math.radians(lon_b - lon_a) / 2
    share = math.cos(math.radians(lat_a)) * math.cos(math.radians(lat_b))
    chord = math.sin(half_dlat) ** 2 + share * math.sin(half_dlon) ** 2
    return 2 * EARTH_RADIUS_KM * math.asin(min(1.0, math.sqrt(chord)))
