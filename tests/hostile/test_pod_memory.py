"""M4: what a tenant writes into a pod costs the controller next to nothing: annotations that nobody reads are dropped on reading."""

import gc
import json
import tracemalloc
import uuid

import pytest

from controller.inventory.inventory import Inventory
from controller.reconcile.runtime.clock import LoopClock
from controller.reconcile.runtime.informers import Informers
from controller.scoring.policies import InvalidPolicy, Packing, Policies
from controller.scoring.policy_resolution import resolve_policies
from hami_dra.api import kinds, names
from hami_dra.api.resource import ResourceClaim
from hami_dra.kube.decoding import read_object
from hami_dra.vendors.annotations import MOST_LENGTH, MOST_OF_TENANT, READ_ANNOTATIONS, TOO_LONG
from tests.support.steered_cluster import SteeredCluster

MUCH = 250 * 1024
PODS = 200
ANNOTATIONS = {
    "one that nobody reads": {"evil": "x" * MUCH},
    "many": {f"evil-{number}": "x" * 100 for number in range(MUCH // 110)},
    "one that is read": {"nvidia.com/use-gpuuuid": "x" * MUCH},
    "a converted request": {names.CONVERTED_REQUEST: "[" * MUCH},
}


def body(name, annotations):
    default = [
        {"key": f"node.kubernetes.io/{what}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
        for what in ("not-ready", "unreachable")
    ]
    pod = {
        "metadata": {
            "name": name, "namespace": "evil", "uid": f"6f9619ff-8b86-d011-b42d-{name:>012}", "resourceVersion": "5",
            "labels": {"app": "evil"}, "annotations": annotations,
        },
        "spec": {
            "schedulerName": "default-scheduler",
            "containers": [{"name": "main", "image": "pause", "resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}}}],
            "tolerations": default,
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpu"}],
        },
        "status": {"phase": "Pending"},
    }  # fmt: skip
    return json.dumps(pod).encode()


@pytest.mark.parametrize("annotations", ANNOTATIONS.values(), ids=ANNOTATIONS)
def test_a_pod_with_250_kib_of_annotations_costs_less_than_2_kib(annotations):
    """The lesser of two measurements, because a table of the whole process may happen to grow in one of them."""
    bodies = [body(str(number), annotations) for number in range(PODS)]
    assert min(memory_of(bodies) for _ in range(2)) / PODS < 2048


def memory_of(bodies):
    """Bytes that are kept of pods after reading them."""
    informers = Informers(SteeredCluster(), Inventory(), LoopClock(), None)
    gc.collect()
    tracemalloc.start()
    for text in bodies:
        pod, _ = read_object(kinds.POD, text)
        informers.pods.store.put(pod)
    gc.collect()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return used


def test_values_that_are_read_are_bounded_in_all_and_not_only_one_by_one():
    """Fifteen annotations of 16,000 characters: each is short enough, and a pod may have them all."""
    some = sorted(READ_ANNOTATIONS)[:15]
    pod, _ = read_object(kinds.POD, body("1", dict.fromkeys(some, "x" * 16_000)))
    assert sum(map(len, pod.metadata.annotations.values())) < MOST_OF_TENANT + 15 * len(TOO_LONG)
    some = ["nvidia.com/use-gputype", "nvidia.com/use-gpuuuid"]
    pod, _ = read_object(kinds.POD, body("1", dict.fromkeys(some, "x" * 5_000)))
    assert pod.metadata.annotations == {some[0]: "x" * 5_000, some[1]: TOO_LONG}


def test_what_only_other_objects_may_say_is_not_kept_of_a_pod():
    pod, _ = read_object(kinds.POD, body("1", {names.HELD_CLAIMS: "x" * 10_000, names.QUOTA_USED: "1"}))
    assert pod.metadata.annotations == {}


@pytest.mark.parametrize(
    "name", ["nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid", names.NODE_POLICY, names.DEVICE_POLICY]
)
def test_an_annotation_that_is_too_long_is_refused_by_name_and_not_ignored(name):
    pod, _ = read_object(kinds.POD, body("1", {name: "x" * (MOST_LENGTH + 1)}))
    assert pod.metadata.annotations == {name: TOO_LONG}
    with pytest.raises(InvalidPolicy, match=name):
        resolve_policies(pod, [ResourceClaim()], {}, {}, Policies())


def test_a_policy_is_short_and_a_list_of_cards_may_be_long():
    policies = {
        names.NODE_POLICY: max(names.NODE_POLICIES, key=len),
        names.DEVICE_POLICY: ", ".join(names.DEVICE_POLICIES),
        names.SCORING_WEIGHTS: "slot=999999999, core=999999999, memory=999999999",
        names.PACKING_WEIGHTS: ", ".join(f"{name}=0.123456789012345678" for name in Packing.__struct_fields__),
        "nvidia.com/use-gpuuuid": ",".join(f"GPU-{uuid.UUID(int=number)}" for number in range(150)),
    }
    pod, _ = read_object(kinds.POD, body("1", policies))
    assert pod.metadata.annotations == policies
    pod, _ = read_object(kinds.POD, body("1", dict.fromkeys(policies, "x" * 1_000)))
    assert [name for name, value in pod.metadata.annotations.items() if value != TOO_LONG] == ["nvidia.com/use-gpuuuid"]


def test_what_somebody_reads_is_kept():
    kept = {names.NODE_POLICY: "binpack", "nvidia.com/use-gpuuuid": "GPU-1", names.CONVERTED_REQUEST: "{}"}
    pod, _ = read_object(kinds.POD, body("1", {**kept, "kubectl.kubernetes.io/last-applied-configuration": "{}"}))
    assert pod.metadata.annotations == kept
