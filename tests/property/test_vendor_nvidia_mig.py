"""Dynamic MIG against a slow, obvious oracle: which instance a request gets, after any number of others."""

import random

import pytest

from hami_dra.driver.simulated import machine
from hami_dra.driver.slices import machine_pools, slice_bodies
from hami_dra.vendors.nvidia import mig
from hami_dra.vendors.nvidia.publish import NvidiaPublishing
from tests.support.manifests import node, pod, simulated

MACHINE = "a2-ultragpu-2g-mig"
SLICES = 7
MIB = 1 << 20
CARDS = machine(MACHINE, "n").cards


class Gpu:
    """One card on squared paper: which of its eight memory slices are taken, and how many of its seven compute slices."""

    def __init__(self, card):
        self.placements = [(profile, placement) for profile, placement in mig.placements(card)]
        self.memory = card.memory
        self.taken = []

    def fits(self, profile, placement):
        squares = set(range(placement.start, placement.start + placement.size))
        used = {square for _, start, size in self.taken for square in range(start, start + size)}
        compute = sum(each.slices for each, _, _ in self.taken)
        return not squares & used and compute + profile.slices <= SLICES

    def room(self):
        """Memory of everything that could be cut from the card now, each thing counted for itself."""
        whole = 0 if self.taken else self.memory
        return whole + sum(profile.memory for profile, placement in self.placements if self.fits(profile, placement))

    def put(self, profile, placement):
        self.taken.append((profile, placement.start, placement.size))

    def fullness(self):
        """HAMi's device score of the card without the request."""
        cores = sum(100 * each.slices // SLICES for each, _, _ in self.taken)
        return len(self.taken) / 10 + cores / 100 + sum(each.memory for each, _, _ in self.taken) / self.memory


def expected(gpus, memory, policy):
    """Legal choices (card, profile, start): the smallest profile, the card by policy, the place that costs least."""
    fitting = [
        (number, profile, placement)
        for number, gpu in enumerate(gpus)
        for profile, placement in gpu.placements
        if profile.memory >= memory and gpu.fits(profile, placement)
    ]
    if not fitting:
        return None
    smallest = min((profile.memory, profile.slices) for _, profile, _ in fitting)
    fitting = [each for each in fitting if (each[1].memory, each[1].slices) == smallest]
    sign = -1 if policy == "binpack" else 1
    number = min({each[0] for each in fitting}, key=lambda card: (sign * gpus[card].fullness(), card))
    costs = {}
    for _, profile, placement in (each for each in fitting if each[0] == number):
        before = gpus[number].room()
        gpus[number].put(profile, placement)
        costs.setdefault(before - gpus[number].room(), []).append((number, profile.name, placement.start))
        gpus[number].taken.pop()
    return costs[min(costs)]


@pytest.mark.parametrize("policy", ["binpack", "spread"])
@pytest.mark.parametrize("seed", range(6))
def test_every_request_gets_what_the_oracle_says(seed, policy):
    chance = random.Random(seed)
    sizes = [chance.choice([3_000, 9_000, 12_000, 19_000, 25_000, 45_000]) for _ in range(14)]
    annotations = {"nvidia.com/vgpu-mode": "mig", "hami.io/gpu-scheduler-policy": policy}
    pods = [
        pod(f"p{number}", limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem": size}, annotations=annotations)
        for number, size in enumerate(sizes)
    ]
    slices = slice_bodies(machine_pools(machine(MACHINE, "n")))
    report = simulated(NvidiaPublishing().device_classes(), node("n"), slices, pods)
    found = {
        entry["pod"].removeprefix("default/"): entry["claims"][0]["allocation"]["devices"]["results"][0]["device"]
        for entry in report.placements
    }
    gpus = [Gpu(card) for card in CARDS]
    for number, size in enumerate(sizes):
        choices = expected(gpus, size * MIB, policy)
        device = found.get(f"p{number}")
        if device is None:
            assert choices is None, (number, size)
            continue
        _, card, _, compute, memory, start = device.split("-")
        chosen = int(card), f"{compute}.{memory}", int(start)
        assert chosen in choices, (number, size, chosen, choices)
        (match,) = [
            each for each in gpus[chosen[0]].placements if (each[0].name, each[1].start) == (chosen[1], chosen[2])
        ]
        gpus[chosen[0]].put(*match)
