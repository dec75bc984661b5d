"""How many batches are in flight where nobody says: more of them where they are small."""

import pytest

from matching.window import Window
from spouts.cuts import Cuts
from tests.support.etl_folder import random_rows, write_etl
from tests.support.live_streams import write_ends
from topology.settings import RunConfig
from topology.wiring import build_plan, credits_of


@pytest.fixture(scope="module")
def etl(tmp_path_factory):
    """600 messages, one a second."""
    return write_etl(tmp_path_factory.mktemp("credits") / "etl", random_rows(600))


def credits_with(etl, batch, window="count:100", **settings):
    settings |= {"messages": etl, "subscriptions": (etl / "none",), "out": etl / "out"}
    config = RunConfig(batch=batch, window=window, **settings)
    return credits_of(config, Cuts.parse(config.batch, Window.parse(window)))


@pytest.mark.parametrize(
    ("batch", "window", "wanted"),
    [
        ("auto", "count:100", 4),
        ("5000", "count:100", 4),
        ("250", "count:100", 4),
        ("100", "count:100", 10),
        ("3", "count:100", 32),
        ("time:100", "count:100", 10),
        ("time:1", "count:100", 32),
        ("auto", "time:500", 20),
        ("auto", "time:100000", 4),
    ],
)
def test_credits_grow_where_batches_are_small(etl, batch, window, wanted):
    assert credits_with(etl, batch, window) == wanted


def test_credits_that_were_asked_for_are_taken(etl):
    assert credits_with(etl, "3", credits=2) == 2


def test_credits_of_logged_boundaries_go_by_their_mean(etl, tmp_path):
    assert credits_with(etl, f"log:{write_ends(tmp_path / 'small', range(19, 600, 20))}") == 32
    assert credits_with(etl, f"log:{write_ends(tmp_path / 'large', [599])}") == 4


def test_credits_of_a_stream_whose_times_nobody_knows_are_few(etl, tmp_path):
    assert credits_with(tmp_path / "nothing", "time:1") == 4
    assert credits_with(etl, "time:1", follow=True) == 4
    broken = write_etl(tmp_path / "broken", random_rows(10))
    for path in (broken / "messages").iterdir():
        path.write_bytes(b"no parquet")
    assert credits_with(broken, "time:1") == 4


def test_plan_of_a_run_has_the_credits_of_its_batches(etl, tmp_path):
    subscriptions = tmp_path / "mine.jsonl"
    subscriptions.write_text("")
    config = RunConfig(messages=etl, subscriptions=(subscriptions,), out=tmp_path / "out", batch="50", executor="local")
    assert build_plan(config).credits == 20
