"""Single Neuron devices and cores against HAMi's order: after any sequence of singles and frees the largest block that is
left is never below the one that HAMi's order (the last free device) would leave.
"""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_dra.vendors.neuron.rules import blocks, singles
from tests.support.manifests import device_class, node, pod, simulated, slices

DEVICES, CORES = "aws.amazon.com/neuron", "aws.amazon.com/neuroncore"
CLASSES = [device_class(f"neuron-{kind}.hami.io", "neuron.hami.io") for kind in ("device", "core")]
MACHINES = {"inf2.48xlarge": (12, False), "trn1.32xlarge": (16, True)}
POLICIES = ["spread", "binpack", "topology-aware", "numa", "binpack,numa"]


def largest(index, free, *, aligned):
    """The most devices that one request could have; a single device is no block."""
    return max((count for count in range(2, len(index) + 1) if blocks(index, free, count, aligned=aligned)), default=0)


def first_choice(index, eligible, idle, *, aligned):
    (mask,) = next(singles(index, eligible, idle, aligned=aligned)).sets[:1]
    return mask


@given(st.integers(1, 16), st.booleans(), st.lists(st.integers(0, 63), max_size=60))
def test_no_single_leaves_a_smaller_block_than_the_last_free_device_would(size, aligned, steps):
    """Odd steps free one of the devices in use, even ones take one."""
    index, idle = tuple(range(size)), (1 << size) - 1
    for step in steps:
        used = [number for number in index if not idle >> number & 1]
        if step % 2 and used:
            idle |= 1 << used[step // 2 % len(used)]
        elif idle:
            chosen = first_choice(index, idle, idle, aligned=aligned)
            last = 1 << (idle.bit_length() - 1)
            ours, hamis = (largest(index, idle & ~mask, aligned=aligned) for mask in (chosen, last))
            assert ours >= hamis
            best = max(largest(index, idle & ~(1 << one), aligned=aligned) for one in index if idle >> one & 1)
            assert ours == best
            idle &= ~chosen


@given(st.integers(2, 16), st.booleans(), st.data())
def test_cores_of_one_device_never_open_a_block_while_a_device_in_use_has_room(size, aligned, data):
    index, everything = tuple(range(size)), (1 << size) - 1
    idle = data.draw(st.integers(0, everything))
    eligible = data.draw(st.integers(1, everything)) | idle
    chosen = first_choice(index, eligible, idle, aligned=aligned)
    before, after = (largest(index, free, aligned=aligned) for free in (idle, idle & ~chosen))
    if eligible & ~idle:
        assert before == after
    assert after >= largest(index, idle & ~(1 << (eligible.bit_length() - 1)), aligned=aligned)


def test_over_many_histories_more_is_left_than_in_hamis_own():
    """Two histories whose states differ cannot be compared step by step; on average ours leaves larger blocks."""
    chance = random.Random(19)
    for size, aligned in MACHINES.values():
        index, ours, hamis = tuple(range(size)), 0, 0
        for _ in range(60):
            held_ours, held_hami = {}, {}
            for number in range(40):
                if held_ours and chance.random() < 0.45:
                    gone = chance.choice(sorted(held_ours))
                    del held_ours[gone], held_hami[gone]
                elif len(held_ours) < size:
                    idle = [~sum(held.values()) & ((1 << size) - 1) for held in (held_ours, held_hami)]
                    held_ours[number] = first_choice(index, idle[0], idle[0], aligned=aligned)
                    held_hami[number] = 1 << (idle[1].bit_length() - 1)
                ours += largest(index, ~sum(held_ours.values()) & ((1 << size) - 1), aligned=aligned)
                hamis += largest(index, ~sum(held_hami.values()) & ((1 << size) - 1), aligned=aligned)
        assert ours >= hamis, (size, ours, hamis)


def numbers(report):
    return {
        entry["pod"].removeprefix("default/"): [
            int(result["device"].removeprefix("neuron-"))
            for each in entry["claims"]
            for result in each["allocation"]["devices"]["results"]
        ]
        for entry in report.placements
    }


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("node_policy", ["binpack", "spread"])
def test_from_an_idle_machine_singles_go_in_hamis_order_under_every_policy(machine, policy, node_policy):
    own = {"hami.io/gpu-scheduler-policy": policy, "hami.io/node-scheduler-policy": node_policy}
    pods = [pod(f"p{number}", limits={DEVICES: 1}, annotations=own) for number in range(6)]
    found = numbers(simulated(CLASSES, node("n"), slices("n", machine), pods))
    last = MACHINES[machine][0] - 1
    assert [found[f"p{number}"] for number in range(6)] == [[last - number] for number in range(6)]


@pytest.mark.parametrize("seed", range(8))
def test_whole_decisions_on_random_states(seed):
    """Devices held at random (also by one core), then a single device and a single core under each device policy."""
    chance = random.Random(seed)
    machine = chance.choice(sorted(MACHINES))
    size, aligned = MACHINES[machine]
    index = tuple(range(size))
    held = chance.sample(range(size), chance.randrange(1, size - 2))
    used = chance.sample(held, len(held) // 3)
    idle = ((1 << size) - 1) & ~sum(1 << number for number in held)
    fillers = [
        pod(
            f"f{number}",
            limits={CORES: 1} if number in used else {DEVICES: 1},
            annotations={"aws.amazon.com/use-neuron-uuid": f"n-AWSNeuron-{number}"},
        )
        for number in held
    ]
    for policy in POLICIES:
        for resource in (DEVICES, CORES):
            own = {"hami.io/gpu-scheduler-policy": policy}
            wanted = pod("p", limits={resource: 1}, annotations=own)
            (chosen,) = numbers(simulated(CLASSES, node("n"), slices("n", machine), fillers, wanted))["p"]
            if resource == CORES and used:
                assert chosen in used
            else:
                best = max(largest(index, idle & ~(1 << one), aligned=aligned) for one in index if idle >> one & 1)
                assert largest(index, idle & ~(1 << chosen), aligned=aligned) == best


@pytest.mark.parametrize("node_policy", ["binpack", "spread"])
@pytest.mark.parametrize("resource", [DEVICES, CORES])
@pytest.mark.parametrize("machine", MACHINES)
def test_between_nodes_one_whose_largest_block_stays_whole_is_better(machine, resource, node_policy):
    """On b the third device from the end is held, so that the two behind it are in none of its largest blocks."""
    size = MACHINES[machine][0]
    hole = {"aws.amazon.com/use-neuron-uuid": f"b-AWSNeuron-{size - 3}"}
    raws = [*CLASSES, *(each for name in "ab" for each in (node(name), *slices(name, machine)))]
    own = {"hami.io/node-scheduler-policy": node_policy}
    report = simulated(
        raws, pod("held", limits={DEVICES: 1}, annotations=hole), pod("p", limits={resource: 1}, annotations=own)
    )
    assert {entry["pod"]: entry["node"] for entry in report.placements}["default/p"] == "b"
    assert numbers(report)["p"][0] > size - 3


def test_devices_in_use_are_chosen_among_by_the_device_policy():
    """Devices 3 and 5 are in use and have room: they are one tier."""
    tier = next(singles(tuple(range(12)), 0b1111_1111_1111, 0b1111_1101_0111, aligned=False))
    assert tier.sets == (0b1000, 0b100000)
