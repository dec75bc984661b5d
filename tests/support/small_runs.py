"""A small run of all kinds, made once for those who read runs back."""

import json
from pathlib import Path

from gateway.subscriptions.generate import generate_subscriptions
from matching.kinds import KINDS
from tests.support.etl_folder import random_rows, with_objects, write_etl
from topology import running
from topology.settings import RunConfig

#: A subscription whose owner has written more than is asked, and one that a run rejects.
MINE = "\n".join(
    [
        "subscription_id,kind,keywords,lon,lat,k,alpha,region,name",
        "mine,topk,w11 w9,10,20,3,0.5,,Ana",
        'place,boolean,w11,,,,,"-90,-45,90,45",Bo',
        "wrong,topk,w11,10,20,0,0.5,,Cy",
        'nobody,boolean,w11 never,,,,,"-90,-45,90,45",Di',
    ]
)
MESSAGES = 240


def small_run(folder: Path, per_kind: int = 6, objects: bool = True, **settings) -> Path:
    """Messages, subscriptions of all kinds that come, end and are replaced, and a run of them in `folder / "run"`."""
    rows = random_rows(MESSAGES, late_s=20)
    etl = write_etl(folder / "etl", with_objects(rows) if objects else rows)
    files = []
    for kind in KINDS.run:
        files.append(folder / f"{kind.name}.jsonl")
        share = {"region_share": 0.6} if kind.place == "region" else {}
        generate_subscriptions(
            etl, kind.name, per_kind, 3, files[-1], until_share=0.3, max_keywords=3, **share, max_frequency=1.0
        )
    late = json.loads(files[1].read_text().splitlines()[0]) | {"at": 100, "until": None, "name": "again"}
    files.append(folder / "late.jsonl")
    files[-1].write_text(json.dumps(late) + "\n")
    files.append(folder / "mine.csv")
    files[-1].write_text(MINE)
    options = {"window": "count:60", "batch": "25", "executor": "local"} | settings
    running.run(RunConfig(messages=etl, subscriptions=tuple(files), out=folder / "run", **options))
    return folder / "run"
