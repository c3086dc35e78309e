"""Try all choices of nodes and devices for the members of a small gang. Pure.

The last resort of `gang_search`: what a member takes may be what another one needs, whatever the
order. A choice of a member is a node and a set of devices; every other choice differs from it in
one of these ways, so together they are all choices:

    n0 {a0, a1, b0}   ->   another node   any node but n0
                           fewer of a     n0, all devices like a0 masked but one
                           fewer of b     n0, all devices like b0 masked
                           skipping       n0, without the first alternative of its prioritized lists

Devices of one kind that are used alike are alike (`likeness`), unless a claim of the gang looks
closer.
"""

from collections.abc import Hashable, Sequence
from typing import Final

from controller.decide.allowed_nodes import AllowedNodes
from controller.decide.answers import Decision, Unschedulable
from controller.gangs.gang_members import Member
from controller.gangs.member_placements import MemberPlacements, OutOfSteps, Restriction, most_skipped
from controller.inventory.inventory import Inventory
from controller.inventory.model import Device, DeviceId
from controller.scoring.chooser import arranging_drivers
from hami_dra.api import names

MOST_MEMBERS: Final = 12
"""Gangs with more members are not searched: the number of choices grows with each."""

_OWN_NAMES: Final = frozenset({names.ATTR_INDEX, names.ATTR_UUID})
"""Attributes that differ for each device."""

_Place = tuple[int, str, tuple[DeviceId, ...]]
"""(kind of the member, node, devices)"""


class ExhaustiveSearch:
    """`most_steps`: decisions that it may make in all domains together. `any_order`: the members are
    placed in all orders, for one may fit only after another.
    """

    def __init__(
        self,
        inventory: Inventory,
        placements: MemberPlacements,
        members: Sequence[Member],
        most_steps: int,
        *,
        any_order: bool,
    ) -> None:
        self._inventory = inventory
        self._placements = placements
        self._members = [*members]
        self._any_order = any_order
        self._until = placements.steps + most_steps
        self._nodes: dict[int, AllowedNodes] = {}
        self._looks_closer = any(_tells_devices_apart(inventory, member) for member in members)
        self._fruitless: set[tuple[tuple[int, ...], tuple[_Place, ...]]] = set()
        """Kinds of the members that are left and the places of the others, sorted, that leave them none.
        Like members may swap their places, so each set of places is searched once.
        """

    def place(self, allowed: AllowedNodes) -> bool:
        """Place the members; return whether all that must have a place. Raises OutOfSteps."""
        if len(self._members) > MOST_MEMBERS:
            return False
        self._fruitless.clear()
        self._nodes.clear()
        return self._place_from(0, allowed)

    def _place_from(self, at: int, allowed: AllowedNodes) -> bool:
        """Place the members from this one on."""
        if at == len(self._members):
            return True
        places = tuple(sorted(member.kind for member in self._members[at:])), self._places()
        if places in self._fruitless:
            return False
        kinds = set[int]()
        for other in range(at, len(self._members) if self._any_order else at + 1):
            if self._members[other].kind not in kinds:
                kinds.add(self._members[other].kind)
                self._swap(at, other)
                if self._place_next(at, allowed):
                    return True
                self._swap(at, other)
        self._fruitless.add(places)
        return False

    def _swap(self, one: int, other: int) -> None:
        members = self._members
        members[one], members[other] = members[other], members[one]

    def _place_next(self, at: int, allowed: AllowedNodes) -> bool:
        """Place this member, then the others."""
        member = self._members[at]
        open_choices = [Restriction(allowed)]
        known: set[Restriction] = set()
        refusal: Unschedulable | None = None
        while open_choices:
            if self._placements.steps >= self._until:
                raise OutOfSteps
            restriction = open_choices.pop()
            answer = self._placements.decide(member, restriction)
            if isinstance(answer, Unschedulable):
                refusal = refusal or answer
                continue
            self._placements.place(member, answer)
            if self._place_from(at + 1, allowed):
                return True
            self._placements.unplace(member)
            open_choices += [each for each in self._others(member, answer, restriction) if each not in known]
            known.update(open_choices)
        refusal = refusal or Unschedulable("no choice of its devices leaves room for the other members")
        if self._placements.leave(member, refusal):
            if self._place_from(at + 1, allowed):
                return True
            del self._placements.left[member.index]
        return False

    def _others(self, member: Member, decision: Decision, restriction: Restriction) -> list[Restriction]:
        """Return the choices that differ from this one, the best last."""
        row, found = self._inventory.nodes.index_of(decision.node), list[Restriction]()
        if not _asks_for_all(member):
            here = self._node(row)
            found += [
                Restriction(here, restriction.masked | fewer, restriction.skipped)
                for fewer in self._fewer(row, decision)
            ]
            if restriction.skipped < most_skipped(member.request):
                found.append(Restriction(here, restriction.masked, restriction.skipped + 1))
        if restriction.allowed is not None and len(restriction.allowed.rows) > 1:
            found.append(Restriction(restriction.allowed.without(row)))
        return found

    def _fewer(self, row: int, decision: Decision) -> list[frozenset[DeviceId]]:
        """Return for each group of like devices in the decision those to mask, so that it has one
        fewer.

        Of eight idle cards two are chosen: seven are masked.
        """
        chosen = devices_of(decision)
        alike: dict[Hashable, list[DeviceId]] = {}
        devices = self._inventory.devices
        for each in self._inventory.rows_of(row).tolist():
            device = devices.device(each)
            alike.setdefault(self._likeness(device), []).append(device.id)
        found = []
        for group in (*alike.values(), *[[each] for each in chosen if devices.node.item(devices.row_of(each)) != row]):
            used = [each for each in group if each in chosen]
            if used:
                found.append(frozenset(group).difference(used[1:]))
        return found

    def _likeness(self, device: Device) -> Hashable:
        """Return a value that is equal for devices that no member can tell apart."""
        if self._looks_closer or device.spec.consumes_counters or device.is_part:
            return device.id
        columns, row = self._inventory.devices, device.row
        attributes = frozenset(
            (name, repr(value)) for name, value in device.spec.attributes.items() if name not in _OWN_NAMES
        )
        usage = columns.used(row), bool(columns.exclusive[row]), int(columns.mark[row])
        return int(columns.kind[row]), int(columns.taint_kind[row]), usage, attributes

    def _node(self, row: int) -> AllowedNodes:
        """Return the restriction to one node, the same object each time: restrictions are compared."""
        if row not in self._nodes:
            self._nodes[row] = AllowedNodes.of_rows([row], self._inventory.nodes.size)
        return self._nodes[row]

    def _places(self) -> tuple[_Place, ...]:
        kinds = {member.index: member.kind for member in self._members}
        decisions = self._placements.decisions.items()
        return tuple(sorted((kinds[index], each.node, devices_of(each)) for index, each in decisions))


def devices_of(decision: Decision) -> tuple[DeviceId, ...]:
    """Return the devices that the decision allocates, sorted, each once."""
    results = [result for entry in decision.allocations for result in entry.allocation["devices"]["results"]]
    return tuple(sorted({DeviceId(result["driver"], result["pool"], result["device"]) for result in results}))


def _asks_for_all(member: Member) -> bool:
    """Return whether a request is for all devices: none of them may be masked then."""
    return any(
        each.allocation_mode == "All"
        for entry in member.request.claims
        for request in entry.claim.spec.devices.requests
        for each in request.choices
    )


def _tells_devices_apart(inventory: Inventory, member: Member) -> bool:
    """Return whether a claim has selectors or constraints of its own, or the vendor arranges
    sets: devices of one kind are not alike then.
    """
    policies = member.request.policies
    if arranging_drivers(policies) & inventory.layouts.drivers():
        return True
    for entry in member.request.claims:
        devices = entry.claim.spec.devices
        if devices.constraints or entry.claim.key in policies.request_preferences:
            return True
        for request in devices.requests:
            if any(each.selectors for each in request.choices):
                return True
    return False
