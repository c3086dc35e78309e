"""MIG partitions: that shared counters say what the hardware says, and what an allocation makes of them."""

from itertools import combinations

import pytest
from msgspec.structs import replace

from hami_dra.api.hardware import PartitionPlacement
from hami_dra.driver.limits import check_pools
from hami_dra.driver.simulated import machine
from hami_dra.driver.slices import machine_pools, slice_bodies
from hami_dra.vendors.nvidia import mig
from hami_dra.vendors.nvidia.publish import MIG_CLASS, WHOLE_CLASS, NvidiaPublishing
from hami_dra.vendors.nvidia.records import GpuRecord, MigProfile, MigState
from hami_dra.vendors.profiles import profile_of
from tests.support.manifests import claim, node, pod, simulated, slices
from tests.support.settings import vendor_settings
from tests.support.slice_limits import check_slice

ON = MigState(enabled=True, pending=True)
GPUS = {
    # product, MiB as nvidia-smi shows it → profiles with how many fit, as NVIDIA's user guide has it
    ("NVIDIA A30", 24_576): {"1g.6gb": 4, "2g.12gb": 2, "4g.24gb": 1},
    ("NVIDIA A100-SXM4-40GB", 40_960): dict(
        zip(("1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"), (7, 4, 3, 2, 1, 1), strict=True)
    ),
    ("NVIDIA A100-PCIE-40GB", 40_536): None,
    ("NVIDIA A100-SXM4-80GB", 81_920): dict(
        zip(("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"), (7, 4, 3, 2, 1, 1), strict=True)
    ),
    ("NVIDIA A100 80GB PCIe", 81_920): None,
    ("NVIDIA H100 80GB HBM3", 81_559): dict(
        zip(("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"), (7, 4, 3, 2, 1, 1), strict=True)
    ),
    ("NVIDIA H200", 143_771): dict(
        zip(("1g.18gb", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb"), (7, 4, 3, 2, 1, 1), strict=True)
    ),
    ("NVIDIA B200", 183_359): dict(
        zip(("1g.23gb", "1g.45gb", "2g.45gb", "3g.90gb", "4g.90gb", "7g.180gb"), (7, 4, 3, 2, 1, 1), strict=True)
    ),
}


def gpu(product="NVIDIA A100-SXM4-80GB", mebibytes=81_920, state=ON, index=0):
    return GpuRecord(
        vendor="nvidia", index=index, uuid=f"GPU-{index}", product=product, memory=mebibytes << 20, mig=state
    )


def published(card):
    return NvidiaPublishing().devices([card], vendor_settings())


def counters(entries):
    """(set, counter) → amount."""
    return {
        (entry["counterSet"], name): int(counter["value"])
        for entry in entries
        for name, counter in entry["counters"].items()
    }


def fits(card, devices):
    """As the allocator counts: no counter of the sets is overdrawn."""
    left = {
        (item["name"], name): int(counter["value"])
        for item in NvidiaPublishing().counter_sets([card])
        for name, counter in item["counters"].items()
    }
    for device in devices:
        for name, amount in counters(device["consumesCounters"]).items():
            left[name] -= amount
    return all(amount >= 0 for amount in left.values())


@pytest.mark.parametrize(("product", "mebibytes"), GPUS, ids=lambda value: str(value).replace(" ", "-"))
def test_profiles_are_those_of_the_user_guide(product, mebibytes):
    card = gpu(product, mebibytes)
    profiles = {profile.name: profile.instances for profile in mig.profiles(card)}
    if GPUS[product, mebibytes] is not None:
        assert profiles == GPUS[product, mebibytes]
    assert len(profiles) >= 3
    memory = [profile.memory for profile in mig.profiles(card)]
    assert memory == sorted(memory)
    assert memory[-1] <= card.memory
    for profile in mig.profiles(card):  # an instance has no more than its share of the card
        share = profile.placements[0].size / max(place.start + place.size for _, place in mig.placements(card))
        assert profile.memory <= mebibytes * share * (1 << 20)


@pytest.mark.parametrize(("product", "mebibytes"), GPUS, ids=lambda value: str(value).replace(" ", "-"))
def test_counters_allow_exactly_what_does_not_overlap(product, mebibytes):
    """All sets of up to three partitions, against memory slices laid side by side and compute slices summed up."""
    card = gpu(product, mebibytes)
    whole, *parts = published(card)
    places = list(mig.placements(card))
    assert len(parts) == len(places)
    all_compute = 4 if "A30" in product else 7
    for size in (1, 2, 3):
        for chosen in combinations(range(len(parts)), size):
            cells = [cell for index in chosen for cell in range(places[index][1].start, sum_of(places[index][1]))]
            compute = sum(places[index][0].slices for index in chosen)
            possible = len(cells) == len(set(cells)) and compute <= all_compute
            assert fits(card, [parts[index] for index in chosen]) == possible
    assert fits(card, [whole])
    assert not any(fits(card, [whole, part]) for part in parts)


def sum_of(placement):
    return placement.start + placement.size


@pytest.mark.parametrize(
    ("names", "possible"),
    [
        (["4g.40gb-0", "2g.20gb-4", "1g.10gb-6"], True),
        (["3g.40gb-0", "3g.40gb-4"], True),
        (["3g.40gb-0", "3g.40gb-4", "1g.10gb-6"], False),
        (["4g.40gb-0", "3g.40gb-4"], True),
        (["2g.20gb-0", "2g.20gb-2", "2g.20gb-4", "1g.10gb-6"], True),
        (["1g.20gb-0", "1g.20gb-2", "1g.20gb-4", "1g.20gb-6"], True),
        (["1g.20gb-0", "1g.10gb-1"], False),
        (["7g.80gb-0", "1g.10gb-6"], False),
    ],
)
def test_cuts_that_nvidia_shows(names, possible):
    card = gpu()
    by_name = {device["name"].removeprefix("gpu-0-mig-"): device for device in published(card)}
    assert fits(card, [by_name[name.replace(".", "-")] for name in names]) is possible


def test_a_partition_says_where_it_comes_from_and_is_for_one_claim():
    card = replace(machine("a2-ultragpu-2g-mig", "n1").cards[1], index=1)
    by_name = {device["name"]: device for device in published(card)}
    part = by_name["gpu-1-mig-2g-20gb-4"]
    found = {name: next(iter(value.values())) for name, value in part["attributes"].items()}
    assert found["profile"] == "2g.20gb"
    assert found["placement"] == 4
    assert found["type"] == "mig"
    assert found["hami.io/index"] == 1
    assert found["parentUUID"] == found["hami.io/uuid"] == card.uuid
    assert found["resource.kubernetes.io/numaNode"] == 0
    assert not {"hami.io/links", "hami.io/linkGroup", "hami.io/distance"} & found.keys()
    assert part["capacity"] == {"memory": {"value": "19968Mi"}, "cores": {"value": "28"}}
    assert "allowMultipleAllocations" not in part


def test_cards_out_of_mig_mode_or_unknown_are_not_cut():
    off = MigState(enabled=False, pending=True)
    for card in (gpu(state=off), gpu(state=None), gpu("Tesla T4", 15_360), gpu("NVIDIA GH200 480GB", 97_871)):
        assert [device["name"] for device in published(card)] == ["gpu-0"]
        assert "consumesCounters" not in published(card)[0]
        assert NvidiaPublishing().counter_sets([card]) == []


def test_what_nvml_says_comes_before_the_table():
    place = PartitionPlacement
    reported = (
        MigProfile(id=9, name="3g.47gb", memory=47 << 30, slices=3, instances=2,
                   placements=(place(start=0, size=4), place(start=4, size=4))),
        MigProfile(id=19, name="1g.12gb", memory=11 << 30, slices=1, instances=2,
                   placements=(place(start=0, size=1), place(start=7, size=1))),
        *(MigProfile(id=20, name=name, memory=11 << 30, slices=1, instances=1, placements=(place(start=0, size=1),))
          for name in ("1g.12gb+me", "1g.12gb-me", "1g.12gb+me.all")),
    )  # fmt: skip
    card = gpu("NVIDIA H100 NVL", 95_830, MigState(enabled=True, pending=True, profiles=reported))
    assert [device["name"] for device in published(card)] == [
        "gpu-0", "gpu-0-mig-1g-12gb-0", "gpu-0-mig-1g-12gb-7", "gpu-0-mig-3g-47gb-0", "gpu-0-mig-3g-47gb-4",
    ]  # fmt: skip
    assert published(card)[1]["capacity"]["memory"]["value"] == "11Gi"


def test_cards_that_are_cut_cannot_be_oversubscribed():
    sharing = vendor_settings(memory_scaling=2, core_scaling=2)
    (cut, *_) = NvidiaPublishing().devices([gpu()], sharing)
    (plain,) = NvidiaPublishing().devices([gpu(state=None)], sharing)
    assert (cut["capacity"]["memory"]["value"], cut["capacity"]["cores"]["value"]) == ("80Gi", "100")
    assert (plain["capacity"]["memory"]["value"], plain["capacity"]["cores"]["value"]) == ("160Gi", "200")


def test_many_cards_are_split_over_slices_and_counters_stand_alone():
    found = machine("dgx-a100", "n1")
    cards = tuple(replace(card, mig=ON) for card in found.cards)
    more = tuple(replace(card, index=card.index + 8, uuid=f"{card.uuid}x") for card in cards)
    bodies = slice_bodies(machine_pools(replace(found, cards=cards + more)))
    shape = [(len(body["spec"].get("sharedCounters", ())), len(body["spec"].get("devices", ()))) for body in bodies]
    assert shape == [(8, 0), (8, 0), (0, 64), (0, 64), (0, 64), (0, 64), (0, 48)]
    assert not [str(violation) for body in bodies for violation in check_slice(body)]
    assert not check_pools(bodies)


def test_partitions_are_told_from_cards_by_the_profile_of_the_driver():
    attribute = profile_of("nvidia.hami.io").partition
    whole, *parts = published(gpu())
    assert attribute not in whole["attributes"]
    assert all(attribute in part["attributes"] for part in parts)


# --- what an allocation makes of it ----------------------------------------------------------------------------------


def placed(*requests, first_fit=True):
    """Pods with one request each, in this order, on a machine of two A100 in MIG mode → pod → devices."""
    raws = [node("n1"), *slices("n1", "a2-ultragpu-2g-mig"), *NvidiaPublishing().device_classes()]
    for number, request in enumerate(requests):
        raws += [claim(f"c{number}", {"name": "r", "exactly": request}), pod(f"p{number}", f"c{number}")]
    result = simulated(*raws, first_fit=first_fit)
    found = {
        placement["pod"].split("/")[1]: [one["device"] for item in placement["claims"]
                                         for one in item["allocation"]["devices"]["results"]]
        for placement in result.placements
    }  # fmt: skip
    return [found.get(f"p{number}") for number in range(len(requests))]


def instance(profile, count=1):
    expression = f'device.attributes["nvidia.hami.io"].profile == "{profile}"'
    return {"deviceClassName": MIG_CLASS, "count": count, "selectors": [{"cel": {"expression": expression}}]}


def share(memory):
    return {"deviceClassName": WHOLE_CLASS, "count": 1, "capacity": {"requests": {"memory": memory, "cores": "0"}}}


def test_a_card_is_shared_or_cut_but_never_both():
    assert placed(share("8Gi"), share("8Gi"), instance("3g.40gb"), instance("3g.40gb"), share("8Gi")) == [
        ["gpu-0"],
        ["gpu-0"],
        ["gpu-1-mig-3g-40gb-0"],
        ["gpu-1-mig-3g-40gb-4"],
        ["gpu-0"],
    ]


def test_partitions_fill_a_card_and_then_the_next_until_no_place_is_left():
    found = placed(instance("4g.40gb"), instance("2g.20gb"), instance("1g.10gb"), instance("7g.80gb"),
                   instance("1g.10gb"), share("1Gi"))  # fmt: skip
    assert found == [
        ["gpu-0-mig-4g-40gb-0"],
        ["gpu-0-mig-2g-20gb-4"],
        ["gpu-0-mig-1g-10gb-6"],
        ["gpu-1-mig-7g-80gb-0"],
        None,
        None,
    ]


def test_fourteen_instances_fit_on_two_cards_and_no_more():
    (found, none) = placed(instance("1g.10gb", count=14), instance("1g.10gb"))
    assert len(set(found)) == 14
    assert none is None


def test_scoring_keeps_to_it_too():
    found = placed(share("8Gi"), instance("1g.10gb"), share("8Gi"), instance("2g.20gb"), share("8Gi"), first_fit=False)
    assert None not in found
    shared = {devices[0] for devices in found[0::2]}
    cut = {devices[0][: len("gpu-0")] for devices in found[1::2]}
    assert not shared & cut
