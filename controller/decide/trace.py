"""The data that one run of `decide` evaluated, for explanations (`controller.insight.explain`).

Handed out with the answer, so that nothing is computed twice. It refers to columns that are updated
in place: read it before the inventory changes, then drop it. Pure.
"""

from collections.abc import Callable
from functools import cached_property

import numpy as np
from msgspec import Struct, field

from controller.allocation.prefilter import RequestColumns
from controller.allocation.request import RequestGroup
from controller.allocation.result import Solution
from controller.decide.node_filter import NodeFilter
from controller.decide.pre_score import NodeEstimates, Wanted
from controller.decide.quotas import QuotaVerdicts, Shortage
from controller.decide.report import RefusalReport
from controller.inventory.inventory import Inventory
from controller.rules.preferences import PreferenceScores
from controller.scoring.chooser import PolicyChooser
from controller.scoring.ranking import Ranking
from hami_dra.api.arrays import Bools, Ints

Quality = tuple[int, float]
"""(rank of prioritized lists, vendors' score of the sets): nodes are compared by these first, then
by what the pod prefers of nodes.
"""


class Trace(Struct, kw_only=True, dict=True):
    look: Callable[[], tuple[NodeFilter, Ints]]
    """Computes `verdicts` and `fitting`; for simple pods they are not needed until they are read here."""
    wanted: Wanted
    """Every request with the columns of its alternatives: managed ones first, then those of other drivers."""
    ours: int
    """Number of managed requests in `wanted`."""
    quota: QuotaVerdicts | None
    estimates: NodeEstimates
    ranking: Ranking
    preferences: PreferenceScores | None
    """None where the pod prefers nothing."""
    chooser: PolicyChooser | None
    """None under `first-fit`: nothing was scored."""
    tried: dict[int, Quality | None] = field(default_factory=dict)
    """Rows of the searched nodes: the value found there, or None."""
    solution: Solution | None = None
    _shortage: Shortage | None = None

    @cached_property
    def _seen(self) -> tuple[NodeFilter, Ints]:
        return self.look()

    @property
    def verdicts(self) -> NodeFilter:
        return self._seen[0]

    @property
    def fitting(self) -> Ints:
        """Rows of the nodes that were worth a search."""
        return self._seen[1]

    def shortage(self) -> Shortage | None:
        """Return where the quota of the namespace is in the way; None if it has no quota."""
        if self._shortage is None and self.quota is not None:
            self._shortage = self.quota.shortage(self.verdicts.mask)
        return self._shortage

    def report(self, inventory: Inventory, most: int) -> RefusalReport:
        """Return why the nodes do not fit.

        If the pod was placed: the nodes that were not worth a search, or were searched without
        success.
        """
        report = RefusalReport(inventory, most)
        report.nodes_refused(self.verdicts)
        left = self.verdicts.mask.copy()
        if self.solution is not None:
            left[self.fitting] = False
            left[[row for row, quality in self.tried.items() if quality is None]] = True
        shortage = self.shortage()
        for number, (group, columns) in enumerate(self.wanted):
            short = left & ~enough(inventory, group, columns)
            codes = None
            if shortage is not None and number < len(shortage.codes):
                short |= left & (shortage.request == number)
                codes = shortage.codes[number]
            report.cards_refused(group, columns, short, codes)
            left &= ~short
        for code, refused in self.estimates.refused.items():
            report.sets_refused(code, left & refused)
            left &= ~refused
        if self.wanted and left.any():
            report.cards_refused(*self.wanted[0], left)
        return report


def enough(inventory: Inventory, group: RequestGroup, columns: list[RequestColumns]) -> Bools:
    """Return the nodes that may meet some alternative. Requests for all devices are left to the search."""
    some = np.zeros(inventory.nodes.size, dtype=np.bool_)
    for view, column in zip(group.alternatives, columns, strict=True):
        some |= np.True_ if view.all_devices else column.enough(view.count)
    return some
