"""Roles of published capacities, HAMi's node score made of them, and driver profiles."""

import pytest

from controller.inventory.inventory import Inventory
from controller.inventory.model import UNNUMBERED, Device, DeviceId
from controller.inventory.pools import compile_slice
from controller.inventory.roles import ask_of, consumed_of, totals_of, used_of
from hami_dra.vendors.profiles import profile_of
from tests.cards import DRIVER, card, claim, node, slice_of, whole

GIB = 1 << 30


def device(published, driver=DRIVER) -> Device:
    return compile_slice(slice_of("n1", [published], driver=driver)).devices[0]


def inventory_with(*devices, driver=DRIVER):
    inventory = Inventory()
    inventory.node_changed(None, node())
    inventory.slice_changed(None, slice_of("n1", devices, driver=driver))
    return inventory


def hold(inventory, name, number=0, driver=DRIVER, **consumed):
    """A claim that holds the device, whole or (with `consumed`) a share of it."""
    result = {"request": "r", "driver": driver, "pool": "n1", "device": name}
    if consumed:
        result |= {"shareID": str(number), "consumedCapacity": {key: str(value) for key, value in consumed.items()}}
    made = claim(f"c{number}-{name}", allocation={"devices": {"results": [result]}})
    inventory.claim_changed(None, made)
    return made


# --- roles -------------------------------------------------------------------------------------------------------


def test_a_shared_card_has_the_slots_it_publishes():
    assert totals_of(device(card(0))) == (10, 100, 16 * GIB)


def test_cards_of_equal_capacities_are_of_one_kind_in_whatever_order_they_are_published():
    published = card(0)
    turned = {**published, "capacity": dict(reversed(published["capacity"].items()))}
    one, same, other = device(published), device(turned), device(card(0, memory="8Gi"))
    assert one.capacity_kind == same.capacity_kind
    assert hash(one.capacity_kind) == hash(same.capacity_kind)
    assert one.capacity_kind != other.capacity_kind
    assert list(same.totals) == list(turned["capacity"])


def test_a_shared_card_without_slots_has_hamis_ten():
    bare = {"name": "hami-gpu-0", "allowMultipleAllocations": True, "capacity": {"memory": {"value": "8Gi"}}}
    shared = device(bare, "hami-core-gpu.project-hami.io")
    assert totals_of(shared) == (10, 0, 8 * GIB)
    assert used_of(shared, 3, {"memory": GIB}, exclusive=False) == (3, 0, GIB)


def test_an_exclusive_device_has_one_slot_and_is_used_whole():
    exclusive = device({"name": "gpu-0", "capacity": {"memory": {"value": "80Gi"}}}, "gpu.nvidia.com")
    assert totals_of(exclusive) == (1, 0, 80 * GIB)
    assert used_of(exclusive, 0, {}, exclusive=True) == (1, 0, 80 * GIB)
    assert consumed_of(exclusive, {"memory": GIB}) == (1, 0, 80 * GIB)


def test_slots_are_what_is_consumed_where_they_are_published_and_else_the_shares():
    published, bare = device(card(0)), device({**card(0), "capacity": {}})
    assert used_of(published, 2, {"shares": 7}, exclusive=False)[0] == 7
    assert used_of(bare, 2, {}, exclusive=False)[0] == 2


def test_requests_as_arrays():
    devices = [device(card(0)), device(whole(1)), device(card(2))]
    ask = ask_of(lambda each: None if each is devices[2] else {"memory": GIB, "shares": 1, "cores": 5}, devices)
    assert ask.slots.tolist() == [1, 1, 0]
    assert ask.cores.tolist() == [5, 0, 0]
    assert ask.memory.tolist() == [GIB, 0, 0]


# --- the node score ----------------------------------------------------------------------------------------------


def test_the_score_of_hamis_example():
    """One card with 5 of 10 slots, half its memory and half its cores used: 15; with an idle twin beside it 7.5."""
    alone = inventory_with(card(0, memory="8Gi"))
    hold(alone, "gpu-0", memory=4 * GIB, cores=50, shares=5)
    assert alone.nodes.score.tolist() == [15.0]
    twins = inventory_with(card(0, memory="8Gi"), card(1, memory="8Gi"))
    hold(twins, "gpu-0", memory=4 * GIB, cores=50, shares=5)
    assert twins.nodes.score.tolist() == [7.5]


def test_an_idle_node_and_a_node_without_devices_score_nothing():
    inventory = inventory_with(card(0))
    inventory.node_changed(None, node("bare"))
    assert inventory.nodes.score.tolist() == [0.0, 0.0]


def test_a_role_that_no_device_publishes_counts_like_the_slots():
    """HAMi scores such a node 0, so neither binpack nor spread would have an effect on Neuron nodes."""
    inventory = inventory_with(*(whole(number) for number in range(4)), driver="neuron.aws.com")
    hold(inventory, "dev-1", driver="neuron.aws.com")
    assert inventory.nodes.score.tolist() == [pytest.approx(7.5)]


def test_all_drivers_of_a_node_count():
    inventory = inventory_with(card(0))
    inventory.slice_changed(None, slice_of("n1", [whole(0)], driver="other"))
    hold(inventory, "dev-0", driver="other")
    assert inventory.nodes.score.tolist() == [pytest.approx(10.0 / 11)]


def test_the_score_goes_back_with_the_claim_the_slice_and_the_node():
    inventory = inventory_with(card(0))
    made = hold(inventory, "gpu-0", memory=4 * GIB, cores=50, shares=5)
    assert inventory.nodes.score[0] > 0
    inventory.claim_changed(made, None)
    assert inventory.nodes.score.tolist() == [0.0]
    inventory.claim_changed(None, made)
    inventory.slice_changed(slice_of("n1", []), None)
    assert inventory.nodes.score.tolist() == [0.0]
    inventory.slice_changed(None, slice_of("n1", [card(0)]))
    inventory.node_changed(node(), None)
    inventory.node_changed(None, node())
    assert inventory.nodes.score.tolist() == [pytest.approx(10 * (5 / 10 + 50 / 100 + 4 / 16))]


def test_capacities_beyond_any_device_do_no_harm():
    huge = card(0, memory="1e30", shares="9e18", cores="-1e30")
    inventory = inventory_with(huge, card(1))
    hold(inventory, "gpu-0", memory=10**30, shares=1, cores=1)
    assert inventory.devices.memory_total[0] > 0
    inventory.slice_changed(slice_of("n1", []), None)
    assert inventory.nodes.score.tolist() == [0.0]


# --- profiles ----------------------------------------------------------------------------------------------------


def test_attributes_of_nvidias_own_driver_are_bare():
    published = {
        "name": "gpu-3",
        "attributes": {"uuid": {"string": "GPU-x"}, "productName": {"string": "NVIDIA A10G"}},
        "capacity": {"memory": {"value": "24Gi"}},
    }
    made = device(published, "gpu.nvidia.com")
    assert made.string_attribute(made.profile.uuid) == "GPU-x"
    assert made.string_attribute(made.profile.product) == "NVIDIA A10G"
    assert made.index == 3


def test_ours_and_unknown_drivers_are_read_by_our_names():
    for driver in ("metax.hami.io", "gpu.example.com"):
        profile = profile_of(driver)
        assert (profile.driver, profile.uuid, profile.memory) == (driver, "hami.io/uuid", "memory")
        assert profile is profile_of(driver)


@pytest.mark.parametrize(
    ("published", "driver", "index"),
    [
        (card(5), DRIVER, 5),
        ({"name": "neurondevice11"}, "neuron.aws.com", 11),
        ({"name": "hami-gpu-1", "attributes": {"minor": {"int": 4}}}, "hami-core-gpu.project-hami.io", 4),
        ({"name": "gpu-0-mig-1g-5gb-19-2"}, "gpu.nvidia.com", UNNUMBERED),
        ({"name": "gpu"}, "gpu.nvidia.com", UNNUMBERED),
        ({"name": "gpu", "attributes": {"hami.io/index": {"string": "7"}}}, DRIVER, UNNUMBERED),
        ({"name": "gpu-2", "attributes": {"hami.io/index": {"int": 10**30}}}, DRIVER, 2),
    ],
)
def test_the_index_is_published_or_the_one_number_of_the_name(published, driver, index):
    made = device(published, driver)
    assert made.index == index
    inventory = inventory_with(published, driver=driver)
    assert inventory.devices.index[0] == index


def test_attributes_are_found_as_the_allocator_finds_them():
    made = device({"name": "a", "attributes": {"x/n": {"int": 1}, "n": {"int": 2}, "m": {"int": 3}}}, "x")
    assert made.int_attribute("x/n", 0) == 1
    assert made.int_attribute("x/m", 0) == 3
    assert made.int_attribute("y/m", -1) == -1
    assert made.int_attribute(None, -1) == -1
    assert made.id == DeviceId("x", "n1", "a")
