"""A tenant reads no name, label or selector of another namespace in the events, conditions and decisions of its own pods."""

import json

import pytest

from controller.decide import decide
from hami_dra.api import kinds
from tests.support.harness import claim, gpu_slice, node, play, pod

SECRET = "falcon"
"""Part of everything that the other tenant writes."""
THEIRS = f"secret-{SECRET}"
ZONE = "topology.kubernetes.io/zone"
DISK = {"name": "d", "gcePersistentDisk": {"pdName": "shared-disk"}}
PORT = [{"name": "main", "image": "none", "ports": [{"hostPort": 8080, "containerPort": 80}], "resources": {}}]


def apart(selector, **more):
    term = {"topologyKey": ZONE, "labelSelector": selector, **more}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def together(selector, **more):
    return {"podAffinity": apart(selector, **more)["podAntiAffinity"]}


EVERYWHERE = {"namespaceSelector": {}}
MET = {
    "port": {"containers": PORT},
    "disk": {"volumes": [DISK]},
    "all-pods": {"affinity": apart({}, **EVERYWHERE)},
    "not-in": {"affinity": apart({"matchExpressions": [{"key": "x", "operator": "DoesNotExist"}]}, **EVERYWHERE)},
    "guessed-namespace": {"affinity": apart({}, namespaces=[THEIRS])},
    "together": {"affinity": together({"matchLabels": {"app": "nobody"}}, **EVERYWHERE)},
    "spread": {
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "nokey", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}
        ]
    },
    "their-terms": {"labels": {"app": "mine"}},
    "devices": {},
}
"""The pods of the tenant, by what refuses them."""


def theirs(name, **spec):
    body = pod(f"{SECRET}-{name}", nodeName="w0", **spec)
    body["metadata"] |= {"namespace": THEIRS, "labels": {f"{SECRET}-label": SECRET}}
    body["status"] = {"phase": "Running"}
    return body


async def story(harness):
    await harness.add(kinds.NODE, node("w0", labels={"kubernetes.io/hostname": "w0", ZONE: "a"}))
    await harness.add(kinds.RESOURCE_SLICE, gpu_slice("w0", cards=1))
    await harness.add(kinds.NAMESPACE, {"metadata": {"name": THEIRS, "labels": {"team": SECRET}}})
    values = [{"key": "app", "operator": "In", "values": ["mine", f"codename-{SECRET}"]}]
    for body in (
        theirs("web", containers=PORT),
        theirs("disk", volumes=[DISK]),
        theirs("apart", affinity=apart({"matchExpressions": values}, **EVERYWHERE)),
    ):
        await harness.add(kinds.POD, body)
    await harness.sleep(2)
    for name, spec in MET.items():
        labels = {"labels": spec["labels"]} if "labels" in spec else {}
        body = pod(name, claims=[name], **{key: value for key, value in spec.items() if key != "labels"})
        body["metadata"] |= labels
        await harness.add(kinds.RESOURCE_CLAIM, claim(name, 1 if name != "devices" else 3))
        await harness.add(kinds.POD, body)
    await harness.sleep(60)


@pytest.fixture(scope="module")
def read():
    """What a member of namespace `default` reads of each pod: events, conditions and decisions."""
    found: dict[str, str] = {}

    async def told(harness):
        await story(harness)
        for event in await harness.events():
            if event["metadata"]["namespace"] == "default":
                name = event["regarding"]["name"]
                found[name] = found.get(name, "") + json.dumps(event)
        for body in await harness.pods():
            if body.metadata.namespace == "default":
                found[body.metadata.name] = found.get(body.metadata.name, "") + str(body.status.conditions)
        log = harness.controller.decision_log
        for name in MET:
            found[name] += str(log.of_pod(f"default/{name}"))

    play(told, nodes=0, decide=decide, probe=False, quiet_time=0.0)
    return found


@pytest.mark.parametrize("name", MET)
def test_no_word_of_another_tenant_is_read(read, name):
    assert SECRET not in read[name]


@pytest.mark.parametrize("name", ["port", "disk", "all-pods", "their-terms"])
def test_a_pod_of_another_namespace_is_told_as_such(read, name):
    assert "a pod of another namespace" in read[name]
