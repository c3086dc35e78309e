"""What makes two pods ask for the same, and what the bodies of writes look like."""

from datetime import UTC, datetime

import msgspec
import pytest

from controller.allocation.stamping import stamped
from controller.assessment.pod_assessment import signature
from controller.decide import PodClaim, SchedulingRequest
from controller.decide.companions import grouped
from controller.reconcile.runtime import patches
from controller.scoring.policies import DevicePolicy, Policies
from hami_dra.api import names, podclaims
from hami_dra.api.core import Pod
from hami_dra.api.podclaims import claim_keys, claim_refs
from hami_dra.api.resource import ResourceClaim
from tests.support.harness import claim, claim_spec, pod


def a_pod(name="p", uid="u", **spec):
    raw = pod(name, templates=["t"])
    raw["metadata"] |= {"uid": uid} | spec.pop("metadata", {})
    raw["spec"] |= spec
    return msgspec.convert(raw, Pod, strict=False)


def a_claim(owner="u", memory=4, name="c", **options):
    owners = [{"uid": owner, "controller": True, "kind": "Pod", "name": "p", "apiVersion": "v1"}] if owner else []
    raw = {
        "metadata": {"name": name, "namespace": "default", "ownerReferences": owners},
        "spec": claim_spec(memory, **options),
    }
    return msgspec.convert(raw, ResourceClaim, strict=False)


def sign(the_pod, the_claim, **changes):
    return signature(SchedulingRequest(pod=the_pod, claims=(PodClaim("t0", the_claim),), **changes))


SAME = sign(a_pod(), a_claim())


def test_replicas_ask_for_the_same():
    assert sign(a_pod("q", "v"), a_claim("v", name="other")) == SAME
    assert sign(a_pod(metadata={"labels": {"pod-name": "p-1"}}), a_claim()) == SAME


@pytest.mark.parametrize(
    "other",
    [
        sign(a_pod(), a_claim(memory=5)),
        sign(a_pod(), a_claim(count=2)),
        sign(a_pod(nodeSelector={"zone": "a"}), a_claim()),
        sign(a_pod(tolerations=[{"operator": "Exists"}]), a_claim()),
        sign(a_pod(containers=[{"name": "main", "resources": {"requests": {"cpu": "2"}}}]), a_claim()),
        sign(a_pod(), a_claim(), refused_nodes={"n1": "x"}),
        sign(a_pod(), a_claim(), preferred_node="n1"),
        sign(a_pod(), a_claim(), policies=Policies(node_policy=names.SPREAD)),
        sign(a_pod(), a_claim(), policies=Policies(device_policy=DevicePolicy((names.BINPACK,)))),
        sign(a_pod(), a_claim(), plugin_resources=("nvidia.com/gpu",)),
        sign(a_pod(), a_claim(), uses_spares=True),
        sign(a_pod(), a_claim(owner="")),
    ],
)
def test_whoever_asks_for_something_else_differs(other):
    assert other != SAME


def test_pods_that_share_a_claim_are_one_group_however_many_there_are():
    companions = grouped([a_pod("q", "v"), a_pod("r", "w")])
    shared = a_claim(owner="")
    assert sign(a_pod("q", "v"), shared, companions=companions) == sign(a_pod(), shared)


def test_metadata_of_a_claim_makes_no_difference():
    shared = a_claim(owner="")
    metadata = msgspec.structs.replace(shared.metadata, resource_version="7", annotations={"example.com/x": "y"})
    assert sign(a_pod(), msgspec.structs.replace(shared, metadata=metadata)) == sign(a_pod(), shared)


def test_labels_matter_where_pods_are_spread_by_them():
    spread = [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]
    one = a_pod(topologySpreadConstraints=spread, metadata={"labels": {"app": "a"}})
    two = a_pod(topologySpreadConstraints=spread, metadata={"labels": {"app": "b"}})
    assert sign(one, a_claim()) != sign(two, a_claim())


def test_where_a_policy_was_written_does_not_matter():
    device = DevicePolicy(origin="Pod default/p")
    assert sign(a_pod(), a_claim(), policies=Policies(node_policy_origin="Pod default/p", device_policy=device)) == SAME


def test_claims_of_a_pod():
    raw = pod("p", templates=["generated", "pending", "needless"], claims=["named"])
    raw["status"] = {
        "resourceClaimStatuses": [{"name": "t0", "resourceClaimName": "p-t0-x"}, {"name": "t2"}],
        "extendedResourceClaimStatus": {"resourceClaimName": "p-extended"},
    }
    found = msgspec.convert(raw, Pod, strict=False)
    assert [(ref.pod_claim_name, ref.key, ref.template) for ref in claim_refs(found)] == [
        ("t0", "default/p-t0-x", "default/generated"),
        ("t1", "", "default/pending"),
        ("c0", "default/named", ""),
    ]
    assert claim_keys(found) == ("default/p-t0-x", "default/named", "default/p-extended")


def test_claims_of_a_pod_with_many_are_not_remembered():
    many = msgspec.convert(pod("p", claims=[f"c{number}" for number in range(17)]), Pod, strict=False)
    before = podclaims._remembered.cache_info()
    assert claim_keys(many) == tuple(f"default/c{number}" for number in range(17))
    assert len(claim_refs(many)) == 17
    assert podclaims._remembered.cache_info() == before


# --- bodies ----------------------------------------------------------------------------------------------------------------


def test_stamping_gives_shares_an_id_and_leaves_the_decision_as_it_was():
    decided = {"devices": {"results": [{"device": "a", "consumedCapacity": {}}, {"device": "b"}]}}
    written = stamped(decided, datetime(2026, 1, 2, 3, 4, 5, 999, tzinfo=UTC), iter(["id-1"]).__next__)
    assert written == {
        "devices": {"results": [{"device": "a", "consumedCapacity": {}, "shareID": "id-1"}, {"device": "b"}]},
        "allocationTimestamp": "2026-01-02T03:04:05Z",
    }
    assert "shareID" not in decided["devices"]["results"][0]


def claim_with(*finalizers):
    raw = claim("c")
    raw["metadata"] |= {"uid": "u", "resourceVersion": "7", "finalizers": list(finalizers)}
    return msgspec.convert(raw, ResourceClaim, strict=False)


def test_the_finalizer_is_added_and_removed_without_touching_others():
    theirs = claim_with("example.com/x")
    body = patches.protect(theirs)["metadata"]
    assert body["finalizers"] == ["example.com/x", names.DELETE_PROTECTION]
    assert (body["uid"], body["resourceVersion"]) == ("u", "7")
    ours = claim_with("example.com/x", names.DELETE_PROTECTION)
    assert patches.is_protected(ours)
    assert not patches.is_protected(theirs)
    assert patches.unprotect(ours)["metadata"]["finalizers"] == ["example.com/x"]


def test_the_gate_patch_removes_our_gate_from_the_list_that_was_read():
    raw = pod("p", schedulingGates=[{"name": "a"}, {"name": names.GATE}, {"name": "b"}])
    raw["metadata"] |= {"uid": "u", "resourceVersion": "7"}
    assert patches.lift_gate(msgspec.convert(raw, Pod, strict=False)) == {
        "metadata": {"uid": "u", "resourceVersion": "7"},
        "spec": {"schedulingGates": [{"name": "a"}, {"name": "b"}]},
    }
    raw["spec"]["schedulingGates"] = [{"name": names.GATE}]
    assert patches.lift_gate(msgspec.convert(raw, Pod, strict=False))["spec"] == {"schedulingGates": None}
