"""What histories are made of (`tests.support.simulation`): a small topology, and the product over a small folder."""

import atexit
import dataclasses
import functools
import pickle
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from gateway.subscriptions.generate import generate_subscriptions
from matching.kinds import KINDS
from tests.support.etl_folder import random_rows, with_objects, write_etl
from tests.support.simulation import Story
from tests.support.writing_ledger import with_bolt, writing_ledger
from topology.core.api.plan import Plan
from topology.settings import RunConfig
from topology.wiring import build_plan

#: Subscriptions of each kind, messages, and messages of a batch of the product's story.
SUBSCRIPTIONS, MESSAGES, BATCH = 12, 240, 20
ROUTERS = ("hashing", "location")
SIGNATURES = ("off", "spatial+text", "minwise")


class LedgerStory:
    """Words counted and judged, 260 rows: a run takes 20 ms."""

    teller = "ledger"
    batch: int | None = None

    def __init__(self, sink: str, batches: int = 12, size: int = 30):
        self.name = f"ledger-{sink}"
        self.sink, self.batches, self.size = sink, batches, size

    def plan(self, root: str, rng: random.Random | None) -> Plan:
        tasks = (1, 1, 1, 3)
        if rng is not None:
            tasks = (rng.randint(1, 3), rng.randint(1, 4), rng.randint(1, 3), rng.randint(1, 4))
        return writing_ledger(root, self.sink, self.batches, self.size, tasks)


class ProductStory:
    """Everything that `skyray run` runs, all five kinds of subscriptions, a third of which end in mid-stream.

    Parameters
    ----------
    folder : Path
        Gets the messages and the subscriptions.
    window : str
    """

    teller = "delivery"
    batch: int | None = BATCH

    def __init__(self, folder: Path, window: str):
        self.name = f"product-{window.replace(':', '-')}"
        self.window = window
        self._etl = write_etl(folder / "etl", with_objects(random_rows(MESSAGES, late_s=25)))
        self._files = []
        for kind in (kind.name for kind in KINDS.run):
            file = folder / f"{kind}.jsonl"
            share = 0.6 if KINDS.named(kind).place == "region" else None
            generate_subscriptions(
                self._etl, kind, SUBSCRIPTIONS, 4, file, until_share=0.3, region_share=share, max_frequency=1.0
            )
            self._files.append(file)
        self._out = folder / "out"
        self._out.mkdir()

    def config(self, out: Path, rng: random.Random | None = None) -> RunConfig:
        """Settings of a run that is saved at every chance, of as many tasks as `rng` says."""
        router, query, tuples, distribution, delivery, signatures = ROUTERS[0], 1, 1, 1, 1, "off"
        if rng is not None:
            signatures = rng.choice(SIGNATURES)
            router, query = rng.choice(ROUTERS), rng.randint(1, 4)
            tuples, distribution, delivery = rng.randint(1, 3), rng.randint(1, 2), rng.randint(1, 3)
        return RunConfig(
            messages=self._etl, subscriptions=tuple(self._files), out=out, window=self.window, batch=BATCH,
            executor="local", router=router, query_bolts=query, tuple_bolts=tuples,
            distribution_bolts=distribution, delivery_bolts=delivery, signatures=signatures, sink="parquet",
            checkpoint_every=0.001, seed=1,
        )  # fmt: skip

    def plan(self, root: str, rng: random.Random | None) -> Plan:
        plan = build_plan(self.config(self._out, rng))
        delivery = pickle.loads(plan.component("delivery").template)  # noqa: S301 - made by the builder
        delivery.out_dir = root
        return dataclasses.replace(with_bolt(plan, "delivery", delivery), warm_up=None)


@functools.cache
def product(window: str = "count:60") -> ProductStory:
    """The product's story over a window; its folder goes with the process."""
    folder = Path(tempfile.mkdtemp(prefix="skyray-story-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return ProductStory(folder, window)


LEDGERS = (LedgerStory("jsonl"), LedgerStory("jsonl"), LedgerStory("jsonl"), LedgerStory("parquet"))
#: Name of a story, and which of it a seed lives through.
STORIES: dict[str, Callable[[int], Story]] = {
    "ledger": lambda seed: LEDGERS[seed % len(LEDGERS)],
    "product": lambda seed: product(("count:60", "time:40")[seed % 2]),
}
