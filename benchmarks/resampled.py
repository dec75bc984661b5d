"""Messages drawn from an ETL output directory: real texts and places, as many as a benchmark needs.

Each message takes terms, weights and place from one real message, drawn with replacement; the place moves by about
a kilometre, so that the copies do not coincide. Texts without terms are left out. Read on in `benchmarks.cases`.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.workload import MESSAGES_PER_S, Messages
from matching.errors import InputError
from matching.model import MessageBatch, take_ragged
from matching.space import Space

_JITTER_DEG = 0.01


def resample_messages(directory: str, count: int, seed: int, space: Space, timed: bool = False) -> Messages:
    """Draw `count` messages with seq from 0 and life = seq (count window), `timed` with counts and times. O(all).

    Raises
    ------
    InputError
        If `directory` is not what `skyray etl` writes, or no message in it has a term.
    """
    files = sorted(Path(directory, "messages").glob("*.parquet"))
    vocabulary = Path(directory, "vocabulary.parquet")
    if not files or not vocabulary.is_file():
        raise InputError("missing_file", f"{directory}: no ETL output; give the --out of a finished `skyray etl`")
    stored = pa.concat_tables(
        [pq.read_table(path, columns=["lon", "lat", "terms", "weights", "counts"]) for path in files]
    )
    terms = stored["terms"].combine_chunks()
    offsets = terms.offsets.to_numpy().astype(np.int64)
    values, weights = terms.values.to_numpy(), stored["weights"].combine_chunks().values.to_numpy()
    some = np.flatnonzero(np.diff(offsets))
    if not some.size:
        raise InputError("no_terms", f"{directory}: no message in it has a term; run the ETL on other texts")
    rng = np.random.default_rng([seed, 5])
    like = some[rng.integers(0, some.size, count)]
    new_offsets, picked = take_ragged(offsets, like)
    lon = np.clip(stored["lon"].to_numpy()[like] + rng.normal(size=count) * _JITTER_DEG, space.west, space.east)
    lat = np.clip(stored["lat"].to_numpy()[like] + rng.normal(size=count) * _JITTER_DEG, space.south, space.north)
    x, y = space.project(lon, lat)
    seq = np.arange(count, dtype=np.int64)
    counts = stored["counts"].combine_chunks().values.to_numpy().astype(np.int32)[picked]
    times = seq * round(1e6 / MESSAGES_PER_S)
    asked: tuple[Any, ...] = (counts, times) if timed else ()
    batch = MessageBatch(seq, x, y, lon, lat, lon, lat, seq, new_offsets, values[picked], weights[picked], *asked)
    known = pq.read_table(vocabulary, columns=["term_id", "idf"])
    idf = np.zeros(len(known))
    idf[known["term_id"].to_numpy()] = known["idf"].to_numpy()
    return Messages(batch, idf)
