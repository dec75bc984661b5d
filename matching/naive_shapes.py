"""The oracle of shapes: places, metres, circles and polygons in plain Python.

It must share no code with `matching.geo`, and be simple rather than fast. Formulas of the sphere are those of
docs/spec.md; `Fraction` decides without rounding whether a point lies on the edge of a polygon.
"""

import math
from collections.abc import Sequence
from fractions import Fraction

EARTH_RADIUS_M = 6_371_008.8
Vector = tuple[float, float, float]
#: A ring: its corners (lon, lat) in degrees, the first again at the end.
Ring = Sequence[tuple[float, float]]


def unit_vector(lon: float, lat: float) -> Vector:
    """The unit vector of a place in degrees."""
    return cosine(lat) * cosine(lon), cosine(lat) * sine(lon), sine(lat)


def sine(degrees: float) -> float:
    """Sine of an angle in degrees, by the remainder from the nearest multiple of 90: exact at these (spec)."""
    quarters, angle = _from_quarter(degrees)
    return (math.sin(angle), math.cos(angle), -math.sin(angle), -math.cos(angle))[quarters]


def cosine(degrees: float) -> float:
    """Cosine of an angle in degrees, by the remainder from the nearest multiple of 90: exact at these (spec)."""
    quarters, angle = _from_quarter(degrees)
    return (math.cos(angle), -math.sin(angle), -math.cos(angle), math.sin(angle))[quarters]


def _from_quarter(degrees: float) -> tuple[int, float]:
    """Nearest multiple of 90 degrees (0 to 3), and the remainder in radians."""
    quarters = round(degrees / 90)
    return quarters % 4, (degrees - 90 * quarters) * (math.pi / 180)


def metres(a: Vector, b: Vector) -> float:
    """Great-circle metres between two places."""
    dx, dy, dz = a[0] - b[0], a[1] - b[1], a[2] - b[2]
    chord = math.sqrt((dx * dx + dy * dy) + dz * dz)
    return 2 * EARTH_RADIUS_M * math.asin(min(1.0, 0.5 * chord))


def in_circle(place: Vector, centre: Vector, radius_m: float) -> bool:
    """Whether a place lies in a closed circle."""
    return metres(place, centre) <= radius_m


def in_polygon(rings: Sequence[Ring], lon: float, lat: float) -> bool:
    """Whether a point lies in a polygon: on an edge of a ring, or within an odd number of rings.

    Edges are straight in longitude and latitude. Even-odd rule with a ray from the point to the east: an edge that
    meets the ray counts if exactly one of its ends lies north of the ray.
    """
    x, y = Fraction(lon), Fraction(lat)
    odd = False
    for ring in rings:
        corners = [(Fraction(east), Fraction(north)) for east, north in ring]
        for (x1, y1), (x2, y2) in zip(corners, corners[1:], strict=False):
            if _on_edge(x, y, x1, y1, x2, y2):
                return True
            if (y1 > y) != (y2 > y) and x1 + (y - y1) * (x2 - x1) / (y2 - y1) > x:
                odd = not odd
    return odd


def _on_edge(x: Fraction, y: Fraction, x1: Fraction, y1: Fraction, x2: Fraction, y2: Fraction) -> bool:
    if not (min(x1, x2) <= x <= max(x1, x2) and min(y1, y2) <= y <= max(y1, y2)):
        return False
    return (x2 - x1) * (y - y1) == (x - x1) * (y2 - y1)
