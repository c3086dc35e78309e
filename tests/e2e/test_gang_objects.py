"""The control planes of the gang tests: what they serve, and that kube-scheduler alone runs a gang of plain pods there."""

import pytest

from hack.controlplane.api import ApiError
from hack.controlplane.variants import GANG_ALPHAS, GANGS, GANGS_1_36
from tests.e2e.objects import pod
from tests.support.gang_objects import (
    COSCHEDULING_CRD,
    RACK,
    SCHEDULED_CONDITION,
    coscheduling_group,
    in_pod_group,
    named,
    pod_group,
)

with_gates = pytest.mark.kubernetes(GANGS, GANG_ALPHAS, GANGS_1_36)


def cpu_pod(cpu):
    return pod(resources={"requests": {"cpu": cpu}})


def conditions(api, item):
    return {each["type"]: each for each in api.read(item).get("status", {}).get("conditions", ())}


@with_gates
def test_kube_scheduler_runs_a_gang_whole_or_not_at_all(control_plane, api, nodes, create):
    nodes.create("small", allocatable={"cpu": "4"})
    version = control_plane.version
    too_large = create(pod_group("too-large", 2, version=version))
    waiting = [create(in_pod_group(each, "too-large")) for each in named(cpu_pod("3"), "a0", "a1")]

    def refused():
        return conditions(api, too_large).get(SCHEDULED_CONDITION[version], {}).get("status") == "False"

    api.wait_for("the gang that has no room refused", refused)
    assert not any(api.read(each)["spec"].get("nodeName") for each in waiting)

    fits = create(pod_group("fits", 2, version=version))
    running = [create(in_pod_group(each, "fits")) for each in named(cpu_pod("2"), "b0", "b1")]

    def whole():
        return all(api.read(each)["status"].get("phase") == "Running" for each in running)

    api.wait_for("both members running", whole)
    condition = SCHEDULED_CONDITION[version]
    api.wait_for("the condition of the group", lambda: conditions(api, fits)[condition]["status"] == "True")


@with_gates
def test_a_pod_group_keeps_the_fields_that_the_gates_allow(control_plane, request, create):
    version = control_plane.version
    alphas = request.node.callspec.params["control_plane"] == GANG_ALPHAS
    claims = [{"name": "t0", "resourceClaimTemplateName": "shared"}]
    made = create(pod_group("all", 2, version=version, topology_key=RACK, claims=claims, all_or_none_disrupted=True))[
        "spec"
    ]
    assert made["schedulingPolicy"] == {"gang": {"minCount": 2}}
    assert made.get("schedulingConstraints") == ({"topology": [{"key": RACK}]} if alphas else None)
    assert made.get("resourceClaims") == (claims if version == "1.37.1" else None)
    assert made.get("disruptionMode")


@pytest.mark.kubernetes("1.37.1", "1.36.4")
def test_by_default_no_pod_group_is_served_and_a_pod_loses_its_scheduling_group(control_plane, create):
    with pytest.raises(ApiError) as refused:
        create(pod_group("no", 2, version=control_plane.version))
    assert refused.value.status == 404
    assert "schedulingGroup" not in create(in_pod_group(cpu_pod("1"), "no"))["spec"]


def test_the_crd_of_coscheduling_takes_its_pod_groups(api, create):
    create(COSCHEDULING_CRD)

    def served():
        conditions = api.read(COSCHEDULING_CRD).get("status", {}).get("conditions") or ()
        return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)

    api.wait_for("the CRD established", served)
    made = api.wait_for("a PodGroup", lambda: create(coscheduling_group("train", 4, timeout_seconds=60)))
    assert made["spec"] == {"minMember": 4, "scheduleTimeoutSeconds": 60}
