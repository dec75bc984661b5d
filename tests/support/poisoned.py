"""A query bolt that raises on chosen rows wherever they come with their terms, in whatever process it runs."""

import dataclasses
import pickle
from collections.abc import Collection

import numpy as np

from bolts.query import QueryBolt
from matching.model import UNKNOWN_TERM
from topology.core.api.plan import Plan


class PoisonedQuery(QueryBolt):
    """Raises ValueError on messages with these seqs, on subscriptions with these numbers, and on batch `always`."""

    seqs: tuple[int, ...] = ()
    numbers: tuple[int, ...] = ()
    always = -1

    def _process(self, changes, part):
        messages, added = part.messages, changes.added
        bad = np.isin(messages.seq, self.seqs) & (np.diff(messages.term_offsets) > 0)
        harmless = added.terms[added.term_offsets[:-1]] == UNKNOWN_TERM if len(added) else np.zeros(0, bool)
        worse = np.isin(added.number, self.numbers) & ~harmless
        if bad.any() or worse.any() or part.boundary.number == self.always:
            raise ValueError("this row is poison")
        return super()._process(changes, part)


def poisoned(plan: Plan, seqs: Collection[int] = (), numbers: Collection[int] = (), always: int = -1) -> Plan:
    """The same plan with a query bolt that raises on these."""
    part = plan.component("query")
    bolt = pickle.loads(part.template)  # noqa: S301 - made by the builder
    bolt.__class__ = PoisonedQuery
    bolt.seqs, bolt.numbers, bolt.always = tuple(seqs), tuple(numbers), always
    changed = dataclasses.replace(part, template=pickle.dumps(bolt))
    components = tuple(changed if each.name == "query" else each for each in plan.components)
    return dataclasses.replace(plan, components=components)
