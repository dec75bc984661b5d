"""Polygons as flat rings, and whether a point lies in one, decided exactly.

A polygon is a number of rings; edges are straight in longitude and latitude, and a point is inside if it lies on an
edge or within an odd number of rings (spec G7), so that holes and several parts need no case of their own. On which
side of an edge a point lies is the sign of a difference of two products. Floating point decides it where the difference
is larger than its error (spec G8); elsewhere the products are summed as integers, exact for all numbers there are.

Edges are sorted into bands of latitude, and a point is compared with those of its own band.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from compiling.njit import njit, njit_inner, njit_inner_no_refcount, njit_no_refcount
from matching.model import Float64, Int32, Int64

#: Edges for each band that a polygon is divided into, and the most bands that an edge lies in on average: long edges
#: lie in many, so there are fewer bands then.
_EDGES_PER_BAND, _MOST_COPIES = 4, 4
#: Flatter polygons, in degrees, are one band: a band has to be some numbers high.
_FLAT = 1e-6
#: Error of a difference of two products of differences: four roundings of half a unit in the last place, and underflow.
_RELATIVE_ERROR, _ABSOLUTE_ERROR = 4.5e-16, 1e-300
#: An exact sum of products: the smallest product has its last digit at 2**-2252, the largest is below 2**32.
_LAST_DIGIT, LIMBS = 2252, 75
_LIMB_BITS, _LIMB = 32, 2**32 - 1
_HALF_BITS, _HALF = 27, 2**27 - 1


class Rings(NamedTuple):
    """The rings of one polygon.

    offsets : int64[r + 1]       ring i has the corners offsets[i] to offsets[i + 1], its first again at the end
    lon, lat : float64[c]        degrees
    """

    offsets: Int64
    lon: Float64
    lat: Float64


class Polygons(NamedTuple):
    """Polygons laid out flat.

    lon, lat : float64[c]                   corners of all polygons
    south, bands_per_degree : float64[p]    where the bands of each polygon begin, and how high they are
    band_start : int64[p + 1]               polygon i has the bands band_start[i] to band_start[i + 1]
    member_start : int64[b + 1]             band b has members[member_start[b]:member_start[b + 1]]
    members : int32[m]                      edges: the corner where each begins; it ends at the next corner
    """

    lon: Float64
    lat: Float64
    south: Float64
    bands_per_degree: Float64
    band_start: Int64
    member_start: Int64
    members: Int32


# ----------------------------------------------------------------------------------------------------- side of an edge


@njit_inner_no_refcount
def _add_part(limbs, part, place):
    """Add an integer below 2**54 (or subtract it, if negative), times 2**place."""
    sign, size = (1, part) if part >= 0 else (-1, -part)
    limb, shift = place >> 5, place & 31
    low, high = (size & _LIMB) << shift, (size >> _LIMB_BITS) << shift
    limbs[limb] += sign * (low & _LIMB)
    limbs[limb + 1] += sign * ((low >> _LIMB_BITS) + (high & _LIMB))
    limbs[limb + 2] += sign * (high >> _LIMB_BITS)


@njit_inner_no_refcount
def _add_product(limbs, a, b):
    """Add the exact product of two numbers below 2**16 to a sum of `LIMBS` limbs, lowest first."""
    a_fraction, a_exponent = math.frexp(a)
    b_fraction, b_exponent = math.frexp(b)
    sign = 1 if (a < 0.0) == (b < 0.0) else -1
    a_digits, b_digits = np.int64(abs(a_fraction) * 2.0**53), np.int64(abs(b_fraction) * 2.0**53)
    place = np.int64(a_exponent + b_exponent - 106 + _LAST_DIGIT)
    a_high, a_low = a_digits >> _HALF_BITS, a_digits & _HALF
    b_high, b_low = b_digits >> _HALF_BITS, b_digits & _HALF
    _add_part(limbs, sign * a_low * b_low, place)
    _add_part(limbs, sign * a_high * b_low, place + _HALF_BITS)
    _add_part(limbs, sign * a_low * b_high, place + _HALF_BITS)
    _add_part(limbs, sign * a_high * b_high, place + 2 * _HALF_BITS)


@njit_no_refcount
def _exact_side(x, y, x1, y1, x2, y2, limbs):
    """`side_of_edge` without rounding: the sum of six products, as an integer of 2,400 bits. Some 300 ns."""
    for i in range(LIMBS):
        limbs[i] = 0
    _add_product(limbs, x2, y)
    _add_product(limbs, -x1, y)
    _add_product(limbs, -x2, y1)
    _add_product(limbs, x1, y2)
    _add_product(limbs, -x, y2)
    _add_product(limbs, x, y1)
    carry, rest = np.int64(0), np.int64(0)
    for i in range(LIMBS):
        limb = limbs[i] + carry
        carry = limb >> _LIMB_BITS
        rest |= limb & _LIMB
    if carry < 0:
        return -1
    return 1 if carry > 0 or rest > 0 else 0


@njit_no_refcount
def side_of_edge(x, y, x1, y1, x2, y2, limbs):
    """1 if a point lies left of the edge from (x1, y1) to (x2, y2), -1 if right, 0 if on the line through it.

    All in degrees. Exact for all finite numbers (spec G8); for its cost where rounding would decide see `_exact_side`,
    which writes to `limbs` (int64[LIMBS]).
    """
    left, right = (x2 - x1) * (y - y1), (x - x1) * (y2 - y1)
    difference = left - right
    error = _RELATIVE_ERROR * (abs(left) + abs(right)) + _ABSOLUTE_ERROR
    if difference > error:
        return 1
    if difference < -error:
        return -1
    return _exact_side(x, y, x1, y1, x2, y2, limbs)


# ------------------------------------------------------------------------------------------------------- point in rings


@njit_inner
def banded(lat, south, bands_per_degree, bands):
    """Band of a latitude, 0..bands - 1. It never falls while the latitude grows, whatever the rounding."""
    return min(max(np.int64((lat - south) * bands_per_degree), 0), bands - 1)


@njit(cache=True, nogil=True)
def covers(polygons, i, lon, lat, limbs):
    """Whether a point lies in a polygon or on an edge of it.

    Parameters
    ----------
    polygons : Polygons
    i : int                      which of them
    lon, lat : float             degrees, checked
    limbs : int64[LIMBS]         written over

    Returns
    -------
    bool

    Notes
    -----
    O(edges of the band). Reference: `matching.naive_shapes.in_polygon`.
    """
    first = polygons.band_start[i]
    bands = polygons.band_start[i + 1] - first
    band = first + banded(lat, polygons.south[i], polygons.bands_per_degree[i], bands)
    begin, end = polygons.member_start[band], polygons.member_start[band + 1]
    return within_band(polygons.members, begin, end, polygons.lon, 0, polygons.lat, 0, lon, lat, limbs)


@njit_inner_no_refcount
def within_band(members, begin, end, lons, first_lon, lats, first_lat, lon, lat, limbs):
    """`covers`, given the edges of the point's band.

    Parameters
    ----------
    members, begin, end : int[m], int, int     members[begin:end] are the edges: the corner where each begins
    lons, first_lon, lats, first_lat : float64[n], int, float64[n], int
        Corner c is at lons[first_lon + c], lats[first_lat + c].
    lon, lat : float                           the point
    limbs : int64[LIMBS]                       written over
    """
    odd = False
    for member in range(begin, end):
        corner = members[member]
        y1, y2 = lats[first_lat + corner], lats[first_lat + corner + 1]
        if lat < min(y1, y2) or lat > max(y1, y2):
            continue
        x1, x2 = lons[first_lon + corner], lons[first_lon + corner + 1]
        if lon > max(x1, x2):
            continue
        # A ray to the east meets the edge if one end lies above it and the other does not: a corner counts once.
        meets = (y1 > lat) != (y2 > lat)
        if lon < min(x1, x2):
            odd ^= meets
            continue
        # Within the box of the edge: one along an axis fills its box, and so does a corner.
        if y1 == y2 or x1 == x2 or (lon == x1 and lat == y1) or (lon == x2 and lat == y2):
            return True
        side = side_of_edge(lon, lat, x1, y1, x2, y2, limbs)
        if side == 0:
            return True
        odd ^= meets and (side > 0) == (y2 > y1)
    return odd


@njit(cache=True, nogil=True)
def _write_covered(polygons, which, lon, lat, out):
    limbs = np.empty(LIMBS, np.int64)
    for n in range(which.size):
        out[n] = covers(polygons, which[n], lon[n], lat[n], limbs)


def covered(polygons: Polygons, which: Int64, lon: Float64, lat: Float64):
    """`covers` for n pairs of a polygon (int64[n]) and a point (float64[n] each, degrees): bool[n]. O(their bands)."""
    out = np.empty(len(which), np.bool_)
    _write_covered(polygons, which, lon, lat, out)
    return out


# -------------------------------------------------------------------------------------------------------------- layout


@njit(cache=True, nogil=True)
def _fill_bands(lat, edges, south, bands_per_degree, bands, start, members):
    """Sort edges into bands: write where each band starts, int64[bands + 1], and the members if there is room.

    Returns
    -------
    int
        Members of all bands.
    """
    start[:] = 0
    for edge in edges:
        y1, y2 = lat[edge], lat[edge + 1]
        low, high = min(y1, y2), max(y1, y2)
        for band in range(
            banded(low, south, bands_per_degree, bands), banded(high, south, bands_per_degree, bands) + 1
        ):
            start[band + 1] += 1
    for band in range(bands):
        start[band + 1] += start[band]
    total = start[bands]
    if total > members.size:
        return total
    # Backwards, each band from its end: its members ascend, and its end becomes its start.
    for n in range(edges.size - 1, -1, -1):
        y1, y2 = lat[edges[n]], lat[edges[n] + 1]
        low, high = min(y1, y2), max(y1, y2)
        for band in range(
            banded(low, south, bands_per_degree, bands), banded(high, south, bands_per_degree, bands) + 1
        ):
            start[band + 1] -= 1
            members[start[band + 1]] = edges[n]
    for band in range(bands):
        start[band] = start[band + 1]
    start[bands] = total
    return total


def lay_out(shapes: Sequence[Rings]) -> Polygons:
    """Lay polygons out flat and sort their edges into bands.

    Parameters
    ----------
    shapes : sequence of Rings       each with at least one ring of at least one corner

    Returns
    -------
    Polygons
        In the given order. 16 bytes a corner, 4 to 16 an edge, 40 to 48 a polygon.

    Notes
    -----
    O(corners); about 8 us a polygon.
    """
    south, scale = np.zeros(len(shapes)), np.zeros(len(shapes))
    bands, starts, members = np.zeros(len(shapes), np.int64), [], []
    first, placed = 0, 0
    for i, rings in enumerate(shapes):
        edges = np.delete(np.arange(len(rings.lat)), rings.offsets[1:] - 1).astype(np.int32)
        low, high = float(rings.lat.min()), float(rings.lat.max())
        count = max(len(edges) // _EDGES_PER_BAND, 1) if high - low > _FLAT else 1
        room = np.empty(_MOST_COPIES * len(edges), np.int32)
        while True:
            per_degree = count / (high - low) if count > 1 else 0.0
            start = np.empty(count + 1, np.int64)
            total = _fill_bands(rings.lat, edges, low, per_degree, count, start, room)
            if total <= room.size:
                break
            count //= 2
        south[i], scale[i], bands[i] = low, per_degree, count
        starts.append(start[:-1] + placed)
        members.append(room[:total] + np.int32(first))
        first, placed = first + len(rings.lat), placed + total
    return Polygons(
        lon=np.concatenate([np.empty(0), *(rings.lon for rings in shapes)]),
        lat=np.concatenate([np.empty(0), *(rings.lat for rings in shapes)]),
        south=south,
        bands_per_degree=scale,
        band_start=np.concatenate([np.zeros(1, np.int64), np.cumsum(bands)]),
        member_start=np.concatenate([*starts, np.array([placed], np.int64)]),
        members=np.concatenate([np.empty(0, np.int32), *members]),
    )
