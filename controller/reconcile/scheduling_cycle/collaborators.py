"""The parts of a term that the scheduling cycle works with. Created by `term`."""

from msgspec import Struct

from controller.decide import Options
from controller.gangs import Decide
from controller.reconcile.binding import BindingCycle, ClaimWriter, GateKeeper
from controller.reconcile.fence import Fence
from controller.reconcile.observability import BindTimes
from controller.reconcile.preemption import Preemptor
from controller.reconcile.queueing import PodAssessor, SelectorBudgets
from controller.reconcile.repair import Deallocator
from controller.reconcile.runtime import DecisionLog, HeldBack


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
    fence: Fence
    bind_times: BindTimes
    preemptor: Preemptor | None
    """None: no pod is evicted for another."""
