"""Nodes that fit one shape of pod, sorted by preference; cached, and updated for the nodes that
changed.

Used by `decide` for pods to which all nodes with enough cards are worth the same, under node policies
that read the stored score of a node, and for members of gangs whatever they prefer of cards. The
replicas of one workload arrive one after the other, and only a node or two changes in between: so
the nodes need not be filtered again, nor the best of them searched. A cache only; single pods of a rare shape have no entry. Pure.

Saves 0.06 of 0.35 ms of deciding and assuming a pod at 1,000 nodes, and 0.13 of 0.48 ms at 5,000 (a
shared card; `hack/bench/decide.py`, CPython 3.11, a busy machine): without it a decision grows with
the cluster.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable
from heapq import heapify, heappop, heappush
from math import isnan, nan
from typing import Final

import numpy as np

from controller.allocation.prefilter import RequestColumns
from controller.decide.allowed_nodes import AllowedNodes
from controller.decide.pre_score import NodeEstimates, Wanted
from controller.decide.scheduling_request import SchedulingRequest
from controller.inventory.columns import NOWHERE, UNSEEN
from controller.inventory.inventory import Inventory
from controller.rules.node_filters import ShapeFit
from controller.scoring.formulas import lowest_first, sort_sign
from controller.scoring.ranking import Ranking
from hami_dra.api.arrays import Bools, Codes, Floats, Positions

_FEW: Final = 16
"""Up to this many changed nodes, move each to its new position; beyond it, evaluating all nodes is cheaper."""
_MOST_NEWS: Final = 16 * _FEW
"""Entries of the change logs that are worth reading for this."""
_OFTEN: Final = 8
"""Sort the nodes for single pods once their shape has been seen this often with few changes in
between; sorting pays off after about as many further pods.
"""

Requests = tuple[tuple[RequestColumns, int], ...]
"""Each request of a pod, as its columns and how many cards it takes."""


class NodeOrder:
    """The nodes that fit by one value, of equal values by name. Only a second look sorts all.

    `sign`: +1 if the lowest value is the best, -1 if the highest is. Nodes are sorted by (sign * value,
    rank of the name); a changed node is moved by bisection.

    >>> from types import SimpleNamespace as Fake
    >>> nodes, score = Fake(size=3, rank=np.array([1, 0, 2])), np.array([5.0, 5.0, 2.0])
    >>> order = NodeOrder(Fake(nodes=nodes), lambda: score, sign=-1.0)
    >>> fits = np.array([True, True, True])
    >>> order.build(fits)
    >>> order.first(3).tolist()    # of equal values the lower name
    [1, 0, 2]
    >>> score[2] = 9.0
    >>> order.move([2], fits)
    >>> order.first(3).tolist()
    [2, 1, 0]
    """

    def __init__(self, inventory: Inventory, values: Callable[[], Floats], *, sign: float) -> None:
        self._inventory = inventory
        self._values = values
        self._sign = sign
        self._entries: list[tuple[float, int]] = []
        """(sign * value, rank of the name), ascending."""
        self._key: list[float] = []
        """By row, the values of `_entries`; NaN where the node does not fit."""
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

    def build(self, fits: Bools) -> None:
        """Evaluate all nodes. `fits`: shape (nodes.size,)."""
        self._unsorted = np.where(fits, self._sign * self._values(), np.nan), np.flatnonzero(fits)

    def move(self, changed: Iterable[int], fits: Bools) -> None:
        """Move nodes to their new places. `changed`: rows of all nodes that may differ, each once."""
        if self._unsorted is not None:
            self._sort(*self._unsorted)
        values, ranks = self._values(), self._inventory.nodes.rank
        for row in changed:
            old, rank = self._key[row], ranks.item(row)
            new = self._sign * values.item(row) if fits.item(row) else nan
            if old == new:
                continue
            self._key[row] = new
            # NaN is a node that does not fit, and has no entry. NaN == NaN is false, so a node that
            # still does not fit comes here too and changes nothing.
            if not isnan(old):
                del self._entries[bisect_left(self._entries, (old, rank))]
            if not isnan(new):
                insort(self._entries, (new, rank))

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


class Promising:
    """The fitting nodes by estimate, then by value: the best of them at once.

    `estimate`: of some nodes; `values`: of all, as for `NodeOrder`.
    """

    def __init__(
        self,
        inventory: Inventory,
        estimate: Callable[[Bools], NodeEstimates],
        values: Callable[[], Floats],
        *,
        sign: float,
    ) -> None:
        self._inventory = inventory
        self._estimate = estimate
        self._values = values
        self._sign = sign
        self._entry: dict[int, tuple[float, ...]] = {}
        """By row of a fitting node; lower is better, the name decides last."""
        self._heap: list[tuple[float, ...]] = []
        """Entries with the row as last item; those that no node has any more among them."""

    def update(self, fits: Bools, rows: Positions) -> Positions:
        """Evaluate some nodes. `fits`: whether they do by themselves. Returns those where no set of cards is legal."""
        for row in rows.tolist():
            self._entry.pop(row, None)
        asked = np.zeros(len(fits), dtype=np.bool_)
        asked[rows] = fits[rows]
        estimates = self._estimate(asked)
        refused = np.logical_or.reduce([*estimates.refused.values(), np.zeros(len(fits), dtype=np.bool_)])
        rows = np.flatnonzero(asked & ~refused)
        columns = -estimates.rank, -estimates.topology, self._sign * self._values(), -estimates.tie
        lines = [each[rows].tolist() for each in (*columns, self._inventory.nodes.rank)]
        fresh = list(zip(*lines, rows.tolist(), strict=True))
        self._entry.update(zip(rows.tolist(), fresh, strict=True))
        if len(fresh) > _FEW:
            self._heap = [*self._entry.values()]
            heapify(self._heap)
        else:
            for entry in fresh:
                heappush(self._heap, entry)
        return np.flatnonzero(refused)

    def best(self) -> tuple[int, tuple[int, float]]:
        """Return the row of the best node, and its estimate without preference. There must be one."""
        while self._entry.get(int(self._heap[0][-1])) != self._heap[0]:
            heappop(self._heap)
        rank, topology, *_, row = self._heap[0]
        return int(row), (-int(rank), -topology)


class RankedNodes:
    """The nodes that fit one shape of pod, sorted.

    `offered`: resources that rule a node out. `among`: only these nodes; None: all. `ranking`: whose
    values they are sorted by, None: the stored score. `promising`: None where all estimates are equal.
    """

    def __init__(
        self,
        inventory: Inventory,
        requests: Requests,
        *,
        sign: float,
        offered: tuple[str, ...],
        among: AllowedNodes | None = None,
        ranking: Ranking | None = None,
        promising: Promising | None = None,
    ) -> None:
        self._inventory = inventory
        self._among = among
        self._requests = requests
        self._offered = offered
        self._promising = promising
        self._fits: Bools = np.zeros(0, dtype=np.bool_)
        self.ranking = ranking
        nodes = inventory.nodes
        self._order = NodeOrder(inventory, lambda: nodes.score if ranking is None else ranking.values, sign=sign)

    def __len__(self) -> int:
        """Return the number of fitting nodes."""
        return len(self._order)

    def first(self, most: int) -> Positions:
        """Return the rows of the best nodes, best first, whatever is estimated."""
        return self._order.first(most)

    def most_promising(self) -> tuple[int, tuple[int, float]] | None:
        """Return the row of the most promising node, and its estimate without preference; None where
        all estimates are equal.
        """
        return self._promising.best() if self._promising is not None else None

    def build(self, codes: Codes) -> None:
        """Evaluate all nodes. `codes`: by row, the reason against the pod."""
        nodes = self._inventory.nodes
        fits = codes == 0
        for column, count in self._requests:
            fits &= column.enough(count)
        for resource in self._offered:
            fits &= nodes.offers(resource) == 0
        if self._among is not None:
            fits &= self._among.mask
        if self._promising is not None:
            fits[self._promising.update(fits, np.arange(nodes.size))] = False
        self._fits = fits
        self._order.build(fits)

    def update(self, codes: Codes, changed: Collection[int]) -> None:
        """Evaluate the changed nodes. `changed`: rows of all nodes that may differ, each once."""
        for row in changed:
            self._fits[row] = self._fits_on(codes, row)
        if changed and (self.ranking is not None or self._promising is not None):
            rows = np.array([*changed], dtype=np.intp)
            if self.ranking is not None:
                self.ranking.update(rows)
            if self._promising is not None:
                self._fits[self._promising.update(self._fits, rows)] = False
        self._order.move(changed, self._fits)

    def _fits_on(self, codes: Codes, row: int) -> bool:
        """Return what `build` finds of a node, without numpy's overhead."""
        nodes = self._inventory.nodes
        if codes.item(row) or any(not column.enough_on(count, row) for column, count in self._requests):
            return False
        if self._among is not None and not self._among.mask.item(row):
            return False
        return not any(nodes.load_of(resource, row)[0] for resource in self._offered)


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
        """Return the sorted nodes, up to date if the columns are; None where all nodes must be evaluated."""
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
    *,
    fit: ShapeFit | None = None,
    beyond: Callable[[], tuple[Ranking | None, Promising | None]] = lambda: (None, None),
) -> RankedNodes | None:
    """Return the sorted nodes, up to date if the columns of `wanted` are.

    Returns None where all nodes must be evaluated: pods of this shape are rare, too much has
    changed, or the columns are not enough. `own`: the caller's, for pods of this shape, policy and
    these allowed nodes; None: the one of all pods of this shape. `fit`: of the pod, up to date, if the
    caller has it. `beyond`: what else nodes are sorted by (`RankedNodes`).
    """
    fit = fit or inventory.rules.shape_fit(request.pod, uses_spares=request.uses_spares)
    requests = tuple([(columns[0], group.alternatives[0].count) for group, columns in wanted])
    if fit is None or not all(count and not column.network_attached for column, count in requests) or not requests:
        return None
    sign, offered = sort_sign(request.policies.node_policy), request.plugin_resources
    if own is None:
        key, is_alone = (fit, requests, sign, offered), request.allowed_nodes is not None
        own = ShapeRanking(often=0) if is_alone else inventory.of_request(ShapeRanking, key, ShapeRanking)

    def make() -> RankedNodes:
        ranking, promising = beyond()
        among = request.allowed_nodes
        return RankedNodes(
            inventory, requests, sign=sign, offered=offered, among=among, ranking=ranking, promising=promising
        )

    return own.of(inventory, fit, make)
