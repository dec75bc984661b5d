"""Numbers of subscriptions are those of a plain model that keeps an object for each, batch by batch and resumed."""

from dataclasses import dataclass

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from spouts.numbering import Numbering


@dataclass
class Life:
    kind: int
    at: int
    before: "Life | None"
    number: int = -1
    ended: bool = False


class Model:
    """An object for each subscription, in the order in which they come."""

    def __init__(self):
        self.last: dict[str, Life] = {}
        self.next = 0

    def change(self, changes):
        begun, removed = [], []

        def end(name, at):
            one = self.last[name]
            if any(one is each for each in begun) and one.at == at:
                begun[:] = [each for each in begun if each is not one]
                never.append(one)
                if one.before is None:
                    del self.last[name]
                else:
                    self.last[name] = one.before
            else:
                one.ended = True
                removed.append((one, at))

        never, every = [], []
        for name, kind, at in changes:
            if kind < 0:
                end(name, at)
                continue
            if name in self.last and not self.last[name].ended:
                end(name, at)
            one = Life(kind, at, self.last.get(name))
            self.last[name] = one
            begun.append(one)
            every.append(one)
        for one in begun:
            one.number, self.next = self.next, self.next + 1
        follows = [-1 if one.before is None else one.before.number for one in begun]
        return [one.number for one in every], follows, [(one.number, one.kind, at) for one, at in removed]


def columns_of(changes):
    return tuple([change[column] for change in changes] for column in range(3))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(0, 2)), max_size=12), max_size=6))
def test_numbers_are_those_of_a_model_also_after_a_restore(batches):
    numbering, model, at, resumed = Numbering(), Model(), 0, 0
    for batch in batches:
        changes, active = [], {name for name, one in model.last.items() if not one.ended}
        for name, kind, later in batch:
            at += later
            if kind == 3 and f"s{name}" not in active:
                continue
            changes.append((f"s{name}", -1 if kind == 3 else kind, at))
            (active.discard if kind == 3 else active.add)(f"s{name}")
        found, wanted = numbering.change(*columns_of(changes)), model.change(changes)
        lives = found.number >= 0
        assert found.number.tolist() == wanted[0] and found.follows[lives].tolist() == wanted[1]
        assert list(zip(*(column.tolist() for column in found.removed), strict=True)) == wanted[2]
        assert [column.dtype for column in found.removed] == [np.int64, np.int8, np.int64]
        assert numbering.next == model.next
        kinds = [one.kind for one in model.last.values()]
        assert numbering.by_kind(3) == [kinds.count(kind) for kind in range(3)]
        fragment = numbering.fragment(None)
        saved = fragment.arrays()
        assert len(saved["names_offsets"]) == len(saved["number"]) + 1
        numbering.change(["another", "s0"], [0, 0], [at, at])  # the fragment is as it was
        again = Numbering()
        counts = [sum(kind >= 0 for _, kind, _ in changes), *[0] * 3]
        again.restore(saved, model.next, counts)
        numbering, resumed, at = again, resumed + 1, at + 1
        assert all(
            np.array_equal(one, other)
            for one, other in zip(again.fragment(None).arrays().values(), saved.values(), strict=True)
        )
        assert again.fragment(sum(counts)).arrays() == {}
    assert resumed == len(batches)
