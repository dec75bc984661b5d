"""Pictures of results: what is drawn, and what they say of what is not drawn."""

import json
import re

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure

from gateway import cli
from gateway.runs.picture import COLOURS, DISTINCT, LONGEST_LINE_KM, SYMBOLS, _draw, _frame, draw_results
from gateway.runs.reader import RunReader
from gateway.runs.showing import result_lists
from tests.support.small_runs import small_run

#: Chinese, Thai, emoji, and what no font has: a character of private use.
FOREIGN = ("東京", "ก๋วยเตี๋ยว", "🍜", "\U0010fffd")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return small_run(tmp_path_factory.mktemp("map"))


def subscription(name, keywords=("ramen",), points=((0.0, 50.0),), held=None, **more):
    return {
        "subscription_id": name,
        "kind": "topk",
        "keywords": list(keywords),
        "entries": len(points) if held is None else held,
        "updates": {},
        "more": {},
        "results": [{"lon": lon, "lat": lat} for lon, lat in points],
    } | more


def draw(folder, *subscriptions, holding=None, name="run", form="svg"):
    """What `draw_results` answers, and the texts of the picture."""
    payload = {"run": f"runs/{name}", "state": "finished", "updates": {}, "holding": holding}
    path = folder / f"map.{form}"
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        notes = draw_results(payload | {"subscriptions": list(subscriptions)}, path)
    text = path.read_text() if form == "svg" else ""
    return notes, [re.sub("<[^>]*>", "", each) for each in re.findall(r"<text.*?</text>", text, re.DOTALL)]


@pytest.mark.parametrize("form", ["png", "svg", "pdf"])
def test_show_map_draws_a_picture(run, tmp_path, capsys, form):
    path = tmp_path / f"map.{form}"
    assert cli.main(["show", str(run), "mine", "place", "--map", str(path)]) == 0
    assert str(path) in capsys.readouterr().out
    begins = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[form]
    assert path.read_bytes().startswith(begins) and path.stat().st_size > 5_000


def test_show_map_draws_the_points_that_are_held(run):
    axes = Figure().subplots()
    (one,) = result_lists(RunReader(run), ["mine"], 0)["subscriptions"]
    _draw(axes, one, "C0", "o", None)
    drawn = sorted(map(tuple, np.asarray(axes.collections[0].get_offsets()).tolist()))
    assert drawn == sorted((row["lon"], row["lat"]) for row in one["results"]) and drawn


def test_map_spells_what_its_font_lacks_by_codes(tmp_path, capfd):
    ones = [subscription(f"s{number}", (word, "ramen")) for number, word in enumerate(FOREIGN)]
    notes, texts = draw(tmp_path, *ones, subscription("店"), subscription("c", ("кафе", "$5")), name="เมือง")
    assert not notes and capfd.readouterr().err == ""
    assert not set("".join(FOREIGN) + "店เมือง") & set("".join(texts))
    assert {r"topk s0 (1): \u6771\u4eac ramen", r"topk \u5e97 (1): ramen", "topk c (1): кафе $5"} <= set(texts)


def test_map_gives_each_of_many_its_own_mark_and_says_who_shares_one(tmp_path):
    assert len({*COLOURS}) * len({*SYMBOLS}) == DISTINCT >= 20
    _, texts = draw(tmp_path, *(subscription(f"s{number}") for number in range(DISTINCT)))
    assert not any("share" in text for text in texts)
    _, texts = draw(tmp_path, *(subscription(f"s{number}") for number in range(DISTINCT + 3)))
    assert "3 more subscriptions, in one colour" in texts
    assert sum(text.startswith("topk s") for text in texts) == DISTINCT


@pytest.mark.parametrize(
    ("points", "widest_km"),
    [
        ([(-122.36, 47.59), (-122.30, 47.63)], 13.0),
        ([(10.0, 60.0)], 2.1),
        ([(10.0, 60.0), (10.0001, 60.0)], 2.1),
        ([(0.0, 89.99)], 25.0),
    ],
)
def test_map_frame_is_as_large_as_what_is_in_it(points, widest_km):
    axes = Figure().subplots()
    _frame(axes, points)
    (west, east), (south, north) = axes.get_xlim(), axes.get_ylim()
    assert all(west <= lon <= east and south <= lat <= north for lon, lat in points)
    high_km = np.radians(north - south) * 6371
    wide_km = np.radians(east - west) * 6371 * np.cos(np.radians((south + north) / 2))
    assert 0.45 < high_km < widest_km and wide_km < widest_km


def test_map_says_how_many_of_the_messages_are_drawn(run, tmp_path, capsys):
    path = tmp_path / "map.svg"
    arguments = ["show", str(run), "place", "--json", "--map", str(path)]
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        assert cli.main([*arguments, "--limit", "2"]) == 0
        answer = json.loads(capsys.readouterr().out)
        held = answer["subscriptions"][0]["entries"]
        note = f"2 of the {held} results are drawn (--limit for more)"
        assert answer["not_drawn"] == [note] and note in path.read_text()
        assert f"boolean place (2 of {held}): w11" in path.read_text()
        assert cli.main([*arguments, "--limit", "0"]) == 0
        assert json.loads(capsys.readouterr().out)["not_drawn"] == []
        assert f"boolean place ({held}): w11" in path.read_text()


def test_map_says_how_many_of_the_subscriptions_are_drawn(tmp_path):
    notes, _ = draw(tmp_path, subscription("a"), holding=957)
    assert notes == ["1 of the 957 subscriptions with results are drawn"]


def test_map_draws_no_line_across_an_ocean(tmp_path):
    points = [(0.0, 51.0), (-74.0, 40.7), (179.0, 50.0)]
    axes = Figure().subplots()
    seen, far = _draw(axes, subscription("a", points=points, lon=0.0, lat=50.0), "C0", "o", None)
    assert far == 2 and len(axes.lines) == 1 and set(points) < set(seen)
    notes, _ = draw(tmp_path, subscription("a", points=points, lon=0.0, lat=50.0))
    assert notes == [f"2 messages farther than {LONGEST_LINE_KM:,.0f} km from their subscription have no line"]
    _, far = _draw(axes, subscription("b", points=[(-179.5, 0.0)], lon=179.5, lat=0.0), "C0", "o", None)
    assert far == 1, "not around the earth either"
