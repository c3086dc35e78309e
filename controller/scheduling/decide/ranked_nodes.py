"""The nodes that fit one shape of pod, in the order in which they would be taken: kept, and mended for nodes that changed.

Asked by `decide` for plain pods (`decide.fast_path`) under node policies that read the kept score of a node. The replicas of one
workload come one after the other, and between two of them a node or two changes: so neither the nodes are filtered anew nor
the best of them looked for. A cache and nothing else; shapes that come rarely get none. Pure.

Saves 0.06 of 0.25 ms of a decision at 1,000 nodes, and 0.15 of 0.34 ms at 5,000 (a shared card; `hack/bench/decide.py`,
CPython 3.11): without it a decision grows with the cluster.
"""

from bisect import bisect_left, insort
from collections.abc import Hashable
from math import isnan
from typing import Final

import numpy as np

from controller.scheduling.allocation.prefilter import RequestColumns
from controller.scheduling.inventory.changes import LruCache
from controller.scheduling.inventory.columns import NOWHERE, UNSEEN
from controller.scheduling.inventory.inventory import Inventory
from hami_dra.api.arrays import Codes, Floats, Positions
from hami_dra.api.core import Pod

_SHAPES_KEPT: Final = 24
_FEW: Final = 16
"""So many changed nodes are put in order one by one; after more of them looking at all nodes is cheaper."""
_MOST_NEWS: Final = 16 * _FEW
"""Entries of change logs that are worth reading for that."""
_OFTEN: Final = 8
"""Pods of one shape, with few changes in between, after which its nodes are put in order: that costs as much as it saves for
so many more."""


class RankedNodes:
    """`sign`: +1 where the lowest score is the best, -1 where the highest is. `offered`: resources that rule a node out."""

    def __init__(
        self, inventory: Inventory, column: RequestColumns, count: int, *, sign: float, offered: tuple[str, ...]
    ) -> None:
        self._inventory = inventory
        self._column = column
        self._count = count
        self._sign = sign
        self._offered = offered
        self._entries: list[tuple[float, int]] = []
        """(score by `sign`, rank of the name), ascending."""
        self._key: Floats = np.zeros(0, dtype=np.float64)
        """By row, as in `_entries`; not a number where the node does not fit."""
        self._row_of_rank: Positions = np.zeros(0, dtype=np.intp)

    def __len__(self) -> int:
        """How many nodes fit."""
        return len(self._entries)

    def first(self, most: int) -> Positions:
        """Rows of the best ones, best first."""
        return self._row_of_rank[[rank for _, rank in self._entries[:most]]]

    def build(self, codes: Codes) -> None:
        """`codes`: what nodes refuse the pod for, by row."""
        nodes = self._inventory.nodes
        everything = np.arange(nodes.size)
        rank = nodes.rank
        self._key = self._keys(codes, everything)
        rows = np.flatnonzero(~np.isnan(self._key))
        keys, ranks = self._key[rows], rank[rows]
        order = np.lexsort((ranks, keys))
        self._entries = list(zip(keys[order].tolist(), ranks[order].tolist(), strict=True))
        self._row_of_rank = np.empty(nodes.size, dtype=np.intp)
        self._row_of_rank[rank] = everything

    def mend(self, codes: Codes, changed: Positions) -> None:
        """`changed`: rows of nodes of which anything may be different, each once."""
        before, now, ranks = self._key[changed], self._keys(codes, changed), self._inventory.nodes.rank[changed]
        self._key[changed] = now
        for old, new, rank in zip(before.tolist(), now.tolist(), ranks.tolist(), strict=True):
            if old == new:
                continue
            if not isnan(old):
                del self._entries[bisect_left(self._entries, (old, rank))]
            if not isnan(new):
                insort(self._entries, (new, rank))

    def _keys(self, codes: Codes, rows: Positions) -> Floats:
        nodes = self._inventory.nodes
        fits = (codes[rows] == 0) & self._column.enough(self._count, rows)
        for resource in self._offered:
            fits &= nodes.offers(resource)[rows] == 0
        return np.where(fits, self._sign * nodes.score[rows], np.nan)


class _Known:
    """One shape of pod: when it was asked about last, how often lately, and its nodes where it comes often."""

    def __init__(self) -> None:
        self.version: tuple[int, ...] = ()
        self.close = 0
        self.standing: RankedNodes | None = None


class RankedNodeCache:
    """Those of one inventory."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._known: LruCache[_Known] = LruCache(_SHAPES_KEPT)

    def of(
        self, pod: Pod, column: RequestColumns, count: int, *, sign: float, offered: tuple[str, ...]
    ) -> RankedNodes | None:
        """Up to date, as the column is. None: look at all nodes; pods of this shape are rare, or too much has changed."""
        inventory = self._inventory
        fit = inventory.plain_fit(pod)
        if fit is None or column.network_attached:
            return None
        key: Hashable = fit, column, count, sign, offered
        known = self._known.get(key, _Known)
        changed = self._changed(known)
        if changed is None:
            known.close, known.standing = 0, None
            return None
        known.close += 1
        if known.standing is not None:
            known.standing.mend(fit.codes, changed)
        elif known.close >= _OFTEN:
            known.standing = RankedNodes(inventory, column, count, sign=sign, offered=offered)
            known.standing.build(fit.codes)
        return known.standing

    def _changed(self, known: _Known) -> Positions | None:
        """Nodes of which anything changed since the shape was asked about; None: too many. Notes that it is now."""
        nodes, devices = self._inventory.nodes, self._inventory.devices
        before = known.version
        known.version = now = (
            nodes.arrivals,
            devices.structure.version,
            nodes.changes.version,
            nodes.loads.version,
            devices.changes.version,
        )
        if before[:2] != now[:2] or any(after - old > _MOST_NEWS for old, after in zip(before, now, strict=True)):
            return None
        logs = nodes.changes, nodes.loads, devices.changes
        altered, loaded, used = (log.entries(version) for log, version in zip(logs, before[2:], strict=True))
        if altered is None or loaded is None or used is None:
            return None
        rows = {*altered, *loaded, *(int(devices.node[row]) for row in {*used})}
        rows.discard(NOWHERE)
        rows.discard(UNSEEN)
        return np.array(sorted(rows), dtype=np.intp) if len(rows) <= _FEW else None


def ranked_nodes_of(inventory: Inventory) -> RankedNodeCache:
    return inventory.derived(RankedNodeCache, RankedNodeCache)
