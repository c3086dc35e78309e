"""What the drivers of MetaX, Kunlunxin, Neuron and Enflame say about their cards; NVIDIA: test_cards_published.py."""

import pytest
from msgspec.structs import replace

from hami_dra.api.hardware import Card, Fault
from hami_dra.api.options import InvalidOption
from hami_dra.api.quantity import Quantity
from hami_dra.driver.limits import check_pools
from hami_dra.driver.simulated import machine, machine_names
from hami_dra.driver.simulated.machines import foreign_devices
from hami_dra.driver.slices import machine_pools, slice_bodies
from hami_dra.vendors.faults import taints_of
from hami_dra.vendors.neuron.instances import DEVICES, INSTANCES, Wiring, device_of, instance_of, neighbours
from hami_dra.vendors.publishing import Unpublishable
from hami_dra.vendors.registry import PUBLISHING_VENDORS, VENDORS
from tests.support.settings import vendor_settings
from tests.support.slice_limits import check_slice

BY_NAME = {vendor.name: vendor for vendor in PUBLISHING_VENDORS}
COMMON = {"hami.io/vendor", "hami.io/uuid", "hami.io/productName", "hami.io/index", "hami.io/links", "hami.io/distance"}
PLACE = {"resource.kubernetes.io/pciBusID", "resource.kubernetes.io/pcieRoot", "resource.kubernetes.io/numaNode"}


def devices(machine_name, sharing=None):
    cards = machine(machine_name, "n1").cards
    return BY_NAME[cards[0].vendor].devices(cards, sharing or vendor_settings())


def values(device):
    return {name: next(iter(value.values())) for name, value in device["attributes"].items()}


def amounts(device, name):
    """What may be asked for: (default, listed values) or (default, (min, max, step))."""
    policy = device["capacity"][name]["requestPolicy"]
    bounds = policy.get("validRange")
    return policy["default"], (bounds["min"], bounds["max"], bounds["step"]) if bounds else policy["validValues"]


def test_every_vendor_with_rules_publishes_and_the_drivers_are_theirs():
    assert {(vendor.name, vendor.profile.driver) for vendor in VENDORS} == {
        (vendor.name, vendor.driver) for vendor in PUBLISHING_VENDORS
    }


@pytest.mark.parametrize("name", machine_names())
def test_every_machine_carries_the_common_names_and_is_inside_the_limits(name):
    pools = machine_pools(machine(name, "n1"))
    for pool in pools:
        (vendor,) = [vendor for vendor in VENDORS if vendor.profile.driver == pool.driver]
        published = [device for content in pool.slices for device in content.devices]
        cards = [device for device in published if vendor.profile.partition not in device["attributes"]]
        assert len(cards) == len(machine(name, "n1").cards)
        for device in cards:
            assert values(device).keys() >= COMMON | PLACE
            assert values(device)["hami.io/vendor"] == vendor.name
            assert device["capacity"].keys() >= {"memory", "cores"}
            assert ("shares" in device["capacity"]) == bool(device.get("allowMultipleAllocations"))
            assert not device.get("taints")
    bodies = slice_bodies(pools)
    assert not [str(violation) for body in bodies for violation in check_slice(body)]
    assert not check_pools(bodies)


@pytest.mark.parametrize("vendor", PUBLISHING_VENDORS, ids=lambda vendor: vendor.name)
def test_a_request_without_capacity_leaves_no_room_for_another(vendor):
    """Some capacity is used up by the default request, whatever the next one asks for."""
    (machine_name,) = [name for name in ("dgx-h100", "c500-8", "p800-oam-8", "inf2.48xlarge", "s60-8", "atlas-800t-a2")
                       if machine(name, "n1").cards[0].vendor == vendor.name]  # fmt: skip
    for device in devices(machine_name):
        if "allowMultipleAllocations" not in device:
            continue  # for one claim
        exhausted = [
            name
            for name in device["capacity"]
            if name != "cores" and amounts(device, name)[0] == device["capacity"][name]["value"]
        ]
        assert exhausted, device["name"]


# --- MetaX -----------------------------------------------------------------------------------------------------------


def test_metax_zones_are_link_groups_and_cards_are_shared_freely():
    published = devices("c500-8", vendor_settings(slots=16))
    assert [device["name"] for device in published] == [f"gpu-{index}" for index in range(8)]
    assert [values(device)["hami.io/linkGroup"] for device in published] == [1, 1, 1, 1, 2, 2, 2, 2]
    assert values(published[5])["hami.io/links"] == "00001-11"
    assert values(published[0])["hami.io/productName"] == "MetaX C500"
    assert amounts(published[0], "memory") == ("64Gi", ("1Mi", "64Gi", "1Mi"))
    assert amounts(published[0], "cores") == ("100", ("0", "100", "1"))
    assert published[0]["capacity"]["shares"]["value"] == "16"


def test_a_metax_card_without_links_is_in_no_group():
    cards = [replace(card, links={}) for card in machine("c500-8", "n1").cards]
    published = BY_NAME["metax"].devices(cards, vendor_settings())
    assert all("hami.io/linkGroup" not in values(device) for device in published)


# --- Kunlunxin -------------------------------------------------------------------------------------------------------


def test_kunlunxin_wings_are_link_groups_and_memory_comes_in_three_sizes():
    published = devices("p800-oam-8")
    assert [device["name"] for device in published] == [f"xpu-{index}" for index in range(8)]
    assert [values(device)["hami.io/linkGroup"] for device in published] == [1, 1, 1, 1, 2, 2, 2, 2]
    assert values(published[1])["hami.io/links"] == "1-110100"
    assert amounts(published[0], "memory") == ("96Gi", ["24Gi", "48Gi", "96Gi"])
    assert published[0]["capacity"]["shares"]["value"] == "4"


def test_the_sizes_of_a_smaller_kunlunxin_card_are_its_quarter_and_its_half():
    card = Card(vendor="kunlunxin", index=2, uuid="x", product="P800 PCIe", memory=32 << 30)
    (device,) = BY_NAME["kunlunxin"].devices([card], vendor_settings(slots=99))
    assert amounts(device, "memory") == ("32Gi", ["8Gi", "16Gi", "32Gi"])
    assert "hami.io/linkGroup" not in values(device)
    assert device["capacity"]["shares"]["value"] == "4"


# --- Neuron ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "count", "cores", "memory", "share"),
    [("inf2.48xlarge", 12, 2, "32Gi", "16Gi"), ("trn1.32xlarge", 16, 2, "32Gi", "16Gi"),
     ("trn2.48xlarge", 16, 4, "96Gi", "24Gi")],
)  # fmt: skip
def test_neuron_devices_are_shared_by_cores_and_memory_goes_with_them(name, count, cores, memory, share):
    published = devices(name)
    assert [device["name"] for device in published] == [f"neuron-{index}" for index in range(count)]
    for device in published:
        assert amounts(device, "neuroncores") == (str(cores), ("1", str(cores), "1"))
        assert amounts(device, "memory") == (share, (share, memory, share))
        assert amounts(device, "cores") == (str(100 // cores), ("0", "100", "1"))
        assert device["capacity"]["shares"]["value"] == str(cores)
        assert values(device)["instanceType"] == name


def test_neuron_groups_are_those_of_aws_own_driver():
    for name in ("trn1.32xlarge", "trn2.48xlarge", "inf2.48xlarge"):
        ours = devices(name)
        theirs = foreign_devices("neuron.aws.com", machine(name, "n1"))
        for mine, other in zip(ours, theirs, strict=True):
            groups = {key: value for key, value in values(other).items() if "devicegroup" in key}
            assert groups == {key: value for key, value in values(mine).items() if "devicegroup" in key}
            assert len(groups) == (1 if name.startswith("inf") else 4)


def test_a_block_that_lacks_a_device_does_not_exist():
    cards = [card for card in machine("trn1.32xlarge", "n1").cards if card.index != 6]
    published = {device["name"]: values(device) for device in BY_NAME["neuron"].devices(cards, vendor_settings())}
    assert "resource.aws.com/devicegroup4_id" not in published["neuron-5"]
    assert "resource.aws.com/devicegroup8_id" not in published["neuron-0"]
    assert "resource.aws.com/devicegroup4_id" in published["neuron-0"]
    assert "resource.aws.com/devicegroup8_id" in published["neuron-8"]
    assert not [name for name, attributes in published.items() if "resource.aws.com/devicegroup16_id" in attributes]


def test_cores_of_a_device_that_only_its_product_tells():
    card = Card(vendor="neuron", index=0, uuid="x", product="Inferentia", memory=8 << 30)
    (device,) = BY_NAME["neuron"].devices([card], vendor_settings())
    assert device["capacity"]["neuroncores"]["value"] == "4"
    with pytest.raises(Unpublishable, match=r"card 0: it is not known how many NeuronCores a 'Mystery'"):
        BY_NAME["neuron"].devices([replace(card, product="Mystery")], vendor_settings())


def test_a_device_with_one_core_is_whole_or_nothing():
    card = Card(vendor="neuron", index=0, uuid="x", product="Inferentia2", memory=32 << 30)
    record = machine("inf2.48xlarge", "n1").cards[0]
    (device,) = BY_NAME["neuron"].devices([replace(record, cores=2, logical_cores=1)], vendor_settings())
    assert amounts(device, "neuroncores") == ("1", ["1"])
    assert amounts(device, "memory") == ("32Gi", ["32Gi"])
    assert device_of(card.product) == device_of("Inferentia2")


@pytest.mark.parametrize("name", [name for name in machine_names() if instance_of(name)])
def test_machines_are_as_the_table_of_instance_types_says(name):
    found, instance = machine(name, "n1"), instance_of(name)
    assert len(found.cards) == instance.devices
    for card in found.cards:
        assert card.memory == instance.device.memory << 30
        assert (card.logical_cores, card.cores) == (instance.device.cores, instance.device.physical_cores)
        assert device_of(card.product) == instance.device
        assert set(card.links) == neighbours(instance, card.index)


def test_wiring_goes_both_ways():
    for instance in INSTANCES:
        linked = {index: neighbours(instance, index) for index in range(instance.devices)}
        assert all(index in linked[peer] for index, peers in linked.items() for peer in peers)
        degree = {Wiring.NONE: 0, Wiring.RING: 2, Wiring.TORUS: 4}[instance.wiring]
        assert {len(peers) for peers in linked.values()} == {degree}
    assert neighbours(instance_of("trn2.48xlarge"), 0) == {12, 3, 4, 1}  # neuron-ls of AWS' documentation
    assert {device_of(device.family) for device in DEVICES} == set(DEVICES)
    assert device_of("Trainium1") == device_of("Trainium")


# --- Enflame ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("factor", "percent"),
    [
        (3, ["33", "66", "100"]),
        (4, ["25", "50", "75", "100"]),
        (6, ["16", "33", "50", "66", "83", "100"]),
    ],
)
def test_an_enflame_card_hands_out_memory_and_cores_in_slices(factor, percent):
    (device, *_) = devices("s60-8", vendor_settings(card_slices=factor))
    assert device["name"] == "gcu-0"
    assert amounts(device, "cores") == ("100", percent)
    assert amounts(device, "slices") == ("1", ("1", str(factor), "1"))
    default, sizes = amounts(device, "memory")
    in_bytes = [Quantity.parse(size).value() for size in sizes]
    assert (default, in_bytes) == ("42976Mi", [(42976 << 20) * part // factor for part in range(1, factor + 1)])
    assert device["capacity"]["shares"]["value"] == str(factor)


def test_an_enflame_card_of_one_slice_is_whole_or_nothing():
    (device, *_) = devices("s60-8", vendor_settings(card_slices=1))
    assert amounts(device, "slices") == ("1", ["1"])
    assert amounts(device, "memory") == ("42976Mi", ["42976Mi"])


@pytest.mark.parametrize("factor", [0, 11])
def test_a_number_of_slices_that_cannot_be_listed_is_refused(factor):
    with pytest.raises(InvalidOption, match=rf"--card-slices: {factor} is not a whole number from 1 to 10"):
        vendor_settings(card_slices=factor)


# --- faults ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vendor", PUBLISHING_VENDORS, ids=lambda vendor: vendor.name)
@pytest.mark.parametrize(
    ("code", "key", "value"),
    [
        ("lost", "hami.io/lost", "lost"),
        ("xid-79", "hami.io/xid", "xid-79"),
        ("ecc-double-bit", "hami.io/memory-error", "ecc-double-bit"),
        ("row-remapping", "hami.io/memory-error", "row-remapping"),
        ("power-cable", "hami.io/unhealthy", "power-cable"),
        ("not a value!", "hami.io/unhealthy", None),
        ("", "hami.io/unhealthy", None),
    ],
)
def test_a_card_with_a_fault_is_tainted_and_stays_in_the_slice(vendor, code, key, value):
    fault = Fault(code=code, message="seen")
    card = Card(vendor=vendor.name, index=0, uuid="x", product="Trainium", memory=16 << 30)
    other = replace(card, index=1, uuid="y")
    sick, well = vendor.devices([replace(card, faults=(fault,)), other], vendor_settings())
    assert sick["taints"] == [{"key": key, **({"value": value} if value else {}), "effect": "NoSchedule"}]
    assert "taints" not in well


def test_each_kind_of_failure_is_one_taint_with_its_first_code():
    codes = ("xid-79", "unavailable", "xid-48", "ecc-double-bit")
    assert taints_of(Fault(code=code, message="seen") for code in codes) == [
        {"key": "hami.io/memory-error", "value": "ecc-double-bit", "effect": "NoSchedule"},
        {"key": "hami.io/unhealthy", "value": "unavailable", "effect": "NoSchedule"},
        {"key": "hami.io/xid", "value": "xid-79", "effect": "NoSchedule"},
    ]


def test_partitions_of_a_card_with_a_fault_are_tainted_too():
    found = machine("a2-ultragpu-2g-mig", "n1")
    sick = replace(found.cards[0], faults=(Fault(code="xid-48", message="double bit error"),))
    (pool,) = machine_pools(replace(found, cards=(sick, found.cards[1])))
    tainted = {device["name"] for content in pool.slices for device in content.devices if device.get("taints")}
    assert tainted == {device["name"] for content in pool.slices for device in content.devices
                       if device["name"].startswith("gpu-0")}  # fmt: skip
