"""Quotas for cards on a real control plane: who is refused and when, how usage shows, and what Kubernetes counts by itself.

The last part holds facts about Kubernetes that docs/quota.md tells: should a later release change them, it must be told anew.
"""

import json
import subprocess

import pytest

from hack.controlplane import build
from hack.controlplane.api import ApiError
from tests.e2e.lab import T4
from tests.e2e.objects import claim, legacy_pod, part, pod, request, template
from tests.e2e.observe import allocations, amount

MIB = 1 << 20
GPU, GPUMEM = "limits.nvidia.com/gpu", "limits.nvidia.com/gpumem"
VGPU_DEVICES = "nvidia-vgpu.hami.io.deviceclass.resource.k8s.io/devices"


def quota_of(hard, name="q", **spec):
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": name},
        "spec": {"hard": {key: str(most) for key, most in hard.items()}, **spec},
    }


@pytest.fixture
def quotas(lab):
    """`lab` with one node of four T4 (15,360 MiB each) and quotas that go with the test."""
    lab.machines(T4, "n1")
    lab.quotas_path = f"/api/v1/namespaces/{lab.namespace}/resourcequotas"
    yield lab
    lab.api.delete(lab.quotas_path)


def read(lab, name="q"):
    return lab.api.get(f"{lab.quotas_path}/{name}")


def used(lab):
    return sum(amount(result["consumedCapacity"]["memory"]) // MIB for _, result in allocations(lab.claims()))


def wait_used(lab, expected, name="q"):
    def reported():
        text = read(lab, name)["metadata"].get("annotations", {}).get("hami.io/quota-used")
        return text is not None and json.loads(text) == expected

    lab.hami.wait_for(f"quota {name} to show {expected}", reported)


def wait_native(lab, name, key, most):
    """Kubernetes' own count of a quota is ready: its controller has seen the quota."""
    lab.hami.wait_for(
        f"quota {name} to count {key}", lambda: read(lab, name).get("status", {}).get("used", {}).get(key) == most
    )


def test_a_pod_over_the_quota_waits_is_told_so_and_runs_when_another_goes(quotas):
    lab = quotas
    lab.create(quota_of({GPU: 3, GPUMEM: 8000}))
    lab.create(legacy_pod("first", gpu=2, gpumem=3000))
    lab.wait_running(names=["first"])
    lab.create(legacy_pod("second", gpu=1, gpumem=3000))
    note = lab.wait_event("second", "FilteringFailed", "1 node ResourceQuotaNotFit")
    assert f"needs 3000 MiB of {GPUMEM.removeprefix('limits.')}" in note
    assert f"ResourceQuota {lab.namespace}/q allows 8000 MiB of {GPUMEM}, of which 6000 are used" in note
    wait_used(lab, {GPU: "2", GPUMEM: "6000"})
    kubectl = [build.ensure("kubectl") / "kubectl", "--kubeconfig", lab.plane.admin_kubeconfig, "-n", lab.namespace]
    shown = subprocess.run([*kubectl, "get", "quota", "q", "-o", "yaml"], capture_output=True, text=True, check=True)
    assert 'hami.io/quota-used: \'{"limits.nvidia.com/gpu":"2","limits.nvidia.com/gpumem":"6000"}\'' in shown.stdout
    lab.delete_pod("first")
    lab.wait_running(names=["second"])
    wait_used(lab, {GPU: "1", GPUMEM: "3000"})


def test_a_raised_quota_lets_the_pod_in(quotas):
    lab = quotas
    lab.create(quota_of({GPUMEM: 1000}))
    lab.create(template("t", part("2000Mi")), pod("p", templates=["t"]))
    lab.wait_event("p", "FilteringFailed", "ResourceQuotaNotFit")
    lab.api.patch(f"{lab.quotas_path}/q", {"spec": {"hard": {GPUMEM: "2000"}}})
    lab.wait_running(names=["p"])


def test_many_pods_at_once_take_what_the_quota_allows_and_no_more(quotas):
    """Ten pods of 1,000 MiB, old manifests and claims mixed, against 4,500."""
    lab = quotas
    lab.create(quota_of({GPUMEM: 4500}))
    lab.create(template("t", part("1000Mi")))
    pods = [legacy_pod(f"a{n}", gpu=1, gpumem=1000) for n in range(5)]
    lab.create(*pods, *(pod(f"b{n}", templates=["t"]) for n in range(5)))
    lab.hami.wait_for(
        "four pods run", lambda: len([p for p in lab.pods() if p["status"].get("phase") == "Running"]) == 4
    )
    wait_used(lab, {GPUMEM: "4000"})
    waiting = [each["metadata"]["name"] for each in lab.pods() if not each["spec"].get("nodeName")]
    for name in waiting:
        lab.wait_event(name, "FilteringFailed", "ResourceQuotaNotFit")
    assert used(lab) == 4000
    assert len(waiting) == 6


def test_a_pod_that_can_never_fit_comes_in_and_its_events_say_why(quotas):
    """To refuse it at once is for a webhook that nobody but the API server reaches: test_webhook.py."""
    lab = quotas
    lab.create(quota_of({GPU: 2, GPUMEM: 3000}, "team"))
    lab.create(legacy_pod("big", gpu=2, gpumem=2000))
    lab.wait_event("big", "FilteringFailed", f"ResourceQuota {lab.namespace}/team allows 3000 MiB of {GPUMEM}")


# -- what Kubernetes does by itself --------------------------------------------------------------------------------------


def test_kubernetes_accepts_our_keys_and_counts_nothing_for_them(quotas):
    lab = quotas
    hard = {GPU: 1, GPUMEM: 16000, "limits.nvidia.com/gpucores": 150, "pods": 10}
    lab.create(quota_of(hard), quota_of({GPU: 1}, "scoped", scopes=["BestEffort"]))
    assert read(lab)["spec"]["hard"][GPUMEM] == "16k"
    wait_native(lab, "q", "pods", "0")
    lab.create(legacy_pod("p", gpu=1, gpumem=1000))
    lab.wait_running(names=["p"])
    wait_native(lab, "q", "pods", "1")
    assert set(read(lab)["status"]["used"]) == {"pods"}
    # nor does it hold them against a pod that nobody converts
    lab.create(legacy_pod("theirs", gpu=3, labels={"hami.io/webhook": "ignore"}))


def test_the_quota_of_kubernetes_for_classes_holds_beside_ours(quotas):
    """It counts claims when they are made, by class, whatever their size; ours counts cards when they are given."""
    lab = quotas
    lab.create(quota_of({VGPU_DEVICES: 2}, "native"), quota_of({GPUMEM: 1500}, "ours"))
    wait_native(lab, "native", VGPU_DEVICES, "0")
    lab.create(legacy_pod("a", gpu=1, gpumem=1000))
    lab.wait_running(names=["a"])
    lab.create(legacy_pod("b", gpu=1, gpumem=1000))
    lab.wait_event("b", "FilteringFailed", "ResourceQuotaNotFit")
    wait_native(lab, "native", VGPU_DEVICES, "2")
    lab.create(legacy_pod("c", gpu=1, gpumem=100))
    lab.wait_event("c", "InvalidClaim", "exceeded quota: native")
    with pytest.raises(ApiError, match="exceeded quota: native"):
        lab.create(claim("by-hand", part("100Mi")))
    lab.delete_pod("b")
    lab.wait_running(names=["a", "c"])


def test_requests_of_an_extended_resource_count_claims_of_its_class(quotas):
    """`requests.nvidia.com/gpu`: Kubernetes counts claims for whole cards, converted pods' among them; parts of cards not."""
    lab = quotas
    key = "requests.nvidia.com/gpu"
    lab.create(quota_of({key: 1}, "native"))
    wait_native(lab, "native", key, "0")
    lab.create(legacy_pod("part", gpu=1, gpumem=1000), legacy_pod("whole", gpu=1))
    lab.wait_running(names=["part", "whole"])
    wait_native(lab, "native", key, "1")
    with pytest.raises(ApiError, match="exceeded quota: native"):
        lab.create(claim("by-hand", request(device_class="nvidia-gpu.hami.io")))
