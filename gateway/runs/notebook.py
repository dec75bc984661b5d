"""A map for a notebook: subscriptions and what is in their results, in layers of lonboard.

`skyray.Run.map`, `skyray.Client.map` and `skyray.AsyncClient.map` collect the rows; `Drawing` makes layers of them. A
subscription is a polygon (its region, circle or polygon), a point, or both; each message of a result is a point. The
colour says the kind. Geometries are Arrow arrays in the layout of GeoArrow.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import lonboard
import numpy as np
import pyarrow as pa

from gateway.runs.notebook_shapes import MultiPolygon, shape_of
from gateway.runs.picture import COLOURS
from matching.errors import ConfigError
from matching.kinds import KINDS

_OPAQUE, _SHAPE_ALPHA = 255, 50
_CRS = '{"crs":"OGC:CRS84"}'
_SUBSCRIPTION = {"subscription_id": pa.string(), "kind": pa.string(), "words": pa.string()}
_MESSAGE = {
    "subscription_id": pa.string(),
    "kind": pa.string(),
    "message_id": pa.string(),
    "text": pa.string(),
    "score": pa.float64(),
    "words": pa.string(),
}


class Drawing(NamedTuple):
    """What is drawn.

    Attributes
    ----------
    subscriptions : sequence of mapping
        Columns of subscriptions, `keywords` as text or a list.
    messages : sequence of mapping
        `subscription_id`, `kind`, `message_id`, `text`, `score`, `words`, `lon`, `lat`; a message of two results twice.
    left_out : sequence of str
        What is not drawn, and how to see it.
    """

    subscriptions: Sequence[Mapping[str, Any]]
    messages: Sequence[Mapping[str, Any]]
    left_out: Sequence[str] = ()

    def map(self) -> lonboard.Map:
        """The map: layers of shapes, places of subscriptions, and messages, without those that have no row.

        Warns of what is left out. O(rows); a circle has 65 corners.
        """

        for one in self.left_out:
            warnings.warn(f"map: {one}", UserWarning, stacklevel=3)
        layers = [*self._shapes(), *self._places(), *self._messages()]
        return lonboard.Map(layers, show_tooltip=True)

    def _shapes(self) -> list[lonboard.PolygonLayer]:

        both = [(row, shape_of(row)) for row in self.subscriptions]
        rows = [(row, shape) for row, shape in both if shape]
        if not rows:
            return []
        kinds = [str(row["kind"]) for row, _ in rows]
        geometry = _multi_polygons([shape for _, shape in rows])
        table = _table("multipolygon", geometry, [_labels(row) for row, _ in rows])
        return [
            lonboard.PolygonLayer(
                table,
                get_fill_color=colours(kinds, _SHAPE_ALPHA),
                get_line_color=colours(kinds),
                line_width_min_pixels=1,
                pickable=True,
            )
        ]

    def _places(self) -> list[lonboard.ScatterplotLayer]:
        rows = [row for row in self.subscriptions if row.get("lon") is not None]
        return _points([_labels(row) for row in rows], _SUBSCRIPTION, rows, radius_min_pixels=6, stroked=True)

    def _messages(self) -> list[lonboard.ScatterplotLayer]:
        rows = [{**row, "words": " ".join(row.get("words") or ())} for row in self.messages]
        return _points(rows, _MESSAGE, self.messages, radius_min_pixels=3)


def check(
    most: int, most_results: int = 1, subscription_ids: Sequence[str] = (), filters: Mapping[str, Any] | None = None
) -> None:
    """Raise ConfigError for a number that is none to draw by, and for both ids and filters."""
    for name, number in (("most", most), ("most_results", most_results)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise ConfigError(f"map: {name} is {number!r}: give a whole number from 1")
    if subscription_ids and any(value is not None for value in (filters or {}).values()):
        raise ConfigError("map: choose subscriptions by ids or by filters, not by both")


def left_out(what: str, drawn: int, total: int) -> list[str]:
    """The note on rows that are not drawn, if there are such."""
    if drawn == total:
        return []
    return [f"{drawn:,} of {total:,} {what} are drawn: name subscriptions, or raise most="]


def colours(kinds: Sequence[str], alpha: int = _OPAQUE) -> np.ndarray:
    """The colour of each kind: uint8[n, 4], red, green, blue and opacity."""
    names = dict.fromkeys([*(kind.name for kind in KINDS), *sorted(kinds)])
    by_kind = {name: _rgb(COLOURS[number % len(COLOURS)]) for number, name in enumerate(names)}
    return np.array([(*by_kind[kind], alpha) for kind in kinds], np.uint8).reshape(len(kinds), 4)


def _rgb(colour: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(colour[1:]))


def _labels(row: Mapping[str, Any]) -> dict[str, Any]:
    words = row.get("keywords") or ""
    words = words if isinstance(words, str) else " ".join(map(str, words))
    return {"subscription_id": str(row["subscription_id"]), "kind": row["kind"], "words": words}


def _points(
    labels: Sequence[Mapping[str, Any]],
    columns: Mapping[str, pa.DataType],
    rows: Sequence[Mapping[str, Any]],
    **look: Any,
) -> list[lonboard.ScatterplotLayer]:
    """A layer of points, or none without rows, which lonboard refuses."""

    if not rows:
        return []
    places = np.array([(row["lon"], row["lat"]) for row in rows], np.float64)
    table = _table("point", _corners(places), labels, columns)
    fill = colours([str(row["kind"]) for row in rows])
    return [lonboard.ScatterplotLayer(table, get_fill_color=fill, pickable=True, **look)]


def _table(
    name: str,
    geometry: pa.Array,
    labels: Sequence[Mapping[str, Any]],
    columns: Mapping[str, pa.DataType] = _SUBSCRIPTION,
) -> pa.Table:
    """A table of GeoArrow: labels for the tooltip, and `geometry`."""
    extension = {"ARROW:extension:name": f"geoarrow.{name}", "ARROW:extension:metadata": _CRS}
    fields = [*columns.items(), pa.field("geometry", geometry.type, metadata=extension)]
    arrays = [pa.array([row.get(column) for row in labels], kind) for column, kind in columns.items()]
    return pa.Table.from_arrays([*arrays, geometry], schema=pa.schema(fields))


def _multi_polygons(shapes: Sequence[MultiPolygon]) -> pa.Array:
    """Lists of polygons, which are lists of rings, which are lists of corners."""
    polygons = [polygon for shape in shapes for polygon in shape]
    rings = [ring for polygon in polygons for ring in polygon]
    nested = _corners(np.concatenate(rings))
    for level in (rings, polygons, shapes):
        nested = pa.ListArray.from_arrays(np.cumsum([0, *map(len, level)], dtype=np.int32), nested)
    return nested


def _corners(places: np.ndarray) -> pa.Array:
    """Degrees, float64[n, 2], in the layout of GeoArrow."""
    layout = pa.list_(pa.field("xy", pa.float64(), nullable=False), 2)
    return pa.FixedSizeListArray.from_arrays(pa.array(places.ravel()), type=layout)
