"""What kube-scheduler alone does with gangs of device pods: the control experiment beside hami-dra's tests."""

import pytest

from hack.controlplane.variants import GANGS, GANGS_1_36
from tests.e2e.objects import device_class, pod
from tests.support.gang_objects import (
    SCHEDULED_CONDITION,
    in_pod_group,
    named,
    pod_group,
    prefers_whole,
    whole_or_halves,
)

pytestmark = pytest.mark.kubernetes(GANGS, GANGS_1_36)

DRIVER = "gpu.example.com"


@pytest.fixture
def claims_path(namespace):
    return f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims"


def allocated(api, path):
    """The devices of all allocated claims."""
    return [
        result["device"]
        for claim in api.list(path)
        for result in claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
    ]


def test_it_does_not_reconsider_the_device_of_the_first_member(control_plane, api, nodes, create, claims_path):
    """kubernetes#138765: two halves would do, but the first member takes the whole GPU, again and again."""
    nodes.create("n0")
    for item in whole_or_halves("n0", DRIVER):
        create(item)
    create(device_class("whole-or-half", f"device.driver == {DRIVER!r}"))
    create(prefers_whole("rather-whole", "whole-or-half", DRIVER))

    alone = create(pod("alone", templates=["rather-whole"], gated=False))
    api.wait_for("a pod alone running", lambda: api.read(alone)["status"].get("phase") == "Running")
    assert allocated(api, claims_path) == ["whole"]
    api.remove(alone)
    api.wait_for("the GPU free", lambda: not api.list(claims_path))

    group = create(pod_group("train", 2, version=control_plane.version))
    members = named(pod(templates=["rather-whole"], gated=False), "train-0", "train-1")
    members = [create(in_pod_group(each, "train")) for each in members]
    condition = SCHEDULED_CONDITION[control_plane.version]

    def refused():
        conditions = {each["type"]: each for each in api.read(group).get("status", {}).get("conditions", ())}
        return conditions.get(condition, {}).get("status") == "False"

    api.wait_for("the gang refused", refused)
    assert not any(api.read(each)["spec"].get("nodeName") for each in members)

    for each in members:
        api.remove(each)
    api.wait_for("the GPU free", lambda: not api.list(claims_path))

    create(prefers_whole("half", "whole-or-half", DRIVER, kinds=("half",)))
    create(pod_group("halves", 2, version=control_plane.version))
    halves = [
        create(in_pod_group(each, "halves"))
        for each in named(pod(templates=["half"], gated=False), "halves-0", "halves-1")
    ]
    api.wait_for(
        "the gang that asks for halves running",
        lambda: all(api.read(each)["status"].get("phase") == "Running" for each in halves),
    )
    assert sorted(allocated(api, claims_path)) == ["half-0", "half-1"]
