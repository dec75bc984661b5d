"""News near the sites of a company, which come as GeoJSON; a program that is awaited.

    skyray serve --out runs/news
    python examples/news_near_my_sites.py http://127.0.0.1:8080

One task publishes, another follows: in practice two programs. What is read is also kept as GeoJSON, for any map.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

from skyray import AsyncClient

HAZARDS = {"kind": "boolean", "keywords": "fire flood strike", "match": "any", "radius_m": 30_000}
SITES = {"harbour": (4.05, 51.95), "works": (7.01, 51.46), "depot": (2.35, 48.86)}
NEWS = [
    {"id": "n1", "text": "Strike at the container terminal", "lon": 4.10, "lat": 51.94},
    {"id": "n2", "text": "Flood warning for the Ruhr", "lon": 7.10, "lat": 51.45},
    {"id": "n3", "text": "Fire in a forest far away", "lon": -8.20, "lat": 40.10},
    {"id": "n4", "text": "Football: a draw", "lon": 7.00, "lat": 51.46},
    {"id": "n5", "text": "Fire in a depot", "lon": 2.36, "lat": 48.90},
]


def feature(name: str, place: tuple[float, float], properties: dict[str, Any]) -> dict[str, Any]:
    point = {"type": "Point", "coordinates": list(place)}
    return {"type": "Feature", "id": name, "geometry": point, "properties": properties}


async def wire() -> AsyncIterator[dict[str, Any]]:
    """News as an agency would send them."""
    for one in NEWS:
        yield one


async def main(url: str) -> None:
    async with AsyncClient(url) as client:
        features = [feature(name, place, HAZARDS) for name, place in SITES.items()]
        await client.subscribe_features({"type": "FeatureCollection", "features": features}, replace=True)
        async with client.updates(subscription=SITES) as updates:
            async for outcome in client.publish_stream(wire(), group=2):
                assert outcome.status != "refused", outcome
            found = [await anext(updates) for _ in SITES]
        for update in found:
            print(f"{update.subscription_id}: {update.text}")
        places = [feature(one.message_id, (one.lon, one.lat), {"text": one.text}) for one in found]
        print(json.dumps({"type": "FeatureCollection", "features": places}))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
