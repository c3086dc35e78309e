"""The last line of defence: whether what a claim was given is still free on this node.

Called by `work` for one claim at a time. In: what the claim holds, what is held already, the inventory. Out: nothing, or `NoRoom`
with the sentence for the pod's event. Pure.

Neither the API server nor kubelet checks this, and more than one writer can allocate (a scheduler that was cut off and did not know
it, an operator, a second controller). The rules are those of the allocator:

- A device that is not shared has one holder.
- Of a shared device no capacity is given out beyond what is published (so memory that is oversubscribed counts as on offer).
- Counters are drawn once by a device that anybody holds, and by no device beyond what there is. Parts of a card exclude each other, and
  the card, by counters.
- Admin access looks on: it takes nothing and is never refused for want of room.

Only what the claim touches is judged: a card that is overfull already speaks against more on it, and against nothing else.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hami_dra.driver.prepare.errors import NoRoom
from hami_dra.driver.prepare.inventory import Inventory, Published
from hami_dra.driver.prepare.records import Held


class Tenant(NamedTuple):
    claim: str
    """`namespace/name`, for people."""
    held: Held


def check_room(claim: str, wanted: Sequence[Held], others: Iterable[Tenant], inventory: Inventory) -> None:
    """`claim`: `namespace/name`; `others`: everything that other claims hold. Raises NoRoom."""
    taking = [Tenant(claim, held) for held in wanted if not held.admin]
    taken = [tenant for tenant in others if not tenant.held.admin]
    for name in dict.fromkeys(tenant.held.device for tenant in taking):
        _check_device(claim, name, inventory.devices.get(name), taken, taking)
    _check_counters(claim, taken, taking, inventory)


def _check_device(
    claim: str, name: str, device: Published | None, taken: Sequence[Tenant], taking: Sequence[Tenant]
) -> None:
    before = [tenant for tenant in taken if tenant.held.device == name]
    mine = [tenant for tenant in taking if tenant.held.device == name]
    # how it was published to those who have it counts too: a device that was exclusive stays theirs alone
    if not all(tenant.held.shared for tenant in (*before, *mine)):
        if len(before) + len(mine) > 1:
            holder = f"is held by {_holders(before)}" if before else "is allocated to it more than once"
            raise NoRoom(
                f"ResourceClaim {claim}: device {name} is for one claim at a time and {holder}: delete the pod and this claim, "
                "so that another device is allocated"
            )
        return
    offered = device.capacity if device is not None else {}
    for capacity, total in offered.items():
        used = sum(tenant.held.consumed.get(capacity, 0) for tenant in before)
        asked = sum(tenant.held.consumed.get(capacity, 0) for tenant in mine)
        if asked and used + asked > total:
            raise NoRoom(
                f"ResourceClaim {claim}: status.allocation.devices.results take {asked} of {capacity!r} of device {name}, which "
                f"has {total}, and {used} of it held by {_holders(before)}: delete the pod and this claim, so that they are "
                "allocated anew"
            )


def _check_counters(claim: str, taken: Sequence[Tenant], taking: Sequence[Tenant], inventory: Inventory) -> None:
    in_use = {tenant.held.device: tenant.held for tenant in taken}
    new = {tenant.held.device: tenant.held for tenant in taking if tenant.held.device not in in_use}
    used, asked = _drawn(in_use.values()), _drawn(new.values())
    for (counter_set, counter), amount in asked.items():
        total = inventory.counters.get((counter_set, counter), 0)
        if used[counter_set, counter] + amount > total:
            device = next(held.device for held in new.values() if _draws(held, counter_set, counter))
            blocking = [tenant for tenant in taken if _draws(tenant.held, counter_set, counter)]
            devices = (
                ", ".join(sorted({tenant.held.device for tenant in blocking})) or "other devices of the same claim"
            )
            raise NoRoom(
                f"ResourceClaim {claim}: device {device} needs {amount} of {counter!r} of {counter_set}, of which there are {total} and "
                f"{used[counter_set, counter]} in use by {devices} ({_holders(blocking)}): delete the pod and this claim, so that "
                "they are allocated anew"
            )


def _drawn(devices: Iterable[Held]) -> Counter[tuple[str, str]]:
    drawn: Counter[tuple[str, str]] = Counter()
    for held in devices:
        for counter_set, counter, amount in held.counters:
            drawn[counter_set, counter] += amount
    return drawn


def _draws(held: Held, counter_set: str, counter: str) -> bool:
    return any((a_set, name) == (counter_set, counter) and amount for a_set, name, amount in held.counters)


def _holders(tenants: Sequence[Tenant]) -> str:
    claims = sorted({tenant.claim for tenant in tenants})
    shown = ", ".join(claims[:3]) + (f" and {len(claims) - 3} more" if len(claims) > 3 else "")
    return shown or "nobody else"
