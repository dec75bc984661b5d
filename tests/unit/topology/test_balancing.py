"""When loads are dealt out anew: not at first, not where it would win nothing, and not over and over in vain."""

import pytest

from tests.support.example_topologies import keyed
from topology.core.executors.balancing import Balance, Balancer
from topology.core.tasks.task import TaskHost


class Ledger:
    """Statuses of a topology in which the tasks of one component have worked so long."""

    def __init__(self, plan, name):
        self.plan, self.addresses = plan, plan.addresses_of(name)
        hosts = [TaskHost(plan, address, None, None, lambda: 0.0, 0) for address in range(len(plan.tasks))]
        self.statuses = [host.status() for host in hosts]

    def work(self, *seconds):
        for address, more in zip(self.addresses, seconds, strict=True):
            status = self.statuses[address]
            worked = status.busy_ns.get("batches", 0) + int(more * 1e9)
            self.statuses[address] = status._replace(busy_ns={"batches": worked})
        return self.statuses


@pytest.fixture
def both():
    plan = keyed(1, 1)
    return Balancer(plan, Balance("seen")), Ledger(plan, "seen")


def test_balancer_first_checkpoint_measures_nothing(both):
    balancer, ledger = both
    tasks = len(ledger.addresses)
    assert tasks > 1, "nothing to compare"
    assert balancer.unbalanced(ledger.work(9.0, *[1.0] * (tasks - 1)), 10.0) is None
    told = balancer.unbalanced(ledger.work(5.0, *[1.0] * (tasks - 1)), 20.0)
    assert told == {"seen": (5_000_000_000, *[1_000_000_000] * (tasks - 1))}


def test_balancer_even_or_idle_tasks_are_left_alone(both):
    balancer, ledger = both
    tasks = len(ledger.addresses)
    balancer.unbalanced(ledger.work(*[1.0] * tasks), 0.0)
    assert balancer.unbalanced(ledger.work(1.1, *[1.0] * (tasks - 1)), 10.0) is None
    assert balancer.unbalanced(ledger.work(0.5, *[0.0] * (tasks - 1)), 20.0) is None, "busy for 5 % of the time"


def test_balancer_loads_that_cannot_be_parted_are_tried_ever_less_often(both):
    balancer, ledger = both
    tasks, tried = len(ledger.addresses), []
    for turn in range(40):
        if balancer.unbalanced(ledger.work(9.0, *[1.0] * (tasks - 1)), 10.0 * turn):
            tried.append(turn)
            balancer.begin()
    gaps = [later - earlier for earlier, later in zip(tried, tried[1:], strict=False)]
    assert len(gaps) >= 2 and all(later > earlier for earlier, later in zip(gaps, gaps[1:], strict=False)), tried
