"""NVIDIA's sets of cards against a slow, obvious oracle: every subset of free cards of real machines, and random ones."""

import itertools
import random

import msgspec
import pytest

from controller.inventory.layouts import layout_of
from controller.inventory.model import Device, DeviceId
from hami_dra.api.resource import ResourceSlice
from hami_dra.driver.simulated import machine
from hami_dra.driver.slices import machine_pools, slice_bodies
from hami_dra.vendors.nvidia.preferences import NvidiaPreferences
from hami_dra.vendors.nvidia.rules import Nvidia
from hami_dra.vendors.profiles import profile_of
from hami_dra.vendors.protocol import CardState, Layout, NodeView

DRIVER = "nvidia.hami.io"
MACHINES = ("dgx-h100", "dgx-a100", "dgx-1", "v100-pairs-8", "l40s-pcie-8")
LETTERS = {"X": 10, "C": 20, "H": 30, "M": 40, "S": 50, "B": 60, "0": 0, "-": 0}


def layout(name):
    (body,) = slice_bodies(machine_pools(machine(name, "n")))
    published = msgspec.convert(body, ResourceSlice, strict=False)
    devices = [
        Device(DeviceId(DRIVER, "n", each.name), each, published, profile=profile_of(DRIVER))
        for each in published.spec.devices
    ]
    return layout_of(devices)


def random_layout(seed):
    chance = random.Random(seed)
    size = 8
    lanes = [[0] * size for _ in range(size)]
    distance = [["-" if one == other else "0" for other in range(size)] for one in range(size)]
    share = chance.choice([0.0, 0.2, 0.5, 0.8, 1.0])
    for one, other in itertools.combinations(range(size), 2):
        if chance.random() < share:
            lanes[one][other] = lanes[other][one] = chance.choice([1, 2, 4, 18])
            if chance.random() < 0.1:  # the two ends do not agree
                lanes[one][other] = chance.choice([0, 1, 3])
        distance[one][other] = distance[other][one] = chance.choice("XCHMSB0")
    return Layout(
        index=tuple(range(size)),
        group=(0,) * size,
        numa=tuple(chance.randrange(2) for _ in range(size)),
        product=("GPU",) * size,
        lanes=tuple(map(tuple, lanes)),
        distance=tuple("".join(row) for row in distance),
    )


def node_view(wiring, free, count, *, linked=False, numa_bind=False, keys=("topology-aware",)):
    card_states = bytes(CardState.ELIGIBLE | CardState.IDLE if card in free else 0 for card in range(wiring.size))
    preferences = NvidiaPreferences(linked=linked, numa_bind=numa_bind)
    return NodeView(wiring, card_states, bytes(wiring.size), count, preferences, "binpack", keys)


def as_sets(found, count):
    """The tiers, each as (score, its sets): pools spelled out."""
    tiers = []
    for tier in found.tiers:
        sets = {frozenset(card for card in range(128) if mask >> card & 1) for mask in tier.sets}
        for pool in tier.pools:
            cards = [card for card in range(128) if pool >> card & 1]
            sets |= set(map(frozenset, itertools.combinations(cards, count)))
        tiers.append((tier.score, sets))
    return tiers


class Oracle:
    """What docs/design/nvidia.md says, word by word."""

    def __init__(self, wiring):
        self.wiring = wiring

    def lanes(self, one, other):
        return min(self.wiring.lanes[one][other], self.wiring.lanes[other][one])

    def score(self, one, other):
        return LETTERS[self.wiring.distance[one][other]] + 100 * self.lanes(one, other)

    def inside(self, cards):
        return sum(self.score(*pair) for pair in itertools.combinations(cards, 2))

    def all_linked(self, cards):
        return all(self.lanes(*pair) > 0 for pair in itertools.combinations(cards, 2))

    def island(self, card, free):
        """By walking from card to card until nothing is new."""
        known = {card}
        while True:
            more = {peer for peer in free for each in known if peer != each and self.lanes(each, peer) > 0} - known
            if not more:
                return known
            known |= more

    def legal(self, free, count, *, linked, numa_bind):
        for cards in itertools.combinations(sorted(free), count):
            if linked and count > 1 and not self.all_linked(cards):
                continue
            if numa_bind and len({self.wiring.numa[card] for card in cards}) > 1:
                continue
            yield cards

    def key(self, cards, free, *, numa_bind):
        """Smaller is better."""
        last = -self.wiring.numa[cards[0]] if numa_bind else 0
        rest = [card for card in free if card not in cards]
        if len(cards) == 1:
            joined = len(self.island(cards[0], free)) > 1
            return joined, sum(self.score(cards[0], peer) for peer in rest), last
        damage = sum(self.score(card, peer) for card in cards for peer in rest)
        if self.all_linked(cards):
            return 0, len(self.island(cards[0], free)) - len(cards), -self.inside(cards), damage, last
        return 1, 0, -self.inside(cards), damage, last

    def tiers(self, free, count, *, linked=False, numa_bind=False):
        by_key = {}
        for cards in self.legal(free, count, linked=linked, numa_bind=numa_bind):
            by_key.setdefault(self.key(cards, free, numa_bind=numa_bind), set()).add(frozenset(cards))
        return [by_key[key] for key in sorted(by_key)]


def check(wiring, free, count, **wanted):
    found = as_sets(Nvidia().arrange(node_view(wiring, free, count, **wanted)), count)
    assert [sets for _, sets in found] == Oracle(wiring).tiers(free, count, **wanted)
    scores = [score for score, _ in found]
    assert scores == sorted(scores, reverse=True)


def subsets(size):
    return [[card for card in range(size) if pattern >> card & 1] for pattern in range(1, 1 << size)]


@pytest.mark.parametrize("name", MACHINES)
def test_every_subset_of_a_machine(name):
    wiring = layout(name)
    for free in subsets(8):
        for count in range(1, len(free) + 1):
            check(wiring, free, count)


@pytest.mark.parametrize("name", MACHINES)
def test_every_subset_with_required_links_and_numa_bind(name):
    wiring = layout(name)
    for free in subsets(8)[::3]:
        for count in range(1, len(free) + 1):
            check(wiring, free, count, linked=True)
            check(wiring, free, count, numa_bind=True)
            check(wiring, free, count, linked=True, numa_bind=True)


@pytest.mark.parametrize("seed", range(24))
def test_random_machines(seed):
    wiring = random_layout(seed)
    for free in random.Random(seed).sample(subsets(8), 12):
        for count in range(1, len(free) + 1):
            for linked, numa_bind in itertools.product([False, True], repeat=2):
                check(wiring, free, count, linked=linked, numa_bind=numa_bind)


@pytest.mark.parametrize("keys", [("spread",), ("binpack",), ("mutex",), ("spread", "mutex")])
@pytest.mark.parametrize("seed", range(8))
def test_other_device_policies_get_every_legal_set_and_no_other(seed, keys):
    wiring = random_layout(seed)
    oracle = Oracle(wiring)
    for free in random.Random(seed).sample(subsets(8), 8):
        for count in range(1, len(free) + 1):
            for linked, numa_bind in itertools.product([False, True], repeat=2):
                found = Nvidia().arrange(node_view(wiring, free, count, linked=linked, numa_bind=numa_bind, keys=keys))
                if not numa_bind and (count == 1 or not linked):
                    assert found is None
                    continue
                legal = set(map(frozenset, oracle.legal(free, count, linked=linked, numa_bind=numa_bind)))
                tiers = as_sets(found, count)
                assert set().union(*(sets for _, sets in tiers)) == legal
                assert {score for score, _ in tiers} <= {0.0}
                if numa_bind:
                    nodes = [{wiring.numa[card] for each in sets for card in each} for _, sets in tiers]
                    assert all(len(each) == 1 for each in nodes)
                    assert nodes == sorted(nodes, key=min, reverse=keys == ("spread",))
