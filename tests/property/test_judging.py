"""Why a message is in a result or is not: the verdict is the oracle's, for all kinds, and its parts make the score."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.runs.match_rules import REASONS, Scene, judge
from matching.kinds import KINDS
from matching.model import BOOLEAN, MATCH, SKYLINE, Removals
from matching.naive_rows import messages_of, subscriptions_of
from tests.support.any_kind import TERMS, Recipe, make_turns, oracle_of, window_of
from tests.support.filters import filtered
from tests.support.worlds import SPACE

RECIPES = {
    "count": Recipe(batches=6, first=4, arrivals=2, departures=3),
    "late": Recipe(window="time:25", batches=6, first=4, arrivals=2, departures=3, late=20, objects=6),
    "untimed": Recipe(window="time:40", batches=6, first=4, arrivals=2, departures=3, objects=6, untimed=0.4),
    "many": Recipe(window="count:60", batches=4, first=40, sizes=(30,), departures=0, objects=0, never=0.0),
    "wordless": Recipe(batches=6, first=6, arrivals=2, departures=2, wordless=0.5),
    "objects": Recipe(window="count:20", batches=8, first=6, arrivals=2, departures=2, objects=15, deletes=0.2),
    "living": Recipe(
        window="living", batches=8, first=6, arrivals=2, departures=2, objects=15, deletes=0.2, wordless=0.3
    ),
    "short": Recipe(window="count:9", batches=6, first=4, arrivals=2, departures=2, objects=0),
}


def world(kinds, seed, recipe):
    """The batches up to the last with messages, in which nobody comes or goes, since that might be behind its end."""
    turns = make_turns(kinds, seed, recipe)
    while len(turns) > 1 and not len(turns[-1].messages):
        turns.pop()
    nobody = turns[-1].added.take(np.zeros(0, np.int64))
    gone = Removals(np.zeros(0, np.int64), np.zeros(0, np.int8), np.zeros(0, np.int64))
    return [*turns[:-1], turns[-1]._replace(added=nobody, removed=gone)]


def told(turns, window, objects=False):
    """The oracle's results and matches at the end, and what the stream was."""
    oracle = oracle_of(window, objects)
    matched = set()
    for turn in turns:
        updates = oracle.advance(turn.boundary, turn.messages, turn.added, turn.removed, turn.extras)
        matched |= {(row.number, row.seq) for row in updates if row.change == MATCH}
    return oracle, {(row.number, row.seq): row for row in oracle.results()}, matched


def scene_of(turns, oracle):
    messages = [message for turn in turns for message in messages_of(turn.messages, turn.extras)]
    removed = {}
    for turn in turns:
        removed |= dict(zip(turn.removed.number.tolist(), turn.removed.at.tolist(), strict=True))
    ends, latest = {}, {}
    for message in messages:
        if oracle.objects and message.op != 1 and not message.visible:
            continue
        if message.object_id in latest:
            ends[latest[message.object_id]] = message.seq
        latest[message.object_id] = message.seq
        if message.op == 1:
            ends[message.seq] = message.seq
    last = turns[-1].boundary
    return (
        messages,
        removed,
        lambda number: Scene(
            *(messages, last.last_seq, last.floor, removed.get(number), ends, SPACE.max_distance, oracle.decay),
            oracle.objects,
        ),
    )


def disagreements(recipe, seed):
    """Pairs of which the verdict is not the oracle's; and how often each reason was given."""
    objects = recipe.deletes is not None
    kinds = [kind for kind in KINDS.of_objects().run if kind.standing] if objects else KINDS.run
    window, turns = window_of(recipe), world(kinds, seed, recipe)
    if seed % 2:
        turns = [filtered(turn, seed, TERMS) for turn in turns]
    oracle, results, matched = told(turns, window, objects)
    messages, _, scene = scene_of(turns, oracle)
    rng = np.random.default_rng(seed)
    reasons, wrong = Counter(), []
    for turn in turns:
        for subscription in subscriptions_of(turn.added):
            for message in rng.choice(np.arange(len(messages)), min(12, len(messages)), replace=False).tolist():
                message = messages[message]
                verdict = judge(scene(subscription.number), subscription, message)
                pair = (subscription.number, message.seq)
                reasons[verdict.reason] += 1
                held = pair in (matched if subscription.kind == BOOLEAN else results)
                if verdict.in_result != held:
                    wrong.append((subscription, message, verdict))
                elif held and pair in results:
                    row = results[pair]
                    assert verdict.score == row.score
                    assert subscription.kind == SKYLINE or verdict.rank == row.rank
                    assert math.isnan(row.text_score) or verdict.parts["text"] == row.text_score
    return wrong, reasons


@given(seed=st.integers(0, 2**32 - 1), recipe=st.sampled_from(sorted(RECIPES)))
@settings(max_examples=25, deadline=None)
def test_judge_any_pair_is_held_where_the_oracle_holds_it(seed, recipe):
    wrong, reasons = disagreements(RECIPES[recipe], seed)
    assert not wrong, wrong[:3]
    assert reasons.keys() <= REASONS.keys() | {"in_result", "matched"}


def test_judge_every_reason_is_given_by_some_world():
    """All but those of a run that has not come so far, and of words in pieces, which these worlds do not have."""
    given_ones = Counter()
    for seed in range(12):
        for recipe in RECIPES.values():
            given_ones += disagreements(recipe, seed)[1]
    assert given_ones.keys() == REASONS.keys() - {"missing_word", "not_reached", "not_registered"} | {
        "in_result",
        "matched",
    }


@pytest.mark.parametrize("kind", ["topk", "decay", "skyline"])
def test_judge_parts_make_the_score(kind):
    recipe = RECIPES["many"]
    turns = world([KINDS.named(kind)], 7, recipe)
    oracle, results, _ = told(turns, window_of(recipe))
    messages, _, scene = scene_of(turns, oracle)
    by_number = {one.number: one for turn in turns for one in subscriptions_of(turn.added)}
    assert len(results) > 10
    for (number, seq), row in results.items():
        verdict = judge(scene(number), by_number[number], messages[seq])
        parts = verdict.parts
        if kind == "skyline":
            assert (parts["spatial"], parts["text"]) == (row.score, row.text_score)
            continue
        score = parts["alpha"] * parts["spatial"] + (1.0 - parts["alpha"]) * parts["text"]
        if kind == "decay":
            assert parts["text"] == pytest.approx(math.prod(verdict.by_term.values()))
            score = math.log(score) + parts["time"]
        else:
            assert parts["text"] == pytest.approx(sum(verdict.by_term.values()))
        assert score == pytest.approx(row.score)


def test_judge_rivals_are_who_is_before_it():
    recipe = RECIPES["many"]
    turns = world([KINDS.named("topk")], 3, recipe)
    oracle, results, _ = told(turns, window_of(recipe))
    messages, _, scene = scene_of(turns, oracle)
    by_number = {one.number: one for turn in turns for one in subscriptions_of(turn.added)}
    beaten = 0
    for number in {number for number, _ in results}:
        for message in messages:
            verdict = judge(scene(number), by_number[number], message)
            if verdict.reason == "rivals":
                beaten += 1
                first = sorted((row.rank, row.seq) for (who, _), row in results.items() if who == number)
                assert [rival.seq for rival in verdict.rivals[: len(first)]] == [seq for _, seq in first]
                assert verdict.threshold >= verdict.score
    assert beaten > 5
