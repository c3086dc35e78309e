"""What HAMi's users have written: the requests of HAMi's examples and pages (v2.7.0 and later), in our own words, each
placed as HAMi would place it. Differences stand in DIFFERENCES and, with their reasons, in docs/migration.md.

The sources (HAMi's examples and docs at HEAD and v2.7.0, its website in all versions, hami-ecosystem-demo) hold some 120
files and more copies of them; these are all distinct requests (limits and annotations) among them.
"""

from pathlib import Path

import pytest

from controller.webhook.convert import ConversionRefused, convert_pod
from hami_dra.driver.simulated import machine
from hami_dra.driver.slices import machine_pools, slice_bodies
from hami_dra.vendors.ascend.models import SERIES
from hami_dra.vendors.registry import PUBLISHING_VENDORS
from tests.support.manifests import node, pod, simulated, workload

CLASSES = [each for vendor in PUBLISHING_VENDORS for each in vendor.device_classes()]
MIGRATION = Path(__file__).parents[3] / "docs/migration.md"
ALL = "all"
MIB = 1 << 20


def nvidia(count, memory=None, percent=None, cores=None, **more):
    names = {"gpu": count, "gpumem": memory, "gpumem-percentage": percent, "gpucores": cores, **more}
    return {f"nvidia.com/{name}": amount for name, amount in names.items() if amount is not None}


def sgpu(count, vcore=None, vmemory=None):
    names = {"sgpu": count, "vcore": vcore, "vmemory": vmemory}
    return {f"metax-tech.com/{name}": amount for name, amount in names.items() if amount is not None}


def vxpu(count, memory=None):
    return {"kunlunxin.com/vxpu": count} | ({} if memory is None else {"kunlunxin.com/vxpu-memory": memory})


A10G, T4, A100, MIG = "g5.12xlarge", "g4dn.12xlarge", "dgx-a100", "a2-ultragpu-2g-mig"
METAX, XPU, GCU, INF, TRN = "c500-8", "p800-oam-8", "s60-8", "inf2.48xlarge", "trn1.32xlarge"
MIG_MODE = {"nvidia.com/vgpu-mode": "mig"}

PLACED = {
    # request, machine, annotations → cards, MiB of each (or all), percent of the cores of each
    "default_use": (nvidia(1, 3000, cores=30), A10G, {}, (1, 3000, 30)),
    "default_use_legacy": (nvidia(2), A10G, {}, (2, ALL, 100)),
    "example, a Deployment": (nvidia(1, 3000), A10G, {}, (1, 3000, 0)),
    "the same with a priority": (nvidia(1, 3000, priority=0), A10G, {}, (1, 3000, 0)),
    "use_as_normal": (nvidia(1), A10G, {}, (1, ALL, 100)),
    "use_exclusive_card": (nvidia(2, percent=100, cores=100), A10G, {}, (2, ALL, 100)),
    "use_memory_fraction": (nvidia(2, percent=50, cores=30), A10G, {}, (2, 23_028 // 2, 30)),
    "use_sharing_card": (nvidia(1, percent=40, cores=60), A10G, {}, (1, 23_028 * 40 // 100, 60)),
    "allocate device memory": (nvidia(2, 3000), T4, {}, (2, 3000, 0)),
    "allocate device core": (nvidia(2, cores=50), T4, {}, (2, ALL, 50)),
    "the demo of two axes": (nvidia(1, 7500), A10G, {"hami.io/gpu-scheduler-policy": "binpack"}, (1, 7500, 0)),
    "specify_scheduling_policy": (
        nvidia(1),
        A10G,
        {"hami.io/node-scheduler-policy": "spread", "hami.io/gpu-scheduler-policy": "binpack"},
        (1, ALL, 100),
    ),
    "specify_card_type_to_use": (nvidia(2), A100, {"nvidia.com/use-gputype": "A100,V100"}, (2, ALL, 100)),
    "specify_card_type_not_use": (nvidia(2), A10G, {"nvidia.com/nouse-gputype": "1080,2080"}, (2, ALL, 100)),
    "specify_uuid_not_use": (nvidia(2), A10G, {"nvidia.com/nouse-gpuuuid": "GPU-of-somebody-else"}, (2, ALL, 100)),
    "topology-aware": (nvidia(4), A100, {"hami.io/gpu-scheduler-policy": "topology-aware"}, (4, ALL, 100)),
    "numa-bind": (nvidia(2, 1000), A100, {"nvidia.com/numa-bind": "True"}, (2, 1000, 0)),
    "vllm, tensor parallel": (nvidia(2, percent=30, cores=30), A100, {}, (2, 81_920 * 30 // 100, 30)),
    "quota page": (nvidia(2, 3000), A10G, {}, (2, 3000, 0)),
    "memory by percentage": (nvidia(2, percent=50), T4, {}, (2, 15_360 // 2, 0)),
    "hami-dra page": (nvidia(1, 10_240, cores=50), A10G, {}, (1, 10_240, 50)),
    "deploy with helm": (nvidia(1, 10_240), T4, {}, (1, 10_240, 0)),
    "kueue, default": (nvidia(2, 1024, cores=30), T4, {}, (2, 1024, 30)),
    "kueue, quota": (nvidia(1, 1024, cores=50), T4, {}, (1, 1024, 50)),
    "concept": (nvidia(1, 1024), T4, {}, (1, 1024, 0)),
    "labs, partitioning": (nvidia(1, 4000), T4, {}, (1, 4000, 0)),
    "labs, isolation": (nvidia(1, 8000), T4, {}, (1, 8000, 0)),
    "scheduling page, binpack": (nvidia(2, 4000), T4, {"hami.io/node-scheduler-policy": "binpack"}, (2, 4000, 0)),
    "scheduling page, spread": (nvidia(2, 4000), T4, {"hami.io/node-scheduler-policy": "spread"}, (2, 4000, 0)),
    "dynamic MIG, any mode": (nvidia(2, 8000), A10G, {}, (2, 8000, 0)),
    "dynamic MIG, one instance": (nvidia(1, 8000), MIG, MIG_MODE, (1, 9_728, 14)),
    "dynamic MIG, two instances": (nvidia(2, 8000), MIG, MIG_MODE, (2, 9_728, 14)),
    "dynamic_mig_example": (
        nvidia(2, 8000),
        MIG,
        {"nvidia.com/vgpu-mode": "mig", "hami.io/gpu-scheduler-policy": "binpack"},
        (2, 9_728, 14),
    ),
    "volcano vgpu": (
        {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 3000, "volcano.sh/vgpu-cores": 50},
        T4,
        {},
        (1, 3000, 50),
    ),
    "volcano vgpu, memory": ({"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 1024}, T4, {}, (1, 1024, 0)),
    "volcano vgpu, exclusive": ({"volcano.sh/vgpu-number": 1}, T4, {}, (1, ALL, 100)),
    "metax gpu": ({"metax-tech.com/gpu": 1}, METAX, {}, (1, ALL, 100)),
    "metax gpu, binpack": (
        {"metax-tech.com/gpu": 1},
        METAX,
        {"hami.io/node-scheduler-policy": "binpack"},
        (1, ALL, 100),
    ),
    "metax gpu, spread": ({"metax-tech.com/gpu": 4}, METAX, {"hami.io/node-scheduler-policy": "spread"}, (4, ALL, 100)),
    "metax sgpu, default": (sgpu(1, 60, 4), METAX, {}, (1, 4096, 60)),
    "metax sgpu, exclusive": (sgpu(1), METAX, {}, (1, ALL, 100)),
    "metax sgpu, MiB": (sgpu(1, 60, "2048Mi"), METAX, {}, (1, 2048, 60)),
    "metax sgpu, qos": (sgpu(1, 60, 4), METAX, {"metax-tech.com/sgpu-qos-policy": "best-effort"}, (1, 4096, 60)),
    "metax sgpu, topology": (sgpu(4), METAX, {"metax-tech.com/sgpu-topology-aware": "true"}, (4, ALL, 100)),
    "metax sgpu, online": (sgpu(1, None, 4), METAX, {"metax-tech.com/sgpu-app-class": "online"}, (1, 4096, 0)),
    "metax sgpu, offline": (sgpu(1, 60, 4), METAX, {"metax-tech.com/sgpu-app-class": "offline"}, (1, 4096, 60)),
    "kunlun, one whole": ({"kunlunxin.com/xpu": 1}, XPU, {}, (1, ALL, 100)),
    "kunlun, whole": ({"kunlunxin.com/xpu": 4}, XPU, {}, (4, ALL, 100)),
    "kunlun vxpu, exclusive": (vxpu(1), XPU, {}, (1, ALL, 100)),
    "kunlun vxpu, default": (vxpu(1, 24_576), XPU, {}, (1, 24_576, 25)),
    "kunlun vxpu, aligned": (vxpu(1, 20_480), XPU, {"hami.io/use-xpu-uuid": ""}, (1, 24_576, 25)),
    "neuron device": ({"aws.amazon.com/neuron": 1}, INF, {}, (1, None, None)),
    "two neuron devices": ({"aws.amazon.com/neuron": 2}, INF, {}, (2, None, None)),
    "neuron core": ({"aws.amazon.com/neuroncore": 1}, INF, {}, (1, None, None)),
    "neuron, a block": ({"aws.amazon.com/neuron": 4}, TRN, {}, (4, None, None)),
    "enflame gcu": ({"enflame.com/gcu": 1}, GCU, {}, (1, ALL, 100)),
    "enflame, two": ({"enflame.com/gcu": 2}, GCU, {}, (2, ALL, 100)),
    "enflame drs, 1": ({"enflame.com/drs-gcu": 1}, GCU, {}, (1, None, 25)),
    "enflame drs, 3": ({"enflame.com/drs-gcu": 3}, GCU, {}, (1, None, 75)),
    "enflame drs by amounts": ({"enflame.com/gcu-memory": 20_480, "enflame.com/gcu-core": 40}, GCU, {}, (1, None, 50)),
    "enflame vgcu, exclusive": ({"enflame.com/vgcu": 1}, GCU, {}, (1, ALL, 100)),
    "enflame vgcu": ({"enflame.com/vgcu": 1, "enflame.com/vgcu-percentage": 22}, GCU, {}, (1, None, 25)),
}


VNPUS = {
    # series, MiB → machine (None: none of these is in resourceslices/), template
    ("Ascend310P", 1024): ("atlas-300i-pro-6", "vir01"),
    ("Ascend310P", 2000): ("atlas-300i-pro-6", "vir01"),
    ("Ascend310P", 4096): ("atlas-300i-pro-6", "vir02"),
    ("Ascend910A", 2000): ("atlas-800-9000", "vir02"),
    ("Ascend910B", 2000): ("atlas-800t-a2", "vir05-1c-16g"),
    ("Ascend910B", 4096): ("atlas-800t-a2", "vir05-1c-16g"),
    ("Ascend910B2", 2000): (None, "vir03-1c-8g"),
    ("Ascend910B3", 2000): ("atlas-800t-a2", "vir05-1c-16g"),
    ("Ascend910B4", 2000): ("atlas-800i-a2", "vir05-1c-8g"),
    ("Ascend910C", 16_384): ("atlas-800t-a3", "vir05-1c-16g"),
}


def npu(series, count=1, memory=None, **more):
    names = {"": count, "-memory": memory, **more}
    return {f"huawei.com/{series}{name}": amount for name, amount in names.items() if amount is not None}


def cluster(machine_name, *nodes):
    return [
        *CLASSES,
        *(each for name in nodes for each in (node(name), *slice_bodies(machine_pools(machine(machine_name, name))))),
    ]


def results(entry):
    return [each for claim in entry["claims"] for each in claim["allocation"]["devices"]["results"]]


def in_mib(text):
    for suffix, factor in (("Gi", 1024 * MIB), ("Mi", MIB), ("Ki", 1024)):
        if text.endswith(suffix):
            return int(text.removesuffix(suffix)) * factor // MIB
    return int(text) // MIB


def amounts(machine_name, result):
    """MiB and percent that a result holds; of an exclusive device all that it publishes."""
    published = {
        device["name"]: device["capacity"]
        for body in slice_bodies(machine_pools(machine(machine_name, "n")))
        for device in body["spec"].get("devices", [])
    }[result["device"]]
    held = result.get("consumedCapacity") or {name: each["value"] for name, each in published.items()}
    memory = ALL if held["memory"] == published["memory"]["value"] and "-mig-" not in result["device"] else None
    return memory or in_mib(held["memory"]), int(held.get("cores", 0))


@pytest.mark.parametrize("name", PLACED)
def test_each_request_is_placed_as_hami_would(name):
    limits, machine_name, annotations, (count, memory, cores) = PLACED[name]
    report = simulated(cluster(machine_name, "n"), pod("p", limits=limits, annotations=annotations))
    assert report.unplaced == []
    found = results(report.placements[0])
    assert len(found) == count
    if "-mig-" not in found[0]["device"]:
        assert len({each["device"] for each in found}) == count
    for result in found:
        have_memory, have_cores = amounts(machine_name, result)
        assert memory in (None, have_memory)
        assert cores in (None, have_cores)


@pytest.mark.parametrize(("series", "memory"), VNPUS)
def test_each_npu_is_cut_by_hamis_template(series, memory):
    machine_name, template = VNPUS[series, memory]
    wanted = pod("p", limits=npu(series, memory=memory))
    if machine_name is None:
        (made,) = convert_pod(wanted, "default").templates[0]["spec"]["spec"]["devices"]["requests"]
        (found,) = [each for each in SERIES[series].templates if each.name.replace("_", "-") == template]
        assert f'quantity("{found.memory // 1024}Gi")' in made["exactly"]["selectors"][0]["cel"]["expression"]
        return
    (entry,) = simulated(cluster(machine_name, "n"), wanted).placements
    assert [each["device"].split("-", 2)[2].rpartition("-")[0] for each in results(entry)] == [template]


def test_two_whole_npus_are_of_one_ring_and_unknown_uuids_are_named():
    whole = pod("p", limits=npu("Ascend910B", 2))
    (entry,) = simulated(cluster("atlas-800t-a2", "n"), whole).placements
    assert len(results(entry)) == 2
    listed = pod("p", limits=npu("Ascend910B3", 1, 2000), annotations={"hami.io/use-Ascend910B-uuid": "one,two"})
    (refused,) = simulated(cluster("atlas-800t-a2", "n"), listed).unplaced
    assert refused["reasons"]["CardUuidMismatch"] > 0


def test_containers_that_ask_by_percentage_and_by_memory():
    """v2.7.0's examples/nvidia/example.yaml: a Deployment of two such containers."""
    both = pod("p", limits=nvidia(2, percent=50))
    both["spec"]["containers"].append({"name": "other", "resources": {"limits": nvidia(2, 2000)}})
    (entry,) = simulated(cluster(A10G, "n"), both).placements
    held = sorted(amounts(A10G, result)[0] for result in results(entry))
    assert held == [2000, 2000, 23_028 // 2, 23_028 // 2]


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "Job", "ReplicaSet", "DaemonSet"])
def test_workloads_around_them_are_read(kind):
    spec = {"containers": [{"name": "main", "resources": {"limits": nvidia(1, 3000)}}]}
    report = simulated(cluster(A10G, "n"), workload(kind, "w", spec))
    assert len(report.placements) == 1


def test_two_containers_and_two_pods_share_a_card():
    """use_sharing_card (40 and 60 percent), metax multi-containers (60 + 30), neuron multi_containers (1 + 1)."""
    packed = {"hami.io/gpu-scheduler-policy": "binpack"}
    sharing = [
        pod("a", limits=nvidia(1, percent=40, cores=60), annotations=packed),
        pod("b", limits=nvidia(1, percent=60, cores=40), annotations=packed),
    ]
    report = simulated(cluster(A10G, "n"), sharing)
    assert len({result["device"] for entry in report.placements for result in results(entry)}) == 1
    for machine_name, one, other in (
        (METAX, sgpu(1, 60, 4), sgpu(1, 30, 8)),
        (INF, {"aws.amazon.com/neuroncore": 1}, {"aws.amazon.com/neuroncore": 1}),
    ):
        both = pod("p", limits=one, annotations=packed)
        both["spec"]["containers"].append({"name": "other", "resources": {"limits": other}})
        (entry,) = simulated(cluster(machine_name, "n"), both).placements
        assert len({result["device"] for result in results(entry)}) == 1


@pytest.mark.parametrize(
    ("node_policy", "device_policy", "shape"),
    [
        ("binpack", "binpack", [2]),
        ("spread", "binpack", [1, 1]),
        ("binpack", "spread", [1, 1]),
        ("spread", "spread", [1, 1]),
    ],
)
def test_the_four_patterns_of_the_demo(node_policy, device_policy, shape):
    """Two pods of 7500 MiB on two nodes of four cards: how many share a card."""
    own = {"hami.io/node-scheduler-policy": node_policy, "hami.io/gpu-scheduler-policy": device_policy}
    pods = [pod(f"p{number}", limits=nvidia(1, 7500), annotations=own) for number in range(2)]
    report = simulated(cluster(T4, "a", "b"), pods)
    cards = [(entry["node"], results(entry)[0]["device"]) for entry in report.placements]
    assert sorted((cards.count(card) for card in set(cards)), reverse=True) == shape
    assert len({name for name, _ in cards}) == (2 if node_policy == "spread" else 1)


def test_cards_that_are_not_there_are_named_as_by_hami():
    for name in ("nvidia.com/use-gpuuuid", "metax-tech.com/use-gpuuuid"):
        limits, machine_name = (nvidia(1), A10G) if name.startswith("nvidia") else (sgpu(1, 60, 4), METAX)
        report = simulated(cluster(machine_name, "n"), pod("p", limits=limits, annotations={name: "GPU-elsewhere"}))
        assert set(report.unplaced[0]["reasons"]) == {"CardUuidMismatch"}


DIFFERENCES = {
    # request, annotations → words of the refusal, and the line of docs/migration.md that says why
    "mig_example": (
        {"nvidia.com/mig-3g.20gb": 1},
        {},
        "write a claim of class nvidia-mig.hami.io",
        "nvidia.com/mig-<profile>",
    ),
    "vgpu-mode mps": (
        nvidia(1, 1000),
        {"nvidia.com/vgpu-mode": "mps"},
        "runs no MPS daemon",
        "`nvidia.com/vgpu-mode: mps`",
    ),
    "memory as 16Gi": (nvidia(1, "16Gi"), {}, 'write "16384"', "`16Gi` for `nvidia.com/gpumem`"),
    "ascend, soft slice": (
        npu("Ascend910B3", 1, 28_672, **{"-core": 40}),
        {"huawei.com/vnpu-mode": "hami-core"},
        "soft slices of an NPU are not supported|only for HAMi's soft slices",
        "`huawei.com/vnpu-mode: hami-core`",
    ),
    "ascend, two soft slices": (
        npu("Ascend910B3", 2, 65_536, **{"-core": 50}),
        {"huawei.com/vnpu-mode": "hami-core"},
        "soft slices of an NPU are not supported|only for HAMi's soft slices",
        "`huawei.com/vnpu-mode: hami-core`",
    ),
    "ascend, soft slice of a 310P": (
        npu("Ascend310P", 1, 8192),
        {"huawei.com/vnpu-mode": "hami-core"},
        "soft slices of an NPU are not supported",
        "`huawei.com/vnpu-mode: hami-core`",
    ),
    "a node chosen beforehand": (nvidia(1), {}, "pod has node assigned", "`spec.nodeName` with cards"),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_what_is_not_placed_as_by_hami_is_refused_with_what_to_do_and_stands_in_the_docs(name):
    limits, annotations, words, line = DIFFERENCES[name]
    spec = {"nodeName": "n"} if "beforehand" in name else {}
    with pytest.raises(ConversionRefused, match=words):
        convert_pod(pod("p", limits=limits, annotations=annotations, **spec), "default")
    assert line in MIGRATION.read_text()


def test_a_name_of_hami_1_3_is_named_by_a_warning():
    made = convert_pod(pod("p", limits=npu("Ascend910", 1, 2000)), "default")
    assert not made.templates
    assert any("huawei.com/Ascend910" in warning for warning in made.warnings)
