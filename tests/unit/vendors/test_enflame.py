"""Enflame: percentages against HAMi's tiers, the closest set against an oracle, the legacy names, whole nodes."""

import itertools
import random

import pytest

from controller.webhook.convert import ConversionRefused, convert_pod
from hami_dra.driver.simulated import machine
from hami_dra.driver.slices import machine_pools, slice_bodies
from hami_dra.vendors.enflame.rules import closest
from hami_dra.vendors.protocol import Layout
from tests.support.manifests import claim, device_class, node, pod, simulated
from tests.support.settings import vendor_settings

CLASSES = [device_class(f"enflame-{kind}.hami.io", "enflame.hami.io") for kind in ("gcu", "vgcu")]
GCU, VGCU, PERCENT = "enflame.com/gcu", "enflame.com/vgcu", "enflame.com/vgcu-percentage"
SCORES = {"X": 10, "C": 20, "H": 30, "M": 40, "S": 50, "B": 60}


def machines(*names, slices=4):
    found = []
    for name in names:
        found += [node(name), *slice_bodies(machine_pools(machine("s60-8", name), vendor_settings(card_slices=slices)))]
    return found


def taken(report):
    """Pod → (node, {card number: (slices, cores, memory)})."""
    return {
        entry["pod"].removeprefix("default/"): (
            entry["node"],
            {
                int(result["device"].removeprefix("gcu-")): tuple(
                    result["consumedCapacity"][name] for name in ("slices", "cores", "memory")
                )
                for each in entry["claims"]
                for result in each["allocation"]["devices"]["results"]
            },
        )
        for entry in report.placements
    }


def reasons(report):
    return {entry["pod"].removeprefix("default/"): entry["reasons"] for entry in report.unplaced}


# --- slices ------------------------------------------------------------------------------------------------------------


def tier(percent, factor):
    """HAMi v2.7.0: the first tier int(100 / f * i) that holds the percentage."""
    return next(i for i in range(1, factor + 1) if i == factor or int(100 / factor * i) >= max(percent, 1))


@pytest.mark.parametrize("factor", [1, 2, 3, 4, 6])
def test_a_percentage_is_rounded_up_to_a_slice_of_memory_and_cores_alike(factor):
    total = 42976 << 20
    for percent in range(1, 100):
        report = simulated(CLASSES, machines("n", slices=factor), pod("p", limits={VGCU: 1, PERCENT: percent}))
        (_, cards) = taken(report)["p"]
        ((slices, cores, memory),) = cards.values()
        expected = tier(percent, factor)
        assert int(slices) == expected
        assert int(cores) == int(100 * expected / factor)
        assert abs(_bytes(memory) - total * expected // factor) < 1 << 20


def _bytes(text):
    for suffix, factor in (("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)):
        if text.endswith(suffix):
            return int(text.removesuffix(suffix)) * factor
    return int(text)


def test_slices_of_different_sizes_share_a_card_until_it_is_full():
    packed = {"hami.io/gpu-scheduler-policy": "binpack", "enflame.com/use-gpuuuid": "n-enflame-0"}
    pods = [
        pod(f"p{number}", limits={VGCU: 1, PERCENT: percent}, annotations=packed)
        for number, percent in enumerate([25, 50, 20, 1])
    ]
    report = simulated(CLASSES, machines("n"), pods)
    assert [taken(report)[f"p{number}"][1][0][0] for number in range(3)] == ["1", "2", "1"]
    assert reasons(report)["p3"]["CardUuidMismatch"] == 7


def test_a_card_with_a_slice_given_away_is_no_whole_one():
    only = {"enflame.com/use-gpuuuid": "n-GCU-3"}
    report = simulated(
        CLASSES,
        machines("n"),
        pod("slice", limits={VGCU: 1, PERCENT: 10}, annotations=only),
        pod("whole", limits={GCU: 1}, annotations=only),
    )
    assert reasons(report)["whole"] == {"CardInsufficientMemory": 1, "CardUuidMismatch": 7}


# --- closeness ------------------------------------------------------------------------------------------------------------


def layout(distance, lanes=None):
    size = len(distance)
    return Layout(
        index=tuple(range(size)),
        group=(0,) * size,
        numa=(0,) * size,
        product=("S60",) * size,
        lanes=lanes or ((0,) * size,) * size,
        distance=tuple(distance),
    )


def random_distance(size, chance):
    letters = {(a, b): chance.choice("XCHMSB0") for a in range(size) for b in range(a + 1, size)}
    return ["".join("-" if a == b else letters[min(a, b), max(a, b)] for b in range(size)) for a in range(size)]


def test_the_closest_set_against_an_oracle():
    chance = random.Random(5)
    for _ in range(60):
        size = chance.randint(1, 8)
        distance = random_distance(size, chance)
        free = [card for card in range(size) if chance.random() < 0.8]

        def pair(a, b, distance=distance):
            return SCORES.get(distance[a][b], 0)

        for count in range(1, len(free) + 1):
            best = []
            for chosen in itertools.combinations(free, count):
                inside = sum(pair(a, b) for a, b in itertools.combinations(chosen, 2))
                broken = sum(pair(a, b) for a in chosen for b in free if b not in chosen)
                best.append((-inside, broken, chosen))
            best.sort()
            mask = sum(1 << card for card in free)
            found = [
                (tier_number, tuple(card for card in range(size) if each >> card & 1))
                for tier_number, found_tier in enumerate(closest(layout(distance), mask, count))
                for each in found_tier.sets
            ]
            ranks = {key: rank for rank, key in enumerate(sorted({(a, b) for a, b, _ in best}))}
            assert sorted(found) == sorted((ranks[a, b], chosen) for a, b, chosen in best)


def test_whole_cards_come_from_one_switch_then_from_one_socket():
    report = simulated(CLASSES, machines("n"), pod("two", limits={GCU: 2}), pod("four", limits={GCU: 4}))
    found = {name: sorted(cards) for name, (_, cards) in taken(report).items()}
    assert found == {"two": [0, 1], "four": [4, 5, 6, 7]}


def test_one_card_is_the_one_that_the_others_miss_least():
    """Card 5 is gone, so 4 has lost its neighbour: it goes first, and every switch keeps its pair."""
    lost = pod("lost", limits={GCU: 1}, annotations={"enflame.com/use-gpuuuid": "n-GCU-5"})
    report = simulated(CLASSES, machines("n"), lost, pod("one", limits={GCU: 1}))
    assert sorted(taken(report)["one"][1]) == [4]


def test_the_node_with_the_closest_set_wins_whatever_its_score():
    """On the fuller node, which binpack prefers, only two cards of different sockets are left."""
    use = ",".join(f"a-GCU-{number}" for number in (1, 2, 3, 5, 6, 7))
    busy = [pod(f"b{n}", limits={GCU: 1}, annotations={"enflame.com/use-gpuuuid": use}) for n in range(6)]
    report = simulated(CLASSES, machines("a", "b"), busy, pod("two", limits={GCU: 2}))
    assert {where for name, (where, _) in taken(report).items() if name != "two"} == {"a"}
    assert taken(report)["two"][0] == "b"
    assert sorted(taken(report)["two"][1]) == [0, 1]


def test_a_plain_claim_gets_close_cards_too():
    two = {"name": "two", "exactly": {"deviceClassName": "enflame-gcu.hami.io", "count": 2}}
    report = simulated(CLASSES, machines("n"), claim("c", two), pod("p", "c"))
    assert sorted(taken(report)["p"][1]) == [0, 1]


# --- legacy names -----------------------------------------------------------------------------------------------------------


def converted(**limits):
    raw = pod("web", limits={f"enflame.com/{name.replace('_', '-')}": amount for name, amount in limits.items()})
    conversion = convert_pod(raw, "team")
    (template,) = conversion.templates
    devices = template["spec"]["spec"]["devices"]
    (request,) = devices["requests"]
    exactly = request["exactly"]
    percent = [entry["opaque"]["parameters"]["memoryPercent"] for entry in devices.get("config", [])]
    return (
        exactly["deviceClassName"].removesuffix(".hami.io"),
        exactly["count"],
        exactly.get("capacity", {}).get("requests", {}),
        percent,
        conversion.warnings,
    )


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"gcu": 3}, ("enflame-gcu", 3, {}, [])),
        ({"vgcu": 1}, ("enflame-gcu", 1, {}, [])),
        ({"vgcu": 1, "vgcu_percentage": 100}, ("enflame-gcu", 1, {}, [])),
        ({"vgcu": 1, "vgcu_percentage": 22}, ("enflame-vgcu", 1, {"cores": "22"}, [22])),
        ({"vgcu": 1, "vgcu_percentage": 0}, ("enflame-vgcu", 1, {"cores": "1"}, [1])),
        ({"vgcu": 3}, ("enflame-gcu", 3, {}, [])),
    ],
)
def test_what_is_asked_for(limits, expected):
    assert converted(**limits)[:4] == expected


def test_a_percentage_of_several_is_ignored_with_a_warning():
    *asked, warnings = converted(vgcu=2, vgcu_percentage=30)
    assert asked == ["enflame-gcu", 2, {}, []]
    assert "is ignored: 2 vGCUs are 2 whole GCUs" in warnings[0]


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"vgcu": 1, "vgcu_percentage": 101}, "write a whole number from 0 to 100"),
        ({"vgcu_percentage": 50}, "stands without enflame.com/vgcu; add enflame.com/vgcu: 1"),
        ({"gcu": 1, "vgcu": 1}, "are both given"),
    ],
)
def test_what_cannot_be_converted_says_why(limits, words):
    with pytest.raises(ConversionRefused) as refused:
        converted(**limits)
    assert words in str(refused.value)


# --- DRS profiles (HAMi HEAD) ---------------------------------------------------------------------------------------------

DRS, GCU_MEMORY, GCU_CORE = "enflame.com/drs-gcu", "enflame.com/gcu-memory", "enflame.com/gcu-core"


@pytest.mark.parametrize(
    ("limits", "slices"),
    [
        ({DRS: 1}, 1),
        ({DRS: 3}, 3),
        ({DRS: 6}, 6),
        ({DRS: 2, GCU_MEMORY: 40}, 2),
        ({GCU_MEMORY: 20480, GCU_CORE: 40}, 3),
        ({GCU_MEMORY: 20, GCU_CORE: 10}, 3),
        ({GCU_MEMORY: 6}, 1),
        ({GCU_CORE: 17}, 2),
        ({GCU_MEMORY: 1, GCU_CORE: 51}, 4),
        ({GCU_CORE: 100}, 6),
    ],
)
def test_drs_names_ask_for_slices_of_one_card_with_their_memory_and_cores(limits, slices):
    """A card of 42,976 MiB in six slices, 7,162 MiB each. 20 GiB are three of them, 40 percent too."""
    report = simulated(CLASSES, machines("n", slices=6), pod("p", limits=limits))
    (_, cards) = taken(report)["p"]
    ((have, cores, memory),) = cards.values()
    assert int(have) == slices or (slices == 6 and GCU_CORE in limits)
    assert int(cores) == int(100 * slices / 6)
    assert abs(_bytes(memory) - (42976 << 20) * slices // 6) < 1 << 20


def test_more_slices_than_the_card_has_fit_nowhere():
    report = simulated(CLASSES, machines("n", slices=4), pod("p", limits={DRS: 6}))
    assert set(reasons(report)["p"]) == {"ModeNotFit"}
    for wrong in ({DRS: 0}, {GCU_MEMORY: 0}, {GCU_CORE: 0}):
        with pytest.raises(ConversionRefused, match="must be greater than 0"):
            convert_pod(pod("p", limits=wrong), "default")
