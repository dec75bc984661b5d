"""Sightings of rare birds near me, as they come.

    skyray serve --out runs/sightings
    python examples/sightings_near_me.py http://127.0.0.1:8080

The nearest of each kind of bird stays in a result of its own (`knn`); whatever is rare within 25 km is a match.
"""

import sys

from skyray import Client

ME = {"lon": 6.14, "lat": 53.40}
RARE = "waxwing hoopoe bittern"
SIGHTINGS = [
    {"id": "o1", "text": "A hoopoe on the lawn", "lon": 6.20, "lat": 53.41},
    {"id": "o2", "text": "Mallards, as ever", "lon": 6.15, "lat": 53.40},
    {"id": "o3", "text": "Bittern heard in the reed", "lon": 6.05, "lat": 53.35},
    {"id": "o4", "text": "Hoopoe again, at the dike", "lon": 6.15, "lat": 53.40},
    {"id": "o5", "text": "Waxwing in a garden", "lon": 13.40, "lat": 52.52},
]


def main(url: str) -> None:
    with Client(url) as client:
        circle = {**ME, "radius_m": 25_000}
        client.subscribe(
            subscription_id="rare", kind="boolean", keywords=RARE, match="any", circle=circle, replace=True
        )
        client.subscribe(subscription_id="nearest hoopoe", kind="knn", keywords="hoopoe", **ME, k=1, replace=True)
        with client.updates(subscription=["rare", "nearest hoopoe"]) as updates:
            last = [client.publish(one, wait="delivered") for one in SIGHTINGS][-1]
            client.publish({"text": "bittern, the end of the example", **ME, "id": f"end of {last.seq}"})
            for update in updates:
                if "end of the example" in update.text:
                    break
                print(f"{update.subscription_id}: {update.change} {update.text!r}")
        (nearest,) = client.results("nearest hoopoe").results
        print(f"nearest hoopoe: {nearest.text!r}, {nearest.distance_km:.1f} km")
        why = client.explain("rare", "o5")
        print(f"o5 is not there: {why['reason']}, {why['why']}")


if __name__ == "__main__":
    main(*sys.argv[1:])
