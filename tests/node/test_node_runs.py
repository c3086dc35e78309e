"""What containers get, seen from inside them: legacy pods, claim pods, every vendor; and that nothing of it stays.

Cards are simulated, their device nodes are harmless files; kube-scheduler, controller, webhook, kubelet, containerd and runc are real.
"""

import json

import pytest

from tests.e2e.objects import claim, device_class, legacy_pod, opaque, part, pod, request, template
from tests.node.bench import runnable

T4 = "g4dn.12xlarge"
GIB = 2**30


@pytest.fixture
def nvidia(bench):
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidiactl", "nvidia-uvm"):
        bench.node.add_device(name)
    return bench


def env(seen, *prefixes):
    return {name: value for name, value in seen["env"].items() if name.startswith(prefixes)}


def devices(seen, prefix):
    """Device nodes of the container, each of which must open."""
    found = {path: each for path, each in seen["devices"].items() if path.startswith(prefix)}
    assert all(each["opens"] for each in found.values()), found
    return sorted(found)


def test_legacy_pods_and_claim_pods_share_cards_and_leave_nothing(nvidia):
    bench = nvidia
    bench.start_driver(T4)
    uuids = {f"gpu-{card.index}": card.uuid for card in bench.cards(T4)}

    bench.create(
        legacy_pod("legacy", gpu=1, gpumem=7500, gpucores=30),
        claim("half", part("4Gi", "20")),
        pod("claimed", claims=["half"]),
        template("two-cards", part("2Gi", "10", count=2)),
        pod("pair", templates=["two-cards"]),
    )
    bench.wait_running("legacy", "claimed", "pair")

    seen = bench.got("legacy")
    (device,) = bench.allocated("legacy")
    assert env(seen, "NVIDIA_VISIBLE", "CUDA_DEVICE") == {
        "NVIDIA_VISIBLE_DEVICES": uuids[device],
        "CUDA_DEVICE_MEMORY_LIMIT_0": "7500m",
        "CUDA_DEVICE_SM_LIMIT": "30",
    }
    number = device.removeprefix("gpu-")
    assert devices(seen, "/dev/nvidia") == ["/dev/nvidia-uvm", f"/dev/nvidia{number}", "/dev/nvidiactl"]

    seen = bench.got("claimed")
    (device,) = bench.allocated("claimed")
    assert env(seen, "NVIDIA_VISIBLE", "CUDA_DEVICE") == {
        "NVIDIA_VISIBLE_DEVICES": uuids[device],
        "CUDA_DEVICE_MEMORY_LIMIT_0": "4096m",
        "CUDA_DEVICE_SM_LIMIT": "20",
    }

    seen = bench.got("pair")
    pair = sorted(bench.allocated("pair"))
    assert len(set(pair)) == 2
    assert env(seen, "NVIDIA_VISIBLE", "CUDA_DEVICE") == {
        "NVIDIA_VISIBLE_DEVICES": ",".join(uuids[device] for device in pair),
        "CUDA_DEVICE_MEMORY_LIMIT_0": "2048m",
        "CUDA_DEVICE_MEMORY_LIMIT_1": "2048m",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_DEVICE_SM_LIMIT": "10",
    }
    assert len(bench.prepared()) == 3

    bench.delete_all()
    bench.wait_nothing_left()


def test_two_pods_on_one_card_with_different_limits(nvidia):
    """And the claim says what each of them has."""
    bench = nvidia
    bench.start_driver(T4)
    only = f'device.attributes["hami.io"].uuid == "{bench.cards(T4)[2].uuid}"'
    for name, memory, cores in (("small", "1Gi", "5"), ("large", "9Gi", "60")):
        bench.create(claim(name, part(memory, cores, selector=only)), pod(name, claims=[name]))
    bench.wait_running("small", "large")
    limits = {
        name: (
            bench.allocated(name),
            bench.got(name)["env"]["CUDA_DEVICE_MEMORY_LIMIT_0"],
            bench.got(name)["env"]["CUDA_DEVICE_SM_LIMIT"],
        )
        for name in ("small", "large")
    }
    assert limits == {"small": (["gpu-2"], "1024m", "5"), "large": (["gpu-2"], "9216m", "60")}

    def reported():
        (status,) = bench.claim_of("small")["status"]["devices"]
        return status if any(each["status"] == "True" for each in status.get("conditions", ())) else None

    status = bench.api.wait_for(
        "the claim's status", lambda: bench.claim_of("small")["status"].get("devices") and reported()
    )
    assert bench.cards(T4)[2].uuid in json.dumps(status["data"])

    bench.delete("small")
    bench.api.wait_for("one of the pods is gone", lambda: len(bench.pods()) == 1)
    bench.api.wait_for("its claim is put back", lambda: len(bench.prepared()) == 1)
    assert len(bench.cdi_files()) == 1
    assert len(bench.outputs("large")) == 1
    bench.delete_all()
    bench.wait_nothing_left()


def test_containers_of_one_pod_get_what_they_asked_for(nvidia):
    """Two requests of one claim, one for each container."""
    bench = nvidia
    bench.start_driver(T4)
    item = pod("split", claims=["both"])
    (first,) = item["spec"]["containers"]
    (use,) = first["resources"]["claims"]
    item["spec"]["containers"] = [
        {**first, "name": name, "resources": {"claims": [{**use, "request": name}]}} for name in ("lean", "rich")
    ]
    item = runnable(item)
    bench.run(claim("both", part("1Gi", "10", name="lean"), part("6Gi", "50", name="rich")), item)
    found = {name: env(bench.got("split", name), "CUDA_DEVICE") for name in ("lean", "rich")}
    assert found == {
        "lean": {"CUDA_DEVICE_MEMORY_LIMIT_0": "1024m", "CUDA_DEVICE_SM_LIMIT": "10"},
        "rich": {"CUDA_DEVICE_MEMORY_LIMIT_0": "6144m", "CUDA_DEVICE_SM_LIMIT": "50"},
    }
    bench.delete_all()
    bench.wait_nothing_left()


def test_the_library_that_limits_is_mounted_where_it_is_installed(nvidia):
    bench = nvidia
    folder = install_library(bench)
    bench.start_driver(T4)
    seen = bench.run(template("one", part("1Gi")), pod("limited", templates=["one"]))
    assert {f"{folder}/libvgpu.so", f"{folder}", "/etc/ld.so.preload", "/tmp/vgpulock"} <= seen["mounts"].keys()
    assert seen["env"]["CUDA_DEVICE_MEMORY_SHARED_CACHE"].startswith(f"{folder}/")
    bench.delete_all()
    bench.wait_nothing_left()


def test_a_container_can_fill_no_more_than_its_own_small_folders(nvidia):
    """M5: what HAMi-core writes is in memory of the container, with a read-only root too, and of each container its own."""
    bench = nvidia
    folder = install_library(bench)
    bench.start_driver(T4, "--usage-cache-size=5Mi")
    greedy = pod("greedy", templates=["one"])
    container = greedy["spec"]["containers"][0]
    container["env"] = [{"name": "GUEST_FILL", "value": f"{folder}:/tmp/vgpulock"}]
    container["securityContext"] = {"readOnlyRootFilesystem": True, "runAsUser": 1000}
    seen = bench.run(template("one", part("1Gi")), greedy)
    assert 4 << 20 <= seen["filled"][str(folder)] <= 5 << 20
    assert 0 < seen["filled"]["/tmp/vgpulock"] <= 64 << 10
    assert sorted(each.name for each in folder.iterdir()) == ["ld.so.preload", "libvgpu.so"]
    bench.delete_all()
    bench.wait_nothing_left()


def test_a_container_cannot_switch_off_limits_that_its_class_enforces(nvidia):
    """L3: variables of CDI come after those of the container."""
    bench = nvidia
    install_library(bench)
    bench.start_driver(T4)
    strict = device_class("strict", 'device.driver == "nvidia.hami.io"')
    parameters = {"apiVersion": "hami.io/v1alpha1", "kind": "DeviceConfig", "limits": "enforced", "final": ["limits"]}
    strict["spec"]["config"] = [opaque("nvidia.hami.io", **parameters)]
    bench.api.add(strict)
    freed = pod("freed", templates=["strict"])
    wanted = {"CUDA_DISABLE_CONTROL": "true", "GPU_CORE_UTILIZATION_POLICY": "disable", "CUDA_TASK_PRIORITY": "0"}
    freed["spec"]["containers"][0]["env"] = [{"name": name, "value": value} for name, value in wanted.items()]
    seen = bench.run(template("strict", part("1Gi", device_class="strict")), freed)
    bench.api.remove(strict)
    assert "/etc/ld.so.preload" in seen["mounts"]
    assert [seen["env"][name] for name in wanted] == ["false", "default", "1"]
    bench.delete_all()
    bench.wait_nothing_left()


def install_library(bench):
    """Files as HAMi-core's; the program in the image is static and takes no notice of them."""
    folder = bench.library / "vgpu"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "libvgpu.so").write_text("")
    (folder / "ld.so.preload").write_text(f"{folder}/libvgpu.so\n")
    return folder


def test_an_instance_of_a_card_is_made_for_its_claim_and_removed(bench):
    """MIG, made at the moment at which it is wanted."""
    machine = "a2-ultragpu-2g-mig"
    bench.start_driver(machine)
    profile = 'device.attributes["nvidia.hami.io"].profile == "1g.10gb"'
    wanted = template("slice", request(device_class="nvidia-mig.hami.io", selector=profile))
    seen = [
        bench.run(*items) for items in ((wanted, pod("m0", templates=["slice"])), (pod("m1", templates=["slice"]),))
    ]
    instances = [each["env"]["NVIDIA_VISIBLE_DEVICES"] for each in seen]
    assert all(each.startswith("MIG-") for each in instances)
    assert len(set(instances)) == 2
    assert not any(env(each, "CUDA_DEVICE") for each in seen)
    bench.delete_all()
    bench.wait_nothing_left()


def _drm(bench, card):
    """The device nodes of a MetaX card, as the kernel would name them."""
    folder = bench.kernel / "sys/bus/pci/devices" / card.pci_bus_id / "drm"
    names = (f"card{card.index}", f"renderD{128 + card.index}")
    for name in names:
        (folder / name).mkdir(parents=True, exist_ok=True)
        bench.node.add_device(f"dri/{name}")
    return [f"/dev/dri/{name}" for name in names]


def metax(bench):
    cards = bench.cards("c500-8")
    nodes = {f"gpu-{card.index}": _drm(bench, card) for card in cards}
    bench.node.add_device("mxcd")
    bench.start_driver("c500-8")
    settings = opaque("metax.hami.io", apiVersion="hami.io/v1alpha1", kind="DeviceConfig", qos="fixed-share")
    wanted = request(device_class="metax-sgpu.hami.io", memory="4Gi", cores="60")
    seen = bench.run(template("sgpu", wanted, config=[settings]), pod("p", templates=["sgpu"]))
    (device,) = bench.allocated("p")
    assert env(seen, "METAX_") == {}
    assert devices(seen, ("/dev/dri", "/dev/mxcd")) == [*nodes[device], "/dev/mxcd"]


def kunlunxin(bench):
    for name in ("xpuctrl", *(f"xpu{index}" for index in range(8))):
        bench.node.add_device(name)
    bench.start_driver("p800-oam-8")
    seen = bench.run(
        template("quarter", request(device_class="kunlunxin-vxpu.hami.io", memory="24Gi")),
        pod("p", templates=["quarter"]),
    )
    (device,) = bench.allocated("p")
    number = device.rpartition("-")[2]
    assert env(seen, "XPU_", "CXPU_VISIBLE") == {"CXPU_VISIBLE_DEVICES": number}
    assert int(seen["env"]["CXPU_CONTAINER_MEMORY_LIMIT"]) == 24 * GIB
    assert devices(seen, "/dev/xpu") == [f"/dev/xpu{number}", "/dev/xpuctrl"]


def neuron(bench):
    for index in range(12):
        bench.node.add_device(f"neuron{index}")
    bench.start_driver("inf2.48xlarge")
    wanted = template("core", request(device_class="neuron-core.hami.io", capacity={"requests": {"neuroncores": "1"}}))
    seen = [bench.run(*items) for items in ((wanted, pod("p", templates=["core"])), (pod("q", templates=["core"]),))]
    cores = []
    for name, each in zip("pq", seen, strict=True):
        (device,) = bench.allocated(name)
        number = device.rpartition("-")[2]
        assert devices(each, "/dev/neuron") == [f"/dev/neuron{number}"]
        core = int(each["env"]["NEURON_RT_VISIBLE_CORES"])
        assert core // 2 == int(number)
        cores.append(core)
    assert len(set(cores)) == 2


def enflame(bench):
    for name in ("gcuctl", *(f"gcu{index}" for index in range(8))):
        bench.node.add_device(name)
    bench.start_driver("s60-8")
    wanted = request(device_class="enflame-vgcu.hami.io", cores="22")
    percent = opaque("enflame.hami.io", apiVersion="hami.io/v1alpha1", kind="DeviceConfig", memoryPercent=22)
    seen = bench.run(template("slice", wanted, config=[percent]), pod("p", templates=["slice"]))
    (device,) = bench.allocated("p")
    number = device.rpartition("-")[2]
    assert env(seen, "ENFLAME_") == {
        "ENFLAME_VISIBLE_DEVICES": number,
        "ENFLAME_CONTAINER_SUB_CARD": "true",
        "ENFLAME_CONTAINER_USABLE_PROCESSOR": "6",
        "ENFLAME_CONTAINER_USABLE_GLOBAL_MEM": "10",
    }
    assert devices(seen, "/dev/gcu") == [f"/dev/gcu{number}", "/dev/gcuctl"]


def ascend(bench):
    """Whole NPUs of one ring with their device nodes; a vNPU, which only Ascend Docker Runtime could make, without any."""
    for name in ("davinci_manager", "devmm_svm", "hisi_hdc", *(f"davinci{index}" for index in range(8))):
        bench.node.add_device(name)
    bench.start_driver("atlas-800t-a2")
    seen = bench.run(pod("two", resources={"limits": {"huawei.com/Ascend910B3": "2"}}))
    numbers = sorted(device.rpartition("-")[2] for device in bench.allocated("two"))
    assert len(numbers) == 2
    assert env(seen, "ASCEND_") == {"ASCEND_VISIBLE_DEVICES": ",".join(numbers)}
    control = [f"/dev/{name}" for name in ("davinci_manager", "devmm_svm", "hisi_hdc")]
    assert [devices(seen, name) for name in control] == [[name] for name in control]
    assert devices(seen, "/dev/davinci") == sorted([*(f"/dev/davinci{number}" for number in numbers), control[0]])

    part_of_one = {"huawei.com/Ascend910B3": "1", "huawei.com/Ascend910B3-memory": "16384"}
    seen = bench.run(pod("vnpu", resources={"limits": part_of_one}))
    (device,) = bench.allocated("vnpu")
    assert env(seen, "ASCEND_") == {
        "ASCEND_VISIBLE_DEVICES": device.split("-")[1],
        "ASCEND_VNPU_SPECS": "vir05_1c_16g",
    }
    assert devices(seen, "/dev/davinci") == []


@pytest.mark.parametrize("vendor", [metax, kunlunxin, neuron, enflame, ascend], ids=lambda vendor: vendor.__name__)
def test_a_part_of_a_card_of_another_vendor(bench, vendor):
    vendor(bench)
    bench.delete_all()
    bench.wait_nothing_left(f"{vendor.__name__}.hami.io")
