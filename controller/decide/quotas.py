"""The quota of the pod's namespace against all nodes at once: where the requests can stay within
it, and which cards it refuses.

Used by `decide`, and only for namespaces with a quota for cards. In: the headroom of the quota, the
columns of every managed request. Out: nodes, and reason codes as HAMi counts them. Works on
columns; nodes with equivalent cards are walked through once. Pure.

`affordable` is necessary, not sufficient: the search keeps the exact account. `shortage` is for
reports: like HAMi (Fit of each vendor) it gathers cards for one request after the other, counts
each with its first failing reason, and checks the quota before memory. Cheap cards are gathered
first, whatever the device policy: a card that is refused for the quota would have been refused last
too.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
from msgspec import Struct

from controller.allocation.device_equivalence import NOT_OF_CLASS, UNJUDGED
from controller.allocation.errors import AllocatorError
from controller.allocation.prefilter import RequestColumns
from controller.allocation.request import ResolvedRequest
from controller.cluster.incremental.saturation import CARD_MOST
from controller.decide.pre_score import Wanted
from controller.inventory.inventory import Inventory
from controller.inventory.model import Device, value_of
from controller.inventory.quota_headroom import Cost, QuotaHeadroom
from controller.reasons.reason import Reason
from hami_dra.api import names
from hami_dra.api.arrays import Bools, Codes, Ints, Positions
from hami_dra.vendors import device_codes
from hami_dra.vendors.device_codes import NUMBER

_REFUSED: Final = NUMBER[device_codes.RESOURCE_QUOTA_NOT_FIT]


class Shortage(Struct, frozen=True):
    """The result of the walk through the requests."""

    request: Ints
    """Per node the index of the request that cannot be met, -1 where all can. Shape (nodes.size,)."""
    notes: tuple[str, ...]
    """The quotas that refuse cards, and how much of each is used."""
    codes: tuple[Codes, ...]
    """Per request the codes of its last alternative, by device row, with the quota's codes where
    the walk ended there.
    """


class QuotaVerdicts:
    """The verdicts of one namespace's quota on the requests of one pod."""

    def __init__(self, inventory: Inventory, headroom: QuotaHeadroom, wanted: Wanted) -> None:
        self._inventory = inventory
        self._headroom = headroom
        self._wanted = wanted
        samples = inventory.devices.kind_samples if wanted else []
        self._costs = [
            [[self._cost(view, sample) for sample in samples] for view in group.alternatives] for group, _ in wanted
        ]
        """By request, alternative, and number of the kind."""

    def affordable(self) -> Bools:
        """Return the nodes where each request fits the quota with the node's cheapest card, `count`
        times. Shape (nodes.size,).

        With 24 GiB of quota left, and two requests, one for two cards and one for one:

            node  cheapest card for each  total
            n0    8 and 10                2 * 8 + 10 = 26   too much, whichever cards are chosen
            n1    7 and 8                 2 * 7 + 8 = 22    worth a search

        Amounts are limited to CARD_MOST before they become int64, so that neither products nor sums
        overflow.
        """
        if self._headroom.allows(self._headroom.nothing, self._most(), self._headroom.nothing):
            return np.ones(self._inventory.nodes.size, dtype=np.bool_)
        total = self._total()
        left = np.clip(np.array(self._headroom.left, dtype=object), -CARD_MOST, CARD_MOST).astype(np.int64)[:, None]
        affordable: Bools = ~((total > 0) & (total > left)).any(axis=0)
        return affordable

    def shortage(self, nodes: Bools) -> Shortage:
        """Return why the quota refuses the pod. `nodes`: those that fit the pod except for devices."""
        inventory = self._inventory
        request = np.full(inventory.nodes.size, -1, dtype=np.int64)
        codes = [columns[-1].codes.copy() for _, columns in self._wanted]
        rows, places = self._places(nodes)
        blamed: set[str] = set()
        if not rows.size:
            return Shortage(request, (), tuple(codes))
        owners = inventory.devices.node[rows]
        every = [column for _, columns in self._wanted for column in columns]
        # One line of codes per alternative and a last one of kinds, for each node: `table[node,
        # line, place]`. Nodes with equal tables are walked once. `np.unique` compares the bytes of
        # each table as one opaque value (void):
        #
        #     nodes 4 and 9 are equal, 7 is not: first = [0, 1], node_class = [0, 1, 0]
        table = np.full((inventory.nodes.size, len(every) + 1, int(places.max()) + 1), NOT_OF_CLASS, dtype=np.int64)
        table[owners, -1, places] = inventory.devices.kind[rows]
        for number, column in enumerate(every):
            table[owners, number, places] = column.codes[rows]
        owning = np.unique(owners)
        flat = np.ascontiguousarray(table[owning].reshape(len(owning), -1))
        bytes_of = flat.view(np.dtype((np.void, flat.shape[1] * flat.itemsize))).ravel()
        _, first, node_class = np.unique(bytes_of, return_index=True, return_inverse=True)
        ends = [self._walk(table[owning[node]], blamed) for node in first.tolist()]
        request[owning] = np.array([end for end, _ in ends], dtype=np.int64)[node_class]
        class_of = np.zeros(inventory.nodes.size, dtype=np.int64)
        class_of[owning] = node_class
        for number in range(len(self._wanted)):
            here = np.flatnonzero(request[owners] == number)
            found = np.array([judged if end == number else table[0, -1] for end, judged in ends], dtype=np.int64)
            codes[number][rows[here]] = found[class_of[owners[here]], places[here]]
        notes = tuple(note for resource, note in self._headroom.notes if resource in blamed)
        return Shortage(request, notes, tuple(codes))

    def reason(self, nodes: Bools, shortage: Shortage) -> Reason:
        """Return which key is exceeded, with the least that the pod requests. `nodes`: those that have such devices."""
        least = self._total()[:, nodes].min(axis=1).tolist()
        (resource, note) = next(each for each in self._headroom.notes if each[1] in shortage.notes)
        for name, asked, limit in zip(self._headroom.names, least, self._headroom.limits, strict=True):
            if name.resource == resource and 0 < asked < CARD_MOST:
                wanted = f"needs {name.figure(name.in_units(asked))} of {name.resource}"
                return self._reason(wanted, note, never=asked > limit)
        return self._reason(f"needs more of {resource} than is left", note)

    def _reason(self, asked: str, note: str, *, never: bool = False) -> Reason:
        fix = "Ask for less, or have the quota raised" if never else ""
        return Reason("quota", asked, note, never=never, fix=fix, code=device_codes.RESOURCE_QUOTA_NOT_FIT)

    # -- costs of a request ------------------------------------------------------------------------

    def _total(self) -> Ints:
        """Return a lower bound of the cost on each node. Shape (limited resources, nodes.size)."""
        total = np.zeros((len(self._headroom.names), self._inventory.nodes.size), dtype=np.int64)
        for alternatives in self._alternatives():
            total += np.minimum.reduce([self._least(view, column, costs) for view, column, costs in alternatives])
        return total

    def _alternatives(self) -> Iterator[list[tuple[ResolvedRequest, RequestColumns, list[Cost]]]]:
        """Yield the alternatives of each request, with the cost of every kind."""
        for (group, columns), costs in zip(self._wanted, self._costs, strict=True):
            yield list(zip(group.alternatives, columns, costs, strict=True))

    def _most(self) -> Cost:
        """Return an upper bound of the cost, whichever cards are chosen.

        Requests for all devices count nothing: `affordable` leaves them to the search.
        """
        total = self._headroom.nothing
        for alternatives in self._alternatives():
            each = [[amount * view.count for amount in cost] for view, _, costs in alternatives for cost in costs]
            if each:
                total = tuple(map(sum, zip(total, map(max, zip(*each, strict=True)), strict=True)))
        return total

    def _least(self, view: ResolvedRequest, column: RequestColumns, costs: list[Cost]) -> Ints:
        """Return a lower bound of the cost of a request on each node. Shape (limited resources,
        nodes.size).

        The cheapest eligible device of the node, `count` times. Of two requested devices, where
        node 0 has some for 4 and 6 GiB, node 1 one for 6 GiB and node 2 none:

            np.minimum.at(cheapest, [0, 0, 1], [4, 6, 6])  ->  [4, 6, CARD_MOST]
            least                                              [8, 12, 2 * CARD_MOST]
        """
        devices, size = self._inventory.devices, self._inventory.nodes.size
        least = np.zeros((len(self._headroom.names), size), dtype=np.int64)
        rows = np.flatnonzero(column.codes[: devices.size] == 0)
        if view.all_devices or not rows.size:
            return least  # only the search knows how many devices "all" are
        amounts_of = np.clip(np.array(costs, dtype=object), 0, CARD_MOST).astype(np.int64).T
        for position, of_kind in enumerate(amounts_of):
            amounts = of_kind[devices.kind[rows]]
            if column.network_attached or amounts.min() == amounts.max():
                least[position] = amounts.min() * view.count
            else:
                cheapest = np.full(size, CARD_MOST, dtype=np.int64)
                owned = devices.node[rows] >= 0
                np.minimum.at(cheapest, devices.node[rows][owned], amounts[owned])
                least[position] = cheapest * view.count
        return least

    def _cost(self, view: ResolvedRequest, sample: Device) -> Cost:
        """Return the cost of a device of this kind; nothing for admin access and where the search
        will report an error.
        """
        if view.admin_access:
            return self._headroom.nothing
        try:
            consumed = view.consumed(sample)
        except AllocatorError:
            return self._headroom.nothing  # the search reports it
        if consumed is None:
            consumed = _nominal(view, sample)
        return self._headroom.cost(sample, consumed, shared=view.shared(sample))

    # -- walk --------------------------------------------------------------------------------------

    def _places(self, nodes: Bools) -> tuple[Positions, Positions]:
        """Return the device rows on the nodes, sorted by node, and for each row its place among
        those of its node.

        `searchsorted` of the sorted owners in themselves gives the index of the first row of each
        node:

        >>> from types import SimpleNamespace as Fake
        >>> devices = Fake(size=5, active=np.ones(5, dtype=bool), node=np.array([1, 0, 1, -1, 0]))
        >>> verdicts = QuotaVerdicts(Fake(devices=devices), None, [])
        >>> rows, places = verdicts._places(np.array([True, True]))
        >>> rows.tolist(), places.tolist()      # node 0 has rows 1 and 4, node 1 rows 0 and 2
        ([1, 4, 0, 2], [0, 1, 0, 1])
        """
        devices = self._inventory.devices
        rows = np.flatnonzero(devices.active[: devices.size] & (devices.node[: devices.size] >= 0))
        rows = rows[nodes[devices.node[rows]]]
        rows = rows[np.argsort(devices.node[rows], kind="stable")]
        owners = devices.node[rows]
        first = np.searchsorted(owners, owners)
        return rows, np.arange(len(rows)) - first

    def _walk(self, lines: Ints, blamed: set[str]) -> tuple[int, Ints]:
        """Walk through one node: return the request that cannot be met, or -1, and the codes of its
        cards then.

        `lines`: a line of codes for each alternative of each request, then one of kinds.
        Resources whose quota refuses a card are added to `blamed`.
        """
        kinds = lines[-1].tolist()
        spent = self._headroom.nothing
        line = 0
        for number, alternatives in enumerate(self._alternatives()):
            gathered: Cost | None = None
            for place, (view, column, costs) in enumerate(alternatives, line):
                if gathered is None:
                    codes = lines[place].copy()
                    # an empty place has no kind of its own
                    of_kinds = [costs[kind] if kind < len(costs) else costs[0] for kind in kinds]
                    walk = _Walk(self._headroom, codes, of_kinds, blamed)
                    gathered = walk.gather(view, column.network_attached, spent)
            line += len(alternatives)
            if gathered is None:
                return number, codes
            spent = gathered
        return -1, lines[-1]


class _Walk(Struct):
    """One request on one node. `codes` and `blamed` are added to; `costs`: by place, like `codes`."""

    headroom: QuotaHeadroom
    codes: Ints
    costs: list[Cost]
    blamed: set[str]

    def gather(self, view: ResolvedRequest, network_attached: int, spent: Cost) -> Cost | None:
        """Return the amount spent including the request's cards, or None if it cannot be met.

        With 40 units of quota and cards that cost 30, 10 and 24: two cards fit, three do not, and
        the most expensive one is refused for the quota:

        >>> from types import SimpleNamespace as Fake
        >>> headroom = Fake(exceeded=lambda spent, cost: ["memory"] if spent[0] + cost[0] > 40 else [])
        >>> walk = _Walk(headroom, np.zeros(3, dtype=np.int64), [(30,), (10,), (24,)], set())
        >>> walk.gather(Fake(all_devices=False, count=2), 0, (0,))
        (34,)
        >>> walk.gather(Fake(all_devices=False, count=3), 0, (0,)), walk.blamed
        (None, {'memory'})
        >>> walk.codes.tolist() == [_REFUSED, 0, 0]
        True
        """
        open_places = sorted(np.flatnonzero(self.codes == 0).tolist(), key=lambda place: self.costs[place])
        missing = len(open_places) if view.all_devices else view.count - network_attached
        for place in open_places:
            if missing > 0 and self._within(place, spent):
                spent = tuple(before + more for before, more in zip(spent, self.costs[place], strict=True))
                missing -= 1
        if missing <= 0:
            return spent
        # HAMi checks the quota before memory: a card refused for a reason that comes later counts
        # for the quota if the quota refuses it too.
        later = (self.codes > _REFUSED) & (self.codes != UNJUDGED) & (self.codes != NOT_OF_CLASS)
        for place in np.flatnonzero(later).tolist():
            self._within(place, spent)
        return None

    def _within(self, place: int, spent: Cost) -> bool:
        """Return whether the quota allows the card; record the refusal if not."""
        exceeded = self.headroom.exceeded(spent, self.costs[place])
        if exceeded:
            self.codes[place] = _REFUSED
            self.blamed.update(exceeded)
        return not exceeded


def _nominal(view: ResolvedRequest, device: Device) -> dict[str, int]:
    """Return what a request would take of a card that is too small for it: the amounts it names,
    else what the card would give.
    """
    consumed: dict[str, int] = {}
    for name, capacity in device.spec.capacity.items():
        named = view.capacity_requests.get(name)
        if named is None and capacity.request_policy is not None:
            named = None if capacity.request_policy.default is None else str(capacity.request_policy.default)
        consumed[name] = device.totals[name] if named is None else value_of(named)
    percent = view.memory_percent(device)
    if percent is not None:
        whole = device.card_memory if device.is_part else consumed.get(names.CAP_MEMORY, 0)
        consumed[names.CAP_MEMORY] = whole * percent // 100
    return consumed
