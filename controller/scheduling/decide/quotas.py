"""The quota of the pod's namespace against all nodes at once: where its requests could be within it, and which cards it refuses.

Used by `decide` where the namespace has a quota for cards, and only there. In: the room that the quota leaves, the columns of
every request of ours. Out: nodes, and reason codes as HAMi counts them. Works on columns; nodes whose cards look alike are
walked through once. Pure.

What `affordable` says is necessary, not sufficient: the search keeps the exact account. `shortage` is for reports: as in HAMi
(Fit of each vendor) cards are gathered for one request after the other, each counts with its first failing reason, and
the quota is asked before memory. Cheap cards are gathered first, whatever the device policy: a card that is refused
for the quota would have been refused last too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from controller.scheduling.allocation.device_equivalence import NOT_OF_CLASS, UNJUDGED
from controller.scheduling.allocation.errors import AllocatorError
from controller.scheduling.allocation.prefilter import RequestColumns
from controller.scheduling.allocation.request import ResolvedRequest
from controller.scheduling.decide.pre_score import Wanted
from controller.scheduling.inventory.inventory import Inventory
from controller.scheduling.inventory.model import Device, value_of
from controller.scheduling.inventory.saturation import CARD_MOST
from controller.scheduling.quota.headroom import Cost, QuotaHeadroom
from hami_dra.api import names
from hami_dra.api.arrays import Bools, Codes, Ints, Positions
from hami_dra.vendors.reasons import NUMBER

_REFUSED: Final = NUMBER[names.RESOURCE_QUOTA_NOT_FIT]


@dataclass(frozen=True, slots=True)
class Shortage:
    """Where the walk through the requests ended."""

    request: Ints
    """Per node the position of the request that cannot be met, -1 where all can. Shape (nodes.size,)."""
    notes: tuple[str, ...]
    """What the quotas say that refuse cards, and how much of them is used."""
    codes: tuple[Codes, ...]
    """Per request the codes of its last alternative, by device row, where the walk ended there with the quota's among them."""


class QuotaVerdicts:
    def __init__(self, inventory: Inventory, room: QuotaHeadroom, wanted: Wanted) -> None:
        self._inventory = inventory
        self._room = room
        self._wanted = wanted
        self._by_kind: dict[tuple[int, int], list[Cost]] = {}

    def affordable(self) -> Bools:
        """Nodes where so many of their cheapest card for every request are within the quota. Shape (nodes.size,)."""
        width = len(self._room.names)
        if self._room.allows(self._room.nothing, self._most(), self._room.nothing):
            return np.ones(self._inventory.nodes.size, dtype=np.bool_)
        total = np.zeros((width, self._inventory.nodes.size), dtype=np.int64)
        for number, (group, columns) in enumerate(self._wanted):
            each = [
                self._least(view, column, self._costs(number, place, view))
                for place, (view, column) in enumerate(zip(group.alternatives, columns, strict=True))
            ]
            total += np.minimum.reduce(each)
        left = np.clip(np.array(self._room.left, dtype=object), -CARD_MOST, CARD_MOST).astype(np.int64)[:, None]
        affordable: Bools = ~((total > 0) & (total > left)).any(axis=0)
        return affordable

    def shortage(self, nodes: Bools) -> Shortage:
        """`nodes`: those that the pod could be on, devices apart."""
        inventory = self._inventory
        request = np.full(inventory.nodes.size, -1, dtype=np.int64)
        codes = [columns[-1].codes.copy() for _, columns in self._wanted]
        rows, places = self._places(nodes)
        blamed: set[str] = set()
        if not rows.size:
            return Shortage(request, (), tuple(codes))
        owners = inventory.devices.node[rows]
        every = [column for _, columns in self._wanted for column in columns]
        table = np.full((inventory.nodes.size, len(every) + 1, int(places.max()) + 1), NOT_OF_CLASS, dtype=np.int64)
        table[owners, -1, places] = inventory.devices.kind[rows]
        for number, column in enumerate(every):
            table[owners, number, places] = column.codes[rows]
        mine = np.unique(owners)
        flat = np.ascontiguousarray(table[mine].reshape(len(mine), -1))
        bytes_of = flat.view(np.dtype((np.void, flat.shape[1] * flat.itemsize))).ravel()
        _, first, node_class = np.unique(bytes_of, return_index=True, return_inverse=True)
        ends = [self._walk(table[mine[node]], blamed) for node in first.tolist()]
        request[mine] = np.array([end for end, _ in ends], dtype=np.int64)[node_class]
        picture_of = np.zeros(inventory.nodes.size, dtype=np.int64)
        picture_of[mine] = node_class
        for number in range(len(self._wanted)):
            here = np.flatnonzero(request[owners] == number)
            found = np.array([judged if end == number else table[0, -1] for end, judged in ends], dtype=np.int64)
            codes[number][rows[here]] = found[picture_of[owners[here]], places[here]]
        notes = tuple(note for resource, note in self._room.notes if resource in blamed)
        return Shortage(request, notes, tuple(codes))

    # -- what a request costs ----------------------------------------------------------------------------------------

    def _most(self) -> Cost:
        """Whatever cards are chosen; of requests for all devices, which `affordable` leaves to the search, nothing."""
        total = self._room.nothing
        for number, (group, _) in enumerate(self._wanted):
            each = [
                [amount * view.count for amount in cost]
                for place, view in enumerate(group.alternatives)
                for cost in self._costs(number, place, view)
            ]
            if each:
                total = tuple(
                    before + max(amounts) for before, amounts in zip(total, zip(*each, strict=True), strict=True)
                )
        return total

    def _least(self, view: ResolvedRequest, column: RequestColumns, costs: list[Cost]) -> Ints:
        """Shape (limited resources, nodes.size)."""
        devices, size = self._inventory.devices, self._inventory.nodes.size
        least = np.zeros((len(self._room.names), size), dtype=np.int64)
        rows = np.flatnonzero(column.codes[: devices.size] == 0)
        if view.all_devices or not rows.size:
            return least  # of all devices the search knows how many there are
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

    def _costs(self, number: int, alternative: int, view: ResolvedRequest) -> list[Cost]:
        """By number of the kind."""
        key = number, alternative
        if key not in self._by_kind:
            self._by_kind[key] = [self._cost(view, sample) for sample in self._inventory.devices.kind_samples]
        return self._by_kind[key]

    def _cost(self, view: ResolvedRequest, sample: Device) -> Cost:
        if view.admin_access:
            return self._room.nothing
        try:
            taken = view.demand(sample)
        except AllocatorError:
            return self._room.nothing  # the search will say so
        if taken is None:
            taken = _nominal(view, sample)
        return self._room.cost(sample, taken, shared=view.shared(sample))

    # -- the walk ----------------------------------------------------------------------------------------------------

    def _places(self, nodes: Bools) -> tuple[Positions, Positions]:
        """Device rows on the nodes, and for each its place among the rows of its node."""
        devices = self._inventory.devices
        rows = np.flatnonzero(devices.active[: devices.size] & (devices.node[: devices.size] >= 0))
        rows = rows[nodes[devices.node[rows]]]
        rows = rows[np.argsort(devices.node[rows], kind="stable")]
        owners = devices.node[rows]
        first = np.searchsorted(owners, owners)
        return rows, np.arange(len(rows)) - first

    def _walk(self, picture: Ints, blamed: set[str]) -> tuple[int, Ints]:
        """One node: the request that cannot be met, or -1, and the codes of its cards then.

        `picture`: a line of codes for each alternative of each request, then one of kinds. `blamed`: resources whose quota
        refuses a card are added.
        """
        kinds = picture[-1].tolist()
        spent = self._room.nothing
        line = 0
        for number, (group, columns) in enumerate(self._wanted):
            gathered: Cost | None = None
            for place, (view, column) in enumerate(zip(group.alternatives, columns, strict=True)):
                if gathered is None:
                    codes = picture[line].copy()
                    costs = self._costs(number, place, view)
                    # an empty place has no kind of its own
                    of_kinds = [costs[kind] if kind < len(costs) else costs[0] for kind in kinds]
                    walk = _Walk(self._room, codes, of_kinds, blamed)
                    gathered = walk.gather(view, column.network_attached, spent)
                line += 1
            if gathered is None:
                return number, codes
            spent = gathered
        return -1, picture[-1]


@dataclass(slots=True)
class _Walk:
    """One request on one node. `codes` and `blamed` are added to; `costs`: by place, as `codes`."""

    room: QuotaHeadroom
    codes: Ints
    costs: Sequence[Cost]
    blamed: set[str]

    def gather(self, view: ResolvedRequest, network_attached: int, spent: Cost) -> Cost | None:
        """What is spent with the request's cards, or None where it cannot be met."""
        open_places = sorted(np.flatnonzero(self.codes == 0).tolist(), key=lambda place: self.costs[place])
        missing = len(open_places) if view.all_devices else view.count - network_attached
        for place in open_places:
            if missing > 0 and self._within(place, spent):
                spent = tuple(before + more for before, more in zip(spent, self.costs[place], strict=True))
                missing -= 1
        if missing <= 0:
            return spent
        later = (self.codes > _REFUSED) & (self.codes != UNJUDGED) & (self.codes != NOT_OF_CLASS)
        for place in np.flatnonzero(later).tolist():
            self._within(place, spent)
        return None

    def _within(self, place: int, spent: Cost) -> bool:
        """The quota allows the card; else it says so."""
        exceeded = self.room.exceeded(spent, self.costs[place])
        if exceeded:
            self.codes[place] = _REFUSED
            self.blamed.update(exceeded)
        return not exceeded


def _nominal(view: ResolvedRequest, device: Device) -> dict[str, int]:
    """What a request would take of a card that is too small for it: what it names, else what the card would give."""
    taken: dict[str, int] = {}
    for name, capacity in device.spec.capacity.items():
        named = view.capacity_requests.get(name)
        if named is None and capacity.request_policy is not None:
            named = None if capacity.request_policy.default is None else str(capacity.request_policy.default)
        taken[name] = device.totals[name] if named is None else value_of(named)
    percent = view.memory_percents.get(device.id.driver)
    if percent is not None:
        taken[names.CAP_MEMORY] = taken.get(names.CAP_MEMORY, 0) * percent // 100
    return taken
