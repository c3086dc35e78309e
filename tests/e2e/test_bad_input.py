"""Bad input, one kind after the other: an event or an answer that names object, field and fix, and the others go on.

After each piece of bad input, and among all of it at once, a good pod must be placed.
"""

import json

import pytest

from hack.controlplane.api import ApiError
from hack.installation import DRIVER
from tests.e2e.lab import EVENTS, T4
from tests.e2e.objects import (
    DEVICE_POLICY,
    NODE_POLICY,
    claim,
    device_class,
    legacy_pod,
    part,
    pod,
    request,
    template,
)

WEIGHTS = "hami.io/device-scoring-weights"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"


@pytest.fixture
def ward(lab):
    """One node, and a template for pods that are all right."""
    lab.machines(T4, "t4")
    lab.create(template("good", part("1Gi")))
    return lab


def place_a_good_one(lab, name="good"):
    lab.create(pod(name, templates=["good"]))
    lab.wait_running(names=[name])
    assert lab.overcommitted() == []


def described(lab, stored):
    """The Warning events about exactly this object, as events.k8s.io has them."""
    about = {"kind": stored["kind"], "name": stored["metadata"]["name"], "uid": stored["metadata"]["uid"]}
    found = lab.api.list(EVENTS.format(lab.namespace), fieldSelector="type=Warning")
    return [each for each in found if about.items() <= each["regarding"].items()]


def as_kubectl_describes(lab, stored):
    """The messages that `kubectl describe` would print, asked for as it asks: in the core API, by the involved object."""
    metadata = stored["metadata"]
    about = {"kind": stored["kind"], **{key: metadata[key] for key in ("name", "namespace", "uid")}}
    selector = ",".join(f"involvedObject.{key}={value}" for key, value in about.items())
    events = lab.api.list(f"/api/v1/namespaces/{lab.namespace}/events", fieldSelector=selector)
    return [event["message"] for event in events]


def wait_described(lab, stored, reason, *words):
    """Waits for a Warning of that reason with all these words in its note; returns the note."""

    def found():
        notes = [each["note"] for each in described(lab, stored) if each["reason"] == reason]
        return next((note for note in notes if all(word in note for word in words)), None)

    return lab.hami.wait_for(f"{reason} about {stored['metadata']['name']}: {words}", found)


# --- pods that cannot be placed as they are --------------------------------------------------------------------------

MISSING_ATTRIBUTE = 'device.attributes["hami.io"].colour == "red"'


def annotated(key, value):
    return [pod("bad", templates=["good"], annotations={key: value})]


def asking(*requests, **devices):
    return [template("bad", *requests, **devices), pod("bad", templates=["bad"])]


def percent(value):
    parameters = {"apiVersion": "hami.io/v1alpha1", "kind": "DeviceConfig", "memoryPercent": value}
    return [{"opaque": {"driver": DRIVER, "parameters": parameters}}]


# What is applied, the last of it the pod; the reason of the event; what its note must say.
BAD_PODS = {
    "weight that is no number": (
        annotated(WEIGHTS, "slot=many,core=1,memory=1"),
        "InvalidPolicy",
        ["Pod {ns}/bad", f"annotation {WEIGHTS}", "'slot=many,core=1,memory=1'", "slot must be an integer from 0"],
    ),
    "negative weight": (
        annotated(WEIGHTS, "slot=1,core=-1,memory=1"),
        "InvalidPolicy",
        ["Pod {ns}/bad", f"annotation {WEIGHTS}", "core must be an integer from 0"],
    ),
    "unknown node policy": (
        annotated(NODE_POLICY, "binpak"),
        "InvalidPolicy",
        ["Pod {ns}/bad", f"annotation {NODE_POLICY}", "'binpak' is not one of binpack, spread, fair-share"],
    ),
    "unknown device policy of a template": (
        [template("bad", part(), annotations={DEVICE_POLICY: "spread,best"}), pod("bad", templates=["bad"])],
        "InvalidPolicy",
        [
            "ResourceClaimTemplate {ns}/bad",
            f"annotation {DEVICE_POLICY}",
            "'spread,best' is not one of spread, binpack",
        ],
    ),
    "unknown policy of a class": (
        [
            device_class("bad", f'device.driver == "{DRIVER}"', annotations={NODE_POLICY: ""}),
            *asking(part(device_class="bad")),
        ],
        "InvalidPolicy",
        ["DeviceClass bad", f"annotation {NODE_POLICY}", "'' is not one of"],
    ),
    "class that does not exist": (
        asking(part(device_class="nowhere")),
        "FilteringFailed",
        ["ResourceClaim {ns}/bad-", "request gpu", "DeviceClass nowhere does not exist", "change deviceClassName"],
    ),
    "selector of a claim that fails": (
        asking(part(selector=MISSING_ATTRIBUTE)),
        "FilteringFailed",
        [
            "ResourceClaim {ns}/bad-",
            "request gpu: selectors[0]",
            f"device {DRIVER}/t4/gpu-",
            "no such key: colour",
            "has(",
        ],
    ),
    "selector of a class that fails": (
        [device_class("bad", MISSING_ATTRIBUTE), *asking(part(device_class="bad"))],
        "FilteringFailed",
        ["DeviceClass bad: spec.selectors[0]", f"device {DRIVER}/t4/gpu-", "no such key: colour", "has("],
    ),
    "parameters out of range": (
        asking(request(cores="0"), config=percent(200)),
        "FilteringFailed",
        ["ResourceClaim {ns}/bad-", "config[0].opaque.parameters", "memoryPercent", "100"],
    ),
    "more devices than a claim can hold": (
        asking(request(count=33)),
        "FilteringFailed",
        ["ResourceClaim {ns}/bad-", "request gpu: 33 devices", "32", "ask for fewer"],
    ),
}


@pytest.mark.parametrize(("items", "reason", "words"), BAD_PODS.values(), ids=BAD_PODS)
def test_an_event_says_what_is_wrong_and_others_go_on(ward, items, reason, words):
    lab = ward
    bad = lab.create(*items)
    note = wait_described(lab, bad, reason, *(word.format(ns=lab.namespace) for word in words))
    (event,) = (each for each in described(lab, bad) if each["note"] == note)
    assert event["reportingController"] == "hami.io/controller"
    assert event["regarding"]["apiVersion"] == "v1"
    assert event["action"]
    assert note in as_kubectl_describes(lab, bad)
    place_a_good_one(lab)
    assert "nodeName" not in lab.pod("bad")["spec"]


def test_a_negative_amount_is_the_smallest_part_as_for_kube_scheduler(ward):
    """The API server lets it in, and the requestPolicy of the card rounds it up: nobody gains by it."""
    lab = ward
    lab.create(*asking(part("-4Gi", cores="-50")))
    (placed,) = lab.wait_running(names=["bad"])
    assert placed.memory == [1 << 20]
    place_a_good_one(lab)


# --- what the API server or the webhook does not let in --------------------------------------------------------------

REFUSED = {
    "gpumem with a unit": (
        legacy_pod("bad", gpu=1, gpumem="16Gi"),
        ["Pod {ns}/bad", 'container "main"', "resources.limits[\"nvidia.com/gpumem\"] is '16Gi'", 'write "16384"'],
    ),
    "negative gpumem": (
        legacy_pod("bad", gpu=1, gpumem=-7500),
        ["Pod {ns}/bad", 'resources.limits["nvidia.com/gpumem"]', "write a whole number from 0 to"],
    ),
    "negative count": (
        legacy_pod("bad", gpu=-1),
        ["Pod {ns}/bad", 'resources.limits["nvidia.com/gpu"]', "it counts cards: write a whole number from 0 to 32"],
    ),
    "percentage above 100": (
        legacy_pod("bad", gpu=1, **{"gpumem-percentage": 101}),
        ["Pod {ns}/bad", 'resources.limits["nvidia.com/gpumem-percentage"]', "write a whole number from 0 to 100"],
    ),
    "unknown priority": (
        legacy_pod("bad", gpu=1, priority=2),
        ["Pod {ns}/bad", 'resources.limits["nvidia.com/priority"]', "it is 0 (high) or 1 (low)"],
    ),
    "priority without a card": (
        legacy_pod("bad", priority=1),
        ["Pod {ns}/bad", 'resources.limits["nvidia.com/priority"]', "add nvidia.com/gpu: 1 or remove it"],
    ),
    "mode that no card has": (
        legacy_pod("bad", gpu=1, annotations={"nvidia.com/vgpu-mode": "mps"}),
        ["Pod {ns}/bad", "annotation nvidia.com/vgpu-mode: 'mps'", "Write hami-core"],
    ),
    "more cards than a claim can hold": (
        pod("bad", resources={"limits": {"nvidia.com/gpu": "33"}}),
        ["Pod {ns}/bad", "resources.limits[\"nvidia.com/gpu\"] is '33'", "from 0 to 32"],
    ),
    "selector that does not compile": (
        claim("bad", part(selector="device.driver ==")),
        ['"bad"', "spec.devices.requests[0].exactly.selectors[0].cel.expression", "Syntax error"],
    ),
    "selector of a class that is no condition": (
        device_class("bad", "device.driver"),
        ['"bad"', "spec.selectors[0].cel.expression", "must evaluate to bool"],
    ),
    "negative count of a claim": (
        claim("bad", request(count=-1)),
        ['"bad"', "spec.devices.requests[0].exactly.count", "must be greater than zero"],
    ),
}


@pytest.mark.parametrize(("item", "words"), REFUSED.values(), ids=REFUSED)
def test_an_answer_says_what_is_wrong(lab, item, words):
    with pytest.raises(ApiError) as refused:
        lab.create(item)
    assert refused.value.status == 422
    missing = [word for word in words if word.format(ns=lab.namespace) not in refused.value.message]
    assert missing == [], refused.value.message
    assert lab.pods() == lab.claims() == []


# --- slices that cannot be used as published -------------------------------------------------------------------------


def bad_slice(name, generation, *, count, devices=("gpu-0",)):
    """Of pool `bad` on node `bad`."""
    spec = {
        "driver": DRIVER,
        "nodeName": "bad",
        "pool": {"name": "bad", "generation": generation, "resourceSliceCount": count},
        "devices": [
            {"name": each, "allowMultipleAllocations": True, "capacity": {"memory": {"value": "15Gi"}}}
            for each in devices
        ],
    }
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}


def only_there(name="bad"):
    """A pod that could run on node `bad` alone."""
    return [template(name, part("1Gi", cores=None)), pod(name, templates=[name], nodeSelector={"bad": "yes"})]


@pytest.fixture
def bad_node(ward):
    ward.plane.nodes.create("bad", labels={"bad": "yes"})
    return ward


def test_slices_of_different_generations(bad_node):
    """The pool is unusable until all slices that it is to have are of the newest generation; the event names it."""
    lab = bad_node
    lab.create(bad_slice("one", 1, count=2), bad_slice("two", 2, count=2, devices=["gpu-1"]))
    waiting = lab.create(*only_there())
    wait_described(
        lab,
        waiting,
        "FilteringFailed",
        f"pool {DRIVER}/bad of node bad cannot be used",
        "spec.pool.resourceSliceCount is 2, slices of generation 2: 1",
        "its driver must publish it again",
    )
    place_a_good_one(lab)
    lab.api.patch(f"{SLICES}/one", {"spec": {"pool": {"generation": 2}}})
    (_, placed) = sorted(lab.wait_running(names=["bad", "good"]), key=lambda each: each.pod == "bad")
    assert placed.node == "bad"
    assert lab.overcommitted() == []


def test_a_device_twice_in_a_pool(bad_node):
    lab = bad_node
    lab.create(bad_slice("one", 1, count=2), bad_slice("two", 1, count=2))
    waiting = lab.create(*only_there())
    wait_described(
        lab,
        waiting,
        "FilteringFailed",
        "node bad has invalid resource pools",
        f"{DRIVER}/bad: duplicate device name gpu-0",
    )
    place_a_good_one(lab)


# --- everything at once ----------------------------------------------------------------------------------------------


def renamed(items, name):
    """The same under another name, so that all kinds of bad input are there at the same time."""
    text = json.dumps(items).replace('"bad"', f'"{name}"')
    return json.loads(text)


def test_good_pods_are_placed_among_all_of_it_by_a_controller_that_begins_with_it(bad_node):
    lab = bad_node
    controller = lab.hami.programs["controller"].process
    controller.stop()
    lab.create(bad_slice("one", 1, count=2), bad_slice("two", 2, count=2))
    reported = {}
    for number, (items, reason, _) in enumerate(BAD_PODS.values()):
        reported[number] = lab.create(*renamed(items, f"bad-{number}")), reason
    lab.create(pod("before", templates=["good"]))
    controller.start()
    lab.hami.wait_ready()
    lab.wait_running(names=["before"])
    for stored, reason in reported.values():
        wait_described(lab, stored, reason)
    place_a_good_one(lab, "after")
    assert {each.pod for each in lab.placements()} == {"before", "after"}
