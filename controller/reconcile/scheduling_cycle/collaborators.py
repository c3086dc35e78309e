"""The parts of a term that the scheduling cycles of pods and gangs work with. Created by `term`."""

from collections.abc import Callable

from msgspec import Struct

from controller.decide import Answer, Decision, Options, SchedulingRequest
from controller.inventory import Inventory
from controller.reconcile.binding import AssumedPods, BindingCycle, ClaimWriter, GateKeeper
from controller.reconcile.fence import Fence
from controller.reconcile.queueing import PodAssessor, SelectorBudgets
from controller.reconcile.repair import Deallocator
from controller.reconcile.runtime import DecisionLog, HeldBack

Decide = Callable[[Inventory, SchedulingRequest, Options], Answer]


class Deciding(Struct, frozen=True):
    """The parts that assess a pod and decide on it."""

    decide: Decide
    options: Options
    assessor: PodAssessor
    selectors: SelectorBudgets
    held_back: HeldBack
    log: DecisionLog


class Acting(Struct, frozen=True):
    """The parts that carry a decision out, or revert it."""

    binding_cycle: BindingCycle
    gate: GateKeeper
    deallocator: Deallocator
    claims: ClaimWriter
    assumed_pods: AssumedPods
    fence: Fence


def drivers_of(decision: Decision) -> set[str]:
    """Return the drivers whose devices the decision allocates."""
    results = (entry.allocation["devices"]["results"] for entry in decision.allocations)
    return {result["driver"] for each in results for result in each}
