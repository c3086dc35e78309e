"""The reasons why no node fits: every node or card is counted once, by its first failing reason
(HAMi's codes). Pure.
"""

from collections import Counter

import numpy as np

from controller.allocation.device_equivalence import NOT_OF_CLASS
from controller.allocation.prefilter import RequestColumns
from controller.allocation.request import RequestGroup
from controller.decide.node_filter import NodeFilter
from controller.inventory.inventory import Inventory
from controller.reasons.catalogue import CODES as NODE_CODES
from hami_dra.api import names
from hami_dra.api.arrays import Bools, Codes, Ints, Positions
from hami_dra.vendors.reasons import CODES


class RefusalReport:
    """Counts every node or card once, by its first failing reason."""

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
        self._add(names.NODE_INSUFFICIENT_DEVICE, np.flatnonzero(few))
        rows = column.rows_on(nodes & ~few)
        codes = column.reasons(rows, codes)
        owners_ = self._inventory.devices.node[rows]
        cardless = nodes & ~few
        # the rest has no card of its own, and the search did not reach enough of others
        cardless[owners_] = False
        self._add(names.NODE_INSUFFICIENT_DEVICE, np.flatnonzero(cardless))
        for number in np.flatnonzero(np.bincount(codes)).tolist():
            if number != NOT_OF_CLASS:
                code = CODES[number] if number else names.ALLOCATED_CARDS_INSUFFICIENT
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
