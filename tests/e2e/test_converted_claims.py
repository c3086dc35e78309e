"""The claims of converted pods on a real control plane: no Warning on pods that then run, one claim for each, none left behind."""

import pytest

from tests.e2e.lab import T4
from tests.e2e.objects import deployment, legacy_pod

pytestmark = pytest.mark.on_1_36

_NEW_SHAPES = 50
_OF_ONE_SHAPE = 20


def warnings(lab):
    """Of all components; kube-scheduler's only where it did not try a pod before it saw the allocation."""
    others = [event for event in lab.events() if event["type"] == "Warning" and event["reason"] != "FailedScheduling"]
    return [f"{each['regarding']['name']}: {each['reason']}: {each['note']}" for each in others + lab.refusals()]


def test_no_warning_on_pods_that_then_run(lab):
    """A template would have to exist before its pod: kube-controller-manager reported 50 of 50 pods of new shapes."""
    lab.machines(T4, *(f"t4-{number}" for number in range(5)))
    lab.create(*(legacy_pod(f"new-{number}", gpu=1, gpumem=101 + number) for number in range(_NEW_SHAPES)))
    lab.create(*(legacy_pod(f"same-{number}", gpu=1, gpumem=500) for number in range(_OF_ONE_SHAPE)))
    lab.create(deployment("web", 10, legacy_pod(gpu=1, gpumem=200)))
    lab.wait_running(_NEW_SHAPES + _OF_ONE_SHAPE + 10, seconds=120)
    assert warnings(lab) == []
    owners = [claim["metadata"]["ownerReferences"][0]["uid"] for claim in lab.claims()]
    assert sorted(owners) == sorted(pod["metadata"]["uid"] for pod in lab.pods())
    lab.clear()


def test_a_claim_that_is_deleted_is_made_again_and_a_copied_pod_gets_its_own(lab):
    lab.create(legacy_pod("early", gpu=1, gpumem=100))
    claim = lab.api.wait_for("its claim", lambda: next(iter(lab.claims()), None))
    lab.api.delete(f"{lab.claims_path}/{claim['metadata']['name']}")
    pod = lab.pod("early")
    copied = {key: pod["metadata"][key] for key in ("labels", "annotations")}
    lab.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "copy", **copied}, "spec": pod["spec"]})
    lab.machines(T4, "t4")
    lab.wait_running(names=["early", "copy"])
    names = {name: lab.pod(name)["spec"]["resourceClaims"][0]["resourceClaimName"] for name in ("early", "copy")}
    assert {claim["metadata"]["name"] for claim in lab.claims()} == set(names.values())
    assert len(lab.claims()) == 2
