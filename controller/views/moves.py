"""Plain values that describe a plan of moves, for tables and `-o json`.

Created by `controller.insight.defrag`. JSON has the field names in camelCase, and every field is
always present.
"""

from controller.views import View
from controller.views.comparison import Move
from controller.views.overview import Packing


class PlannedMove(Move, frozen=True, kw_only=True):
    """A pod to be evicted, and where the pod that replaces it goes."""

    memory: int
    """Bytes of device memory that it holds."""
    frees: int
    """Devices that are free after it and were not before; negative: fewer are."""
    budgets: tuple[str, ...]
    """PodDisruptionBudgets that it is under, `namespace/name`."""


class BudgetUse(View, frozen=True, kw_only=True):
    """A PodDisruptionBudget that counts pods of the plan."""

    budget: str
    allowed: int
    """Evictions that it allows now."""
    moves: int
    """More than `allowed`: each waits until the pods before it are ready again."""


class MovePlan(View, frozen=True, kw_only=True):
    goal: str
    """What was asked for, such as `2 more free nodes`."""
    asked: int
    """Devices, nodes or pods."""
    gained: int
    """Of them, measured after the moves were replayed."""
    moves: tuple[PlannedMove, ...]
    """In the order in which they must happen: each has its place once those before it are done."""
    memory: int
    """Bytes of device memory that moves."""
    frees: tuple[str, ...]
    """The nodes or devices that become free, or the nodes where the pods get their place."""
    held_nodes: tuple[str, ...]
    """Nodes that must be cordoned until all moves are done."""
    held_devices: tuple[str, ...]
    """Devices that must be cordoned until then, `driver/pool/device`."""
    budgets: tuple[BudgetUse, ...]
    is_cut: bool
    """Not all choices were tried: fewer moves may be enough, or more may be gained."""
    pods: int
    """Running pods that hold devices."""
    stays: dict[str, str]
    """Pod that holds devices and cannot be moved → why."""
    before: tuple[Packing, ...]
    """By vendor."""
    after: tuple[Packing, ...]
    conclusion: str
    """One or two sentences in English."""
    notes: tuple[str, ...]

    @property
    def is_reached(self) -> bool:
        return self.gained >= self.asked
