"""Ascend: legacy names and templates, rings on whole nodes through simulate, what is published, and what containers get."""

from itertools import combinations_with_replacement
from pathlib import Path

import pytest
import yaml

from controller.webhook.convert import ConversionRefused, Options, convert_pod
from controller.webhook.request import InvalidRequest
from hami_dra.api.containers import Unpreparable
from hami_dra.api.hardware import Card, Fault
from hami_dra.api.names import CONVERTED_REQUEST
from hami_dra.driver.simulated import machine
from hami_dra.vendors.ascend.models import SERIES, series_of
from hami_dra.vendors.ascend.publish import rings
from hami_dra.vendors.legacy import LegacyRequest
from hami_dra.vendors.registry import PUBLISHING_VENDORS, containers
from tests.support.containers import GIB, PretendHost, card, place, tenancy
from tests.support.conversions import template_of
from tests.support.manifests import claim, node, pod, simulated, slices
from tests.support.settings import vendor_settings

ROOT = Path(__file__).resolve().parents[3]
CLASSES = [yaml.safe_load(path.read_text()) for path in sorted((ROOT / "deviceclasses").glob("ascend-*.yaml"))]
(PUBLISHING,) = [vendor for vendor in PUBLISHING_VENDORS if vendor.name == "ascend"]
T2, I2, A3, OLD, PCIE = "atlas-800t-a2", "atlas-800i-a2", "atlas-800t-a3", "atlas-800-9000", "atlas-300i-pro-6"
MIB = 1 << 20


def ascend(name, series, count=1, memory=None, **annotations):
    limits = {f"huawei.com/{series}": count}
    if memory is not None:
        limits[f"huawei.com/{series}-memory"] = memory
    return pod(name, limits=limits, annotations=annotations)


def on(machine_name, *raws, name="n"):
    return simulated(CLASSES, node(name), slices(name, machine_name), *raws)


def cards(report):
    """Pod → devices."""
    return {
        entry["pod"].removeprefix("default/"): [
            result["device"] for each in entry["claims"] for result in each["allocation"]["devices"]["results"]
        ]
        for entry in report.placements
    }


def asked(limits, annotations=None, **options):
    """The request of a converted pod, as in its template."""
    made = convert_pod(pod("p", limits=limits, annotations=annotations or {}), "default", Options(**options))
    (request,) = made.templates[0]["spec"]["spec"]["devices"]["requests"]
    return request["exactly"]


# --- resource names ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("series", "memory", "template"),
    [
        ("Ascend910A", 0, 2184),
        ("Ascend910A", 2185, 4369),
        ("Ascend910B", 16384, 16384),
        ("Ascend910B2", 1, 8192),
        ("Ascend910B3", 16385, 32768),
        ("Ascend910B4", 2000, 8192),
        ("Ascend910B4-1", 2000, 16384),
        ("Ascend310P", 6145, 12288),
    ],
)
def test_memory_becomes_the_smallest_template_that_holds_it(series, memory, template):
    request = asked({f"huawei.com/{series}": 1, f"huawei.com/{series}-memory": memory})
    canonical = "910b3" if series == "Ascend910B" else series.removeprefix("Ascend").lower()
    assert request["deviceClassName"] == f"ascend-{canonical}-vnpu.hami.io"
    assert request["count"] == 1
    (selector,) = request["selectors"]
    assert "compareTo(quantity(" in selector["cel"]["expression"]
    assert asked({f"huawei.com/{series}": 1, f"huawei.com/{series}-memory": template}) == request


@pytest.mark.parametrize("memory", [None, 16385, 32768])
def test_no_memory_or_more_than_the_largest_template_is_a_whole_card(memory):
    limits = {"huawei.com/Ascend910B4": 2}
    if memory is not None:
        limits["huawei.com/Ascend910B4-memory"] = memory
    request = asked(limits)
    assert (request["deviceClassName"], request["count"]) == ("ascend-910b4.hami.io", 2)
    assert "capacity" not in request
    assert "selectors" not in request


def test_a_310p_offers_less_than_it_has():
    """memoryCapacity is 24576 and memoryAllocatable 21527: up to the first may be asked for."""
    assert asked({"huawei.com/Ascend310P": 1, "huawei.com/Ascend310P-memory": 24576})["count"] == 1


@pytest.mark.parametrize(
    ("limits", "annotations", "message"),
    [
        ({"Ascend910B4": 1, "Ascend910B4-memory": 32769}, {}, "has 32768: write at most that"),
        ({"Ascend910B4": 2, "Ascend910B4-memory": 2000}, {}, "can have only one"),
        ({"Ascend910B4": 1, "Ascend910B4-memory": "16Gi"}, {}, 'write "16384" instead'),
        ({"Ascend910B4-memory": 2000}, {}, "stands without huawei.com/Ascend910B4"),
        ({"Ascend910B4": 1, "Ascend910B4-core": 50}, {}, "only for HAMi's soft slices"),
        ({"Ascend910B4": 1, "Ascend310P": 1}, {}, "NPUs of one series in each container"),
        ({"Ascend910B4": 1}, {"huawei.com/vnpu-mode": "hami-core"}, "soft slices of an NPU are not supported"),
    ],
)
def test_what_cannot_be_converted_says_why(limits, annotations, message):
    limits = {f"huawei.com/{name}": amount for name, amount in limits.items()}
    with pytest.raises(ConversionRefused) as refused:
        convert_pod(pod("p", limits=limits, annotations=annotations), "default")
    assert message in str(refused.value)


def test_containers_of_two_series_have_two_requests():
    raw = pod("p")
    raw["spec"]["containers"] = [
        {"name": name, "resources": {"limits": {f"huawei.com/{series}": 1}}}
        for name, series in (("a", "Ascend910B4"), ("b", "Ascend310P"))
    ]
    made = convert_pod(raw, "default")
    requests = made.templates[0]["spec"]["spec"]["devices"]["requests"]
    assert [each["exactly"]["deviceClassName"] for each in requests] == ["ascend-910b4.hami.io", "ascend-310p.hami.io"]
    report = simulated(
        CLASSES, node("n"), slices("n", I2), node("m"), slices("m", PCIE), raw
    )  # no node has both, and a pod is on one
    assert not report.placements


def test_requests_of_two_series_are_never_one():
    """An init container's request is shared with the others only if it is for the same series."""
    b4, p3 = (LegacyRequest(1, model=series) for series in ("Ascend910B4", "Ascend310P"))
    assert b4.joined(p3) is None
    assert b4.joined(LegacyRequest(2, model="Ascend910B4")) == LegacyRequest(2, model="Ascend910B4")


def test_an_annotation_with_another_series_makes_no_template():
    annotation = convert_pod(ascend("p", "Ascend910B4"), "default").pod["metadata"]["annotations"][CONVERTED_REQUEST]
    assert template_of(annotation, "default")
    with pytest.raises(InvalidRequest, match="is no series of NPUs"):
        template_of(annotation.replace("Ascend910B4", "Ascend999"), "default")


def test_lists_of_cards_are_for_their_series_only():
    uuids = [card.uuid for card in machine(I2, "n").cards]
    chosen = {"hami.io/use-Ascend910B4-uuid": f"{uuids[6]}, {uuids[2]}"}
    assert cards(on(I2, ascend("p", "Ascend910B4", 2, **chosen))) == {"p": ["npu-2", "npu-6"]}
    others = {"hami.io/no-use-Ascend910B4-uuid": ",".join(uuids[:7])}
    assert cards(on(I2, ascend("p", "Ascend910B4", 1, 2000, **others))) == {"p": ["npu-7-vir05-1c-8g-0"]}
    assert cards(on(PCIE, ascend("p", "Ascend310P", 6, **chosen, **others))) == {"p": [f"npu-{n}" for n in range(6)]}


def test_in_native_mode_whole_cards_are_left_to_their_class():
    for series in ("Ascend910B4", "Ascend910B"):
        left = convert_pod(ascend("p", series, 2), "default", Options(mode="native")).left
        assert left == (f"huawei.com/{series}",)
        (served,) = [each for each in CLASSES if each["spec"].get("extendedResourceName") == left[0]]
        assert served["metadata"]["name"] == f"ascend-{series.removeprefix('Ascend').lower()}.hami.io"


# --- on nodes ------------------------------------------------------------------------------------------------------------


def test_vnpus_share_a_card_by_the_device_policy():
    pods = [ascend(f"p{n}", "Ascend910B4", 1, 2000, **{"hami.io/gpu-scheduler-policy": "binpack"}) for n in range(5)]
    placed = cards(on(I2, pods))
    assert len({device.split("-vir")[0] for name, (device,) in placed.items() if name != "p4"}) == 1
    assert placed["p4"][0].split("-vir")[0] != placed["p0"][0].split("-vir")[0]
    assert sorted(device for name, (device,) in placed.items() if name != "p4") == sorted(
        f"{placed['p0'][0][:-1]}{number}" for number in range(4)
    )


def test_a_card_in_parts_is_not_had_as_a_whole_and_the_other_way_round():
    held = on(I2, ascend("all", "Ascend910B4", 8), ascend("part", "Ascend910B4", 1, 100))
    assert set(cards(held)) == {"all"}
    parts = on(I2, *(ascend(f"p{n}", "Ascend910B4", 1, 100) for n in range(8)), ascend("one", "Ascend910B4"))
    assert "one" not in cards(parts)


def test_templates_of_other_sizes_fill_what_is_left():
    """A 310P has room for 4 + 2 + 1 of its 8 AI cores: memory and AI CPUs end before the cores do."""
    pods = [ascend(f"p{n}", "Ascend310P", 1, size) for n, size in enumerate((12288, 6144, 3072, 3072))]
    uuid = machine(PCIE, "n").cards[3].uuid
    for raw in pods:
        raw["metadata"]["annotations"] = {"hami.io/use-Ascend310P-uuid": uuid}
    assert cards(on(PCIE, pods)) == {
        "p0": ["npu-3-vir04-0"],
        "p1": ["npu-3-vir02-0"],
        "p2": ["npu-3-vir01-0"],
    }


@pytest.mark.parametrize(
    ("taken", "count", "expected"),
    [
        ((), 4, "one ring"),
        ((0,), 4, [4, 5, 6, 7]),
        ((0,), 2, [1, 2, 3]),  # of the ring that is broken already
        ((0, 1, 2), 3, [4, 5, 6, 7]),
        ((0, 1, 4), 5, "all"),  # five of five
        ((0,), 5, [1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_cards_of_one_ring_come_first(taken, count, expected):
    held = claim(
        "held", {"name": "npu", "exactly": {"deviceClassName": "ascend-npu.hami.io", "count": max(len(taken), 1)}}
    )
    results = [{"request": "npu", "driver": "ascend.hami.io", "pool": "n", "device": f"npu-{n}"} for n in taken]
    raws = [held | {"status": {"allocation": {"devices": {"results": results}}}}] if taken else []
    numbers = {
        int(device.removeprefix("npu-")) for device in cards(on(OLD, *raws, ascend("p", "Ascend910A", count)))["p"]
    }
    assert len(numbers) == count
    if expected == "one ring":
        assert len({number // 4 for number in numbers}) == 1
    elif expected != "all":
        assert numbers <= set(expected)


def test_the_node_with_a_ring_that_holds_the_request_wins():
    raws = [node("a"), *slices("a", OLD), node("b"), *slices("b", OLD)]
    busy = [ascend(f"p{n}", "Ascend910A", 1) for n in range(2)]
    for raw, index in zip(busy, (0, 4), strict=True):
        raw["metadata"]["annotations"] = {"hami.io/use-Ascend910A-uuid": machine(OLD, "a").cards[index].uuid}
    report = simulated(CLASSES, raws, *busy, ascend("four", "Ascend910A", 4))
    assert {entry["pod"]: entry["node"] for entry in report.placements}["default/four"] == "b"


def test_claims_may_ask_for_vnpus_by_memory_template_or_several():
    def wanted(name, **exactly):
        return claim(name, {"name": "npu", "exactly": {"deviceClassName": "ascend-vnpu.hami.io", **exactly}})

    by_memory = wanted("c", capacity={"requests": {"memory": "9Gi"}})
    by_template = wanted(
        "c", selectors=[{"cel": {"expression": 'device.attributes["ascend.hami.io"].template == "vir05_1c_8g"'}}]
    )
    for given, infix in (
        (by_memory, "vir10-3c-16g"),
        (by_template, "vir05-1c-8g"),
        (wanted("c", count=2), "vir05-1c-8g"),
    ):
        raw = pod("p")
        raw["metadata"]["labels"] = {"hami.io/dra": "true"}
        raw["spec"]["resourceClaims"] = [{"name": "npu", "resourceClaimName": "c"}]
        raw["spec"]["containers"][0]["resources"] = {"claims": [{"name": "npu"}]}
        found = cards(on(I2, given, raw))["p"]
        assert all(infix in device for device in found)


# --- modules of two chips (910C) -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("asked_for", "count"), [(1, 2), (2, 2), (4, 4), (16, 16)])
def test_npus_of_a_910c_are_taken_by_modules(asked_for, count):
    assert asked({"huawei.com/Ascend910C": asked_for})["count"] == count
    pods = [ascend("held", "Ascend910C", 2), ascend("p", "Ascend910C", asked_for)]
    found = cards(on(A3, *pods)).get("p", [])
    numbers = sorted(int(name.removeprefix("npu-")) for name in found)
    assert len(numbers) == (count if count < 16 else 0)
    assert numbers == [number for first in numbers[::2] for number in (first, first + 1)]
    assert all(number % 2 == 0 for number in numbers[::2])


def test_an_odd_number_of_npus_of_a_910c_is_refused_as_by_hami():
    with pytest.raises(ConversionRefused, match='are taken by modules of 2: write "4"'):
        asked({"huawei.com/Ascend910C": 3})


def test_half_modules_are_no_room_for_two_npus():
    """A vNPU on one chip of every module: eight chips are free, and no module."""
    vnpus = [
        pod(
            f"v{module}",
            limits={"huawei.com/Ascend910C": 1, "huawei.com/Ascend910C-memory": 16_384},
            annotations={"hami.io/use-Ascend910C-uuid": machine(A3, "n").cards[2 * module].uuid},
        )
        for module in range(8)
    ]
    report = on(A3, *vnpus, ascend("p", "Ascend910C", 2))
    (refused,) = report.unplaced
    assert refused["reasons"]["AllocatedCardsInsufficientRequest"] == 1


def test_one_npu_of_a_910c_comes_from_a_module_that_is_broken():
    request = {"deviceClassName": "ascend-910c.hami.io", "count": 1}
    third = {"selectors": [{"cel": {"expression": 'device.attributes["hami.io"].index == 6'}}]}
    first = claim("first", {"name": "r", "exactly": request | third})
    own = claim("one", {"name": "r", "exactly": request})
    assert cards(on(A3, own, pod("p", "one")))["p"] == ["npu-8"]  # the lowest NUMA node
    assert cards(on(A3, first, pod("f", "first"), own, pod("p", "one")))["p"] == ["npu-7"]


def test_memory_of_a_template_is_a_vnpu_of_one_chip():
    """HAMi's example job-910C.yaml."""
    found = cards(on(A3, ascend("p", "Ascend910C", 1, 16_384)))["p"]
    assert [name.rpartition("-")[0] for name in found] == ["npu-8-vir05-1c-16g"]


# --- what is published -----------------------------------------------------------------------------------------------------


def published(machine_name):
    return {
        device["name"]: device for device in PUBLISHING.devices(machine(machine_name, "n").cards, vendor_settings())
    }


def test_a_card_takes_all_counters_and_a_vnpu_its_template():
    devices = published(T2)
    counters = devices["npu-3"]["consumesCounters"]
    assert counters == [
        {
            "counterSet": "npu-3",
            "counters": {"memory": {"value": "64Gi"}, "ai-cores": {"value": "20"}, "ai-cpus": {"value": "7"}},
        }
    ]
    part = devices["npu-3-vir10-3c-32g-1"]
    assert part["consumesCounters"][0]["counters"] == {
        "memory": {"value": "32Gi"},
        "ai-cores": {"value": "10"},
        "ai-cpus": {"value": "3"},
    }
    assert part["capacity"] == {"memory": {"value": "32Gi"}, "cores": {"value": "50"}}
    assert part["attributes"]["template"] == {"string": "vir10_3c_32g"}
    assert part["attributes"]["model"] == devices["npu-3"]["attributes"]["model"] == {"string": "Ascend910B3"}
    assert part["attributes"]["parentUUID"] == devices["npu-3"]["attributes"]["hami.io/uuid"]
    assert "npu-3-vir10-3c-32g-2" not in devices


@pytest.mark.parametrize("series", SERIES.values(), ids=lambda series: series.name)
def test_memory_of_the_templates_says_what_fits_except_where_ai_cpus_end_sooner(series):
    """HAMi counts memory alone. Only on a 910B2 can it promise more vNPUs than the chip has AI CPUs for."""
    differing = set()
    for count in range(1, 16):
        for chosen in combinations_with_replacement(series.templates, count):
            if sum(each.memory for each in chosen) > series.memory:
                continue
            fits = sum(each.cores for each in chosen) <= series.cores and (
                not series.cpus or sum(each.cpus for each in chosen) <= series.cpus
            )
            if not fits:
                differing.add(tuple(each.name for each in chosen))
    assert bool(differing) == (series.name == "Ascend910B2")


def test_a_chip_without_a_series_is_published_whole():
    chip = Card(vendor="ascend", index=0, uuid="die", product="Ascend910B2C", memory=64 << 30)
    (device,) = PUBLISHING.devices([chip], vendor_settings())
    assert series_of(chip) is None
    assert "model" not in device["attributes"]
    assert "consumesCounters" not in device
    assert PUBLISHING.counter_sets([chip]) == []


def test_a_fault_is_on_the_card_and_on_its_vnpus():
    chip = Card(
        vendor="ascend",
        index=0,
        uuid="die",
        product="Ascend910B4",
        memory=32 << 30,
        faults=(Fault(code="unhealthy", message="x"),),
    )
    assert all(device["taints"] for device in PUBLISHING.devices([chip], vendor_settings()))


@pytest.mark.parametrize(("name", "groups"), [(OLD, {1: 4, 2: 4}), (T2, {1: 8}), (I2, {1: 8}), (PCIE, {})])
def test_rings_of_four_and_eight_are_islands(name, groups):
    found = list(rings(machine(name, "n").cards).values())
    assert {group: found.count(group) for group in found} == groups


# --- containers ------------------------------------------------------------------------------------------------------------

HOST = PretendHost(*(f"/dev/{name}" for name in ("davinci0", "davinci1", "davinci_manager", "devmm_svm", "hisi_hdc")))


def npu(index):
    return card(index, vendor="ascend", uuid=f"die-{index}", product="Ascend910B4", memory=32 * GIB, minor=index)


def vnpu(index, template="vir05_1c_8g", number=0, **more):
    name = f"npu-{index}-{template.replace('_', '-')}-{number}"
    return tenancy(npu(index), whole=True, device=name, profile=template, **more)


def edits(*tenancies, **where):
    return containers("ascend").edits(tenancies, place(**where), HOST)


def test_whole_cards():
    found = edits(tenancy(npu(1), whole=True), tenancy(npu(0), whole=True))
    assert found.env == {"ASCEND_VISIBLE_DEVICES": "0,1"}
    assert [device.path for device in found.device_nodes] == [
        "/dev/davinci0",
        "/dev/davinci1",
        "/dev/davinci_manager",
        "/dev/devmm_svm",
        "/dev/hisi_hdc",
    ]


def test_a_vnpu_is_named_by_its_template_and_the_card_s_node_is_not_given():
    found = edits(vnpu(1))
    assert found.env == {"ASCEND_VISIBLE_DEVICES": "1", "ASCEND_VNPU_SPECS": "vir05_1c_8g"}
    assert found.device_nodes == ()
    assert found.notes == ()


@pytest.mark.parametrize("others", [[vnpu(0)], [tenancy(npu(0), whole=True)]])
def test_a_vnpu_and_anything_else_in_one_container_is_refused(others):
    with pytest.raises(Unpreparable, match="one vNPU and no other NPU"):
        edits(vnpu(1), *others)


def test_containers_that_share_a_vnpu_at_the_same_time_are_told():
    (note,) = edits(vnpu(1), containers=("a", "b"), at_once=2).notes
    assert "ASCEND_VNPU_SPECS: 2 containers that run at the same time refer to one vNPU" in note


def test_an_init_container_and_the_one_after_it_may_use_one_vnpu():
    assert edits(vnpu(1), containers=("setup", "main"), at_once=1).notes == ()


def test_admin_access_to_a_vnpu_is_to_its_card():
    found = edits(vnpu(1, admin=True))
    assert found.env == {"ASCEND_VISIBLE_DEVICES": "1"}
    assert "/dev/davinci1" in [device.path for device in found.device_nodes]


def test_every_published_device_has_a_site():
    for name in (T2, OLD, PCIE):
        sites = containers("ascend").sites(machine(name, "n").cards)
        assert sites.keys() == published(name).keys()
        for device, site in sites.items():
            assert (site.partition is not None) == ("-vir" in device)
            assert site.partition is None or site.partition.by_runtime


def test_the_counters_of_a_300i_duo_of_96_gb_are_those_of_its_memory():
    """npu-smi says 44278 MiB of a chip; HAMi's configuration has the 21527 MiB of the smaller board."""
    small, large = (
        card(0, vendor="ascend", product="Ascend310P3", memory=mebibytes * MIB) for mebibytes in (21527, 44278)
    )
    for chip in (small, large):
        (counters,) = PUBLISHING.counter_sets([chip])
        assert counters["counters"]["memory"]["value"] == f"{chip.memory // MIB}Mi"
        devices = PUBLISHING.devices([chip], vendor_settings())
        assert sum("vir04" in device["name"] for device in devices) == 1  # AI CPUs for one
        assert devices[0]["consumesCounters"][0]["counters"] == counters["counters"]


def test_the_bound_in_a_refusal_is_accepted():
    with pytest.raises(ConversionRefused, match="has 24576: write at most that"):
        asked({"huawei.com/Ascend310P": 1, "huawei.com/Ascend310P-memory": 24577})
    assert asked({"huawei.com/Ascend310P": 1, "huawei.com/Ascend310P-memory": 24576})["count"] == 1


@pytest.mark.parametrize("first", ["init", "main"])
@pytest.mark.parametrize("count", [1, 2])
def test_an_init_container_with_a_vnpu_takes_no_whole_npu_away(first, count):
    vnpu, whole = (
        {"huawei.com/Ascend910B4": 1, "huawei.com/Ascend910B4-memory": 2000},
        {"huawei.com/Ascend910B4": count},
    )
    init, main = (vnpu, whole) if first == "init" else (whole, vnpu)
    raw = pod("p", limits=main)
    raw["spec"]["initContainers"] = [{"name": "init", "image": "x", "resources": {"limits": init}}]
    (template,) = convert_pod(raw, "default", Options()).templates
    classes = {
        each["exactly"]["deviceClassName"]: each["exactly"]["count"]
        for each in template["spec"]["spec"]["devices"]["requests"]
    }
    assert classes == {"ascend-910b4.hami.io": count, "ascend-910b4-vnpu.hami.io": 1}
