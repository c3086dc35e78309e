"""The gang of kubernetes#138765, which kube-scheduler alone does not place, and hami-dra does.

One GPU is taken whole or as two halves; each of two pods would rather have all of it. The first member takes the whole GPU,
nothing is left for the second, and kube-scheduler never tries the first one's other alternative.
"""

import pytest

from hack.controlplane.variants import GANGS, GANGS_1_36
from hack.installation import QUICK
from tests.e2e.objects import device_class, pod
from tests.support.gang_objects import (
    SCHEDULED_CONDITION,
    in_labelled_group,
    in_pod_group,
    named,
    pod_group,
    prefers_whole,
    whole_or_halves,
)

DRIVER = "gpu.example.com"


@pytest.fixture
def claims_path(namespace):
    return f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims"


@pytest.fixture
def gang_of_two(control_plane, create):
    """`gang_of_two(name, template)`: a PodGroup, and its pods."""

    def make(name, claim_template, *, gated=False):
        create(pod_group(name, 2, version=control_plane.version))
        pods = named(pod(templates=[claim_template], gated=gated), f"{name}-0", f"{name}-1")
        return [create(in_pod_group(each, name)) for each in pods]

    return make


@pytest.fixture
def gpu(nodes, create):
    nodes.create("n0")
    for item in whole_or_halves("n0", DRIVER):
        create(item)
    create(device_class("whole-or-half", f"device.driver == {DRIVER!r}"))
    create(prefers_whole("rather-whole", "whole-or-half", DRIVER))
    create(prefers_whole("half", "whole-or-half", DRIVER, kinds=("half",)))


def allocated(api, path):
    """The devices of all allocated claims."""
    return sorted(
        result["device"]
        for claim in api.list(path)
        for result in claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
    )


def remove(api, pods, claims_path):
    for each in pods:
        api.remove(each)
    api.wait_for("the GPU free", lambda: not api.list(claims_path))


def with_hami_dra(make_installation):
    """Installed for the rest of the module."""
    hami = make_installation()
    hami.start_controller("--manage", DRIVER, *QUICK)
    hami.wait_ready()


def run(api, pods):
    api.wait_for("pods running", lambda: all(api.read(each)["status"].get("phase") == "Running" for each in pods))


@pytest.mark.usefixtures("gpu")
@pytest.mark.kubernetes(GANGS, GANGS_1_36)
def test_kube_scheduler_alone_refuses_it(control_plane, api, create, gang_of_two, claims_path):
    # all is set up as it should be: a pod alone gets the whole GPU, and two that ask for halves run as a gang
    alone = create(pod("alone", templates=["rather-whole"], gated=False))
    run(api, [alone])
    assert allocated(api, claims_path) == ["whole"]
    remove(api, [alone], claims_path)
    halves = gang_of_two("halves", "half")
    run(api, halves)
    remove(api, halves, claims_path)

    members = gang_of_two("refused", "rather-whole")
    group = pod_group("refused", 2, version=control_plane.version)
    group["metadata"]["namespace"] = members[0]["metadata"]["namespace"]
    condition = SCHEDULED_CONDITION[control_plane.version]

    def refused():
        conditions = {each["type"]: each for each in api.read(group).get("status", {}).get("conditions", ())}
        return conditions.get(condition, {}).get("status") == "False"

    api.wait_for("the gang refused", refused)
    assert not any(api.read(each)["spec"].get("nodeName") for each in members)


@pytest.mark.usefixtures("gpu")
@pytest.mark.kubernetes(GANGS)  # other people's drivers are managed from 1.37 on
def test_hami_dra_places_it(api, gang_of_two, claims_path, make_installation):
    with_hami_dra(make_installation)
    run(api, gang_of_two("placed", "rather-whole", gated=True))
    assert allocated(api, claims_path) == ["half-0", "half-1"]


@pytest.mark.usefixtures("gpu")
@pytest.mark.kubernetes("1.37.1")
def test_hami_dra_places_it_where_no_pod_group_is_served(api, create, claims_path, make_installation):
    with_hami_dra(make_installation)
    pods = named(pod(templates=["rather-whole"]), "placed-0", "placed-1")
    run(api, [create(in_labelled_group(each, "placed", 2)) for each in pods])
    assert allocated(api, claims_path) == ["half-0", "half-1"]
