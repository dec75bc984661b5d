"""Saved searches of a portal, with a digest a day.

    skyray serve --out runs/portal --attribute price:number
    python examples/saved_searches.py http://127.0.0.1:8080 portal.position

Every run, say by cron each morning, prints what came since the run before, by search. The file has the position up to
which digests were printed: a run that fails prints the same again, and nothing is left out.
"""

import sys
from collections import defaultdict
from pathlib import Path

from skyray import Client

TOWN, MIDDLE = [4.7, 52.2, 5.1, 52.5], [4.8, 52.3, 5.0, 52.4]
SEARCHES = [
    {"subscription_id": "anna/garden", "keywords": "garden", "region": TOWN, "where": {"price": {"lte": 500000}}},
    {"subscription_id": "anna/canal", "keywords": "canal view", "match": "all", "region": TOWN},
    {"subscription_id": "ben/studio", "keywords": "studio loft", "match": "any", "region": MIDDLE},
]
LISTINGS = [
    {"id": "l1", "text": "House with garden", "lon": 4.90, "lat": 52.37, "price": 450000},
    {"id": "l2", "text": "Villa, large garden", "lon": 4.91, "lat": 52.36, "price": 1900000},
    {"id": "l3", "text": "Loft with a view of the canal", "lon": 4.89, "lat": 52.37, "price": 390000},
    {"id": "l4", "text": "Studio by the sea", "lon": 4.10, "lat": 52.10, "price": 150000},
]


def digest(client: Client, since: str) -> tuple[dict[str, list[str]], str]:
    """Listings by search of all that came after a position, and the position behind them."""
    last_seq = client.stream()["next_seq"] - 1
    found: dict[str, list[str]] = defaultdict(list)
    with client.events(subscription=[one["subscription_id"] for one in SEARCHES], since=since) as events:
        while events.through < last_seq:
            event = next(events)
            if getattr(event, "change", None) == "match":
                found[event.subscription_id].append(event.text)
        return found, events.position or since


def main(url: str, file: str) -> None:
    place = Path(file)
    with Client(url) as client:
        outcomes = client.subscribe_many(({"kind": "boolean", **search} for search in SEARCHES), replace=True)
        assert all(one.status != "refused" for one in outcomes), outcomes
        client.publish_many(LISTINGS)  # a portal does this as listings come; sent again they are taken once
        found, position = digest(client, place.read_text() if place.exists() else "begin")
    for search, texts in sorted(found.items()):
        print(f"{search}: {len(texts)} new: {'; '.join(texts)}")
    print(f"{sum(map(len, found.values()))} in all, up to {position}")
    place.write_text(position)


if __name__ == "__main__":
    main(*sys.argv[1:])
