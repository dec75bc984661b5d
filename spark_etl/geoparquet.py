"""The geometry column that GeoParquet files name in their metadata."""

import json
from collections.abc import Sequence
from dataclasses import replace

import pyarrow.parquet as pq

from matching.errors import InputError
from spark_etl.geometry import BAD
from spark_etl.options import EtlOptions
from spark_etl.sources import InputFile

#: Degrees: in GeoParquet longitude comes first, in EPSG:4326 too.
_CRS = {("OGC", "CRS84"), ("EPSG", "4326")}


def with_geometry(sources: Sequence[InputFile], options: EtlOptions) -> EtlOptions:
    """The options with the geometry column of GeoParquet files, unless a place is named already.

    Raises
    ------
    InputError
        `ambiguous_column` if files name several; `bad_geometry` if places are not in degrees.
    """
    if options.geometry or options.lat_column is not None or options.lon_column is not None:
        return options
    found: dict[str, str] = {}
    for source in sources:
        if source.file_format == "parquet" and (name := geometry_of(source)):
            found.setdefault(name, source.path)
    if len(found) > 1:
        choices = " or ".join(f"--column geometry={name} ({path})" for name, path in found.items())
        raise InputError("ambiguous_column", f"several columns may be the place: {choices}; clean these files apart")
    return replace(options, geometry=next(iter(found), ""))


def geometry_of(source: InputFile) -> str | None:
    """The primary geometry column of a GeoParquet file; None for any other file."""
    try:
        with pq.ParquetFile(source.path) as file:
            geo = json.loads((file.schema_arrow.metadata or {}).get(b"geo", b"null"))
        name = geo["primary_column"]
        column = geo["columns"][name]
        crs = column.get("crs", {"id": {"authority": "OGC", "code": "CRS84"}})
        given = None if crs is None else (str(crs["id"]["authority"]), str(crs["id"]["code"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    if given is not None and given not in _CRS:
        raise InputError(
            BAD, f"{source.path}: the places of column {name} are in {':'.join(given)}; write them as OGC:CRS84"
        )
    return name
