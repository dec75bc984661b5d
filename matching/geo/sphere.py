"""Distances on the sphere: unit vectors, metres, closed circles, boxes of circles, bounds for indexes.

A place is a unit vector, computed once when it is admitted and stored; the squared chord between two of them decides
everything else, so that answers depend on stored numbers and no longer on the sines of a machine. Chords have an
absolute error of some 1e-15 (of the radius): nanometres, except near the antipode, where metres are ill-conditioned in
the chord (0.2 m at the antipode itself). Boxes and bounds are wider by more than that error.
"""

import math

import numpy as np

from compiling.njit import njit, njit_inner
from matching.model import Float64

#: Mean radius of the earth (IUGG), metres.
EARTH_RADIUS_M = 6_371_008.8
_DIAMETER_M = 2.0 * EARTH_RADIUS_M
#: Half of the circumference: no two places are farther apart.
FARTHEST_M = math.pi * EARTH_RADIUS_M
#: More than the error of a computed chord, and of an angle in radians up to `_WELL_CONDITIONED`.
_CHORD_SLACK = 1e-14
_ANGLE_SLACK = 1e-13
_WELL_CONDITIONED = 3.0


# --------------------------------------------------------------------------------------------------- places and metres


@njit_inner
def _sine_and_cosine(degrees):
    """Sine and cosine of an angle in degrees, -360..360; exact at multiples of 90.

    The multiple of 90 is taken away first, which is exact. So all longitudes give one vector at a pole, and 180 the
    same as -180: from radians they would lie a nanometre apart, and a closed test would divide them.
    """
    quarters = round(degrees / 90.0)
    angle = (degrees - 90.0 * quarters) * (math.pi / 180.0)
    sine, cosine = math.sin(angle), math.cos(angle)
    quarter = int(quarters) % 4
    if quarter == 0:
        return sine, cosine
    if quarter == 1:
        return cosine, -sine
    if quarter == 2:
        return -sine, -cosine
    return -cosine, sine


@njit(cache=True, nogil=True)
def unit_vector(lon, lat):
    """The unit vector (x, y, z) of a place in degrees: x through 0, 0, y through 90 E, z through the north pole.

    Spec G1. The same bits as `matching.naive_shapes.unit_vector` on one machine.
    """
    sine_lon, cosine_lon = _sine_and_cosine(lon)
    sine_lat, cosine_lat = _sine_and_cosine(lat)
    return cosine_lat * cosine_lon, cosine_lat * sine_lon, sine_lat


@njit(cache=True, nogil=True)
def _write_unit_vectors(lon, lat, out):
    for i in range(lon.size):
        out[i, 0], out[i, 1], out[i, 2] = unit_vector(lon[i], lat[i])


def unit_vectors(lon: Float64, lat: Float64) -> Float64:
    """Unit vectors of places.

    Parameters
    ----------
    lon, lat : float64[n]        degrees, checked

    Returns
    -------
    float64[n, 3]

    Notes
    -----
    O(n), about 70 ns a place: a caller stores them and computes them once.
    """
    out = np.empty((len(lon), 3))
    # copied: the kernel would be compiled once more for arrays that are read-only
    _write_unit_vectors(np.array(lon, np.float64), np.array(lat, np.float64), out)
    return out


@njit(cache=True, nogil=True)
def chord_squared(ax, ay, az, bx, by, bz):
    """Squared chord between two unit vectors, 0..4 and a little: what all tests compare (spec G2)."""
    dx, dy, dz = ax - bx, ay - by, az - bz
    return (dx * dx + dy * dy) + dz * dz


@njit(cache=True, nogil=True)
def metres(squared):
    """Great-circle distance, in metres, from a squared chord (spec G3). It never falls while the chord grows."""
    return _DIAMETER_M * math.asin(min(1.0, 0.5 * math.sqrt(squared)))


@njit(cache=True, nogil=True)
def _write_distances(vectors, centre, out):
    x, y, z = centre[0], centre[1], centre[2]
    for i in range(len(vectors)):
        out[i] = metres(chord_squared(vectors[i, 0], vectors[i, 1], vectors[i, 2], x, y, z))


def distances_m(vectors: Float64, centre: Float64) -> Float64:
    """Great-circle metres from places (float64[n, 3]) to one (float64[3]): float64[n]. O(n)."""
    out = np.empty(len(vectors))
    _write_distances(vectors, centre, out)
    return out


# -------------------------------------------------------------------------------------------------- distances of a run


@njit(cache=True, nogil=True)
def point_of(batch, row):
    """Where a message of a `MessageBatch` is, as distances are measured: x, y, z, and whether on the sphere.

    A unit vector on the sphere, else a point of the unit square and 0, as columns of `Subscriptions` have them.
    """
    if batch.vector.shape[0]:
        return batch.vector[row, 0], batch.vector[row, 1], batch.vector[row, 2], True
    return batch.x[row], batch.y[row], 0.0, False


@njit(cache=True, nogil=True)
def distance_to(place, x, y, z):
    """Distance of a place (`point_of`) and a point (spec G10): metres on the sphere, else of the unit square."""
    squared = chord_squared(x, y, z, place[0], place[1], place[2])
    return metres(squared) if place[3] else math.sqrt(squared)


@njit(cache=True, nogil=True)
def least_angle_squared(squared):
    """At most the square of the angle, in radians, of a squared chord; float32 or float64 as that is.

    The first terms of a series whose terms are all positive (spec 1.8): no root, no arc sine, so that loops vectorise.
    Within 0.2 % of the angle up to a quarter around the sphere, 0.85 of it at the antipode.
    """
    more = np.float32(1 / 90) + squared * np.float32(1 / 560)
    return squared * (np.float32(1) + squared * (np.float32(1 / 12) + squared * more))


# ------------------------------------------------------------------------------------------------------------- circles


@njit(cache=True, nogil=True)
def chord_limit(radius_m):
    """The largest squared chord whose metres are at most a radius; infinity if all are.

    So "`chord_squared` is at most this" and "`metres` are at most the radius" are the same closed test (spec G4), and
    the first is three products. Computed once for each circle and stored.
    """
    if radius_m >= metres(4.0):
        return math.inf
    half = math.sin(radius_m / _DIAMETER_M)
    limit = 4.0 * half * half
    # Right but for the last digits: a few steps lead to the border.
    while metres(limit) > radius_m:
        limit = np.nextafter(limit, 0.0)
    while metres(np.nextafter(limit, 5.0)) <= radius_m:
        limit = np.nextafter(limit, 5.0)
    return limit


@njit(cache=True, nogil=True)
def _write_within(vectors, centre, limit, out):
    x, y, z = centre[0], centre[1], centre[2]
    for i in range(len(vectors)):
        out[i] = chord_squared(vectors[i, 0], vectors[i, 1], vectors[i, 2], x, y, z) <= limit


def within(vectors: Float64, centre: Float64, limit: float):
    """Which places (float64[n, 3]) lie in a closed circle: its centre (float64[3]) and `chord_limit`. bool[n], O(n)."""
    out = np.empty(len(vectors), np.bool_)
    _write_within(vectors, centre, limit, out)
    return out


@njit_inner
def degrees_east(lat, angle):
    """How many degrees of longitude a ball reaches to the east and to the west of its centre; infinite with a pole.

    lat : degrees;  angle : of the ball, in radians, with all slack
    """
    degrees = angle * (180.0 / math.pi)
    # The ball's meridians: tan = sin(angle) / sqrt(cos(lat + angle) * cos(lat - angle)), no meridian if that is no
    # number. The arc sine that textbooks have loses half of its digits beside a pole.
    cosines = _sine_and_cosine(lat + degrees)[1] * _sine_and_cosine(lat - degrees)[1]
    if lat - degrees <= -90.0 or lat + degrees >= 90.0 or cosines <= 0.0:
        return math.inf
    return math.atan2(math.sin(angle), math.sqrt(cosines)) * (180.0 / math.pi)


@njit(cache=True, nogil=True)
def ball_box(lon, lat, radius_m):
    """A box in degrees that contains every place within a radius of a place.

    Parameters
    ----------
    lon, lat : float             degrees, checked
    radius_m : float             0 or more

    Returns
    -------
    west, south, east, north : float
        West is greater than east where the box crosses the antimeridian. -180 and 180 if the ball has a pole.

    Notes
    -----
    Computed for an angle that is larger by 1e-13 (a micrometre), which is more than all rounding (spec G5). Balls of
    more than 3 radians get the whole earth.
    """
    angle = radius_m / EARTH_RADIUS_M + _ANGLE_SLACK
    if angle > _WELL_CONDITIONED:
        return -180.0, -90.0, 180.0, 90.0
    degrees = angle * (180.0 / math.pi)
    south, north = max(lat - degrees, -90.0), min(lat + degrees, 90.0)
    reach = degrees_east(lat, angle)
    if reach == math.inf:
        return -180.0, south, 180.0, north
    west, east = lon - reach, lon + reach
    if west < -180.0:
        west += 360.0
    elif east > 180.0:
        east -= 360.0
    # One that touches the antimeridian has both of its sides, which are one place.
    elif west == -180.0:
        west = 180.0
    elif east == 180.0:
        east = -180.0
    return west, south, east, north


# -------------------------------------------------------------------------------------------------- bounds for indexes


@njit_inner
def _chords_along_meridian(lat, turn, south, north):
    """Least and largest squared chord from a place to a piece of the meridian `turn` degrees east of it."""
    sine, cosine = _sine_and_cosine(lat)
    sine_turn, cosine_turn = _sine_and_cosine(turn)
    # Along the whole circle the angle's cosine is a sinusoid: one nearest and one farthest place, opposite each other.
    nearest = math.atan2(sine, cosine * cosine_turn) * (180.0 / math.pi)
    farthest = nearest - 180.0 if nearest > 0.0 else nearest + 180.0
    least, largest = math.inf, 0.0
    for there in (south, north, min(max(nearest, south), north), min(max(farthest, south), north)):
        z, flat = _sine_and_cosine(there)
        squared = chord_squared(cosine, 0.0, sine, flat * cosine_turn, flat * sine_turn, z)
        least, largest = min(least, squared), max(largest, squared)
    return least, largest


@njit(cache=True, nogil=True)
def chord_bounds(lon, lat, west, south, east, north):
    """Bounds of the squared chord from a place to a box in degrees.

    Parameters
    ----------
    lon, lat : float                     the place
    west, south, east, north : float     the box, closed; west > east if it crosses the antimeridian

    Returns
    -------
    lower, upper : float
        No place in the box computes to less or more; tight up to 1e-7 m.

    Notes
    -----
    Some 20 sines: for cells that are visited again and again, `covering_ball` is cheaper.
    """
    width = east - west if west <= east else east - west + 360.0
    turn = (lon - west) % 360.0
    least, largest = _chords_along_meridian(lat, turn, south, north)
    other_least, other_largest = _chords_along_meridian(lat, turn - width, south, north)
    least, largest = min(least, other_least), max(largest, other_largest)
    if turn <= width:
        least = min(least, _chords_along_meridian(lat, 0.0, south, north)[0])
    if (turn + 180.0) % 360.0 <= width:
        largest = max(largest, _chords_along_meridian(lat, 180.0, south, north)[1])
    # A place at a border of the box may fall on either side by rounding: bounds are continuous there.
    lower, upper = max(0.0, math.sqrt(least) - _CHORD_SLACK), math.sqrt(largest) + _CHORD_SLACK
    return lower * lower, upper * upper


@njit(cache=True, nogil=True)
def covering_ball(west, south, east, north):
    """A ball that contains a box in degrees, for cells: its centre and radius, computed once.

    Returns
    -------
    lon, lat, radius_m : float
        d metres from the centre, all of the box is at least d - radius_m - 1e-6 and at most d + radius_m + 1e-6 away,
        1 m instead of 1e-6 beyond 19,000,000 m, where metres are ill-conditioned.
    """
    width = east - west if west <= east else east - west + 360.0
    lon = west + width / 2.0
    if lon > 180.0:
        lon -= 360.0
    lat = (south + north) / 2.0
    return lon, lat, metres(chord_bounds(lon, lat, west, south, east, north)[1])


def max_distance_m(west: float, south: float, east: float, north: float) -> float:
    """The largest great-circle distance of two places in a world box in degrees, in metres (spec G6).

    No two stored places in the box compute to more, so that `1 - distance / max_distance_m` is never negative: less
    than a micrometre above the true value up to 19,000,000 m, and `FARTHEST_M` where two antipodes lie in the box.
    """
    apart = min(east - west, 180.0)
    height, middle = north - south, abs(south + north)
    # The two places are as far apart in longitude as the box allows. Say `t` is the difference of their latitudes; the
    # sum is then as near to 0 as the box allows, max(0, t - even), and the distance is a sinusoid of t in between.
    even = height - middle
    here = (1.0 + math.cos(math.radians(apart))) / 2.0
    there = 1.0 - here
    turn = math.radians(even)
    peak = math.degrees(math.atan2(-there * math.sin(turn), here - there * math.cos(turn)))
    low = max(0.0, even)
    sign = 1.0 if south + north >= 0.0 else -1.0
    largest = 0.0
    for t in (low, height, *(min(max(peak + turned, low), height) for turned in (-180.0, 0.0, 180.0))):
        total = sign * max(0.0, t - even)
        first, second = unit_vector(0.0, (total + t) / 2.0), unit_vector(apart, (total - t) / 2.0)
        largest = max(largest, chord_squared(*first, *second))
    chord = math.sqrt(largest) + _CHORD_SLACK
    return metres(chord * chord)
