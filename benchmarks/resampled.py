"""Messages drawn from an ETL output directory: real texts and places, as many as a benchmark needs.

Each message takes terms, weights and place from one real message, drawn with replacement; the place moves by about
a kilometre, so that the copies do not coincide. Texts without terms are left out. Read on in `benchmarks.cases`.
"""

import numpy as np
import pyarrow.parquet as pq

from benchmarks.workload import Messages, point_messages
from matching.errors import InputError
from matching.model import take_ragged
from matching.space import Space
from spouts.parquet import list_message_files
from spouts.subscriptions import load_vocabulary

_JITTER_DEG = 0.01


def resample_messages(directory: str, count: int, seed: int, space: Space, timed: bool = False) -> Messages:
    """Draw `count` messages of what `skyray etl` wrote, `timed` with counts and times. O(all)."""
    files = list_message_files(directory)
    if not files:
        raise InputError("missing_file", f"{directory}: no ETL output; give the --out of a finished `skyray etl`")
    idf = load_vocabulary(directory).idf
    stored = pq.read_table(files, columns=["lon", "lat", "terms", "weights", "counts"])
    terms, weights, counts = (stored[name].combine_chunks() for name in ("terms", "weights", "counts"))
    offsets = terms.offsets.to_numpy().astype(np.int64)
    some = np.flatnonzero(np.diff(offsets))
    if not some.size:
        raise InputError("no_terms", f"{directory}: no message in it has a term; run the ETL on other texts")
    rng = np.random.default_rng([seed, 5])
    like = some[rng.integers(0, some.size, count)]
    new_offsets, picked = take_ragged(offsets, like)
    places = np.stack([stored[name].to_numpy()[like] for name in ("lon", "lat")])
    places = np.clip(places + rng.normal(size=(2, count)) * _JITTER_DEG, *np.reshape(space[:4], (2, 2, 1)))
    terms, weights, counts = (column.values.to_numpy()[picked] for column in (terms, weights, counts))
    return Messages(point_messages(places, new_offsets, terms, weights, counts if timed else None, space), idf)
