"""`hami-dra slices --fleet FILE --publish` beside a controller: the fleet grows and shrinks while pods come and run."""

import json

import pytest

from hami_dra.api.config import FleetFile
from tests.e2e.lab import T4
from tests.e2e.objects import CLASS, part, pod, request, template

NODES = ("t4-0", "t4-1", "t4-2")


@pytest.fixture
def resize(lab, tmp_path):
    """`resize(n)` writes the fleet file for the first n of three nodes; a program follows it. All slices go after the test."""
    for name in NODES:
        lab.plane.nodes.create(name, wait=False)
    lab.plane.nodes.wait_schedulable(NODES)
    path, name = tmp_path / "fleet.yaml", f"{lab.namespace}-fleet"

    def write(count):
        group = {"machine": T4, "count": count, "name": "t4-{index}"}
        text = json.dumps({"kind": "Fleet", "name": name, "createNodes": False, "nodes": [group]})
        path.write_text(text)
        if "fleet" not in lab.hami.programs:
            lab.hami.start_fleet(path)
        lab.hami.wait_for(f"slices of {count} nodes", lambda: published(lab) == set(NODES[:count]))

    yield write
    if "fleet" in lab.hami.programs:
        lab.hami.programs.pop("fleet").process.stop()
    lab.clear()
    lab.hami.publish(FleetFile(name=name, create_nodes=False))


def published(lab):
    return {item["spec"]["nodeName"] for item in lab.slices()}


def test_pods_follow_a_fleet_that_grows_and_shrinks(lab, resize):
    resize(1)
    lab.create(template("whole", request(device_class="nvidia-gpu.hami.io", count=4)))
    for name in ("one", "two", "three"):
        lab.create(pod(name, templates=["whole"]))
    (first,) = lab.wait_running(1)
    assert first.node == "t4-0"
    waiting = {"one", "two", "three"} - {first.pod}
    for name in waiting:
        assert lab.wait_event(name, "FilteringFailed", "2 nodes NodeInsufficientDevice")

    resize(3)
    assert {each.node for each in lab.wait_running(3)} == set(NODES)
    assert lab.overcommitted() == []

    resize(1)  # what runs keeps running, and nothing new goes where nothing is published
    lab.create(template("part", part("1Gi")))
    lab.create(pod("late", templates=["part"]))
    assert lab.wait_event("late", "FilteringFailed", "2 nodes NodeInsufficientDevice")
    assert {each.node for each in lab.wait_running(3)} == set(NODES)

    resize(2)  # cards that come back are as used as they were
    on_t4_1 = next(each.pod for each in lab.placements() if each.node == "t4-1")
    assert lab.wait_event("late", "FilteringFailed", "2 nodes CardInsufficientMemory")
    lab.delete_pod(on_t4_1)
    lab.wait_running(names=["late"])
    assert lab.placement("late").node == "t4-1"
    resize(3)
    assert lab.overcommitted() == []


def test_slices_are_kept_true_while_pods_come(lab, resize):
    """A slice that somebody deletes is published anew, and the pod that waits for it is placed."""
    resize(1)
    (before,) = lab.slices()
    lab.api.delete(f"/apis/resource.k8s.io/v1/resourceslices/{before['metadata']['name']}")
    lab.create(template("part", part("1Gi", device_class=CLASS)))
    lab.create(pod("web", templates=["part"]))
    lab.wait_running(names=["web"])

    def anew():
        return [item for item in lab.slices() if item["metadata"]["uid"] != before["metadata"]["uid"]]

    (after,) = lab.hami.wait_for("the slice published anew", anew)
    assert after["spec"] == before["spec"]
    assert lab.overcommitted() == []
