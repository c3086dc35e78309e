"""Nodes that fit one shape of pod, sorted by preference; cached, and updated for the nodes that
changed.

Used by `decide` for pods to which all nodes with enough cards are worth the same, under node policies
that read the stored score of a node. The replicas of one workload arrive one after the other, and only a node or two changes
in between: so the nodes need not be filtered again, nor the best of them searched. A cache only;
rare shapes have no entry. Pure.

Saves 0.06 of 0.35 ms of deciding and assuming a pod at 1,000 nodes, and 0.13 of 0.48 ms at 5,000 (a
shared card; `hack/bench/decide.py`, CPython 3.11, a busy machine): without it a decision grows with
the cluster.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from math import isnan, nan
from typing import Final

import numpy as np

from controller.allocation.prefilter import RequestColumns
from controller.decide.allowed_nodes import AllowedNodes
from controller.decide.pre_score import Wanted
from controller.decide.scheduling_request import SchedulingRequest
from controller.inventory.columns import NOWHERE, UNSEEN
from controller.inventory.inventory import Inventory
from controller.rules.node_filters import ShapeFit
from controller.scoring.formulas import lowest_first, sort_sign
from hami_dra.api.arrays import Codes, Floats, Positions

_FEW: Final = 16
"""Up to this many changed nodes, move each to its new position; beyond it, evaluating all nodes is cheaper."""
_MOST_NEWS: Final = 16 * _FEW
"""Entries of the change logs that are worth reading for this."""
_OFTEN: Final = 8
"""Sort the nodes once a shape has been seen this often with few changes in between; sorting pays
off after about as many further pods.
"""


Requests = tuple[tuple[RequestColumns, int], ...]
"""Each request of a pod, as its columns and how many cards it takes."""


class RankedNodes:
    """The nodes that fit one shape of pod, sorted.

    `sign`: +1 if the lowest score is the best, -1 if the highest is. `offered`: resources that rule
    a node out. `among`: only these nodes; None: all. Nodes are sorted by (sign * score, rank of the name); a changed node is moved by
    bisection. Only a second look sorts all:

    >>> from types import SimpleNamespace as Fake
    >>> nodes = Fake(size=3, rank=np.array([1, 0, 2]), score=np.array([5.0, 5.0, 2.0]))
    >>> column = Fake(enough=lambda count: np.ones(3, dtype=bool), enough_on=lambda count, row: True)
    >>> ranked = RankedNodes(Fake(nodes=nodes), ((column, 1),), sign=-1.0, offered=())
    >>> codes = np.zeros(3, dtype=np.uint8)
    >>> ranked.build(codes)
    >>> ranked.first(3).tolist()    # of equal scores the lower name
    [1, 0, 2]
    >>> nodes.score[2] = 9.0
    >>> ranked.update(codes, [2])
    >>> ranked.first(3).tolist()
    [2, 1, 0]
    """

    def __init__(
        self,
        inventory: Inventory,
        requests: Requests,
        *,
        sign: float,
        offered: tuple[str, ...],
        among: AllowedNodes | None = None,
    ) -> None:
        self._inventory = inventory
        self._among = among
        self._requests = requests
        self._sign = sign
        self._offered = offered
        self._entries: list[tuple[float, int]] = []
        """(sign * score, rank of the name), ascending."""
        self._key: list[float] = []
        """By row, the scores of `_entries`; NaN where the node does not fit."""
        self._row_of_rank: Positions = np.zeros(0, dtype=np.intp)
        self._unsorted: tuple[Floats, Positions] | None = None
        """`_key` as an array, and the fitting rows, until a second look is taken."""

    def __len__(self) -> int:
        """Return the number of fitting nodes."""
        return len(self._entries if self._unsorted is None else self._unsorted[1])

    def first(self, most: int) -> Positions:
        """Return the rows of the best nodes, best first."""
        if self._unsorted is not None:
            key, rows = self._unsorted
            return lowest_first(key, self._inventory.nodes.rank, rows, most)
        return self._row_of_rank[[rank for _, rank in self._entries[:most]]]

    def build(self, codes: Codes) -> None:
        """Evaluate all nodes. `codes`: by row, the reason against the pod."""
        key = self._keys(codes)
        self._unsorted = key, np.flatnonzero(~np.isnan(key))

    def _sort(self, key: Floats, rows: Positions) -> None:
        nodes = self._inventory.nodes
        rank = nodes.rank
        self._key = key.tolist()
        keys, ranks = key[rows], rank[rows]
        order = np.lexsort((ranks, keys))
        self._entries = list(zip(keys[order].tolist(), ranks[order].tolist(), strict=True))
        self._row_of_rank = np.empty(nodes.size, dtype=np.intp)
        self._row_of_rank[rank] = np.arange(nodes.size)
        self._unsorted = None

    def update(self, codes: Codes, changed: Iterable[int]) -> None:
        """Move the changed nodes to their new positions. `changed`: rows of all nodes that may differ, each once."""
        if self._unsorted is not None:
            self._sort(*self._unsorted)
        ranks = self._inventory.nodes.rank
        for row in changed:
            old, new, rank = self._key[row], self._key_of(codes, row), ranks.item(row)
            if old == new:
                continue
            self._key[row] = new
            # NaN is a node that does not fit, and has no entry. NaN == NaN is false, so a node that
            # still does not fit comes here too and changes nothing.
            if not isnan(old):
                del self._entries[bisect_left(self._entries, (old, rank))]
            if not isnan(new):
                insort(self._entries, (new, rank))

    def _keys(self, codes: Codes) -> Floats:
        """Return sign * score of all nodes, NaN where the node does not fit. Shape (nodes.size,)."""
        nodes = self._inventory.nodes
        fits = codes == 0
        for column, count in self._requests:
            fits &= column.enough(count)
        for resource in self._offered:
            fits &= nodes.offers(resource) == 0
        if self._among is not None:
            fits &= self._among.mask
        return np.where(fits, self._sign * nodes.score, np.nan)

    def _lacks(self, row: int) -> bool:
        return any(not column.enough_on(count, row) for column, count in self._requests)

    def _key_of(self, codes: Codes, row: int) -> float:
        """Return the entry of `_keys`, without numpy's overhead."""
        nodes = self._inventory.nodes
        if codes.item(row) or self._lacks(row):
            return nan
        if self._among is not None and not self._among.mask.item(row):
            return nan
        if any(nodes.load_of(resource, row)[0] for resource in self._offered):
            return nan
        return self._sign * nodes.score.item(row)


class ShapeRanking:
    """One shape of pod: the versions it was last seen at, how often in a row, and its nodes if it is
    frequent. `often`: sort the nodes once it has been seen so often.
    """

    def __init__(self, often: int = _OFTEN) -> None:
        self._often = often
        self._version: tuple[int, ...] = ()
        self._close = 0
        self._ranked: RankedNodes | None = None
        self._fit: ShapeFit | None = None
        """Whose logs the versions count."""

    def of(self, inventory: Inventory, fit: ShapeFit, make: Callable[[], RankedNodes]) -> RankedNodes | None:
        """Return the sorted nodes, up to date if the column is; None where all nodes must be evaluated."""
        if fit is not self._fit:
            self._fit, self._version = fit, ()
        changed = self._news(inventory, fit)
        if changed is None:
            self._close, self._ranked = 0, None
        else:
            self._close += 1
        if self._ranked is not None and changed is not None:
            self._ranked.update(fit.codes, changed)
        elif self._close >= self._often:
            self._ranked = make()
            self._ranked.build(fit.codes)
        return self._ranked

    def _news(self, inventory: Inventory, fit: ShapeFit) -> set[int] | None:
        """Return the rows of the nodes that changed since the shape was last seen, or None where
        they are too many.

        Remembers the current versions. The first two (`arrivals`, `structure`) change when rows get
        other nodes or devices: nothing cached by row holds then. The other two count the entries of
        logs, so a difference is the number of entries to read::

            before (7, 3, 44, 900), now (7, 3, 45, 902)
            -> the verdict on one node changed, and the usage of two devices: at most three nodes
            before (7, 3, ...), now (8, 3, ...)  -> a node came or went: None
            before () (never seen)               -> None

        A log that was cut in the meantime has no entries for the old version: None as well.
        """
        nodes, devices = inventory.nodes, inventory.devices
        before = self._version
        self._version = now = (
            nodes.arrivals,
            devices.structure.version,
            fit.changes.version,
            devices.changes.version,
        )
        if before[:2] != now[:2] or max(now[2] - before[2], now[3] - before[3]) > _MOST_NEWS:
            return None
        judged, used = fit.changes.entries(before[2]), devices.changes.entries(before[3])
        if judged is None or used is None:
            return None
        rows = {*judged, *[devices.node.item(row) for row in {*used}]}
        # Devices that several nodes may reach are on none of them; `enough` covers them.
        rows.discard(NOWHERE)
        rows.discard(UNSEEN)
        return rows if len(rows) <= _FEW else None


def ranked_by_shape(
    inventory: Inventory,
    request: SchedulingRequest,
    wanted: Wanted,
    own: ShapeRanking | None,
    fit: ShapeFit | None = None,
) -> RankedNodes | None:
    """Return the sorted nodes, up to date if the columns of `wanted` are.

    Returns None where all nodes must be evaluated: pods of this shape are rare, too much has
    changed, or the columns are not enough. `own`: the caller's, for pods of this shape, policy and
    these allowed nodes; None: the one of all pods of this shape. `fit`: of the pod, up to date, if the
    caller has it.
    """
    fit = fit or inventory.rules.shape_fit(request.pod, uses_spares=request.uses_spares)
    requests = tuple([(columns[0], group.alternatives[0].count) for group, columns in wanted])
    if fit is None or not all(count and not column.network_attached for column, count in requests) or not requests:
        return None
    sign, offered = sort_sign(request.policies.node_policy), request.plugin_resources
    if own is None and request.allowed_nodes is not None:
        own = ShapeRanking(often=0)
    if own is None:
        own = inventory.of_request(ShapeRanking, (fit, requests, sign, offered), ShapeRanking)
    return own.of(
        inventory,
        fit,
        lambda: RankedNodes(inventory, requests, sign=sign, offered=offered, among=request.allowed_nodes),
    )
