"""The last check against overcommitment: whether a claim's devices are still free on this node.

Called by `transaction` for one claim at a time. In: the claim's devices, the devices held already,
the inventory. Out: nothing, or `NoRoom` with the sentence for the pod's event. Pure.

Neither the API server nor kubelet checks this, and more than one writer can allocate (a scheduler
that was cut off without noticing, an operator, a second controller). The rules are those of the
allocator:

- Grants are counted by card, and by partition of it: by uuid, profile and place, as they were
  stored. The device's name does not matter; after a restart a card may have another name, and
  another card its name.
- A device that is not shared has one holder.
- A shared device's capacity is not given out beyond the published amount (so oversubscribed memory
  counts as offered).
- A held device consumes its counters once, however many hold it, and no device beyond the total.
  Partitions of a card exclude each other, and the card, by counters; a card that was not in MIG
  mode when it was given excludes them without counters.
- Admin access consumes nothing and is never refused for lack of capacity.

Only the cards of the claim are checked: an overcommitted card already prevents more on it, and
nothing else.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hami_dra.api.printable import some
from hami_dra.driver.prepare.errors import NoRoom
from hami_dra.driver.prepare.inventory import Inventory
from hami_dra.driver.prepare.records import GrantedDevice


class ClaimHolding(NamedTuple):
    claim: str
    """`namespace/name`, for people."""
    held: GrantedDevice


class _Thing(NamedTuple):
    """A card, or a partition of it, independent of its name."""

    card: str
    profile: str = ""
    start: int = 0


def check_overcommit(
    claim: str, wanted: Sequence[GrantedDevice], others: Iterable[ClaimHolding], inventory: Inventory
) -> None:
    """Check a claim's devices. `claim`: `namespace/name`; `others`: all that other claims hold. Raises NoRoom."""
    taking = [ClaimHolding(claim, held) for held in wanted if not held.admin]
    taken = [tenant for tenant in others if not tenant.held.admin]
    for thing in dict.fromkeys(_thing(tenant.held) for tenant in taking):
        _check_device(claim, thing, taken, taking, inventory)
    _check_counters(claim, taken, taking, inventory)
    for tenant in taking:
        _check_cut(claim, tenant.held, taken)


def _check_device(
    claim: str, thing: _Thing, taken: Sequence[ClaimHolding], taking: Sequence[ClaimHolding], inventory: Inventory
) -> None:
    before = [tenant for tenant in taken if _thing(tenant.held) == thing]
    mine = [tenant for tenant in taking if _thing(tenant.held) == thing]
    name, device = mine[0].held.device, inventory.of(mine[0].held)
    # the mode published to the present holders counts too: a device that was exclusive stays theirs
    # alone
    if not all(tenant.held.shared for tenant in (*before, *mine)):
        if len(before) + len(mine) > 1:
            holder = f"is held by {_holders(before)}" if before else "is allocated to it more than once"
            raise NoRoom(
                f"ResourceClaim {claim}: device {name} is for one claim at a time and {holder}: {_way_out(before)}"
            )
        return
    offered = device.capacity if device is not None else {}
    for capacity, total in offered.items():
        used = sum(tenant.held.consumed.get(capacity, 0) for tenant in before)
        asked = sum(tenant.held.consumed.get(capacity, 0) for tenant in mine)
        if asked and used + asked > total:
            raise NoRoom(
                f"ResourceClaim {claim}: status.allocation.devices.results take {asked} of {capacity!r} of device {name}, which "
                f"has {total}{f', and {used} of it held by {_holders(before)}' if before else ''}: {_way_out(before)}"
            )


def _check_counters(
    claim: str, taken: Sequence[ClaimHolding], taking: Sequence[ClaimHolding], inventory: Inventory
) -> None:
    in_use = {_thing(tenant.held): tenant.held for tenant in taken}
    new = {_thing(tenant.held): tenant.held for tenant in taking if _thing(tenant.held) not in in_use}
    totals = {
        (held.card, counter): (counter_set, inventory.counters.get((counter_set, counter), 0))
        for held in new.values()
        for counter_set, counter, _ in held.counters
    }
    used, asked = _drawn(in_use.values()), _drawn(new.values())
    for (card, counter), amount in asked.items():
        counter_set, total = totals[card, counter]
        if used[card, counter] + amount > total:
            device = next(held.device for held in new.values() if _draws(held, card, counter))
            blocking = [tenant for tenant in taken if _draws(tenant.held, card, counter)]
            devices = (
                ", ".join(sorted({tenant.held.device for tenant in blocking})) or "other devices of the same claim"
            )
            raise NoRoom(
                f"ResourceClaim {claim}: device {device} needs {amount} of {counter!r} of {counter_set}, of which there are {total} and "
                f"{used[card, counter]} in use by {devices}{f' ({_holders(blocking)})' if blocking else ''}: {_way_out(blocking)}"
            )


def _check_cut(claim: str, held: GrantedDevice, taken: Sequence[ClaimHolding]) -> None:
    """Check for holders that got the card in the other MIG mode; their counters do not show the conflict then."""
    in_the_way = [
        tenant
        for tenant in taken
        if tenant.held.card == held.card and (tenant.held.partition is None) != (held.partition is None)
    ]
    if in_the_way:
        devices = ", ".join(sorted({tenant.held.device for tenant in in_the_way}))
        raise NoRoom(
            f"ResourceClaim {claim}: device {held.device} and {devices}, which is held by {_holders(in_the_way)}, are of one card "
            f"({held.card}), and a card is used as one or in parts: {_way_out(in_the_way)}"
        )


def _thing(held: GrantedDevice) -> _Thing:
    part = held.partition
    return _Thing(held.card) if part is None else _Thing(held.card, part.profile, part.start)


def _drawn(devices: Iterable[GrantedDevice]) -> Counter[tuple[str, str]]:
    """Return the consumed counters by card: a counter set belongs to one card, and its name may change."""
    drawn: Counter[tuple[str, str]] = Counter()
    for held in devices:
        for _, counter, amount in held.counters:
            drawn[held.card, counter] += amount
    return drawn


def _draws(held: GrantedDevice, card: str, counter: str) -> bool:
    return held.card == card and any(name == counter and amount for _, name, amount in held.counters)


def _holders(tenants: Sequence[ClaimHolding]) -> str:
    return some(sorted({tenant.claim for tenant in tenants}), 3) or "no other claim"


def _way_out(holders: Sequence[ClaimHolding]) -> str:
    """Return what to do: kubelet repeats its call, which succeeds once the holders have ended."""
    if holders:
        return (
            "kubelet keeps trying, and the pod starts once that is free; to have another device allocated now, "
            "delete the pod and this claim"
        )
    return "delete the pod and this claim, so that another device is allocated"
