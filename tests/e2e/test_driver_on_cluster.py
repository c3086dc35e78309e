"""The node driver on a real API server, under its own ServiceAccount with a token of its node. No kubelet here: tests/node has one.

What it publishes, that it stays true whatever others do, what an operator says by annotation, and the order of devices that an
unmodified kube-scheduler follows in native mode.
"""

import shutil
import tempfile

import pytest

from hami_dra.driver.simulated import machine
from tests.e2e import observe
from tests.e2e.lab import T4
from tests.e2e.objects import claim, legacy_pod, part, pod

pytestmark = pytest.mark.on_1_36

NODE = "driven"
NODES = "/api/v1/nodes"
CORDON = "hami.io/device-cordon"
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"


@pytest.fixture(scope="module")
def hami(make_installation):
    """No controller: native mode needs none."""
    return make_installation(mode="native", webhook=False)


@pytest.fixture
def driver(lab, tmp_path):
    """`driver("--machine", ...)`: on the node NODE, in native mode; stopped after the test."""
    started = []
    root = tempfile.mkdtemp(prefix="hami-")  # the path of a socket has 107 bytes at most

    def start(*flags, machine_name=T4, node=NODE):
        program = lab.hami.start_driver(
            node,
            "--mode=native",
            f"--machine={machine_name}",
            f"--simulated-faults={tmp_path / 'faults'}",
            f"--root={root}",
            f"--cdi-dir={tmp_path / 'cdi'}",
            "--health-every=0.3s",
            "--recovery-time=1s",
            *flags,
            name=f"driver-{len(started)}",
        )
        started.append(program)
        return program

    yield start
    for program in started:
        program.process.stop()
    shutil.rmtree(root)


@pytest.fixture
def node(lab):
    lab.plane.nodes.create(NODE)
    yield NODE
    lab.api.delete(f"{observe.SLICES}", fieldSelector=f"spec.nodeName={NODE}")


def slices(lab):
    return [item for item in lab.slices() if item["spec"].get("nodeName") == NODE]


def devices(lab):
    """Names, in the order in which kube-scheduler tries them."""
    ordered = sorted(slices(lab), key=lambda item: item["metadata"]["name"])
    return [device["name"] for item in ordered for device in item["spec"].get("devices", ())]


def taints(lab):
    return {
        (device["name"], taint["key"], taint.get("value", ""))
        for item in slices(lab)
        for device in item["spec"].get("devices", ())
        for taint in device.get("taints", ())
    }


def owners(lab):
    return {owner["uid"] for item in slices(lab) for owner in item["metadata"]["ownerReferences"]}


def becomes(lab, look, expected):
    lab.hami.wait_for(f"{look.__name__} {expected}", lambda: look(lab) == expected, seconds=30)


def everything(count):
    return [f"gpu-{index}" for index in range(count)]


def annotate(lab, text):
    lab.api.patch(f"{NODES}/{NODE}", {"metadata": {"annotations": {CORDON: text}}})


def reasons(lab):
    return [event["reason"] for event in lab.api.list(EVENTS) if event["regarding"].get("name") == NODE]


def test_published_restored_tainted_and_handed_on(lab, node, driver, tmp_path):
    program = driver()
    becomes(lab, devices, everything(4))
    (item,) = slices(lab)
    assert owners(lab) == {lab.api.get(f"{NODES}/{NODE}")["metadata"]["uid"]}

    # as kubelet does when it starts
    lab.api.delete(observe.SLICES, fieldSelector=f"spec.nodeName={NODE}")
    becomes(lab, devices, everything(4))
    # as nobody should
    lab.api.patch(f"{observe.SLICES}/{item['metadata']['name']}", {"spec": {"devices": [{"name": "gpu-0"}]}})
    becomes(lab, devices, everything(4))

    (tmp_path / "faults").write_text("2 xid-79 fell off the bus\n")
    becomes(lab, taints, {("gpu-2", "hami.io/xid", "xid-79")})
    (tmp_path / "faults").unlink()
    becomes(lab, taints, set())

    card = machine(T4, NODE).cards[3]
    annotate(lab, f"1,{card.uuid},17")
    becomes(lab, taints, {("gpu-1", "hami.io/cordoned", ""), ("gpu-3", "hami.io/cordoned", "")})
    lab.hami.wait_for("an event about 17", lambda: "UnknownDeviceCordoned" in reasons(lab))
    annotate(lab, None)
    becomes(lab, taints, set())

    # the node is taken away and comes back: its slices go with it, and new ones belong to the new one
    lab.plane.nodes.delete(NODE)
    becomes(lab, owners, set())
    fresh = lab.plane.nodes.create(NODE)
    becomes(lab, owners, {fresh["metadata"]["uid"]})
    becomes(lab, devices, everything(4))

    status, problems = program.get("/readyz")
    assert (status, problems) == (503, "nvidia.hami.io: kubelet has not registered it yet\n")
    assert program.metric("hami_dra_driver_devices", driver="nvidia.hami.io") == 4
    host = {"node": NODE, "device_index": "3", "device_type": card.product, "device_uuid": card.uuid}
    assert program.metric("hami_host_gpu_memory_total_bytes", **host, source="simulated") == card.memory
    program.process.stop()
    assert devices(lab) == everything(4)


def test_pods_leave_a_card_that_is_lost(lab, node, driver, tmp_path):
    """Kubernetes evicts them, once it is certain; pods on other cards stay."""
    driver("--confirm-time=1s")
    becomes(lab, devices, everything(4))
    for name, index in (("well", 0), ("ill", 2)):
        selector = f'device.attributes["hami.io"].index == {index}'
        lab.create(claim(name, part("2Gi", selector=selector)), pod(name, claims=[name], gated=False))
    lab.wait_running(names=["well", "ill"])
    (tmp_path / "faults").write_text("2 lost\n")
    lab.hami.wait_for("the pod evicted", lambda: [each["metadata"]["name"] for each in lab.pods()] == ["well"])
    assert taints(lab) == {("gpu-2", "hami.io/lost", "lost")}


def test_withdrawn_on_exit_if_asked_for(lab, node, driver):
    program = driver("--on-exit=withdraw")
    becomes(lab, devices, everything(4))
    program.process.stop()
    assert slices(lab) == []


def test_cards_of_a_device_plugin_are_left_to_it(lab, node, driver):
    lab.plane.nodes.set_allocatable(NODE, **{"nvidia.com/gpu": "4"})
    driver()
    lab.hami.wait_for("an empty slice", lambda: slices(lab) and not devices(lab))
    lab.hami.wait_for("an event", lambda: "DevicePluginPresent" in reasons(lab))
    lab.plane.nodes.set_allocatable(NODE, **{"nvidia.com/gpu": "0"})
    becomes(lab, devices, everything(4))


@pytest.mark.parametrize(("policy", "second"), [("binpack", "gpu-2"), ("spread", "gpu-0")])
def test_kube_scheduler_follows_the_order(lab, node, driver, policy, second):
    """First fit, and yet packed or spread: what comes second goes where the policy wants it."""
    driver(f"--device-policy={policy}")
    becomes(lab, devices, everything(4))
    index = 'device.attributes["hami.io"].index'
    lab.create(claim("first", part("2Gi", selector=f"{index} == 2")), pod("first", claims=["first"], gated=False))
    lab.wait_running(names=["first"])
    rest = ["gpu-0", "gpu-1", "gpu-3"]
    becomes(lab, devices, ["gpu-2", *rest] if policy == "binpack" else [*rest, "gpu-2"])

    lab.create(claim("second", part("2Gi")), pod("second", claims=["second"], gated=False))
    lab.wait_running(names=["first", "second"])
    assert lab.placement("second").devices == [f"{NODE}/{second}"]
    becomes(lab, devices, ["gpu-2", *rest] if policy == "binpack" else ["gpu-1", "gpu-3", "gpu-0", "gpu-2"])

    # a plain nvidia.com/gpu needs an idle card: the first in the order
    lab.create(legacy_pod("plain", gpu=1))
    lab.wait_running(names=["first", "second", "plain"])
    assert lab.placement("plain").devices == [f"{NODE}/{'gpu-0' if policy == 'binpack' else 'gpu-1'}"]
    assert lab.overcommitted() == []


def test_plain_pods_keep_to_the_islands_under_topology_aware(lab, node, driver):
    """V100 in NVLink pairs: who wants one card gets the one whose partner is taken, who wants two gets a pair."""
    driver("--device-policy=topology-aware", machine_name="v100-pairs-8")
    becomes(lab, devices, everything(8))
    index = 'device.attributes["hami.io"].index'
    lab.create(claim("first", part("2Gi", selector=f"{index} == 2")), pod("first", claims=["first"], gated=False))
    lab.wait_running(names=["first"])
    lab.hami.wait_for("the lonely card first", lambda: devices(lab)[:1] == ["gpu-3"])
    lab.create(legacy_pod("one", gpu=1))
    lab.wait_running(names=["first", "one"])
    lab.hami.wait_for("a pair first", lambda: devices(lab)[-1:] == ["gpu-3"])
    lab.create(legacy_pod("two", gpu=2))
    lab.wait_running(names=["first", "one", "two"])
    assert lab.placement("one").devices == [f"{NODE}/gpu-3"]
    assert sorted(lab.placement("two").devices) == [f"{NODE}/gpu-0", f"{NODE}/gpu-1"]
