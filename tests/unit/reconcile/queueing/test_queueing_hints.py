"""Who is woken by what: a refused pod is decided again when something happened that may help it, and only then."""

import pytest

from controller.decide import Unschedulable, decide
from controller.reasons import catalogue
from controller.reconcile.queueing.queueing_hints import ANY, Change, helpful, node_change
from hami_dra.api import kinds
from hami_dra.api.core import Node, NodeSpec, NodeStatus
from hami_dra.api.meta import Condition, ObjectMeta
from hami_dra.api.podstate import is_pending
from hami_dra.vendors import device_codes
from tests.support.harness import DRIVER, FOREIGN, SPACE, claim, gpu_slice, play, pod, template

ZONE = "topology.kubernetes.io/zone"
QUICK = {"quiet_time": 0.0, "probe": False}
SPREAD = {
    "maxSkew": 1,
    "topologyKey": ZONE,
    "whenUnsatisfiable": "DoNotSchedule",
    "labelSelector": {"matchLabels": {"app": "web"}},
}


class Counted:
    def __init__(self):
        self.count = 0

    def __call__(self, inventory, request, options):
        self.count += 1
        return decide(inventory, request, options)


def test_which_change_of_a_node_is_which():
    node = Node(
        metadata=ObjectMeta(name="n1", labels={"a": "b"}),
        status=NodeStatus(allocatable={"cpu": "4"}, conditions=(Condition(type="Ready", status="True"),)),
    )

    def with_ready(status, **more):
        conditions = (Condition(type="Ready", status=status, **more), Condition(type="MemoryPressure", **more))
        return Node(metadata=node.metadata, status=NodeStatus(allocatable={"cpu": "4"}, conditions=conditions))

    assert node_change(None, node) == Change.NODE_ADDED
    assert node_change(node, None) == Change.NODE_GONE
    assert not node_change(node, with_ready("True", last_heartbeat_time="2026-01-01T00:00:00Z"))
    assert node_change(node, with_ready("False")) == Change.NODE_TAINTS
    bigger = Node(
        metadata=node.metadata, status=NodeStatus(allocatable={"cpu": "8"}, conditions=node.status.conditions)
    )
    assert node_change(node, bigger) == Change.NODE_ALLOCATABLE
    cordoned = Node(metadata=node.metadata, status=node.status, spec=NodeSpec(unschedulable=True))
    assert node_change(node, cordoned) == Change.NODE_TAINTS
    assert node_change(node, Node(metadata=ObjectMeta(name="n1"), status=node.status)) == Change.NODE_LABELS


def test_what_helps_follows_from_the_reasons():
    def of(*codes):
        return helpful(Unschedulable("no", reasons=dict.fromkeys(codes, 1)))

    assert Change.QUOTA in of(device_codes.RESOURCE_QUOTA_NOT_FIT)
    assert Change.QUOTA not in of(device_codes.CARD_INSUFFICIENT_MEMORY)
    assert Change.RESOURCES_FREED in of(catalogue.NODE_RESOURCES, device_codes.CARD_INSUFFICIENT_MEMORY)
    assert Change.RESOURCES_FREED not in of(device_codes.CARD_INSUFFICIENT_MEMORY)
    assert all(Change.NODE_ADDED in of(code) for code in (catalogue.NODE_AFFINITY, catalogue.NODE_TAINTED, "AnyOther"))
    assert helpful(Unschedulable("no", error="device class is missing")) == ANY


def test_heartbeats_wake_nobody():
    counted = Counted()

    async def story(harness):
        for number in range(20):
            await harness.add(kinds.RESOURCE_CLAIM, claim(f"c{number}", 100 + number))
            await harness.add(kinds.POD, pod(f"p{number}", claims=[f"c{number}"]))
        await harness.sleep(30)
        before = counted.count
        for beat in range(60):
            condition = {"type": "Ready", "status": "True", "lastHeartbeatTime": f"2026-01-01T00:00:{beat:02}Z"}
            await harness.patch_node("n0", {"status": {"conditions": [condition]}}, status=True)
            await harness.sleep(1)
        assert counted.count == before

    play(story, decide=counted, **QUICK)


def test_pods_that_come_and_go_wake_nobody_who_waits_for_devices_of_nodes_without_pods():
    counted = Counted()

    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM, claim("c", 100))
        await harness.add(kinds.POD, pod("p", claims=["c"]))
        await harness.sleep(30)
        before = counted.count
        for number in range(10):
            await harness.add(kinds.POD, pod(f"q{number}"))
            await harness.sleep(2)
            await harness.cluster.patch(kinds.POD, f"q{number}", {"metadata": {"labels": {"a": "b"}}}, namespace=SPACE)
            await harness.sleep(2)
        assert counted.count == before

    play(story, decide=counted, **QUICK)


async def bind_in(harness, node, name="other", **labels):
    body = pod(name, nodeName=node)
    body["metadata"]["labels"] = labels
    await harness.add(kinds.POD, body)


async def bind_matching(harness):
    await bind_in(harness, "n1", app="web")


async def delete_zone(harness):
    await harness.cluster.delete(kinds.NODE, "n1")


async def change_label(harness):
    await harness.cluster.patch(kinds.POD, "first", {"metadata": {"labels": {"app": "none"}}}, namespace=SPACE)


@pytest.mark.parametrize("waiting", [1, 2, 3])
@pytest.mark.parametrize("change", [bind_matching, delete_zone, change_label])
def test_topology_spread_is_heard_of(waiting, change):
    """Zone a has cards, zone b none; one matching pod in a, and at most one more than elsewhere."""

    async def story(harness):
        await harness.add_node("n0", labels={ZONE: "a"})
        await harness.add(
            kinds.NODE,
            {
                "metadata": {"name": "n1", "labels": {ZONE: "b"}},
                "status": {"allocatable": {"cpu": "8", "memory": "64Gi", "pods": "110"}},
            },
        )
        await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template("t", 1))
        await bind_in(harness, "n0", "first", app="web")
        for number in range(waiting):
            body = pod(f"p{number}", templates=["t"], topologySpreadConstraints=[SPREAD])
            body["metadata"]["labels"] = {"app": "web"}
            await harness.add(kinds.POD, body)
            await harness.sleep(7)
        assert all(map(is_pending, [await harness.pod(f"p{number}") for number in range(waiting)]))
        await change(harness)

        async def one_more() -> bool:
            return any([await harness.node_of(f"p{number}") for number in range(waiting)])

        await harness.until(one_more, seconds=3)

    play(story, nodes=0, decide=decide, **QUICK)


def test_groups_of_like_pods_are_reconsidered_one_by_one():
    counted = Counted()

    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template("t", 100))
        for number in range(5):
            await harness.add(kinds.POD, pod(f"p{number}", templates=["t"]))
            await harness.sleep(7)
        before = counted.count
        await harness.sleep(3000)
        assert counted.count - before == 10

    play(story, decide=counted, **QUICK)


@pytest.mark.parametrize("gated", [True, False])
def test_a_pod_of_others_is_ours_when_devices_of_ours_appear(gated):
    """A class over two drivers, of which only one is managed: its devices come last."""

    async def story(harness):
        either = {"cel": {"expression": f'device.driver in ["{DRIVER}", "{FOREIGN}"]'}}
        await harness.add(kinds.DEVICE_CLASS, {"metadata": {"name": "either"}, "spec": {"selectors": [either]}})
        await harness.add(
            kinds.NODE,
            {"metadata": {"name": "n0"}, "status": {"allocatable": {"cpu": "8", "memory": "64Gi", "pods": "110"}}},
        )
        await harness.add(kinds.RESOURCE_SLICE, gpu_slice("n0", driver=FOREIGN))
        await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template("t", 4, device_class="either"))
        await harness.add(kinds.POD, *(pod(f"p{number}", templates=["t"], gated=gated) for number in range(2)))
        await harness.sleep(60)
        assert not (await harness.pod("p0")).spec.scheduling_gates, "kube-scheduler's to place"
        assert len(harness.controller.metrics.queue.queue.keys_in("no_room")) == 0, "nobody says that it finds no room"
        await harness.add_node("n1")
        await harness.bound("p0", "p1", seconds=5)
        await harness.sleep(1)
        assert harness.controller.metrics.queue.queue.waiting()[0].total() == 0

    play(story, nodes=0, decide=decide, **QUICK)
