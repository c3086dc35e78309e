"""Claims of a PodGroup (DRAWorkloadResourceClaims): reserved for the group, shared by its members, released with it."""

import pytest

from hack.controlplane.variants import GANGS
from tests.e2e.objects import part, pod, template
from tests.support.gang_objects import in_pod_group, named, pod_group

pytestmark = pytest.mark.kubernetes(GANGS)
SHARED = [{"name": "t0", "resourceClaimTemplateName": "shared"}]


def test_members_share_the_claim_of_their_group(lab):
    lab.machines("g4dn.12xlarge", "n0", "n1")
    lab.create(template("shared", part("4Gi")))
    lab.create(pod_group("serve", 3, claims=SHARED))
    members = named(pod("m", templates=["shared"]), "m-0", "m-1", "m-2")
    lab.create(*(in_pod_group(each, "serve") for each in members))
    found = lab.wait_running(names=["m-0", "m-1", "m-2"])
    assert len({each.node for each in found}) == 1, "the claim's device is on one node"
    path = f"/apis/scheduling.k8s.io/v1beta1/namespaces/{lab.namespace}/podgroups/serve"
    group = lab.plane.api.get(path)
    [of_group] = lab.claims()
    assert of_group["status"]["reservedFor"] == [
        {
            "apiGroup": "scheduling.k8s.io",
            "resource": "podgroups",
            "name": "serve",
            "uid": group["metadata"]["uid"],
        }
    ]
    for name in ("m-0", "m-1", "m-2"):
        lab.delete_pod(name)
    assert lab.claims()[0]["status"]["allocation"], "it lives as long as the group"
    lab.plane.api.delete(path)
    lab.plane.api.wait_for("the claim goes with its group", lambda: not lab.claims())
