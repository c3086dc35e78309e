"""Whatever cards a machine has, and however they are shared: what we publish is inside the API's limits and canonical."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_dra.api.hardware import Card, Fault, Machine, PcieDistance
from hami_dra.api.quantity import Quantity
from hami_dra.driver.limits import check_pools
from hami_dra.driver.slices import fenced, machine_pools, slice_bodies
from hami_dra.vendors.neuron.records import NeuronRecord
from hami_dra.vendors.nvidia.records import GpuRecord, MigState
from hami_dra.vendors.registry import PLUGINS, PUBLISHING_VENDORS
from tests.support.settings import vendor_settings
from tests.support.slice_limits import check_slice

VENDORS = sorted(vendor.name for vendor in PUBLISHING_VENDORS)
PRODUCTS = (
    "NVIDIA A30",
    "NVIDIA A100-SXM4-80GB",
    "NVIDIA B200",
    "MXC500",
    "P800 OAM",
    "Trainium2",
    "S60",
    "Ascend910A",
    "ü" * 40,
)
GIB = 1 << 30

sharings = st.builds(
    vendor_settings,
    slots=st.integers(1, 1000),
    memory_scaling=st.fractions(Fraction(1, 2), 10),
    core_scaling=st.fractions(Fraction(1, 2), 10),
    card_slices=st.integers(1, 10),
)

PARTITIONS = {plugin.rules.profile.partition for plugin in PLUGINS}
"""Attributes that only parts of cards carry."""


@st.composite
def machines(draw):
    indices = draw(st.sets(st.integers(0, 70), min_size=1, max_size=20))
    vendors = draw(st.lists(st.sampled_from(VENDORS), min_size=len(indices), max_size=len(indices)))
    return Machine(
        name="n1",
        instance_type="any",
        cpu=1,
        memory=1,
        cards=tuple(
            draw(cards(vendor, index, indices)) for vendor, index in zip(vendors, sorted(indices), strict=True)
        ),
    )


@st.composite
def cards(draw, vendor, index, indices):
    peers = sorted(indices - {index})
    some = st.sets(st.sampled_from(peers)) if peers else st.just(set())
    fields = {
        "vendor": vendor,
        "index": index,
        "uuid": f"{vendor}-{index}",
        "product": draw(st.sampled_from(PRODUCTS)),
        "memory": draw(st.integers(GIB, 300 * GIB)),
        "pci_bus_id": draw(st.sampled_from(["", f"0000:{index:02x}:00.0"])),
        "numa_node": draw(st.sampled_from([None, 0, 1])),
        "links": {peer: draw(st.integers(0, 99)) for peer in draw(some)},
        "distances": {peer: draw(st.sampled_from(PcieDistance)) for peer in draw(some)},
        "faults": draw(st.sampled_from([(), (Fault(code="xid-79", message="x"),), (Fault(code="-?-", message="x"),)])),
    }
    if vendor == "neuron":
        return NeuronRecord(**fields, cores=8, logical_cores=draw(st.integers(1, 16)))
    if vendor == "nvidia":
        enabled = draw(st.booleans())
        return GpuRecord(**fields, driver_version="550.90.07", mig=MigState(enabled=enabled, pending=enabled))
    return Card(**fields)


def quantities(value):
    if isinstance(value, dict):
        for key, item in value.items():
            if key in ("value", "default", "min", "max", "step") and isinstance(item, str):
                yield item
            elif key == "validValues":
                yield from item
            else:
                yield from quantities(item)


@given(machines(), sharings, st.booleans())
def test_every_machine_can_be_published_in_every_way(machine, sharing, fence):
    pools = [fenced(pool, fence=fence) for pool in machine_pools(machine, sharing)]
    bodies = slice_bodies(pools)
    assert not [str(violation) for body in bodies for violation in check_slice(body)]
    assert not check_pools(bodies)
    published = [device for body in bodies for device in body["spec"].get("devices", ())]
    whole = [device for device in published if not PARTITIONS & device["attributes"].keys()]
    assert len(whole) == len(machine.cards)
    for device in published:
        for text in quantities(device["capacity"]):
            assert str(Quantity.parse(text)) == text


@pytest.mark.parametrize("slices", range(1, 11))
@given(percent=st.integers(1, 100), memory=st.integers(GIB, 100 * GIB))
def test_a_percentage_of_an_enflame_card_is_rounded_up_to_the_same_slice_of_cores_and_memory(slices, percent, memory):
    """The steps that the allocator rounds to, against HAMi's tiers: the first i whose int(100 / f * i) is enough."""
    (vendor,) = [vendor for vendor in PUBLISHING_VENDORS if vendor.name == "enflame"]
    card = Card(vendor="enflame", index=0, uuid="x", product="S60", memory=memory)
    (device,) = vendor.devices([card], vendor_settings(card_slices=slices))
    steps = [int(text) for text in device["capacity"]["cores"]["requestPolicy"]["validValues"]]
    tier = next(number for number in range(1, slices + 1) if 100 * number // slices >= percent)
    assert next(number for number, step in enumerate(steps, 1) if step >= percent) == tier
    sizes = [Quantity.parse(text).value() for text in device["capacity"]["memory"]["requestPolicy"]["validValues"]]
    asked = sizes[-1] * percent // 100
    assert next(number for number, size in enumerate(sizes, 1) if size >= asked) <= tier
