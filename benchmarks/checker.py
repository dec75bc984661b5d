"""What is told in a case held against what has to be, by `matching.recount` or the oracle; for `benchmarks.harness`."""

from collections import Counter
from collections.abc import Sequence

from benchmarks.cases import Case
from benchmarks.workload import NO_REMOVALS, WORLD
from matching.model import SubscriptionTable, UpdateBatch, take_rows
from matching.naive import Oracle, tally
from matching.recount import Expected, Words, expected, in_region, of_numbers, sampled
from matching.window import NO_FLOOR, Boundary

__all__ = ["Words", "held_against", "in_region", "told_to"]


def told_to(case: Case, sample: SubscriptionTable, boundaries: Sequence[Boundary]) -> Expected:
    """What some subscriptions are told behind the first boundary; of kinds without window the oracle says it."""
    if case.kind.windowed:
        return expected(case.messages, sample, boundaries, WORLD.max_distance, case.ends)
    whole = Boundary(0, boundaries[0].last_seq + 1, boundaries[-1].last_seq, NO_FLOOR)
    rows, _ = case.batch_of(whole)
    return Expected(tally(Oracle(None, WORLD.max_distance).advance(whole, rows, sample, NO_REMOVALS)), Counter())


def held_against(
    case: Case, told: UpdateBatch, boundaries: Sequence[Boundary], sample: tuple[int, int]
) -> tuple[bool, int, int]:
    """What was told behind the first boundary, the `same` or not; updates expected, and of how many subscriptions."""
    after, last = boundaries[0].last_seq, boundaries[-1].last_seq
    told = take_rows(told, (told.as_of > after) & (told.as_of <= last))
    some = sampled(case.table, told, *sample)
    wanted = told_to(case, some, boundaries).updates
    return tally(of_numbers(told, some.number)) == wanted, wanted.total(), len({event[1] for event in wanted})
