"""Ascend against an oracle that spells out HAMi's rules (D/ascend/device.go: trimMemory, Fit, computeBestCombination, ScoreNode).

The oracle works on plain numbers and knows nothing of the code under test. HAMi's configuration of three series is repeated here.
"""

import itertools
from collections import Counter
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from controller.webhook.convert import ConversionRefused, convert_pod
from hami_dra.vendors.ascend.rules import Ascend
from hami_dra.vendors.preferences import Preferences
from hami_dra.vendors.protocol import CardState, Layout, NodeView
from tests.support.manifests import node, pod, simulated, slices

CARDS = range(8)
ROOT = Path(__file__).resolve().parents[2]
CLASSES = [yaml.safe_load(path.read_text()) for path in sorted((ROOT / "deviceclasses").glob("ascend-*.yaml"))]

SERIES = {
    "Ascend910A": (32768, 32768, {2184: "vir02", 4369: "vir04", 8738: "vir08", 17476: "vir16"}),
    "Ascend910B4": (32768, 32768, {8192: "vir05_1c_8g", 16384: "vir10_3c_16g"}),
    "Ascend310P": (21527, 24576, {3072: "vir01", 6144: "vir02", 12288: "vir04"}),
}
"""memoryAllocatable, memoryCapacity, templates."""
MACHINES = {"Ascend910A": "atlas-800-9000", "Ascend910B4": "atlas-800i-a2", "Ascend310P": "atlas-300i-pro-6"}


# --- the oracle ----------------------------------------------------------------------------------------------------------


def hamis_memory(series, memory):
    """trimMemory: (MiB that are taken, template); None: the webhook refuses the pod."""
    allocatable, capacity, templates = SERIES[series]
    if memory is None:
        return allocatable, ""
    for size, name in sorted(templates.items()):
        if memory <= size:
            return size, name
    return (allocatable, "") if memory <= capacity else None


class HamisCards:
    """What HAMi keeps of the cards of one node."""

    def __init__(self, series, count, *, mutex=False):
        self.mutex = mutex
        self.total = SERIES[series][0]
        self.slots = self.total // min(SERIES[series][2])
        self.used = {card: [] for card in range(count)}

    def fitting(self, memory):
        """Cards that `Fit` accepts: slots first, then mutex, then memory. No cores are asked for."""
        return [
            card
            for card, held in self.used.items()
            if len(held) < self.slots and not (self.mutex and held) and self.total - sum(held) >= memory
        ]

    def take(self, card, memory):
        self.used[card].append(memory)


def hamis_choice(rings, free, count):
    """computeBestCombination: the ring with most fitting cards is emptied first."""
    by_ring = [[card for card in ring if card in free] for ring in rings]
    taken = [card for ring in sorted(by_ring, key=len, reverse=True) for card in ring]
    return tuple(taken[:count])


def hamis_score(rings, chosen):
    """ScoreNode: 10 x the largest part in one ring / all."""
    counts = Counter(number for number, ring in enumerate(rings) for card in chosen if card in ring)
    return 10 * max(counts.values()) / len(chosen)


# --- sets ------------------------------------------------------------------------------------------------------------------


def layout(rings):
    nothing = tuple((0,) * 8 for _ in CARDS)
    return Layout(
        index=tuple(CARDS),
        group=tuple(next(number for number, ring in enumerate(rings, 1) if card in ring) for card in CARDS),
        numa=(0,) * 8,
        product=("Ascend910A",) * 8,
        lanes=nothing,
        distance=("0" * 8,) * 8,
    )


RINGS = (
    ((0, 1, 2, 3), (4, 5, 6, 7)),
    (tuple(CARDS),),
    ((0, 1, 2, 3), (4, 5), (6, 7)),
)
LAYOUTS = {rings: layout(rings) for rings in RINGS}


def arranged(rings, free, count):
    """[(score, [set, ...]), ...]: pools are spelt out."""
    states = bytes(CardState.ELIGIBLE | CardState.IDLE if card in free else 0 for card in CARDS)
    view = NodeView(LAYOUTS[rings], states, bytes(8), count, Preferences(), "binpack", ("spread",))
    tiers = []
    for tier in Ascend().arrange(view).tiers:
        masks = [tuple(card for card in CARDS if mask >> card & 1) for mask in tier.sets]
        for pool in tier.pools:
            masks += itertools.combinations([card for card in CARDS if pool >> card & 1], count)
        tiers.append((tier.score, masks))
    return tiers


def in_idle_rings(rings, free):
    return sum(len(ring) for ring in rings if set(ring) <= set(free))


@pytest.mark.parametrize("rings", RINGS, ids=lambda rings: "+".join(str(len(ring)) for ring in rings))
@pytest.mark.parametrize("count", range(2, 9))
def test_every_pattern_of_free_cards(rings, count):
    """A set wherever HAMi has one, HAMi's score for each, all sets once, and no more rings broken than by HAMi."""
    for size in range(9):
        for free in itertools.combinations(CARDS, size):
            tiers = arranged(rings, free, count)
            if size < count:
                assert tiers == []
                continue
            listed = [cards for _, sets in tiers for cards in sets]
            assert sorted(listed) == list(itertools.combinations(free, count))
            for score, sets in tiers:
                assert {hamis_score(rings, cards) for cards in sets} == {score}
            theirs = hamis_choice(rings, free, count)
            assert tiers[0][0] == hamis_score(rings, theirs)
            left = {in_idle_rings(rings, set(free) - set(cards)) for cards in tiers[0][1]}
            assert min(left) >= in_idle_rings(rings, set(free) - set(theirs))


def test_one_card_and_cards_without_rings_go_by_the_device_policy():
    for count, groups in ((1, RINGS[0]), (2, None)):
        flat = LAYOUTS[RINGS[0]] if groups else replace(LAYOUTS[RINGS[0]], group=(0,) * 8)
        view = NodeView(flat, bytes([3] * 8), bytes(8), count, Preferences(), "binpack", ("spread",))
        assert Ascend().arrange(view) is None


# --- whole stories -----------------------------------------------------------------------------------------------------------

POLICIES = ("", "binpack", "spread", "mutex")


@st.composite
def stories(draw):
    series = draw(st.sampled_from(sorted(SERIES)))
    sizes = [*SERIES[series][2], 1, 0]
    amounts = st.one_of(st.none(), st.sampled_from(sizes), st.integers(0, SERIES[series][0]))
    wishes = draw(st.lists(st.tuples(st.integers(1, 4), amounts), min_size=4, max_size=24))
    return series, draw(st.sampled_from(POLICIES)), wishes


@settings(max_examples=40, deadline=None)
@given(stories())
def test_pods_are_placed_where_hami_finds_room_and_with_hami_s_template(story):
    """One pod after another, on the cards as they then are: HAMi's `Fit` says yes exactly if it is placed."""
    series, policy, wishes = story
    annotations = {"hami.io/gpu-scheduler-policy": policy} if policy else {}
    pods = []
    for number, (count, memory) in enumerate(wishes):
        taken = hamis_memory(series, memory)
        if count > 1 and taken[1]:
            continue  # vNPU not supported for multiple devices: the webhook refuses the pod
        limits = {f"huawei.com/{series}": count}
        if memory is not None:
            limits[f"huawei.com/{series}-memory"] = memory
        pods.append((pod(f"p{number:02}", limits=limits, annotations=annotations), count, *taken))
    machine = slices("n", MACHINES[series])
    count_of_cards = 6 if series == "Ascend310P" else 8
    report = simulated(CLASSES, node("n"), machine, *(raw for raw, *_ in pods))
    placed = {entry["pod"].removeprefix("default/"): entry for entry in report.placements}
    cards = HamisCards(series, count_of_cards, mutex=policy == "mutex")
    for raw, count, memory, template in pods:
        name = raw["metadata"]["name"]
        fits = len(cards.fitting(memory)) >= count
        assert fits == (name in placed), (name, cards.used)
        if fits:
            devices = [
                result["device"]
                for each in placed[name]["claims"]
                for result in each["allocation"]["devices"]["results"]
            ]
            numbers = [int(device.split("-")[1]) for device in devices]
            assert len(set(numbers)) == count
            assert set(numbers) <= set(cards.fitting(memory))
            infix = template.replace("_", "-")
            assert all(
                device.startswith(f"npu-{number}-{infix}") == bool(template)
                for device, number in zip(devices, numbers, strict=True)
            )
            for number in numbers:
                cards.take(number, memory)


@pytest.mark.parametrize("series", sorted(SERIES))
def test_what_hamis_webhook_refuses_is_refused(series):
    over = SERIES[series][1] + 1
    assert hamis_memory(series, over) is None
    for count, memory in ((1, over), (2, 1)):
        limits = {f"huawei.com/{series}": count, f"huawei.com/{series}-memory": memory}
        with pytest.raises(ConversionRefused, match=f"huawei.com/{series}-memory"):
            convert_pod(pod("p", limits=limits), "default")
