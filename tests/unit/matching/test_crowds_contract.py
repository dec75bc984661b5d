"""Every engine and window index over the streams of `tests.support.crowds` equals the oracle."""

import pytest

from benchmarks.driving import ENGINES, FADING, kind_of, take
from matching.kinds import KINDS
from matching.local_engine import LocalEngine
from matching.naive_rows import tally
from tests.support.crowds import CROWDS, crowd_of
from tests.support.worlds import SPACE

#: Kind, engine and window index: every engine by the default index, and every other index by the default engine.
PAIRS = [(name, engine, None) for name, engine in ENGINES] + [
    (kind.name, None, index) for kind in KINDS.run if kind.windowed for index in list(kind.windows)[1:]
]


@pytest.mark.parametrize("crowd", CROWDS)
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: "-".join(filter(None, pair)))
def test_operator_of_a_crowd_equals_the_oracle(pair, crowd):
    name, engine, index = pair
    stream = crowd_of(KINDS.named(name), crowd)
    alone = LocalEngine([kind_of(name, engine, index)], SPACE, stream.window, fading=FADING)
    for batch, expected in zip(stream.batches, stream.updates, strict=True):
        assert tally(take(alone, batch).output.updates) == expected, f"batch {batch.boundary.number}"
    assert sum(each.total() for each in stream.updates) > 100, "a stream in which nothing happens proves nothing"
