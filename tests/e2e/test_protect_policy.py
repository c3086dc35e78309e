"""Generated claims of managed classes are created with the finalizer (manifests/protect-policy.yaml), on a real API server."""

import pytest

from tests.e2e.lab import allocated_by, is_gone
from tests.e2e.objects import claim, part, pod, template

pytestmark = pytest.mark.on_1_36

PROTECTION = "resource.kubernetes.io/delete-protection"
HELD_BACK = [{"name": "example.com/later"}]


def test_claims_of_pods_are_protected_from_the_start(lab):
    """Also one that is never allocated, which goes with its pod."""
    lab.create(template("ours", part("1Gi")), template("theirs", part("1Gi", device_class="example")))
    lab.create(claim("mine", part("1Gi")))
    lab.create(pod("p", templates=["ours", "theirs"], claims=["mine"], gated=False, schedulingGates=HELD_BACK))
    lab.hami.wait_for("the generated claims", lambda: len(lab.claims()) == 3)
    protected = {
        item["metadata"].get("annotations", {}).get("resource.kubernetes.io/pod-claim-name", ""): PROTECTION
        in item["metadata"].get("finalizers", ())
        for item in lab.claims()
    }
    assert sorted(protected.values()) == [False, False, True]
    assert protected[""] is False, "a claim that a user made"
    [ours] = [item for item in lab.claims() if item["metadata"].get("finalizers")]
    assert ours["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"].endswith("hami.io")
    assert not allocated_by(ours)
    lab.delete_pod("p", gracePeriodSeconds=0)
    path = f"{lab.claims_path}/{ours['metadata']['name']}"
    lab.hami.wait_for("the claim to be gone", lambda: is_gone(lab.api, path))
