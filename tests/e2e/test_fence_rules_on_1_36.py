"""Kubernetes 1.36 with DeviceTaintRules switched on: the fence is a rule there too, of an older version of the API."""

import pytest

from hack.controlplane.cluster import ControlPlane
from tests.e2e.fence_story import a_rule_deleted_while_no_controller_runs_keeps_kube_scheduler_off, the_one_rule
from tests.e2e.lab import T4
from tests.e2e.objects import part, pod, template

pytestmark = pytest.mark.kubernetes("1.36.4")


@pytest.fixture(scope="session")
def control_plane(request):
    """Not the shared one: what is switched on here is off by default."""
    gates, apis = {"DRADeviceTaintRules": True}, {"resource.k8s.io/v1beta2": True}
    with ControlPlane(request.param, client_qps=5000, feature_gates=gates, runtime_config=apis) as plane:
        yield plane


def test_whoever_deletes_the_rule_waits_and_kube_scheduler_stays_off(lab):
    lab.machines(T4, "t4")
    assert the_one_rule(lab)["apiVersion"] == "resource.k8s.io/v1beta2"
    assert not any("taints" in device for item in lab.slices() for device in item["spec"]["devices"])
    a_rule_deleted_while_no_controller_runs_keeps_kube_scheduler_off(lab, lab.hami.programs["controller"])
    before = the_one_rule(lab)
    lab.api.remove(before)
    lab.create(template("more", part("2Gi")), pod("more", templates=["more"]))
    lab.wait_running(names=["more", "part", "whole"])
    assert the_one_rule(lab)["metadata"]["uid"] != before["metadata"]["uid"]
