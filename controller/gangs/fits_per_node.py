"""How many members of one kind fit on each node, from columns alone. Pure.

An upper bound: requests of one pod are counted one by one, and partitions of a card as if they
did not draw on the same counters. So a domain that lacks room by this count lacks it; one that has
room is searched.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

import numpy as np
from msgspec import Struct

from controller.allocation.errors import AllocatorError, SelectorOverBudget
from controller.allocation.ownership import Scope
from controller.allocation.prefilter import RequestColumns
from controller.allocation.resolved import ResolvedRequest
from controller.cluster.pod_resources import pod_requests
from controller.decide.node_filter import NodeFilter
from controller.decide.pre_score import arranging_of, estimate_nodes
from controller.decide.problems import inputs_of, requested_devices_of
from controller.decide.scheduling_request import Options, SchedulingRequest
from controller.gangs.member_relations import MemberRelations
from controller.inventory.inventory import Inventory
from hami_dra.api.arrays import Bools, Floats, Ints, Positions
from hami_dra.vendors.protocol import CardRequest

MOST: Final = 1 << 20
"""Stands for any number of members."""
_ANY: Final = np.iinfo(np.int64).max
_Alternative = tuple[ResolvedRequest, RequestColumns]


class NodeFits(Struct, frozen=True):
    """How members of one kind fit the nodes."""

    members: Ints
    """Upper bound of the members that fit at once, at most `MOST`. Shape (nodes.size,)."""
    links: Floats
    """The vendors' score of the best set of devices for one member, 0 where none scores sets. Shape (nodes.size,)."""
    devices: int
    """Devices that one member takes."""


class RoomForAll:
    """Upper bound of the members of all kinds that fit on a node together: as many as would fit if
    each asked for the least that any of them asks.

    A card with 10 slots and 16 GiB; one kind asks for 4 GiB, another for 2 GiB: 10 slots, or 8
    times 2 GiB: at most 8 members, where 4 and 8 of each kind alone would make 12.
    """

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._amounts: dict[str, int] | None = None
        """What every kind asks of a node, and the least of it; None: nothing is known of any kind."""
        self._left: dict[str, Ints] = {}
        self._count = MOST
        """The fewest devices that a member takes of those that only one node has."""
        self._least: dict[tuple[bytes, bool], Ints] = {}
        """By devices that fit (bits by row) and whether they may be taken more than once: the least
        slots, cores and memory that a request takes of each kind of device.
        """

    def ask(self, amounts: Mapping[str, int], left: Mapping[str, Ints]) -> None:
        """Note what members of one kind ask of a node. `left`: by resource, what the nodes have left of it."""
        before = self._amounts if self._amounts is not None else amounts
        self._amounts = {name: min(amount, before[name]) for name, amount in amounts.items() if name in before}
        self._left.update(left)

    def take(self, requests: Sequence[Sequence[_Alternative]]) -> None:
        """Note the requests that every member of one kind makes, each with its alternatives."""
        bounded = [request for request in requests if not any(_is_unlimited(*each) for each in request)]
        count = sum([min([view.count for view, _ in request]) for request in bounded])
        self._count = min(self._count, count)
        for view, column in [each for request in bounded for each in request]:
            bits = np.packbits(column.codes[: self._inventory.devices.size] == 0).tobytes()
            key, asked = (bits, view.features.consumable_capacity), column.ask_of_kinds()
            self._least[key] = np.minimum(self._least.get(key, asked), asked)

    def per_node(self) -> Ints:
        """Return the bound, at most `MOST`. Shape (nodes.size,)."""
        room = np.full(self._inventory.nodes.size, MOST, dtype=np.int64)
        for resource, amount in (self._amounts or {}).items():
            room = np.minimum(room, _times_asked(self._inventory, self._left[resource], resource, amount))
        if self._count:
            devices = self._inventory.devices
            least = np.full((3, devices.size), _ANY, dtype=np.int64)
            divisible = np.ones(devices.size, dtype=np.bool_)
            for (bits, may_divide), asked in self._least.items():
                rows = np.flatnonzero(np.unpackbits(np.frombuffer(bits, dtype=np.uint8), count=devices.size))
                least[:, rows] = np.minimum(least[:, rows], asked[:, devices.kind[rows]])
                divisible[rows] &= may_divide
            rows = np.flatnonzero(least[0] < _ANY)
            times = _times_taken(self._inventory, rows, CardRequest(*least[:, rows]), divisible[rows])
            room = np.minimum(room, _on_nodes(self._inventory, rows, times) // self._count)
        return room


def _is_unlimited(view: ResolvedRequest, column: RequestColumns) -> bool:
    """Return whether the request takes nothing, or an unknown number of devices, or some that no node owns."""
    return view.admin_access or view.all_devices or bool(column.network_attached)


def fits_per_node(
    inventory: Inventory,
    request: SchedulingRequest,
    options: Options,
    shared: AbstractSet[str],
    relations: MemberRelations,
    *,
    room: RoomForAll,
) -> NodeFits:
    """Return how such members fit on each node, and note in `room` what they ask.

    `shared`: uids of claims that are allocated once for several members; they limit no node here.
    Nodes that other members may make fit (`relations`) count as if they did.
    Where the claims cannot be read the devices limit nothing: the decision reports the error.
    Raises SliceSpent.
    """
    nodes = NodeFilter(inventory, request)
    fits = np.where(nodes.mask | relations.lifted(request.pod, nodes.codes), MOST, 0)
    amounts = {resource: amount for resource, amount in pod_requests(request.pod).items() if amount > 0}
    left = {resource: inventory.rules.left(request.pod, resource) for resource in amounts}
    room.ask(amounts, left)
    for resource, amount in amounts.items():
        fits = np.minimum(fits, _times_asked(inventory, left[resource], resource, amount))
    links = np.zeros(inventory.nodes.size, dtype=np.float64)
    try:
        managed, foreign = inputs_of(inventory, request, options)
        own = Scope(options.managed, vendor_rules=not options.first_fit)
        wanted = requested_devices_of(inventory, request, managed, own)
        others = Scope(options.managed, foreign=True, vendor_rules=False)
        theirs = requested_devices_of(inventory, request, foreign, others)
    except (AllocatorError, SelectorOverBudget):
        room.take([])
        return NodeFits(fits, links, 0)
    requests: list[Sequence[_Alternative]] = [
        [*zip(group.alternatives, columns, strict=True)]
        for group, columns in (*wanted, *theirs)
        if group.alternatives[0].claim.metadata.uid not in shared
    ]
    room.take(requests)
    for alternatives in requests:
        fits = np.minimum(fits, np.maximum.reduce([_room(inventory, view, column) for view, column in alternatives]))
    arranging = arranging_of(inventory, request.policies, wanted) if own.vendor_rules else frozenset[str]()
    if arranging:
        estimates = estimate_nodes(inventory, request.policies, wanted, fits > 0, arranging)
        links = estimates.topology
        for refused in estimates.refused.values():
            fits = np.where(refused, 0, fits)
    return NodeFits(fits, links, sum(group.alternatives[0].count for group, _ in (*wanted, *theirs)))


def idle_fits_per_node(
    inventory: Inventory, request: SchedulingRequest, options: Options, shared: AbstractSet[str]
) -> Ints:
    """Return how many such members the idle devices of each node could serve, at most `MOST`: an
    upper bound, whatever else the node has or refuses. Shape (nodes.size,).

    `shared` as for `fits_per_node`. Raises AllocatorError, SelectorOverBudget, SliceSpent.
    """
    managed, foreign = inputs_of(inventory, request, options)
    own = Scope(options.managed, vendor_rules=not options.first_fit)
    others = Scope(options.managed, foreign=True, vendor_rules=False)
    fits = np.where(inventory.nodes.present[: inventory.nodes.size], MOST, 0)
    for problem, scope in ((managed, own), (foreign, others)):
        for group, columns in requested_devices_of(inventory, request, problem, scope):
            if group.alternatives[0].claim.metadata.uid not in shared:
                rooms = [
                    _room(inventory, view, column, idle=True)
                    for view, column in zip(group.alternatives, columns, strict=True)
                ]
                fits = np.minimum(fits, np.maximum.reduce(rooms))
    return fits


def _room(inventory: Inventory, view: ResolvedRequest, column: RequestColumns, *, idle: bool = False) -> Ints:
    """Return how often each node can meet one request; `idle`: as if no device were in use. Shape
    (nodes.size,).

    Two cards for a request that takes 4 GiB; card 0 has 10 GiB left of 16, card 1 all of them:

        each   [10 // 4, 16 // 4] = [2, 4]
        room   [6] for one card a member, [3] for two
    """
    size, devices = inventory.nodes.size, inventory.devices
    codes = column.idle().codes if idle else column.codes[: devices.size]
    if view.admin_access or (column.idle().anywhere if idle else column.network_attached):
        return np.full(size, MOST, dtype=np.int64)
    looks = column.looks()
    fits = codes[looks.rows] == 0
    rows = looks.rows[fits]
    if view.all_devices:
        shared = devices.shared[rows] & view.features.consumable_capacity
        return np.full(size, MOST if shared.any() else 1, dtype=np.int64)
    times = np.zeros(len(fits), dtype=np.int64)
    divisible = np.full(len(rows), view.features.consumable_capacity)
    times[fits] = _times_taken(inventory, rows, column.ask(rows), divisible, idle=idle)
    return np.minimum(looks.by_node(times), MOST) // view.count


def _on_nodes(inventory: Inventory, rows: Positions, times: Ints) -> Ints:
    """Return the sums by node of what is given by row, at most `MOST`. Shape (nodes.size,)."""
    owners, size = inventory.devices.node[rows], inventory.nodes.size
    owned = owners >= 0
    sums = np.bincount(owners[owned], weights=times[owned], minlength=size)
    found: Ints = np.minimum(sums, MOST).astype(np.int64)
    return found


def _times_taken(
    inventory: Inventory, rows: Positions, asked: CardRequest, divisible: Bools, *, idle: bool = False
) -> Ints:
    """Return how often each card in these rows can be taken, at most `MOST`. Shape (rows,).

    `asked`: by row; `divisible`: whether a card that can be shared may be taken more than once.
    """
    devices = inventory.devices
    shared = devices.shared[rows] & divisible
    each: Ints = np.where(shared, MOST, 1)
    for amount, used, total in (
        (asked.slots, devices.slots_used, devices.slots_total),
        (asked.cores, devices.cores_used, devices.cores_total),
        (asked.memory, devices.memory_used, devices.memory_total),
    ):
        limited = shared & (amount > 0) & (total[rows] > 0)
        left = (total[rows] - (0 if idle else used[rows])) // np.maximum(amount, 1)
        each = np.where(limited, np.minimum(each, left), each)
    # The column says that each card fits once, whatever the amounts say.
    return np.maximum(each, 1)


def _times_asked(inventory: Inventory, left: Ints, resource: str, amount: int) -> Ints:
    """Return how often the nodes have an amount left of a resource, at most `MOST`. Shape (nodes.size,).

    A node that does not offer the resource is out by the filter, or serves it through claims.
    """
    return np.where(inventory.nodes.offers(resource) > 0, np.minimum(np.maximum(left, 0) // amount, MOST), MOST)
