"""The sample beside this file: made-up messages as JSON Lines and as CSV, with the odd rows that real files have.

    python examples/make.py

writes `tweets.jsonl` and `tweets.csv`, which hold the same messages. Nobody has written any of them.
"""

import csv
import io
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

#: Longitude, latitude, how far around it people write, and their share of the messages.
CITIES = {
    "Tokyo": (139.7, 35.7, 0.12, 0.6),
    "Osaka": (135.5, 34.7, 0.08, 0.15),
    "Seoul": (127.0, 37.55, 0.1, 0.1),
    "Lisbon": (-9.14, 38.72, 0.05, 0.1),
    "Chicago": (-87.65, 41.88, 0.1, 0.05),
}
DISHES = ("ramen", "udon", "soba", "curry", "sushi", "coffee", "pastéis de nata", "deep dish pizza", "ラーメン", "김밥")
PLACES = ("station", "river", "park", "old market", "harbour", "bridge", "museum", "corner shop")
SENTENCES = (
    "Open late: {dish} and {other} by the {place}",
    "Best {dish} of the week, right behind the {place} #{tag}",
    "Is the {dish} place near the {place} open on Sundays?",
    "{other}, {dish}, and a seat by the window \U0001f35c",
    "Closed today, no {dish}. Next time then",
    "Rain again. Hiding in the {place} with hot {dish}",
    "Queue at the {place} for {dish}: forty minutes, worth it",
    "New: {dish} with extra noodles, open until 3 am",
)
BEGIN = datetime(2018, 10, 10, 17, 0, 0, tzinfo=UTC)
COUNT = 400


def messages() -> list[dict[str, Any]]:
    """Messages of the form that the guide shows, the one it shows among them."""
    rng = np.random.default_rng(20181010)
    shares = np.array([share for *_, share in CITIES.values()])
    places = list(CITIES.values())
    rows, at = [], BEGIN
    for number in range(COUNT):
        at += timedelta(seconds=int(rng.exponential(60.0)) + 1)
        lon, lat, spread, _ = places[rng.choice(len(places), p=shares)]
        dish, other = rng.permutation(len(DISHES))[:2]
        text = SENTENCES[rng.integers(len(SENTENCES))].format(
            dish=DISHES[dish],
            other=DISHES[other],
            place=PLACES[rng.integers(len(PLACES))],
            tag=DISHES[dish].split()[0],
        )
        point = [round(lon + rng.normal(0.0, spread), 4), round(lat + rng.normal(0.0, spread), 4)]
        rows.append(
            {
                "created_at": at.strftime("%a %b %d %H:%M:%S +0000 %Y"),
                "id": 1050118000000000000 + 7919 * number,
                "text": text,
                "coordinates": {"type": "Point", "coordinates": point},
            }
        )
    shown = {"created_at": "Wed Oct 10 20:19:24 +0000 2018", "id": 1050118621198921728}
    shown |= {"text": "Open late: ramen and udon", "coordinates": {"type": "Point", "coordinates": [139.7, 35.7]}}
    return [shown, *rows]


def json_lines() -> str:
    """The messages, and between them rows without a place, from nowhere, twice, of a taken id, cut off, and no JSON."""
    lines = [json.dumps(row, ensure_ascii=False) for row in messages()]
    odd = messages()[::50]
    lines.insert(40, json.dumps(odd[1] | {"id": 1, "coordinates": None}, ensure_ascii=False))
    lines.insert(90, json.dumps(odd[2] | {"id": 2, "coordinates": {"type": "Point", "coordinates": [139.7, 135.7]}}))
    lines.insert(160, lines[120])
    lines.insert(230, json.dumps(messages()[30] | {"text": "Sorry, wrong number"}, ensure_ascii=False))
    lines.insert(300, lines[250][:60])
    lines.insert(350, "# exported by hand")
    return "".join(f"{line}\n" for line in lines)


def comma_separated() -> str:
    """The messages as CSV, and between them a row that is too short and one without a text."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("created_at", "id", "text", "longitude", "latitude"))
    for number, row in enumerate(messages()):
        lon, lat = row["coordinates"]["coordinates"]
        writer.writerow((row["created_at"], row["id"], row["text"], lon, lat))
        if number == 100:
            out.write("Wed Oct 10 18:40:00 +0000 2018,5\n")
        if number == 200:
            writer.writerow((row["created_at"], 6, "", lon, lat))
    return out.getvalue()


def main() -> None:
    """Write both files beside this one."""
    here = Path(__file__).parent
    (here / "tweets.jsonl").write_text(json_lines(), encoding="utf-8")
    (here / "tweets.csv").write_text(comma_separated(), encoding="utf-8")


if __name__ == "__main__":
    main()
