"""The order of devices in native mode: policies, parts of cards, and sets of the vendors."""

import msgspec
import pytest

from controller.scoring.native_order import card_ranks
from controller.scoring.policies import DevicePolicy
from hami_dra.api.core import Node
from hami_dra.api.hardware import Fault
from hami_dra.api.resource import ResourceClaim
from hami_dra.driver.node.pool_content import reordered
from hami_dra.driver.simulated import machine, machine_names
from hami_dra.driver.slices import machine_pools
from tests.support.node import claim_on, with_fault

NODE = "n1"
PART = {"memory": "1Gi", "cores": "0", "shares": "1"}


def ordered(machine_name, policy, *held, faults=()):
    """Indices of the cards. `held`: (device, what is consumed of it; None = all of it)."""
    found = machine(machine_name, NODE)
    for index in faults:
        found = with_fault(found, index, Fault(code="xid-79", message="seen"))
    (pool,) = machine_pools(found)
    labels = {"node.kubernetes.io/instance-type": found.instance_type}
    node = msgspec.convert({"metadata": {"name": NODE, "labels": labels}}, Node)
    claims = [
        msgspec.convert(claim_on(f"c{number}", pool.driver, NODE, device, consumed), ResourceClaim)
        for number, (device, consumed) in enumerate(held)
    ]
    ranks = card_ranks(pool, node, claims, DevicePolicy(tuple(policy.split(","))))
    names = [device["name"] for device in reordered(pool, ranks).devices]
    assert sorted(names) == sorted(device["name"] for device in pool.devices)
    return names


def indices(*arguments, **options):
    return [int(name.rpartition("-")[2]) for name in ordered(*arguments, **options)]


@pytest.mark.parametrize("name", machine_names())
@pytest.mark.parametrize("policy", ["binpack", "spread", "topology-aware", "mutex", "numa,binpack"])
def test_every_device_has_its_place_whatever_the_machine(name, policy):
    ordered(name, policy)


def test_binpack_begins_with_the_fullest_card_and_spread_with_the_emptiest():
    held = [("gpu-1", PART), ("gpu-3", PART | {"memory": "9Gi"})]
    assert indices("g4dn.12xlarge", "binpack", *held) == [3, 1, 0, 2]
    assert indices("g4dn.12xlarge", "spread", *held) == [0, 2, 1, 3]
    assert indices("g4dn.12xlarge", "mutex", *held) == [0, 2, 1, 3]


def test_numa_comes_before_or_after_the_score_as_the_list_says():
    held = [("gpu-0", PART)]  # NUMA node 3 of a DGX A100; its lowest NUMA node has 2 and 3
    assert indices("dgx-a100", "binpack,numa", *held)[:2] == [0, 2]
    assert indices("dgx-a100", "numa,binpack", *held)[:3] == [2, 3, 0]


def test_a_card_counts_with_what_is_held_of_its_parts():
    names = ordered("a2-ultragpu-2g-mig", "binpack", ("gpu-1-mig-1g-10gb-3", None))
    assert names[:2] == ["gpu-1", "gpu-0"]
    assert names[2].startswith("gpu-1-mig-1g")
    first_of_other = next(place for place, name in enumerate(names) if name.startswith("gpu-0-"))
    assert all(name.startswith("gpu-1-") for name in names[2:first_of_other])
    assert ordered("a2-ultragpu-2g-mig", "spread", ("gpu-1-mig-1g-10gb-3", None))[:2] == ["gpu-0", "gpu-1"]


def test_topology_aware_keeps_neighbours_together():
    """V100 in NVLink pairs: with 0 in use, 1 has no partner left and goes first; then whole pairs."""
    order = indices("v100-pairs-8", "topology-aware", ("gpu-0", PART))
    assert order[0] == 1
    assert order[-1] == 0
    pairs = [frozenset(order[place : place + 2]) for place in (1, 3, 5)]
    assert set(pairs) == {frozenset({2, 3}), frozenset({4, 5}), frozenset({6, 7})}


def test_the_blocks_of_neuron_hold_under_any_policy():
    """Trainium takes 1, 4, 8 or 16 devices, aligned: the first four are a block in which nobody has anything."""
    order = indices("trn2.48xlarge", "spread", ("neuron-1", PART | {"neuroncores": "1"}))
    assert order[:4] == [4, 5, 6, 7]


def test_cards_with_a_fault_take_part_in_no_set():
    order = indices("v100-pairs-8", "topology-aware", faults=[0])
    assert next(card for card in order if card != 0) == 1
