"""The data that one run of `decide` evaluated, for explanations (`controller.insight.explain`).

Handed out with the answer, so that nothing is computed twice. It refers to columns that are updated
in place: read it before the inventory changes, then drop it. Pure.
"""

from collections import Counter
from collections.abc import Callable
from functools import cached_property

import numpy as np
from msgspec import Struct, field

from controller.allocation.device_equivalence import NOT_OF_CLASS
from controller.allocation.prefilter import RequestColumns
from controller.allocation.request import RequestGroup
from controller.allocation.result import Solution
from controller.decide.node_filter import NodeFilter
from controller.decide.pre_score import NodeEstimates, Wanted
from controller.decide.quotas import QuotaVerdicts, Shortage
from controller.inventory.inventory import Inventory
from controller.reasons.catalogue import CODES as NODE_CODES
from controller.rules.preferences import PreferenceScores
from controller.scoring.chooser import PolicyChooser
from controller.scoring.ranking import Ranking
from hami_dra.api.arrays import Bools, Codes, Ints, Positions
from hami_dra.vendors import device_codes
from hami_dra.vendors.device_codes import CODES

Quality = tuple[int, float]
"""(rank of prioritized lists, vendors' score of the sets): nodes are compared by these first, then
by what the pod prefers of nodes.
"""


class RefusalReport:
    """Counts every node or card once, by its first failing reason (HAMi's codes)."""

    def __init__(self, inventory: Inventory, most: int) -> None:
        self._inventory = inventory
        self._most = most
        self.reasons: Counter[str] = Counter()
        self.nodes: dict[str, dict[str, int]] = {}
        """At most `most` of them."""
        self._named: set[int] = set()
        """Rows of `nodes`."""
        self._counts: dict[str, Ints] = {}

    def nodes_refused(self, verdicts: NodeFilter) -> None:
        for number, code in enumerate(NODE_CODES):
            if code:
                self._add(code, np.flatnonzero(verdicts.codes == number))
        for code, mask in verdicts.reasons:
            self._add(code, np.flatnonzero(mask))

    def cards_refused(
        self, group: RequestGroup, columns: list[RequestColumns], nodes: Bools, codes: Codes | None = None
    ) -> None:
        """Count `nodes`, which cannot meet the request: as a node if it has too few cards at all,
        else by the reason of each card.

        Of a prioritized list the last alternative counts: the reason that kept the pod even from
        that. `codes`: by device row, if they differ from those of its column.
        """
        if not nodes.any():
            return
        view, column = group.alternatives[-1], columns[-1]
        few = nodes & (column.idle().of_class + column.network_attached < max(view.count, 1))
        self._add(device_codes.NODE_INSUFFICIENT_DEVICE, np.flatnonzero(few))
        rows = column.rows_on(nodes & ~few)
        codes = column.reasons(rows, codes)
        owners_ = self._inventory.devices.node[rows]
        cardless = nodes & ~few
        # the rest has no card of its own, and the search did not reach enough of others
        cardless[owners_] = False
        self._add(device_codes.NODE_INSUFFICIENT_DEVICE, np.flatnonzero(cardless))
        for number in np.flatnonzero(np.bincount(codes)).tolist():
            if number != NOT_OF_CLASS:
                code = CODES[number] if number else device_codes.ALLOCATED_CARDS_INSUFFICIENT
                self._add(code, owners_[codes == number])

    def sets_refused(self, code: str, nodes: Bools) -> None:
        """Count nodes that have enough cards, but no legal set of them: once per node."""
        self._add(code, np.flatnonzero(nodes))

    @property
    def node_counts(self) -> dict[str, int]:
        """Return the number of nodes by reason code."""
        return {code: int(np.count_nonzero(counts)) for code, counts in self._counts.items()}

    def of(self, row: int) -> dict[str, int]:
        """Return the reasons of one node, with counts."""
        return {code: int(counts[row]) for code, counts in self._counts.items() if counts[row]}

    def _add(self, code: str, node_rows: Ints | Positions) -> None:
        """Add one count for each entry, which is the row of a node."""
        if not node_rows.size:
            return
        counts = np.bincount(node_rows, minlength=self._inventory.nodes.size)
        self.reasons[code] += int(node_rows.size)
        self._counts[code] = self._counts[code] + counts if code in self._counts else counts
        seen = np.flatnonzero(counts).tolist()
        for row in [*self._named.intersection(seen), *seen[: self._most]]:
            if row in self._named or len(self._named) < self._most:
                self._named.add(row)
                self.nodes.setdefault(self._inventory.nodes.names[row], {})[code] = int(self._counts[code][row])


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
