"""Why no node will do: every node or card counted once, by its first failing reason (HAMi's codes). Pure."""

from collections import Counter
from collections.abc import Iterable

import numpy as np

from controller.allocation.kinds import NOT_OF_CLASS
from controller.allocation.prefilter import RequestColumns
from controller.allocation.request import RequestGroup
from controller.decide.nodeverdicts import NodeVerdicts
from controller.inventory.columns import Bools
from controller.inventory.inventory import Inventory
from controller.inventory.nodefit import CODES as NODE_CODES
from hami_dra.api import names
from hami_dra.vendors.protocol import Codes
from hami_dra.vendors.reasons import CODES


class Report:
    """Counts every node or card once, by its first failing reason."""

    def __init__(self, inventory: Inventory, most: int) -> None:
        self._inventory = inventory
        self._most = most
        self.reasons: Counter[str] = Counter()
        self.nodes: dict[str, dict[str, int]] = {}

    def nodes_refused(self, verdicts: NodeVerdicts) -> None:
        for number, code in enumerate(NODE_CODES):
            if code:
                self._add(code, np.flatnonzero(verdicts.codes == number))
        for code, mask in verdicts.reasons:
            self._add(code, np.flatnonzero(mask))

    def cards_refused(
        self, group: RequestGroup, columns: list[RequestColumns], nodes: Bools, codes: Codes | None = None
    ) -> None:
        """`nodes` cannot meet the request: with too few cards at all, else by what is wrong with each card.

        Of a prioritized list the last alternative speaks: what kept the pod even from that. `codes`: by device row, where
        they are not those of its column.
        """
        if not nodes.any():
            return
        view, column = group.alternatives[-1], columns[-1]
        few = nodes & (column.cards() + column.roaming < max(view.count, 1))
        self._add(names.NODE_INSUFFICIENT_DEVICE, np.flatnonzero(few))
        rows = column.rows_on(nodes & ~few)
        codes = (column.codes if codes is None else codes)[rows]
        owners_ = self._inventory.devices.node[rows]
        cardless = nodes & ~few
        cardless[owners_] = False  # what remains has no card of its own, and the search did not reach enough of others
        self._add(names.NODE_INSUFFICIENT_DEVICE, np.flatnonzero(cardless))
        for number in np.unique(codes):
            if number != NOT_OF_CLASS:
                code = CODES[number] if number else names.ALLOCATED_CARDS_INSUFFICIENT
                self._add(code, owners_[codes == number])

    def sets_refused(self, code: str, nodes: Bools) -> None:
        """`nodes` have enough cards, but no set of them is legal: counted once per node."""
        self._add(code, np.flatnonzero(nodes))

    def _add(self, code: str, node_rows: Iterable[int]) -> None:
        """One count for each entry, which is the row of a node."""
        counts = Counter(int(row) for row in node_rows)
        if counts:
            self.reasons[code] += counts.total()
        for row, count in counts.items():
            name = self._inventory.nodes.names[row]
            if name in self.nodes or len(self.nodes) < self._most:
                self.nodes.setdefault(name, {})[code] = count
