"""Conditions over attributes and words against their oracle; the same comparison must find broken variants."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from matching import naive_shapes
from matching.boolean.engines.cell_term import CellTerm
from matching.conditions import HAS_ALL, HAS_ANY, HAS_NONE, NONE_OF, WITHIN
from matching.fields import Refusal
from matching.filter_programs import instructions_of, program_of
from matching.filters import circle_instruction, polygon_instruction
from matching.geo.polygons import Rings
from matching.kinds import KINDS
from matching.space import Space
from matching.topk.engines.skype import Skype
from matching.validate import build_table, subscription_row
from matching.vocabulary import Vocabulary
from tests.support.conditions import (
    batch_of,
    edited,
    judged,
    missing_as_zero,
    passing,
    passing_plain,
    random_values,
    random_where,
)
from tests.support.naive_conditions import words_hold

SPACE = Space(-180.0, -90.0, 180.0, 90.0)


def drawn(seed, wheres=120, messages=120):
    generator = np.random.default_rng(seed)

    def draw(below):
        return int(generator.integers(below))

    return [random_where(draw) for _ in range(wheres)], [random_values(draw) for _ in range(messages)]


@pytest.mark.parametrize("seed", range(4))
def test_attribute_kernel_judges_as_the_oracle(seed):
    kernel, oracle = judged(*drawn(seed))
    assert np.argwhere(kernel != oracle).tolist() == []
    assert 1000 < oracle.sum() < oracle.size - 1000, "too few pairs of one verdict, so little is compared"


@given(st.data())
def test_attribute_kernel_judges_as_the_oracle_whatever_is_drawn(data):
    def draw(below):
        return data.draw(st.integers(0, below - 1))

    kernel, oracle = judged([random_where(draw) for _ in range(2)], [random_values(draw) for _ in range(3)])
    assert kernel.tolist() == oracle.tolist()


def not_ignored(program):
    return edited(program, NONE_OF, lambda words: [])


def open_at_the_top(program):
    return edited(program, WITHIN, lambda words: [words[0], words[1] - 1])


def closed_at_the_bottom(program):
    return edited(program, WITHIN, lambda words: [words[0] - 1, words[1]])


def not_all(program):
    return edited(program, HAS_ALL, lambda words: words[:1])


def none_ignored(program):
    return edited(program, HAS_NONE, lambda words: [])


def any_of_others(program):
    return edited(program, HAS_ANY, lambda words: [word + 1 for word in words])


@pytest.mark.parametrize(
    "broken", [not_ignored, open_at_the_top, closed_at_the_bottom, not_all, none_ignored, any_of_others]
)
def test_broken_program_is_found(broken):
    kernel, oracle = judged(*drawn(0), broken=broken)
    assert (kernel != oracle).any()


def test_missing_taken_for_zero_is_found():
    kernel, oracle = judged(*drawn(0), broken_keys=missing_as_zero)
    assert (kernel != oracle).any()


ENGINES = {"boolean": CellTerm, "topk": Skype}


def judged_words(subscriptions, messages, known, kind="boolean"):
    """What an engine and the oracle say; words beyond `known` have no id, as those that no message had."""
    vocabulary = Vocabulary(known, [1] * len(known), [1] * len(known), [1.0] * len(known), messages=10)
    place = {"region": [-180, -90, 180, 90]} if kind == "boolean" else {"lon": 0, "lat": 0, "k": 1, "alpha": 0.5}
    parsed = [
        subscription_row(
            {"subscription_id": "s", "kind": kind, "keywords": keywords, "match": match, "not_keywords": excluded}
            | place, vocabulary, SPACE, KINDS,
        )
        for match, keywords, excluded in subscriptions
    ]  # fmt: skip
    able = [row for row, one in enumerate(parsed) if not isinstance(one, Refusal)]
    assert {one.reason for one in parsed if isinstance(one, Refusal)} <= {"no_known_keyword"}
    engine = ENGINES[kind](SPACE)
    engine.insert(build_table([parsed[row] for row in able], able, [0] * len(able)))
    ids = {word: number for number, word in enumerate(known)}
    hits = engine.match(batch_of([{ids[word] for word in message} for message in messages]))
    found = np.zeros((len(subscriptions), len(messages)), np.bool_)
    found[engine.numbers(hits.slot), hits.row] = True
    default = "all" if kind == "boolean" else "any"
    oracle = [
        [words_hold(match or default, keywords, excluded, message) for message in messages]
        for match, keywords, excluded in subscriptions
    ]
    return found, np.array(oracle)


def drawn_words(seed, subscriptions=150, messages=100):
    generator = np.random.default_rng(seed)
    known, all_words = list("abcdef"), list("abcdefxy")

    def some(words, least, most):
        return generator.choice(words, generator.integers(least, most + 1), replace=False).tolist()

    rows = []
    for _ in range(subscriptions):
        keywords = some(all_words, 1, 5)
        match = ["all", "any", None, int(generator.integers(1, len(keywords) + 1))][int(generator.integers(4))]
        rows.append((match, keywords, some(all_words, 0, 2)))
    return rows, [some(known, 0, 6) for _ in range(messages)], known


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("seed", range(3))
def test_engine_judges_words_as_the_oracle(seed, kind):
    kernel, oracle = judged_words(*drawn_words(seed), kind)
    assert np.argwhere(kernel != oracle).tolist() == []
    assert 1000 < oracle.sum() < oracle.size - 1000


def test_excluded_words_ignored_are_found():
    subscriptions, messages, known = drawn_words(0)
    kernel, _ = judged_words([(match, keywords, []) for match, keywords, _ in subscriptions], messages, known)
    _, oracle = judged_words(subscriptions, messages, known)
    assert (kernel != oracle).any()


def test_unknown_words_left_out_of_all_are_found():
    subscriptions, messages, known = drawn_words(0)
    honest = [one for one in subscriptions if one[0] == "all" and set(one[1]) & set(known)]
    forgetful = [(match, [word for word in words if word in known], excluded) for match, words, excluded in honest]
    kernel, _ = judged_words(forgetful, messages, known)
    _, oracle = judged_words(honest, messages, known)
    assert (kernel != oracle).any()


@pytest.mark.parametrize("seed", range(3))
def test_shapes_of_programs_judge_as_the_oracle(seed):
    """Circles have some message on their border, polygons corners and edges where messages lie."""
    rng = np.random.default_rng(seed)
    lon, lat = rng.integers(-10, 11, 150) * 1.0, rng.integers(-10, 11, 150) * 1.0
    batch, programs, borders = batch_of([[] for _ in lon], lon=lon, lat=lat), [], 0
    for _ in range(40):
        west, south, east, north = (rng.integers(-10, 11, 4) * 1.0).tolist()
        radius_m = naive_shapes.metres(naive_shapes.unit_vector(west, south), naive_shapes.unit_vector(east, north))
        borders += int(((lon == east) & (lat == north)).sum())
        programs.append(program_of([circle_instruction(west, south, radius_m)]))
        corners = rng.integers(-10, 11, (4, 2)) * 1.0
        ring = np.concatenate([corners, corners[:1]])
        rings = Rings(np.array([0, 5]), ring[:, 0].copy(), ring[:, 1].copy())
        programs.append(program_of([polygon_instruction(rings)]))
    kernel, plain = passing(programs, batch), passing_plain(programs, batch)
    assert np.argwhere(kernel != plain).tolist() == []
    assert borders > 10 and 1_000 < plain.sum() < plain.size - 1_000


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_polygons_of_many_bands_judge_as_the_oracle(seed):
    """Stars of 40 to 120 corners with a hole; messages lie on corners, about them, and everywhere."""
    rng = np.random.default_rng(seed)
    programs, near = [], []
    for _ in range(5):
        ring = star(rng, int(rng.integers(40, 121)), 9.0)
        hole = star(rng, 40, 3.0)
        lon, lat = np.concatenate([ring, hole]).T.copy()
        near.append(ring[::8] + rng.choice([0.0, 1e-9, -1e-9], ring[::8].shape))
        programs.append(program_of([polygon_instruction(Rings(np.array([0, len(ring), len(lon)]), lon, lat))]))
        assert instructions_of(programs[-1])[0].words[1] > 4, "few bands: little is looked up"
    lon, lat = np.concatenate([rng.uniform(-10, 10, (600, 2)), *near]).T.copy()
    batch = batch_of([[] for _ in lon], lon=lon, lat=lat)
    kernel, plain = passing(programs, batch), passing_plain(programs, batch)
    assert np.argwhere(kernel != plain).tolist() == []
    assert 400 < plain.sum() < plain.size - 400


def star(rng, corners, reach):
    """A closed ring about 0, 0 (float64[corners + 1, 2]), at `reach` or half of it in turns."""
    angle = np.linspace(0, 2 * np.pi, corners, endpoint=False)
    radius = reach * np.where(np.arange(corners) % 2, 0.5, 1.0) * rng.uniform(0.9, 1.0, corners)
    ring = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    return np.concatenate([ring, ring[:1]])
