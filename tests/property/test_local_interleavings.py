"""Whatever the interleaving: order on every link holds, everything arrives once, ends come, credits bound."""

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matching.errors import TopologyError
from tests.support.example_topologies import expected_totals, word_count
from topology.core.executors.local import run_local
from topology.core.tasks.mailbox import SeededShuffle
from topology.core.tasks.worker import Worker


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    batches=st.integers(0, 15),
    splits=st.integers(1, 3),
    counts=st.integers(1, 4),
    credits=st.integers(1, 5),
)
def test_local_any_interleaving_gives_the_same_answer_in_order(seed, batches, splits, counts, credits):
    report = run_local(word_count(batches, 20, splits, counts, credits), seed=seed)
    sums = report.components["sum"].tasks[0].figures
    assert sums["totals"] == (expected_totals(batches, 20) if batches else {})
    assert sums["finishes"] == 1
    assert report.published == report.acknowledged == batches
    assert report.in_flight_peak <= credits
    for task in report.components["count"].tasks:
        by_sender = defaultdict(list)
        for sender, batch in task.figures["order"]:
            by_sender[sender].append(batch)
        for sender, order in by_sender.items():
            assert order == list(range(sender, batches, splits)), "the order of one sender to one receiver"
    answered = [len(task.figures["answers"]) for task in report.components["split"].tasks]
    assert sum(answered) == batches
    assert all(task.figures["marks"] == list(range(batches)) for task in report.components["split"].tasks)


def test_local_seeds_give_interleavings_that_overtake_between_senders():
    """Guards the property above: a scheduler that never reorders would let it pass without having tested anything."""
    overtaken = 0
    for seed in range(20):
        heard = run_local(word_count(12, 20, 2, 3, 4), seed=seed).components["sum"].tasks[0].figures["heard"]
        batches = [batch for _, batch in heard]
        overtaken += batches != sorted(batches)
    assert overtaken >= 15


def test_scheduler_seeded_starves_a_ready_link_for_long_stretches():
    scheduler = SeededShuffle(seed=3, links=6)
    for link in range(6):
        scheduler.add(link)
    last = dict.fromkeys(range(6), 0)
    longest = 0
    for step in range(20_000):
        link = scheduler.pick()
        assert link is not None
        longest = max(longest, step - last[link])
        last[link] = step
        scheduler.add(link)
    assert longest >= 100
    assert min(last.values()) > 10_000, "starved, but not for ever"


@pytest.mark.parametrize("broken", ["reorder", "repeat", "lose"])
def test_local_broken_link_is_noticed_by_the_receiver(broken, monkeypatch):
    """The numbers on links are what proves order: a link that breaks it must not pass."""
    post = Worker.post
    late = []

    def broken_post(worker, parcels):
        second = len(parcels) == 1 and parcels[0].edge >= 0 and parcels[0].number == 2
        if second and broken == "repeat":
            post(worker, parcels)
        if second and broken == "lose":
            return
        if second and broken == "reorder" and not late:
            late.append(parcels)
            return
        post(worker, parcels)
        if late and late[0] and late[0][0][:3:2] == parcels[0][:3:2]:  # of the same link
            overtaken, late[0] = late[0], None
            post(worker, overtaken)

    monkeypatch.setattr(Worker, "post", broken_post)
    wanted = "came twice" if broken == "repeat" else "was lost"
    with pytest.raises(TopologyError, match=f"failed in the link from .*: parcel 2 {wanted}"):
        run_local(word_count())
