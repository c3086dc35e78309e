"""MetaX on a real control plane: the release notes' manifests in both forms, zones, QoS. Native mode: test_native.py."""

import pytest

from hack.controlplane.api import ApiError
from tests.e2e.lab import EXAMPLES
from tests.e2e.objects import claim, opaque, pod, request, template

C500 = "c500-8"
ZONES = ({0, 1, 2, 3}, {4, 5, 6, 7})
FORMS = {
    "legacy.yaml": ("gpu-binpack", "gpu-spread", "sgpu", "sgpu-of-another-qos"),
    "claims.yaml": ("gpu-binpack-by-claim", "gpu-spread-by-claim", "sgpu-by-claim", "sgpu-of-another-qos-by-claim"),
}
QOS = "metax-tech.com/sgpu-qos-policy"


def numbers(placement):
    return {int(device.partition("/gpu-")[2]) for device in placement.devices}


def sgpu(name, qos=None, *, cores=20, count=1, **more):
    limits = {"metax-tech.com/sgpu": str(count), "metax-tech.com/vcore": str(cores), "metax-tech.com/vmemory": "4"}
    return pod(name, annotations={QOS: qos} if qos else {}, resources={"limits": limits}, **more)


def allocated(lab, pod_name):
    """Devices of the claim that was generated for a pod."""
    (found,) = [
        item["status"]["allocation"]["devices"]
        for item in lab.claims()
        if [owner["name"] for owner in item["metadata"].get("ownerReferences", ())] == [pod_name]
    ]
    return found


def qos_of(lab, name):
    """What the allocation tells the driver."""
    return allocated(lab, name)["config"][-1]["opaque"]["parameters"]["qos"]


@pytest.mark.parametrize("form", FORMS)
def test_the_manifests_of_the_release_notes(lab, form):
    lab.machines(C500, "c500")
    lab.apply_file(EXAMPLES / "metax" / form)
    one, four, shared, other = FORMS[form]
    lab.wait_running(names=FORMS[form])
    assert len(numbers(lab.placement(one))) == 1
    assert numbers(lab.placement(four)) in ZONES
    assert numbers(lab.placement(shared)).isdisjoint(numbers(lab.placement(other)))
    assert (qos_of(lab, shared), qos_of(lab, other)) == ("best-effort", "fixed-share")
    (result,) = allocated(lab, shared)["results"]
    assert result["consumedCapacity"] == {"cores": "60", "memory": "4Gi", "shares": "1"}
    assert {lab.bound_by(name) for name in FORMS[form]} == {"default-scheduler"}
    assert lab.overcommitted() == []


def test_a_card_keeps_the_qos_of_its_first_tenant(lab):
    """By legacy annotation, by the claim's own parameters, and after the first tenant is gone."""
    lab.machines(C500, "c500")
    only = {"metax-tech.com/use-gpuuuid": "c500-metax-5"}
    first, same, other = sgpu("first", "burst-share"), sgpu("same", "burst-share"), sgpu("other", "fixed-share")
    for each in (first, same, other):
        each["metadata"]["annotations"].update(only)
    lab.create(first)
    lab.wait_running(names=["first"])
    parameters = opaque("metax.hami.io", apiVersion="hami.io/v1alpha1", kind="DeviceConfig", qos="burst-share")
    asked = request(device_class="metax-sgpu.hami.io", memory="4Gi", cores="20")
    lab.create(claim("burst", asked, config=[parameters]), pod("by-claim", claims=["burst"], annotations=only))
    lab.create(same, other)
    lab.wait_running(names=["first", "same", "by-claim"])
    assert {frozenset(numbers(lab.placement(name))) for name in ("first", "same", "by-claim")} == {frozenset({5})}
    lab.wait_event("other", "FilteringFailed", "CardQosPolicyMismatch")
    for name in ("first", "same", "by-claim"):
        lab.delete_pod(name)
    lab.wait_running(names=["other"])
    assert qos_of(lab, "other") == "fixed-share"
    assert lab.overcommitted() == []


@pytest.mark.parametrize(("policy", "where"), [("binpack", "a"), ("spread", "b")])
def test_whole_cards_by_least_loss_or_best_topology(lab, policy, where):
    """ "a" has one card of each zone left, "b" all but one of each."""
    for name in ("a", "b"):
        lab.machines(C500, name)
    for name, cards in (("a", (0, 1, 2, 4, 5, 6)), ("b", (0, 4))):
        lists = {"metax-tech.com/use-gpuuuid": ",".join(f"{name}-metax-{card}" for card in cards)}
        limits = {"metax-tech.com/gpu": str(len(cards))}
        lab.create(pod(f"holds-{name}", annotations=lists, resources={"limits": limits}))
    lab.wait_running(names=["holds-a", "holds-b"])
    annotations = {"hami.io/node-scheduler-policy": policy}
    lab.create(template("two", request(device_class="metax-gpu.hami.io", count=2)))
    lab.create(pod("pair", templates=["two"], annotations=annotations))
    lab.wait_running(names=["holds-a", "holds-b", "pair"])
    found = lab.placement("pair")
    assert (found.node, numbers(found)) == (("a", {3, 7}) if where == "a" else ("b", {1, 2}))


def test_a_qos_that_is_none_is_refused_at_the_door(lab):
    lab.machines(C500, "c500")
    with pytest.raises(ApiError, match=r"must be set one of \[best-effort, fixed-share, burst-share\]"):
        lab.create(sgpu("p", "gold"))
