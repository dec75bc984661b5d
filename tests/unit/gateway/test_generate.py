"""Generated subscriptions: the same bytes for a seed, the shape each recipe promises, rows that every loader takes."""

import hashlib
import json
import math
from dataclasses import replace

import numpy as np
import pytest

from gateway.subscriptions.generate import CHUNK, generate_subscriptions
from matching.errors import ConfigError, DeliveryError, InputError
from matching.kind_table import Kind, Kinds, Recipe
from matching.kinds import KINDS
from matching.model import ANY_KEYWORD
from matching.space import Space
from spouts.subscriptions import load_changes, load_vocabulary
from tests.support.etl_folder import random_rows, write_etl

COUNT = 400
EARTH = Space(-180, -90, 180, 90)
#: The table with all kinds running: the loader sets rows of others aside.
EVERYTHING = Kinds(replace(kind, operator=kind.operator or KINDS.named("topk").operator) for kind in KINDS)


@pytest.fixture(scope="module")
def rows():
    return random_rows(300)


@pytest.fixture(scope="module")
def etl(rows, tmp_path_factory):
    return write_etl(tmp_path_factory.mktemp("generate") / "etl", rows)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def make(etl, tmp_path, kind, count=COUNT, seed=5, max_frequency=1.0, **options):
    """Stop words are taken, too, unless a test says otherwise: the messages here have a dozen words in all."""
    out = tmp_path / f"{kind}.jsonl"
    generate_subscriptions(etl, kind, count, seed, out, overwrite=True, max_frequency=max_frequency, **options)
    return lines(out)


@pytest.mark.parametrize("kind", KINDS.names)
def test_generate_same_seed_gives_same_bytes_and_another_seed_others(etl, tmp_path, kind):
    paths = [tmp_path / name for name in "abc"]
    for path, seed in zip(paths, (5, 5, 6), strict=True):
        generate_subscriptions(etl, kind, 50, seed, path, until_share=0.5)
    first, again, other = (path.read_bytes() for path in paths)
    assert first == again
    assert [line["keywords"] for line in lines(paths[0])] != [line["keywords"] for line in lines(paths[2])]
    assert other != first


@pytest.mark.parametrize(
    ("kind", "options", "digest"),
    [
        ("boolean", {}, "0d634fd28f9437f9"),
        ("topk", {}, "c68a50e1bb40ee53"),
        ("decay", {}, "5f66ea7d7f509527"),
        ("knn", {}, "4fb435232b369f7b"),
        ("skyline", {}, "8a63a1c6e2d8fbfd"),
        ("boolean", {"region_share": 0.3, "match": "any", "until_share": 0.4, "max_keywords": 3}, "0364980db7351edc"),
        ("topk", {"k": 4, "min_keywords": 2, "until_share": 0.4}, "ab037c4fdd80617b"),
        ("decay", {"k": 4, "min_keywords": 2, "max_keywords": 4}, "dbbcc94be4e96512"),
        ("knn", {"k": 3, "until_share": 0.4}, "1a830bbf862e3362"),
        ("skyline", {"region_share": 0.6, "until_share": 0.4}, "1a34284ebae3222d"),
    ],
)
def test_generate_bytes_of_a_seed_are_those_of_earlier_versions(etl, tmp_path, kind, options, digest):
    """Results that were published name a seed: whoever repeats them must get the same subscriptions."""
    make(etl, tmp_path, kind, **options)
    assert hashlib.sha256((tmp_path / f"{kind}.jsonl").read_bytes()).hexdigest()[:16] == digest


@pytest.mark.parametrize("kind", KINDS.names)
def test_generate_every_row_is_accepted_by_the_loader(etl, tmp_path, kind):
    made = make(etl, tmp_path, kind, until_share=0.3)
    changes = load_changes([tmp_path / f"{kind}.jsonl"], load_vocabulary(etl), EARTH, kinds=EVERYTHING)
    assert (changes.counts["accepted"], changes.counts["rejected"], changes.counts["replaced"]) == (COUNT, 0, 0)
    assert changes.counts["cannot_match"] == changes.counts["unknown_keywords"] == 0
    assert len({row["subscription_id"] for row in made}) == COUNT


@pytest.mark.parametrize("kind", KINDS.names)
def test_generate_place_and_keywords_come_from_one_message(etl, tmp_path, kind, rows):
    texts = {}
    for row in rows:
        texts.setdefault((row["lon"], row["lat"]), []).append(set(row["text"].split()))
    for made in make(etl, tmp_path, kind):
        if "region" in made:
            west, south, east, north = made["region"]
            points = [
                (lon, lat)
                for lon, lat in texts
                if south <= lat <= north and (west <= lon <= east or (west > east and (lon >= west or lon <= east)))
            ]
        else:
            points = [(made["lon"], made["lat"])]
        assert any(set(made["keywords"]) <= words for point in points for words in texts[point])


def test_generate_keyword_numbers_stay_in_range_and_spread_over_it(etl, tmp_path):
    sizes = [len(row["keywords"]) for row in make(etl, tmp_path, "topk", min_keywords=2, max_keywords=4)]
    assert set(sizes) == {1, 2, 3, 4}, "messages with fewer terms give fewer keywords"
    assert all(len(set(row["keywords"])) == len(row["keywords"]) for row in make(etl, tmp_path, "topk"))


def test_generate_boolean_prefers_frequent_terms(etl, tmp_path):
    def mean_id(kind):
        taken = [int(word[1:]) for row in make(etl, tmp_path, kind, 2000, max_keywords=1) for word in row["keywords"]]
        return np.mean(taken)

    assert mean_id("boolean") > mean_id("topk") + 0.5


@pytest.mark.parametrize("kind", KINDS.names)
def test_generate_stop_words_are_taken_only_where_a_message_has_no_other_word(tmp_path, kind):
    """Each message has two of forty words and "w40"; every tenth has nothing else."""
    rows = random_rows(400)
    for row in rows:
        words = [] if row["seq"] % 10 == 0 else sorted({row["seq"] % 40, row["seq"] * 7 % 40})
        row |= {"terms": [*words, 40], "counts": [1] * (len(words) + 1), "weights": [1.0] * (len(words) + 1)}
    etl = write_etl(tmp_path / "etl", rows, words=41)
    out = tmp_path / "made.jsonl"
    generate_subscriptions(etl, kind, COUNT, 5, out)
    stopped = [row for row in lines(out) if "w40" in row["keywords"]]
    assert all(row["keywords"] == ["w40"] for row in stopped) and 10 < len(stopped) < 90
    generate_subscriptions(etl, kind, COUNT, 5, out, max_frequency=1.0, overwrite=True)
    assert sum(len(row["keywords"]) > 1 and "w40" in row["keywords"] for row in lines(out)) > 90


def test_generate_boolean_sides_are_shares_of_the_extent(etl, tmp_path):
    rows = make(etl, tmp_path, "boolean", region_share=0.1)
    widths = [(east - west) % 360.0 for west, _, east, _ in (row["region"] for row in rows)]
    assert max(widths) <= 36.0 + 1e-5
    assert min(widths) >= 0.36 - 1e-5
    assert 15 < np.mean(widths) < 21


def test_generate_skyline_area_is_uniform_up_to_a_hundredth(etl, tmp_path):
    regions = np.array([row["region"] for row in make(etl, tmp_path, "skyline")])
    inside = (np.abs(regions[:, [0, 2]]) < 180).all(axis=1) & (np.abs(regions[:, [1, 3]]) < 90).all(axis=1)
    width, height = (regions[inside, 2] - regions[inside, 0]) / 360, (regions[inside, 3] - regions[inside, 1]) / 180
    assert inside.sum() > 100
    assert (width * height).max() <= 0.01 + 1e-6
    assert math.isclose(np.mean(width**2), 0.01 * 0.505, rel_tol=0.15)


def test_generate_regions_are_clipped_at_poles_and_only_boolean_crosses_the_antimeridian(etl, tmp_path):
    boolean = [row["region"] for row in make(etl, tmp_path, "boolean", region_share=0.3)]
    skyline = [row["region"] for row in make(etl, tmp_path, "skyline", region_share=0.3)]
    assert sum(west > east for west, _, east, _ in boolean) > 10
    assert all(west <= east for west, _, east, _ in skyline)
    assert max(north for *_, north in boolean + skyline) == 90.0
    assert min(south for _, south, *_ in boolean + skyline) == -90.0


def test_generate_region_as_wide_as_the_world_does_not_meet_itself(etl, tmp_path):
    for west, south, east, north in (row["region"] for row in make(etl, tmp_path, "boolean", region_share=1.0)):
        assert -180 <= west <= 180 and -180 <= east <= 180 and -90 <= south <= north <= 90


def test_generate_k_and_alpha_follow_the_recipe(etl, tmp_path):
    made = {kind: make(etl, tmp_path, kind) for kind in KINDS.names}
    assert {row["k"] for row in made["topk"]} == {10}
    assert {row["k"] for row in made["decay"]} == set(range(10, 31))
    assert {row["k"] for row in made["knn"]} == set(range(1, 11))
    assert {kind for kind in KINDS.names if "alpha" in made[kind][0]} == {"topk", "decay"}
    assert 0.45 < np.mean([row["alpha"] for row in made["topk"]]) < 0.55
    assert {row["k"] for row in make(etl, tmp_path, "knn", k=3)} == {3}


def test_generate_boolean_match_any_draws_the_same_and_says_so(etl, tmp_path):
    plain = make(etl, tmp_path, "boolean")
    for match in ("all", "any"):
        made = make(etl, tmp_path, "boolean", match=match)
        assert [row.pop("match") for row in made] == [match] * COUNT
        assert made == plain
    table = load_changes([tmp_path / "boolean.jsonl"], load_vocabulary(etl), EARTH).table
    assert table.match.tolist() == [ANY_KEYWORD] * COUNT


def test_generate_until_share_ends_so_many_within_the_stream(etl, tmp_path, rows):
    made = make(etl, tmp_path, "topk", until_share=0.25)
    ends = [row["until"] for row in made if "until" in row]
    assert 60 < len(ends) < 140
    assert min(ends) >= 1 and max(ends) <= len(rows)
    assert not any("until" in row for row in make(etl, tmp_path, "topk"))


def test_generate_more_than_a_chunk_numbers_on(etl, tmp_path):
    made = make(etl, tmp_path, "knn", CHUNK + 10)
    assert [row["subscription_id"] for row in made[-2:]] == [f"knn-5-{CHUNK + 8}", f"knn-5-{CHUNK + 9}"]
    assert made[CHUNK : CHUNK + 5] != made[:5]


def test_generate_kinds_handed_in_are_made_by_their_recipes(etl, tmp_path):
    recipe = Recipe("none", keywords=(2, 3), k=(4, 6), side=0.2)
    more = EVERYTHING.plus(
        Kind(5, "beacon", "point", KINDS.named("topk").operator, fields=("alpha", "match"), recipe=recipe),
        Kind(6, "zone", "region", KINDS.named("topk").operator, fields=("k",), recipe=recipe),
        Kind(7, "plain", "region", KINDS.named("topk").operator, wraps=True),
    )
    beacons = make(etl, tmp_path, "beacon", kinds=more, match="any")
    assert {len(row["keywords"]) for row in beacons} <= {1, 2, 3} and all(0 <= row["alpha"] <= 1 for row in beacons)
    assert not any("k" in row or "region" in row for row in beacons)
    zones = make(etl, tmp_path, "zone", kinds=more)
    assert {row["k"] for row in zones} == {4, 5, 6} and not any("alpha" in row or "lon" in row for row in zones)
    widths = [east - west for west, _, east, _ in (row["region"] for row in zones) if abs(west) < 180 > abs(east)]
    assert 36.0 < max(widths) <= 72.0 + 1e-5, "a tenth to a fifth of the extent"
    assert len(make(etl, tmp_path, "plain", kinds=more)) == COUNT
    for kind in ("beacon", "zone", "plain"):
        changes = load_changes([tmp_path / f"{kind}.jsonl"], load_vocabulary(etl), EARTH, kinds=more)
        assert (changes.counts["accepted"], changes.counts["rejected"]) == (COUNT, 0)
    for kind, options, having in (("beacon", {"k": 3}, "zone"), ("zone", {"match": "any"}, "boolean and beacon")):
        with pytest.raises(ConfigError, match=f"only .*{having}"):
            make(etl, tmp_path, kind, kinds=more, **options)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("nearest", {}),
        ("topk", {"count": 0}),
        ("topk", {"k": 0}),
        ("boolean", {"k": 3}),
        ("topk", {"min_keywords": 0}),
        ("topk", {"min_keywords": 4, "max_keywords": 3}),
        ("topk", {"region_share": 0.1}),
        ("topk", {"max_frequency": 0.0}),
        ("topk", {"max_frequency": 1.5}),
        ("boolean", {"region_share": 0.0}),
        ("boolean", {"until_share": 1.5}),
        ("boolean", {"seed": -1}),
        ("boolean", {"match": "some"}),
        ("skyline", {"match": "any"}),
    ],
)
def test_generate_option_that_cannot_be_is_refused(etl, tmp_path, kind, options):
    with pytest.raises(ConfigError):
        make(etl, tmp_path, kind, **options)
    assert list(tmp_path.iterdir()) == []


def test_generate_from_messages_without_terms_is_refused(tmp_path):
    rows = [row | {"terms": [], "counts": [], "weights": []} for row in random_rows(5)]
    write_etl(tmp_path / "etl", rows)
    with pytest.raises(InputError, match="no message has a term"):
        make(tmp_path / "etl", tmp_path, "topk")


def test_generate_from_a_folder_that_is_no_etl_output_is_refused(tmp_path):
    with pytest.raises(InputError, match="skyray etl"):
        make(tmp_path, tmp_path, "topk")


def test_generate_from_a_damaged_file_names_it(tmp_path):
    etl = write_etl(tmp_path / "etl", random_rows(5))
    (etl / "messages" / "part-00001.parquet").write_bytes(b"PAR1 and nothing more")
    with pytest.raises(InputError, match="part-00001"):
        make(etl, tmp_path, "topk")


def test_generate_into_a_folder_that_is_not_there_is_refused(etl, tmp_path):
    with pytest.raises(DeliveryError, match="cannot be written .*; make its folder first, or name another place"):
        make(etl, tmp_path / "missing", "topk")
