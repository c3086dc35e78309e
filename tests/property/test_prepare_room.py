"""The room check against an oracle that counts slot by slot, on random nodes with shared cards, exclusive ones and cards that are cut."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami_dra.api.containers import PartitionPlace, Site
from hami_dra.api.hardware import Card
from hami_dra.driver.prepare.errors import NoRoom
from hami_dra.driver.prepare.inventory import Inventory, PublishedDevice
from hami_dra.driver.prepare.overcommit import ClaimHolding, check_overcommit
from hami_dra.driver.prepare.records import GrantedDevice, Partition

MEMORY, CORES, SHARES = 8, 100, 3
SLICES = 4


def published(name, *, shared, capacity, consumes, part=None):
    card = Card(vendor="v", index=0, uuid="cut" if part else name, product="p", memory=8)
    place = PartitionPlace(card_uuid="cut", profile=str(part[0]), start=part[1]) if part else None
    site = Site(card=card, partition=place)
    return PublishedDevice(name=name, site=site, shared=shared, capacity=capacity, consumes=consumes)


def node():
    """`card`: shared, oversubscribed memory; `alone`: exclusive; `cut` with parts at every start and size, and as a shared whole."""
    offered = {"memory": MEMORY * 2, "cores": CORES, "shares": SHARES}
    devices = [
        published("card", shared=True, capacity=offered, consumes={}),
        published("alone", shared=False, capacity={}, consumes={}),
        published("cut", shared=True, capacity=offered, consumes={("cut", f"s{place}"): 1 for place in range(SLICES)}),
    ]
    for size in (1, 2, 4):
        for start in range(0, SLICES, size):
            taken = {("cut", f"s{place}"): 1 for place in range(start, start + size)}
            name = f"part-{size}-{start}"
            devices.append(published(name, shared=False, capacity={}, consumes=taken, part=(size, start)))
    return Inventory(
        driver="d",
        pool="n1",
        devices={device.name: device for device in devices},
        counters={("cut", f"s{place}"): 1 for place in range(SLICES)},
    )


NODE = node()


@st.composite
def held(draw):
    device = NODE.devices[draw(st.sampled_from(sorted(NODE.devices)))]
    admin = draw(st.integers(0, 9)) == 0
    consumed = {}
    if device.shared:
        consumed = {
            "memory": draw(st.integers(0, MEMORY * 2)),
            "cores": draw(st.sampled_from([0, 10, 50, 100])),
            "shares": 1,
        }
    return GrantedDevice(
        request="r",
        pool="n1",
        device=device.name,
        card=device.card.uuid,
        partition=_partition(device),
        admin=admin,
        shared=device.shared,
        consumed=consumed,
        counters=() if admin else tuple((*name, amount) for name, amount in sorted(device.consumes.items())),
    )


def _partition(device):
    place = device.partition
    return Partition(card=place.card_uuid, profile=place.profile, start=place.start) if place else None


def is_overfull(everything):
    """Slow and plain: every unit of everything is laid out, one holder after the other. In: device names → holders."""
    units = []
    for each in everything:
        if each.admin:
            continue
        if not each.shared:
            units.append(("device", each.device))
        for name, amount in each.consumed.items():
            units += [("capacity", each.device, name)] * amount
    cards_in_use = {each.device for each in everything if not each.admin}
    for name in cards_in_use:
        units += [("slice", *counter) for counter in NODE.devices[name].consumes]

    def room(unit):
        if unit[0] == "capacity":
            return NODE.devices[unit[1]].capacity[unit[2]]
        return 1

    return any(units.count(unit) > room(unit) for unit in set(units))


@settings(max_examples=400, deadline=None)
@given(st.lists(st.lists(held(), min_size=1, max_size=3), min_size=1, max_size=8))
def test_exactly_what_fits_is_let_in(claims):
    """Claims come one after the other; each is let in exactly if everything that is held then still fits."""
    tenants = []
    for number, wanted in enumerate(claims):
        fits = not is_overfull([*(tenant.held for tenant in tenants), *wanted])
        if fits:
            check_overcommit(f"default/c{number}", wanted, tenants, NODE)
            tenants += [ClaimHolding(f"default/c{number}", each) for each in wanted]
        else:
            with pytest.raises(NoRoom, match=f"default/c{number}"):
                check_overcommit(f"default/c{number}", wanted, tenants, NODE)


@settings(max_examples=200, deadline=None)
@given(st.lists(held(), min_size=1, max_size=8), held())
def test_what_is_overfull_speaks_only_against_what_it_has(taken, wanted):
    """Whatever a node holds, a device that none of it touches is free."""
    tenants = [ClaimHolding("default/old", each) for each in taken]
    touched = {each.device for each in taken if not each.admin}
    slices = {counter for name in touched for counter in NODE.devices[name].consumes}
    if wanted.device in touched or slices & set(NODE.devices[wanted.device].consumes):
        return
    check_overcommit("default/new", [wanted], tenants, NODE)
