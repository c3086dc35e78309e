"""A cluster on its way to DRA: on one node NVIDIA's device plugin still serves nvidia.com/gpu, on the other one the driver does.

Conversion is limited to namespaces with a label. The plugin's node has slices as well, and by its score it would be chosen:
what keeps claims off it is the plugin's offer alone.
"""

import secrets

import pytest

from hack.controlplane.api import ApiError
from hack.installation import QUICK
from tests.e2e.lab import T4, Lab
from tests.e2e.objects import claim, legacy_pod, part, pod, policies, request, template

PLUGIN, DRA = "a-plugin", "dra"  # ties go to the first by name
GPU = "nvidia.com/gpu"
COVERED = {"gpu": "hami"}
NAMESPACES = "/api/v1/namespaces"


@pytest.fixture(scope="module")
def hami(make_installation):
    installation = make_installation(namespace_selector="gpu=hami")
    installation.start_controller(*QUICK)
    installation.start_webhook()
    # readiness is asked in the default namespace
    installation.api.patch(f"{NAMESPACES}/default", {"metadata": {"labels": COVERED}})
    installation.wait_ready()
    installation.api.patch(f"{NAMESPACES}/default", {"metadata": {"labels": dict.fromkeys(COVERED)}})
    return installation


@pytest.fixture
def covered(lab):
    """Both nodes, and a namespace whose legacy pods are converted."""
    lab.machines(T4, PLUGIN, allocatable={GPU: "4"})
    lab.machines(T4, DRA)
    lab.api.patch(f"{NAMESPACES}/{lab.namespace}", {"metadata": {"labels": COVERED}})
    lab.hami.wait_for("the label seen", lambda: is_converted(dry_run(lab)))
    return lab


@pytest.fixture
def outside(covered):
    """A namespace without the label."""
    api, name = covered.api, f"{covered.namespace}-outside"
    api.create(NAMESPACES, {"metadata": {"name": name}})
    api.wait_for("its service account", lambda: api.get(f"{NAMESPACES}/{name}/serviceaccounts/default"))
    other = Lab(covered.plane, covered.hami, name)
    yield other
    other.clear()
    api.delete(f"{NAMESPACES}/{name}")


def dry_run(lab):
    return lab.api.create(lab.pods_path, legacy_pod(f"dry-{secrets.token_hex(4)}", gpu=1), dryRun="All")


def is_converted(item):
    return "resourceClaims" in item["spec"]


def is_unschedulable(item):
    conditions = item["status"].get("conditions", ())
    return any(each["type"] == "PodScheduled" and each.get("reason") == "Unschedulable" for each in conditions)


@pytest.mark.parametrize("node_policy", ["binpack", "spread"])
def test_every_pod_goes_where_it_is_served(covered, outside, node_policy):
    """By spread the plugin's empty node is best from the second pod on, by binpack from the first, by name."""
    names = [f"part-{number}" for number in range(4)]
    for name in names:
        covered.create(legacy_pod(name, gpu=1, gpumem=7500, annotations=policies(node_policy, "binpack")))
    covered.create(legacy_pod("whole", gpu=1, annotations=policies(node_policy, "binpack")))
    outside.create(legacy_pod("old", gpu=2))

    found = covered.wait_running(names=[*names, "whole"])
    assert {each.node for each in found} == {DRA}
    assert all(is_converted(item) for item in covered.pods())
    (old,) = outside.wait_running(names=["old"])
    assert (old.node, old.devices) == (PLUGIN, [])
    stored = outside.pod("old")
    assert not is_converted(stored)
    assert stored["spec"]["containers"][0]["resources"]["limits"] == {GPU: "2"}
    assert outside.claims() == []

    # the plugin has two left; kube-scheduler could serve the pod by DRA on the other node, but for the fence
    outside.create(legacy_pod("more", gpu=3))
    outside.api.wait_for("kube-scheduler's refusal", lambda: is_unschedulable(outside.pod("more")))
    assert outside.claims() == []
    assert covered.overcommitted() == []


def test_a_converted_pod_waits_rather_than_share_cards_with_the_plugin(covered):
    """Its event says why; when the plugin leaves the node, the driver's cards there are free to be given."""
    covered.create(legacy_pod("all", gpu=4))
    covered.wait_running(names=["all"])
    covered.create(legacy_pod("next", gpu=1, gpumem=1000))
    note = covered.wait_event("next", "FilteringFailed", "NodeOffersDevicePlugin")
    assert note.endswith("[1 node CardInsufficientMemory, 1 node NodeOffersDevicePlugin]")
    assert "allocation" not in next(item for item in covered.claims() if is_of(item, "next")).get("status", {})

    covered.plane.nodes.set_allocatable(PLUGIN, **{GPU: "0"})
    covered.wait_running(names=["all", "next"])
    assert covered.placement("next").node == PLUGIN
    assert covered.overcommitted() == []


def test_claims_that_users_wrote_keep_off_the_plugin_as_well(covered, outside):
    """In a namespace without conversion too, of a claim and of a template, whole cards and parts of them."""
    outside.create(claim("part", part()), template("whole", request()))
    outside.create(pod("a", claims=["part"]), *(pod(name, templates=["whole"]) for name in ("b", "c", "d")))
    placed = outside.wait_running(names=["a", "b", "c", "d"])
    assert {each.node for each in placed} == {DRA}
    outside.create(pod("next", templates=["whole"]))
    note = outside.wait_event("next", "FilteringFailed", "NodeOffersDevicePlugin")
    assert note.endswith("[1 node CardInsufficientMemory, 1 node NodeOffersDevicePlugin]")

    covered.plane.nodes.set_allocatable(PLUGIN, **{GPU: "0"})
    outside.wait_running(names=["a", "b", "c", "d", "next"])
    assert outside.placement("next").node == PLUGIN
    assert covered.overcommitted() == []


def is_of(stored, pod_name):
    return any(owner["name"] == pod_name for owner in stored["metadata"]["ownerReferences"])


def test_a_legacy_pod_that_cannot_be_converted_is_refused_only_where_conversion_holds(covered, outside):
    odd = {"gpu": 1, "gpumem": "-5"}
    with pytest.raises(ApiError, match=r"nvidia\.com/gpumem"):
        covered.create(legacy_pod("odd", **odd))
    outside.create(legacy_pod("old", gpu=1, annotations=policies("no-such", "policy")))
    (old,) = outside.wait_running(names=["old"])
    assert old.node == PLUGIN
