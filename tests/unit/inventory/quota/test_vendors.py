"""What every vendor's cards count, on machines as their drivers publish them; lines; devices that are not published any more."""

import pytest

from controller.inventory import QuotaLine
from controller.inventory.inventory import Inventory
from hami_dra.kube.manifests import shipped
from tests.cards import allocated, card, claim, node, slice_of
from tests.support import manifests
from tests.support.manifests import simulated
from tests.support.quotas import quota, quota_object, reasons_of

NVIDIA = "nvidia.hami.io"


def place(machine, hard, *limits):
    """Pods with these limits on one machine, under a quota."""
    pods = [
        manifests.pod(f"p{number}", limits={key: str(value) for key, value in each.items()})
        for number, each in enumerate(limits)
    ]
    return simulated(
        *shipped("deviceclasses"), manifests.node("n1"), *manifests.slices("n1", machine), quota(hard), *pods
    )


@pytest.mark.parametrize(
    ("machine", "wanted", "key", "counts"),
    [
        ("g4dn.12xlarge", {"nvidia.com/gpu": 2}, "nvidia.com/gpu", 2),
        ("g4dn.12xlarge", {"nvidia.com/gpu": 2}, "nvidia.com/gpumem", 2 * 15360),
        ("g4dn.12xlarge", {"nvidia.com/gpu": 2}, "nvidia.com/gpucores", 200),
        ("g4dn.12xlarge", {"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 33}, "nvidia.com/gpumem", 5068),
        ("c500-8", {"metax-tech.com/gpu": 2}, "metax-tech.com/gpu", 2),
        ("c500-8", {"metax-tech.com/gpu": 1}, "metax-tech.com/vmemory", 64),
        (
            "c500-8",
            {"metax-tech.com/sgpu": 2, "metax-tech.com/vcore": 20, "metax-tech.com/vmemory": 8},
            "metax-tech.com/sgpu",
            2,
        ),
        (
            "c500-8",
            {"metax-tech.com/sgpu": 2, "metax-tech.com/vcore": 20, "metax-tech.com/vmemory": 8},
            "metax-tech.com/vmemory",
            16,
        ),
        ("c500-8", {"metax-tech.com/sgpu": 2, "metax-tech.com/vcore": 20}, "metax-tech.com/vcore", 40),
        ("c500-8", {"metax-tech.com/sgpu": 1}, "metax-tech.com/gpu", 1),  # all of a card is a card
        ("p800-oam-8", {"kunlunxin.com/xpu": 4}, "kunlunxin.com/xpu", 4),
        ("p800-oam-8", {"kunlunxin.com/xpu": 1}, "kunlunxin.com/vxpu-memory", 98304),
        ("p800-oam-8", {"kunlunxin.com/vxpu": 2, "kunlunxin.com/vxpu-memory": 20000}, "kunlunxin.com/vxpu", 2),
        (
            "p800-oam-8",
            {"kunlunxin.com/vxpu": 2, "kunlunxin.com/vxpu-memory": 20000},
            "kunlunxin.com/vxpu-memory",
            49152,
        ),
        ("trn1.32xlarge", {"aws.amazon.com/neuron": 4}, "aws.amazon.com/neuron", 4),
        ("trn1.32xlarge", {"aws.amazon.com/neuron": 4}, "aws.amazon.com/neuroncore", 8),
        ("trn1.32xlarge", {"aws.amazon.com/neuroncore": 1}, "aws.amazon.com/neuroncore", 1),
        ("trn1.32xlarge", {"aws.amazon.com/neuroncore": 8}, "aws.amazon.com/neuron", 4),  # four devices of two cores
        ("atlas-800i-a2", {"huawei.com/Ascend910B4": 2}, "huawei.com/Ascend910B4", 2),
        ("atlas-800i-a2", {"huawei.com/Ascend910B4": 1}, "huawei.com/Ascend910B4-memory", 32768),
        (
            "atlas-800i-a2",
            {"huawei.com/Ascend910B4": 1, "huawei.com/Ascend910B4-memory": 2000},
            "huawei.com/Ascend910B4-memory",
            8192,
        ),
        ("atlas-800t-a2", {"huawei.com/Ascend910B": 2}, "huawei.com/Ascend910B3", 2),
        ("s60-8", {"enflame.com/gcu": 2}, "enflame.com/gcu", 2),
        ("s60-8", {"enflame.com/gcu": 1}, "enflame.com/vgcu-percentage", 100),
        ("s60-8", {"enflame.com/vgcu": 1, "enflame.com/vgcu-percentage": 20}, "enflame.com/vgcu", 1),
        ("s60-8", {"enflame.com/vgcu": 1, "enflame.com/vgcu-percentage": 30}, "enflame.com/vgcu-percentage", 50),
    ],
)
def test_what_a_request_counts(machine, wanted, key, counts):
    """It fits a quota of just so much, the same again does not, nor the first with one less."""
    report = place(machine, {key: counts}, wanted, wanted)
    assert [placed["pod"] for placed in report.placements] == ["default/p0"]
    assert "ResourceQuotaNotFit" in reasons_of(report)["default/p1"]
    assert not place(machine, {key: counts - 1}, wanted).placements


@pytest.mark.parametrize(
    ("machine", "wanted", "key"),
    [
        ("c500-8", {"metax-tech.com/sgpu": 1, "metax-tech.com/vcore": 20}, "metax-tech.com/gpu"),
        ("c500-8", {"metax-tech.com/gpu": 1}, "metax-tech.com/sgpu"),
        ("p800-oam-8", {"kunlunxin.com/vxpu": 1, "kunlunxin.com/vxpu-memory": 24576}, "kunlunxin.com/xpu"),
        ("p800-oam-8", {"kunlunxin.com/xpu": 1}, "kunlunxin.com/vxpu"),
        ("trn1.32xlarge", {"aws.amazon.com/neuroncore": 1}, "aws.amazon.com/neuron"),
        ("s60-8", {"enflame.com/vgcu": 1, "enflame.com/vgcu-percentage": 20}, "enflame.com/gcu"),
        ("s60-8", {"enflame.com/gcu": 1}, "enflame.com/vgcu"),
        ("s60-8", {"enflame.com/gcu": 1}, "nvidia.com/gpu"),
        ("atlas-800i-a2", {"huawei.com/Ascend910B4": 1}, "huawei.com/Ascend310P"),
    ],
)
def test_parts_are_not_cards_nor_cards_parts(machine, wanted, key):
    assert place(machine, {key: 0}, wanted).placements


def test_a_mig_partition_counts_as_a_card_with_its_own_memory():
    wanted = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 9000}
    limits = {key: str(value) for key, value in wanted.items()}
    mig = manifests.pod("p", limits=limits, annotations={"nvidia.com/vgpu-mode": "mig"})
    base = [*shipped("deviceclasses"), manifests.node("n1"), *manifests.slices("n1", "a2-ultragpu-2g-mig")]
    # 9000 MiB are asked for, and the smallest partition that holds them has 9728
    report = simulated(*base, quota({"nvidia.com/gpumem": 9727}), mig)
    assert "ResourceQuotaNotFit" in report.unplaced[0]["reasons"]
    assert simulated(
        *base, quota({"nvidia.com/gpumem": 9728, "nvidia.com/gpucores": 14, "nvidia.com/gpu": 1}), mig
    ).placements


# -- the account -------------------------------------------------------------------------------------------------------


def held(*results):
    return {
        "devices": {"results": [{"request": "gpu", "driver": NVIDIA, "pool": "n1", **result} for result in results]}
    }


def part(device, memory):
    return {"device": device, "shareID": "s", "consumedCapacity": {"memory": memory, "cores": "30", "shares": "1"}}


@pytest.fixture
def inventory():
    inventory = Inventory()
    inventory.node_changed(None, node())
    return inventory


def test_lines_say_what_is_used_in_the_unit_of_the_key(inventory):
    inventory.quota_changed(None, quota_object({"metax-tech.com/vmemory": 16, "nvidia.com/gpumem": "2Gi"}, "b"))
    inventory.quota_changed(None, quota_object({"nvidia.com/gpu": 4}, "a"))
    inventory.quota_changed(None, quota_object({"nvidia.com/gpu": 1}, "c", "other"))
    inventory.claim_changed(None, allocated(claim(), held(part("gpu-0", "1000Mi"), part("gpu-1", "1500Ki"))))
    assert inventory.quotas.lines() == [
        QuotaLine("default", "a", "limits.nvidia.com/gpu", "devices", 2, 4),
        QuotaLine("default", "b", "limits.metax-tech.com/vmemory", "GiB", 0, 16),
        QuotaLine("default", "b", "limits.nvidia.com/gpumem", "MiB", 1001, 2048),
        QuotaLine("other", "c", "limits.nvidia.com/gpu", "devices", 0, 1),
    ]
    assert inventory.quotas.lines(["other"]) == inventory.quotas.lines()[-1:]
    assert inventory.quotas.lines(["nowhere"]) == []


def test_a_card_that_is_not_published_for_a_while_counts_as_before(inventory):
    exclusive = card(0, memory="8000Mi")
    del exclusive["allowMultipleAllocations"]
    published = slice_of("n1", [exclusive])
    inventory.slice_changed(None, published)
    inventory.quota_changed(None, quota_object({"nvidia.com/gpumem": 9000}))
    mine = allocated(claim(), held({"device": "gpu-0"}))
    inventory.claim_changed(None, mine)
    assert inventory.quotas.used("default")["nvidia.com/gpumem"] == 8000
    inventory.slice_changed(published, None)
    inventory.claim_changed(mine, mine)
    assert inventory.quotas.used("default")["nvidia.com/gpumem"] == 8000
    larger = {**exclusive, "capacity": {**exclusive["capacity"], "memory": {"value": "9000Mi"}}}
    inventory.slice_changed(None, slice_of("n1", [larger]))
    assert inventory.quotas.used("default")["nvidia.com/gpumem"] == 9000


def test_a_card_that_nobody_ever_saw_counts_as_a_card(inventory):
    inventory.quota_changed(None, quota_object({"nvidia.com/gpu": 9}))
    inventory.claim_changed(None, allocated(claim(), held({"device": "gone"})))
    assert dict(inventory.quotas.used("default")) == {"nvidia.com/gpu": 1, "volcano.sh/vgpu-number": 1}


def test_a_quota_with_an_amount_that_is_none_says_so(inventory):
    odd = quota_object({"nvidia.com/gpu": "many", "nvidia.com/gpumem": 10})
    inventory.quota_changed(None, odd)
    assert 'spec.hard["limits.nvidia.com/gpu"]' in inventory.quotas.problem(odd)
    assert [limit.name.key for limit in inventory.quotas.limits("default")] == ["limits.nvidia.com/gpumem"]
    inventory.quota_changed(odd, None)
    assert inventory.quotas.problem(odd) == ""
    assert inventory.quotas.namespaces == []
