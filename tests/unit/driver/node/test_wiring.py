"""The whole driver of a simulated machine, called as kubelet calls it: sockets, preparing, CDI files, the claim's status, health."""

import asyncio
import contextlib
import json
import os
import shutil
import struct
import tempfile
from pathlib import Path

import grpc.aio
import pytest

from hami_dra.api.containers import MARKER, HostSettings
from hami_dra.api.errors import ConfigError
from hami_dra.api.kinds import NODE, POD, RESOURCE_CLAIM, RESOURCE_SLICE
from hami_dra.api.options import VendorSettings
from hami_dra.driver.kubelet.proto import (
    dra_v1_pb2,
    dra_v1_pb2_grpc,
    health_v1_pb2,
    health_v1_pb2_grpc,
    registration_pb2,
    registration_pb2_grpc,
)
from hami_dra.driver.node.metrics import DriverMetrics
from hami_dra.driver.node.service import NodeDriver
from hami_dra.driver.node.settings import NodeSettings
from hami_dra.driver.node.simulated import SimulatedBackend
from hami_dra.driver.node.wiring import Wiring
from hami_dra.driver.simulated import machine
from hami_dra.kube.protocol import ClusterError
from hami_dra.vendors.nvidia.options import LIBRARY_FOLDER, PRIORITY_FEEDBACK, USAGE_CACHE
from hami_dra.vendors.nvidia.shared_region import V1
from tests.support.node import claim_on
from tests.support.regions.regions import Region, Use
from tests.support.steered_cluster import SteeredCluster

NODE_NAME = "n1"
DRIVER = "nvidia.hami.io"
PART = {"memory": "4Gi", "cores": "30", "shares": "1"}


@pytest.fixture
def folder():
    """Short, for the path of a socket has 107 bytes at most."""
    path = Path(tempfile.mkdtemp(prefix="hami-"))
    yield path
    shutil.rmtree(path)


@contextlib.asynccontextmanager
async def running(folder, cluster, cards, metrics=None, **settings):
    metrics = metrics or DriverMetrics()
    chosen = NodeSettings(node=NODE_NAME, root=folder, health_every=0.05, recovery_time=0.0, **settings)
    host = HostSettings(options=chosen.options)
    wiring = Wiring(settings=chosen, cdi_folder=folder / "cdi", host=host, kernel_root=folder, simulated=cards)
    backend = SimulatedBackend(cards[0].vendor, cards, folder / "faults")
    plugins = wiring.plugins(cluster, metrics)
    driver = NodeDriver(
        cluster,
        chosen,
        [backend],
        plugins,
        demanded=(backend.vendor,),
        metrics=metrics,
        sampler=wiring.sampler,
        usage=wiring.usage,
    )
    task = asyncio.create_task(driver.run())
    try:
        async with asyncio.timeout(20):
            yield driver
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(look):
    """What `look` returns, once it returns something."""
    while not (found := await look()):  # noqa: ASYNC110 (files and the API have no event to wait for)
        await asyncio.sleep(0.01)
    return found


async def registration(folder):
    return next((folder / "plugins_registry").glob("*-reg.sock"), None)


@contextlib.asynccontextmanager
async def connected(socket):
    async with grpc.aio.insecure_channel(f"unix://{socket}") as channel:
        yield channel


async def registered(folder, driver=DRIVER):
    """As kubelet's plugin watcher does it. Returns the path of the service."""
    async with connected(await until(lambda: registration(folder))) as channel:
        stub = registration_pb2_grpc.RegistrationStub(channel)
        info = await stub.GetInfo(registration_pb2.InfoRequest())
        await stub.NotifyRegistrationStatus(registration_pb2.RegistrationStatus(plugin_registered=True))
    assert (info.type, info.name) == ("DRAPlugin", driver)
    return info.endpoint


async def allocated(cluster, name, device, driver=DRIVER, consumed=PART, *, generated=False):
    """A claim on a device and the pod that it is reserved for, perhaps generated for it."""
    body = claim_on(name, driver, NODE_NAME, device, consumed)
    status = body.pop("status")
    del body["metadata"]["uid"]
    entries = [{"name": "card", "resourceClaimName": name}]
    container = {"name": "main", "image": "none", "resources": {"claims": [{"name": "card"}]}}
    spec = {"nodeName": NODE_NAME, "containers": [container], "resourceClaims": entries}
    await cluster.create(POD, {"metadata": {"name": name, "namespace": "default"}, "spec": spec})
    pod = await cluster.get(POD, name, "default")
    if generated:
        owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": pod.metadata.uid, "controller": True}
        body["metadata"]["ownerReferences"] = [owner]
    await cluster.create(RESOURCE_CLAIM, body)
    status["reservedFor"] = [{"resource": "pods", "name": name, "uid": pod.metadata.uid}]
    patch = {"metadata": {"finalizers": ["resource.kubernetes.io/delete-protection"]}}
    await cluster.patch(RESOURCE_CLAIM, name, patch, namespace="default")
    return await cluster.patch(RESOURCE_CLAIM, name, {"status": status}, namespace="default", subresource="status")


async def cluster_with_node():
    cluster = SteeredCluster()
    await cluster.create(NODE, {"metadata": {"name": NODE_NAME}})
    return cluster


async def test_a_claim_is_prepared_and_taken_back(folder):
    cluster, metrics = await cluster_with_node(), DriverMetrics()
    cards = machine("g4dn.12xlarge", NODE_NAME).cards
    claim = await allocated(cluster, "one", "gpu-2")
    reference = dra_v1_pb2.Claim(namespace="default", name="one", uid=claim.metadata.uid)
    async with running(folder, cluster, cards, metrics) as driver:
        async with connected(await registered(folder)) as channel:
            kubelet = dra_v1_pb2_grpc.DRAPluginStub(channel)
            answer = await kubelet.NodePrepareResources(dra_v1_pb2.NodePrepareResourcesRequest(claims=[reference]))
            answered = answer.claims[claim.metadata.uid]
            assert answered.error == ""
            (device,) = answered.devices
            assert (device.pool_name, device.device_name) == (NODE_NAME, "gpu-2")

            (spec,) = [json.loads(path.read_text()) for path in (folder / "cdi").glob("*.json")]
            (listed,) = spec["devices"]
            assert device.cdi_device_ids == [f"{spec['kind']}={listed['name']}"]
            env = dict(each.split("=", 1) for each in listed["containerEdits"]["env"])
            assert env["NVIDIA_VISIBLE_DEVICES"] == cards[2].uuid
            assert env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "4096m"
            nodes = {node["path"]: node["hostPath"] for node in listed["containerEdits"]["deviceNodes"]}
            assert {"/dev/nvidia2", "/dev/nvidiactl"} < nodes.keys()
            assert set(nodes.values()) == {"/dev/null"}

            async def status():
                return (await cluster.get(RESOURCE_CLAIM, "one", "default")).status.devices

            reported = await until(status)
            assert [(each.device, each.conditions[0].status) for each in reported] == [("gpu-2", "True")]
            assert driver.unready() == []

            request = dra_v1_pb2.NodeUnprepareResourcesRequest(claims=[reference])
            assert (await kubelet.NodeUnprepareResources(request)).claims[claim.metadata.uid].error == ""
            assert list((folder / "cdi").glob("*.json")) == []
        counted = {call: metrics.claims.labels(DRIVER, call, "done") for call in ("prepare", "unprepare")}
        assert {call: counter._value.get() for call, counter in counted.items()} == {"prepare": 1, "unprepare": 1}
    assert list((folder / "plugins_registry").iterdir()) == []


@pytest.mark.parametrize(
    ("machine_name", "driver", "device", "consumed"),
    [
        ("c500-8", "metax.hami.io", "gpu-1", PART),
        ("p800-oam-8", "kunlunxin.hami.io", "xpu-1", PART | {"memory": "24Gi"}),
        ("trn1.32xlarge", "neuron.hami.io", "neuron-1", PART | {"neuroncores": "1"}),
        ("s60-8", "enflame.hami.io", "gcu-1", PART | {"slices": "1"}),
        ("atlas-800i-a2", "ascend.hami.io", "npu-1", None),
        ("a2-ultragpu-2g-mig", DRIVER, "gpu-1-mig-1g-10gb-3", None),
    ],
)
async def test_simulated_cards_of_each_vendor_can_be_used(folder, machine_name, driver, device, consumed):
    cluster = await cluster_with_node()
    claim = await allocated(cluster, "one", device, driver, consumed)
    reference = dra_v1_pb2.Claim(namespace="default", name="one", uid=claim.metadata.uid)
    cards = machine(machine_name, NODE_NAME).cards
    async with running(folder, cluster, cards), connected(await registered(folder, driver)) as channel:
        kubelet = dra_v1_pb2_grpc.DRAPluginStub(channel)
        answer = await kubelet.NodePrepareResources(dra_v1_pb2.NodePrepareResourcesRequest(claims=[reference]))
        assert answer.claims[claim.metadata.uid].error == ""
        (spec,) = [json.loads(path.read_text()) for path in (folder / "cdi").glob("*.json")]
        nodes = [node for each in spec["devices"] for node in each["containerEdits"]["deviceNodes"]]
        assert {node["hostPath"] for node in nodes} == {"/dev/null"}
        request = dra_v1_pb2.NodeUnprepareResourcesRequest(claims=[reference])
        assert (await kubelet.NodeUnprepareResources(request)).claims[claim.metadata.uid].error == ""


async def test_kubelet_hears_of_a_card_that_fails(folder):
    cluster = await cluster_with_node()
    cards = machine("g4dn.12xlarge", NODE_NAME).cards
    async with running(folder, cluster, cards), connected(await registered(folder)) as channel:
        stub = health_v1_pb2_grpc.DRAResourceHealthStub(channel)
        stream = stub.NodeWatchResources(health_v1_pb2.NodeWatchResourcesRequest())

        async def sick():
            """Of the next message that says something else than before."""
            message = await stream.read()
            return {each.device.device_name: each.message for each in message.devices if each.health != 1}

        while await sick() != {}:
            pass
        (folder / "faults").write_text("1 xid-79 fell off the bus\n")
        while await sick() != {"gpu-1": "xid-79: fell off the bus"}:
            pass
        (folder / "faults").unlink()
        while await sick() != {}:
            pass


async def test_a_claim_on_a_card_that_a_device_plugin_got_back_is_still_taken_back(folder):
    """What is withdrawn from the slices stays prepared, and kubelet can end it."""
    cluster = await cluster_with_node()
    claim = await allocated(cluster, "one", "gpu-0")
    reference = dra_v1_pb2.Claim(namespace="default", name="one", uid=claim.metadata.uid)
    status = {"allocatable": {"nvidia.com/gpu": "4"}}
    await cluster.patch(NODE, NODE_NAME, {"status": status}, subresource="status")
    cards = machine("g4dn.12xlarge", NODE_NAME).cards
    async with running(folder, cluster, cards), connected(await registered(folder)) as channel:
        kubelet = dra_v1_pb2_grpc.DRAPluginStub(channel)
        answer = await kubelet.NodePrepareResources(dra_v1_pb2.NodePrepareResourcesRequest(claims=[reference]))
        assert answer.claims[claim.metadata.uid].error == ""
        assert [item.spec.devices for item in (await cluster.list(RESOURCE_SLICE)).items] == [()]
        request = dra_v1_pb2.NodeUnprepareResourcesRequest(claims=[reference])
        assert (await kubelet.NodeUnprepareResources(request)).claims[claim.metadata.uid].error == ""


async def test_what_cards_report_and_what_containers_were_given_are_metrics(folder):
    """Simulated cards follow what is prepared; a driver that is started later knows the same."""
    cluster = await cluster_with_node()
    claim = await allocated(cluster, "one", "gpu-2")
    reference = dra_v1_pb2.Claim(namespace="default", name="one", uid=claim.metadata.uid)
    cards = machine("g4dn.12xlarge", NODE_NAME).cards
    container = {
        "node": NODE_NAME,
        "namespace": "default",
        "pod": "one",
        "container": "main",
        "vdevice_index": "0",
        "device_uuid": cards[2].uuid,
    }

    def host(index):
        card = cards[index]
        return {
            "node": NODE_NAME,
            "device_index": str(index),
            "device_uuid": card.uuid,
            "device_type": card.product,
            "source": "simulated",
        }

    for again in (False, True):
        metrics = DriverMetrics()
        async with running(folder, cluster, cards, metrics, monitor_interval=0.02):
            value = metrics.registry.get_sample_value
            async with connected(await registered(folder)) as channel:
                if not again:
                    assert value("hami_vgpu_memory_limit_bytes", container) is None
                    kubelet = dra_v1_pb2_grpc.DRAPluginStub(channel)
                    await kubelet.NodePrepareResources(dra_v1_pb2.NodePrepareResourcesRequest(claims=[reference]))

            async def follows(value=value):
                used = [value("hami_host_gpu_memory_used_bytes", host(index)) for index in (1, 2)]
                return None not in used and used[0] < 1 << 29 < 1 << 31 < used[1]

            await until(follows)
            assert value("hami_vgpu_memory_limit_bytes", container) == 4 << 30
            assert value("hami_vgpu_core_limit_ratio", container) == 30
            assert value("hami_host_gpu_utilization_ratio", host(2)) > value("hami_host_gpu_utilization_ratio", host(1))


async def test_what_a_container_uses_of_a_shared_card_is_a_metric(folder):
    """HAMi-core is pretended, its file is written by a program that has HAMi-core's structs."""
    library = folder / "vgpu"
    library.mkdir()
    (library / "libvgpu.so").touch()
    (library / "ld.so.preload").write_text(f"{library}/libvgpu.so")
    options = VendorSettings.of({LIBRARY_FOLDER: str(folder), USAGE_CACHE: "host"})
    cluster = await cluster_with_node()
    claim = await allocated(cluster, "one", "gpu-2", generated=True)
    metrics, cards = DriverMetrics(), machine("g4dn.12xlarge", NODE_NAME).cards
    async with running(folder, cluster, cards, metrics, options=options, check_claims_every=0.05):  # noqa: SIM117 (an await is between them)
        async with connected(await registered(folder)) as channel:
            kubelet = dra_v1_pb2_grpc.DRAPluginStub(channel)
            reference = dra_v1_pb2.Claim(namespace="default", name="one", uid=claim.metadata.uid)
            request = dra_v1_pb2.NodePrepareResourcesRequest(claims=[reference])
            assert (await kubelet.NodePrepareResources(request)).claims[claim.metadata.uid].error == ""
            (own,) = (each for each in (library / "containers").iterdir() if each.is_dir())
            (spec,) = (json.loads(path.read_text()) for path in (folder / "cdi").glob("*.json"))
            (cache,) = (
                each.partition("=")[2]
                for each in spec["devices"][0]["containerEdits"]["env"]
                if each.startswith("CUDA_DEVICE_MEMORY_SHARED_CACHE=")
            )
            uses = {2: Use(total=3 << 30, busy=40)}
            Region([card.uuid for card in cards], [(1, uses)]).write(own / Path(cache).name)
            labels = {
                "node": NODE_NAME,
                "namespace": "default",
                "pod": "one",
                "container": "main",
                "vdevice_index": "0",
                "device_uuid": cards[2].uuid,
            }

            async def used():
                return metrics.registry.get_sample_value("hami_dra_container_memory_used_bytes", labels)

            assert await until(used) == 3 << 30
            assert metrics.registry.get_sample_value("hami_dra_container_utilization_ratio", labels) == 0.4
            assert metrics.registry.get_sample_value("hami_vgpu_memory_used_bytes", labels) is None

            stale = library / "containers" / "gone_main"
            hidden, of_hami = [f"{number}" for number in range(100)], library / "containers" / "hami_main"
            stale.mkdir()
            of_hami.mkdir()
            for name in (*hidden, Path(cache).name):
                (stale / name).touch()
            marker = library / "containers" / f"gone_main{MARKER}"
            marker.touch()
            for each in (own, stale, of_hami):
                os.utime(each, (2**31, 2**31))

            async def removed():
                return not marker.exists()

            await until(removed)
            assert not stale.exists()
            assert of_hami.exists()
            assert (own / Path(cache).name).exists()


@pytest.mark.parametrize("monitor_interval", [0.0, 15.0])
async def test_without_readings_of_sensors_containers_are_still_released_and_judged(folder, monitor_interval):
    """Also before the API server answers: a container that a killed driver left waiting goes on."""
    waiting = folder / "vgpu/containers/uid_main/0123456789abcdef.cache"
    waiting.parent.mkdir(parents=True)
    options = VendorSettings.of({LIBRARY_FOLDER: str(folder), USAGE_CACHE: "host", PRIORITY_FEEDBACK: False})
    cards = machine("g4dn.12xlarge", NODE_NAME).cards
    for cluster, serves in ((Unreachable(), False), (await cluster_with_node(), True)):
        Region(["GPU-0"], recent=-1, switch=0).write(waiting)

        async def released():
            return struct.unpack_from("=ii", waiting.read_bytes(), V1.utilization_switch) == (1, 0)

        with contextlib.suppress(ClusterError):
            async with running(folder, cluster, cards, options=options, monitor_interval=monitor_interval) as driver:
                await until(released)
                if serves:
                    await registered(folder)
                    (runtime,) = driver.runtimes.values()
                    assert (runtime.usage is None) == (monitor_interval == 0)


class Unreachable(SteeredCluster):
    async def version(self):
        await asyncio.sleep(60)
        raise ClusterError("no answer")


async def test_nobody_looks_at_cards_where_the_operator_does_not_want_it(folder):
    cluster, metrics = await cluster_with_node(), DriverMetrics()
    cards = machine("g4dn.12xlarge", NODE_NAME).cards
    async with running(folder, cluster, cards, metrics, monitor_interval=0.0) as driver:
        await registered(folder)
        assert [runtime.monitoring for runtime in driver.runtimes.values()] == [None]


async def test_a_root_folder_whose_sockets_would_be_too_long_is_named(folder):
    deep = folder / ("x" * 100)
    cluster = await cluster_with_node()
    chosen = NodeSettings(node=NODE_NAME, root=deep)
    cards = machine("g4dn.12xlarge", NODE_NAME).cards
    wiring = Wiring(settings=chosen, cdi_folder=folder / "cdi", simulated=cards)
    driver = NodeDriver(
        cluster,
        chosen,
        [SimulatedBackend("nvidia", cards)],
        wiring.plugins(cluster, DriverMetrics()),
        demanded=["nvidia"],
    )
    with pytest.raises(ExceptionGroup) as caught:
        await driver.run()
    found = caught.value
    while isinstance(found, ExceptionGroup):
        found = found.exceptions[0]
    assert isinstance(found, ConfigError)
    assert "choose a shorter --root" in str(found)
