"""The column of places that GeoParquet files name in their metadata. Used by `spark_etl.job` and `spark_etl.trial`."""

import json
from collections.abc import Sequence
from dataclasses import replace

import pyarrow.parquet as pq

from matching.errors import InputError
from spark_etl.geometry import BAD
from spark_etl.options import EtlOptions
from spark_etl.sources import Source

#: Degrees: in GeoParquet longitude comes first, whatever the authority says.
_CRS = {("OGC", "CRS84"), ("EPSG", "4326")}


def with_geometry(sources: Sequence[Source], options: EtlOptions) -> EtlOptions:
    """The options with the column of the place that GeoParquet files name, where nobody has said which it is.

    Raises
    ------
    InputError
        `ambiguous_column` where files name several; `bad_geometry` where places are not in degrees.
    """
    if options.geometry or options.lat_column is not None or options.lon_column is not None:
        return options
    found: dict[str, str] = {}
    for source in sources:
        if source.file_format == "parquet" and (name := geometry_of(source)):
            found.setdefault(name, source.path)
    if len(found) > 1:
        choices = " or ".join(f"--geometry {name} ({path})" for name, path in found.items())
        raise InputError("ambiguous_column", f"several columns may be the place: {choices}; clean these files apart")
    return replace(options, geometry=next(iter(found), ""))


def geometry_of(source: Source) -> str | None:
    """The primary geometry column of a GeoParquet file; None of any other."""
    try:
        with pq.ParquetFile(source.path) as file:
            told = json.loads((file.schema_arrow.metadata or {}).get(b"geo", b"null"))
        name = told["primary_column"]
        column = told["columns"][name]
        crs = column.get("crs", {"id": {"authority": "OGC", "code": "CRS84"}})
        given = None if crs is None else (str(crs["id"]["authority"]), str(crs["id"]["code"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    if given is not None and given not in _CRS:
        raise InputError(
            BAD, f"{source.path}: the places of column {name} are in {':'.join(given)}; write them as OGC:CRS84"
        )
    return name
