"""What preemption answers, and what it may do. Pure."""

import math
from typing import Final

from msgspec import Struct

from controller.decide.answers import Decision
from controller.decide.scheduling_request import SchedulingRequest
from controller.inventory.quota_headroom import QuotaLine
from hami_dra.api.core import Pod

PATIENCE: Final = 60.0
"""Seconds after the end of its grace for which a pod that terminates is waited for."""


class PreemptionRules(Struct, frozen=True):
    now: float
    """Seconds since 1970: how long a pod has run, and since when one terminates."""
    steps: int = 1_000
    """Decisions after which the best plan so far is taken, in a cluster of up to 1,000 nodes. They take
    longer in larger ones, which have fewer: 200 ms of CPU are enough for all of them.
    """
    nodes: int = 16
    """Nodes, or topology domains, for which victims are chosen: those that promise the cheapest ones."""


class PreemptionPlan(Struct, frozen=True):
    placed: tuple[tuple[SchedulingRequest, Decision], ...]
    """Where the pods of the unit fit once the victims are gone, and all that terminates."""
    victims: tuple[Pod, ...] = ()
    """To be evicted, the most important one first; none: it fits as soon as `releasing` are gone."""
    releasing: tuple[Pod, ...] = ()
    """Pods that terminate already: those on the chosen nodes, or all if one elsewhere is in the way."""
    together: tuple[tuple[Pod, ...], ...] = ()
    """The victims, by what goes as a whole or not at all: a pod, the pods of a claim, a gang."""
    violations: int = 0
    """Number of victims whose eviction exceeds a PodDisruptionBudget (`Budgets.best_effort`)."""
    groups_broken: int = 0
    """Number of gangs that cannot run any more."""
    is_cut: bool = False
    """Not all choices were tried: there may be a cheaper one."""
    is_owed: bool = False
    """The unit's namespace is owed the place: it has no more than its guarantee with it."""
    reclaims: tuple[QuotaLine, ...] = ()
    """What the unit's namespace had of what the unit takes back (`hard`: is owed), then what those of the victims had."""

    @property
    def devices(self) -> int:
        return sum([len(held) for _, decision in self.placed for held in decision.holdings.values()])

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([decision.node for _, decision in self.placed]))


class NoPlan(Struct, frozen=True):
    why: str
    """Begins a sentence: `no node fits even without ...`."""
    is_cut: bool = False
    """Not all choices were tried: there may be a plan."""
    until: float = math.inf
    """When a pod has run as long as it must, in seconds since 1970: there may be a plan then."""

    @property
    def sentence(self) -> str:
        return f"{self.why}, but not all choices were tried" if self.is_cut else self.why
