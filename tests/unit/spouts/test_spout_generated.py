"""Made-up messages: the same from the same seed, and shaped as the recipe says."""

import itertools

import numpy as np
import pytest

from matching.errors import ConfigError
from matching.model import concatenate
from matching.space import Space
from matching.window import Window
from spouts.generated import GeneratedSource, MessageRecipe
from tests.support.generated import GeneratedSpout, generate_messages
from topology.core.api.component import Tick

SPACE = Space(-10.0, 40.0, 10.0, 50.0)
COUNT = Window("count", 1000)
RECIPE = MessageRecipe(seed=3, vocabulary=2_000, clusters=10)


def collect(batch, limit, recipe=RECIPE, window=COUNT):
    batches = list(generate_messages(recipe, window, SPACE, batch, limit))
    names = list(itertools.chain.from_iterable(b.names.strings() for b in batches))
    return concatenate([b.messages for b in batches]), names, [b.boundary for b in batches]


def test_spout_generated_messages_do_not_depend_on_the_batch_size():
    messages, names, boundaries = collect(7_000, 40_000)
    assert [b[:3] for b in boundaries][-1] == (5, 35_000, 39_999)
    assert names[:2] == ["g000000000000", "g000000000001"] and names[39_999] == "g000000039999"
    assert len(set(names)) == 40_000
    for other in (collect(40_000, 40_000), collect(1_000, 40_000)):
        assert other[1] == names
        for name in messages._fields:
            np.testing.assert_array_equal(getattr(messages, name), getattr(other[0], name), err_msg=name)


def test_spout_generated_other_seed_gives_other_messages():
    one, two = (collect(100, 100, MessageRecipe(seed=seed, vocabulary=50))[0] for seed in (1, 2))
    assert not np.array_equal(one.x, two.x) and not np.array_equal(one.terms, two.terms)


def test_spout_generated_messages_keep_the_contract_and_the_recipe():
    messages, _, boundaries = collect(5_000, 50_000)
    assert np.array_equal(messages.seq, np.arange(50_000)) and np.array_equal(messages.life, messages.seq)
    assert all(b.floor == b.last_seq - 1000 for b in boundaries)
    x, y = SPACE.project(messages.west, messages.south)
    np.testing.assert_array_equal(x, messages.x)
    np.testing.assert_array_equal(y, messages.y)
    assert SPACE.contains(messages.west, messages.south).all()
    rows = np.repeat(np.arange(50_000), np.diff(messages.term_offsets))
    key = rows * 2_000 + messages.terms
    assert (np.diff(key) > 0).all() and messages.terms.dtype == np.int32 and messages.weights.dtype == np.float32
    norms = np.bincount(rows, weights=messages.weights.astype(np.float64) ** 2)
    np.testing.assert_allclose(norms, 1.0, atol=1e-6)
    # Frequencies ascend with the id, and the idf expected is the idf found.
    df = np.bincount(messages.terms, minlength=2_000)
    assert df[-1] > 10 * df[1_000] > 0
    found = np.log1p(50_000 / df[-200:])
    np.testing.assert_allclose(found, RECIPE.idf()[-200:], rtol=0.05)
    assert 8 < len(messages.terms) / 50_000 < 10
    # Clusters: a tenth of the cells holds most messages.
    cells = np.bincount((messages.x * 32).astype(int) * 40 + (messages.y * 32).astype(int))
    assert np.sort(cells)[::-1][: cells.size // 10].sum() > 0.7 * 50_000


def test_spout_generated_time_window_goes_by_event_time():
    messages, _, boundaries = collect(1_000, 3_000, window=Window.parse("time:0.5"))
    assert (np.diff(messages.life) == RECIPE.gap_us).all()
    assert [b.floor for b in boundaries] == [
        RECIPE.start_us + n * 1_000 * RECIPE.gap_us - 1_000 - 500_000 for n in (1, 2, 3)
    ]


def test_spout_generated_spout_emits_what_the_iterator_gives():
    emitted = []

    class Context:
        component = "messages"

        def size_of(self, component):
            return 2

        def emit(self, stream, payload, *, to=None, key=None):
            if stream == "batches":
                emitted.append(payload)

        def count(self, name, amount=1):
            pass

        def now(self):
            return 0.0

    spout = GeneratedSpout(RECIPE, COUNT, SPACE, 600, limit=1500)
    spout.open(Context())
    ticks = [spout.next_batch(number, None) for number in range(4)]
    assert ticks == [Tick(0, 0, 599), Tick(1, 600, 1199), Tick(2, 1200, 1499), None]
    for payload, batch in zip(emitted, generate_messages(RECIPE, COUNT, SPACE, 600, 1500), strict=True):
        assert payload.boundary == batch.boundary
        np.testing.assert_array_equal(payload.messages.weights, batch.messages.weights)
    spout.close()


@pytest.mark.parametrize(
    "change", [{"vocabulary": 0}, {"mean_terms": 0.0}, {"strays": 1.5}, {"clusters": 0}, {"gap_us": -1}]
)
def test_spout_generated_impossible_recipe_is_refused(change):
    with pytest.raises(ConfigError):
        GeneratedSource(MessageRecipe(**change), COUNT, SPACE)


class Channel:
    """What a spout emits goes nowhere."""

    component = "messages"

    def size_of(self, component):
        return 1

    def emit(self, stream, payload, *, to=None, key=None):
        pass

    def count(self, name, amount=1):
        pass

    def now(self):
        return 0.0

    def wait(self, seconds, came=None):
        pass


@pytest.mark.parametrize("rate", [None, 1e9], ids=["as it comes", "by a rate"])
def test_spout_is_ready_once_a_whole_batch_is_read_and_no_rate_is_kept(rate):
    spout = GeneratedSpout(RECIPE, COUNT, SPACE, 3_000, 60_000)
    spout.rate = rate
    spout.open(Channel())
    said = []
    for number in range(20):
        said.append(spout.ready())
        assert spout.next_batch(number, None) is not None
    assert not said[0], "nothing has been read"
    assert any(said) == (rate is None)
    if rate is None:
        assert not all(said[1:]), "where a batch needs rows that have not been read"
