"""The world box, its projection into the unit square, and how distances are measured.

The box is scaled by its longer side, so that a degree is a degree on both axes. In the `plane`, as in the papers,
distances are Euclidean in the unit square, MaxDist is the diagonal of the scaled box, and points do not wrap around
the antimeridian. On the `sphere` they are great-circle metres between unit vectors, and MaxDist is the largest one
within the box; the unit square then serves to find cells alone. Rectangles are compared in degrees, before projection.

Every engine, window index, router and spout of a run has the same `Space`, made by `topology.wiring` from the settings.
The formulas are part of the semantics (spec 1): a change here changes answers and must change `matching.naive`, too.
"""

import math
from typing import NamedTuple

import numpy as np

from matching.errors import ConfigError
from matching.model import NO_VECTORS, Float64

PROJECTIONS = ("plate-carree", "equal-area")
#: Values of `Space.distance`: the default, and that of the papers.
DISTANCES = ("sphere", "plane")
DISTANCE = DISTANCES[0]
EARTH = (-180.0, -90.0, 180.0, 90.0)


class Space(NamedTuple):
    """World box in degrees, its projection and its distances; `plate-carree` and `plane` are the papers' choice."""

    west: float
    south: float
    east: float
    north: float
    projection: str = "plate-carree"
    distance: str = "plane"

    @classmethod
    def parse(
        cls,
        text: str,
        extent: tuple[float, float, float, float] | None,
        projection: str = "plate-carree",
        distance: str = "plane",
    ):
        """Read `W,S,E,N`, `earth`, or `extent` (the box of the messages; the earth if that is a point).

        Raises
        ------
        ConfigError
            For text of another form, a box that is empty or beyond the earth, an unknown projection or distance.
        """
        if projection not in PROJECTIONS:
            raise ConfigError(f"projection {projection!r}: choose one of {', '.join(PROJECTIONS)}")
        if distance not in DISTANCES:
            raise ConfigError(f"distance {distance!r}: choose one of {', '.join(DISTANCES)}")
        if distance == "sphere" and projection != "plate-carree":
            raise ConfigError(f"projection {projection!r}: is of the plane; leave it out, or choose --distance plane")
        if text == "earth":
            box = EARTH
        elif text == "extent":
            box = extent if extent is not None and (extent[0] < extent[2] or extent[1] < extent[3]) else EARTH
        else:
            try:
                box = tuple(float(part) for part in text.split(","))
            except ValueError:
                box = ()
        if len(box) != 4 or not all(map(math.isfinite, box)):
            raise ConfigError(f"world {text!r}: write WEST,SOUTH,EAST,NORTH in degrees, or earth")
        west, south, east, north = box
        if not (-180 <= west <= east <= 180 and -90 <= south <= north <= 90) or (west == east and south == north):
            raise ConfigError(
                f"world {text!r}: needs -180 <= west <= east <= 180, -90 <= south <= north <= 90, and some size"
            )
        return cls(west, south, east, north, projection, distance)

    @property
    def on_sphere(self) -> bool:
        """Whether distances are great-circle metres."""
        return self.distance == "sphere"

    @property
    def max_distance(self) -> float:
        """MaxDist: the largest distance of two points in the box, in metres on the sphere, else in the unit square."""
        if self.on_sphere:
            from matching.geo.sphere import max_distance_m  # late: it loads kernels, which the ETL can do without

            return max_distance_m(self.west, self.south, self.east, self.north)
        width, height = self._sides()
        longer = max(width, height)
        return math.sqrt((width / longer) ** 2 + (height / longer) ** 2)

    def project(self, lon: Float64, lat: Float64) -> tuple[Float64, Float64]:
        """x and y in the unit square (float64[n] each) of degrees; outside it for points outside the box. O(n)."""
        width, height = self._sides()
        scale = 1.0 / max(width, height)
        x = (np.asarray(lon, np.float64) - self.west) * scale
        if self.projection == "plate-carree":
            return x, (np.asarray(lat, np.float64) - self.south) * scale
        rise = np.sin(np.radians(lat)) - math.sin(math.radians(self.south))
        return x, rise * (180.0 / math.pi) * scale

    def vectors(self, lon: Float64, lat: Float64) -> Float64:
        """Unit vectors of points in degrees, float64[n, 3]; in the plane an empty float64[0, 3]. O(n)."""
        if not self.on_sphere:
            return NO_VECTORS
        from matching.geo.sphere import unit_vectors

        return unit_vectors(lon, lat)

    def contains(self, lon: Float64, lat: Float64):
        """bool[n]: inside the box, edges included. O(n)."""
        return (lon >= self.west) & (lon <= self.east) & (lat >= self.south) & (lat <= self.north)

    def _sides(self) -> tuple[float, float]:
        """Width and height in degrees (for `equal-area`, of the cylinder)."""
        width = self.east - self.west
        if self.projection == "plate-carree":
            return width, self.north - self.south
        rise = math.sin(math.radians(self.north)) - math.sin(math.radians(self.south))
        return width, rise * (180.0 / math.pi)
