"""How many members of one kind fit on each node, from columns alone. Pure.

An upper bound: requests of one pod are counted one by one, and partitions of a card as if they
did not draw on the same counters. So a domain that lacks room by this count lacks it; one that has
room is searched.
"""

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
from hami_dra.api.arrays import Floats, Ints

MOST: Final = 1 << 20
"""Stands for any number of members."""


class NodeFits(Struct, frozen=True):
    """How members of one kind fit the nodes."""

    members: Ints
    """Upper bound of the members that fit at once, at most `MOST`. Shape (nodes.size,)."""
    links: Floats
    """The vendors' score of the best set of devices for one member, 0 where none scores sets. Shape (nodes.size,)."""
    devices: int
    """Devices that one member takes."""


def fits_per_node(
    inventory: Inventory,
    request: SchedulingRequest,
    options: Options,
    shared: AbstractSet[str],
    relations: MemberRelations,
) -> NodeFits:
    """Return how such members fit on each node.

    `shared`: uids of claims that are allocated once for several members; they limit no node here.
    Nodes that other members may make fit (`relations`) count as if they did.
    Where the claims cannot be read the devices limit nothing: the decision reports the error.
    Raises SliceSpent.
    """
    nodes = NodeFilter(inventory, request)
    fits = np.where(nodes.mask | relations.lifted(request.pod, nodes.codes), MOST, 0)
    for resource, amount in pod_requests(request.pod).items():
        if amount > 0:
            # A node that does not offer the resource is out by the filter, or serves it through claims.
            room = np.maximum(inventory.left(request.pod, resource), 0) // amount
            fits = np.where(inventory.nodes.offers(resource) > 0, np.minimum(fits, room), fits)
    links = np.zeros(inventory.nodes.size, dtype=np.float64)
    try:
        managed, foreign = inputs_of(inventory, request, options)
        own = Scope(options.managed, vendor_rules=not options.first_fit)
        wanted = requested_devices_of(inventory, request, managed, own)
        others = Scope(options.managed, foreign=True, vendor_rules=False)
        theirs = requested_devices_of(inventory, request, foreign, others)
    except (AllocatorError, SelectorOverBudget):
        return NodeFits(fits, links, 0)
    for group, columns in (*wanted, *theirs):
        if group.alternatives[0].claim.metadata.uid not in shared:
            rooms = [_room(inventory, view, column) for view, column in zip(group.alternatives, columns, strict=True)]
            fits = np.minimum(fits, np.maximum.reduce(rooms))
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
    rows = np.flatnonzero(codes == 0)
    shared = devices.shared[rows] & view.features.consumable_capacity
    if view.all_devices:
        return np.full(size, MOST if shared.any() else 1, dtype=np.int64)
    asked = column.ask(rows)
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
    each = np.maximum(each, 1)
    owners = devices.node[rows]
    owned = owners >= 0
    sums = np.bincount(owners[owned], weights=each[owned], minlength=size)
    room: Ints = np.minimum(sums, MOST).astype(np.int64) // view.count
    return room
