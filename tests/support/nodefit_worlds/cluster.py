"""Nodes, namespaces, and what objects were before."""

from __future__ import annotations

import copy
from collections import defaultdict

from tests.support.nodefit_worlds.draws import HOST, IMAGES, REGION, ZONE, ZONES, Draws, Json

_DECLARED = (
    "RestartAllContainersOnContainerExits",
    "UserNamespacesHostNetworkSupport",
    "VolumeBindMountOptions",
    "Other",
)


def node(draws: Draws, number: int) -> Json:
    name = f"n{number}"
    spec = {**_taints(draws)}
    status: Json = {"allocatable": _allocatable(draws), "conditions": [{"type": "Ready", "status": "True"}]}
    status["capacity"] = status["allocatable"]
    if draws.has("soft") and draws.maybe(0.6):
        status["images"] = [
            {
                "names": [image, *([f"mirror/{image}"] if draws.maybe(0.3) else [])],
                "sizeBytes": draws.one([5, 50, 300, 900, 4000]) << 20,
            }
            for image in draws.some(IMAGES, draws.one([1, 2]))
        ]
    if draws.has("features") and draws.maybe(0.7):
        status["declaredFeatures"] = sorted(draws.some(_DECLARED, draws.one([1, 2, 3])))
    metadata = {"name": name, "uid": f"uid-{name}", "labels": _labels(draws, name)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": metadata,
        **({"spec": spec} if spec else {}),
        "status": status,
    }


def _labels(draws: Draws, name: str) -> dict[str, str]:
    labels = {HOST: name, ZONE: draws.one(ZONES), REGION: draws.one(["r1", "r1", "r2"])}
    if draws.maybe(0.6):
        labels["disk"] = draws.one(["ssd", "hdd"])
    if draws.maybe(0.6):
        labels["gen"] = draws.one(
            ["1", "2", "3", "x", "", "03", "-2", "9223372036854775807", "9223372036854775808", "1.5"]
        )
    if draws.maybe(0.08):
        del labels[draws.one([ZONE, REGION, HOST])]
    if draws.maybe(0.03):
        labels[HOST] = "shared-host"
    if draws.maybe(0.05):
        # labels of old, which VolumeZone takes for the new ones
        labels["failure-domain.beta.kubernetes.io/zone"] = draws.one(ZONES)
    return labels


def _allocatable(draws: Draws) -> Json:
    tight = draws.has("resources", "resize")
    amounts = {
        "cpu": draws.one(["2", "4", "3500m", "2.5"]) if tight else "16",
        "memory": draws.one(["4Gi", "8Gi", "6G", "4294967297"]) if tight else "64Gi",
        "pods": draws.one(["2", "3", "110"]) if tight else "110",
        "ephemeral-storage": draws.one(["5Gi", "20Gi", "100Gi"]) if tight else "100Gi",
    }
    if tight and draws.maybe(0.5):
        amounts["example.com/fpga"] = draws.one(["0", "1", "2"])
    if tight and draws.maybe(0.3):
        amounts["hugepages-2Mi"] = draws.one(["0", "64Mi", "1Gi"])
    if draws.maybe(0.06):
        del amounts[draws.one(["ephemeral-storage", "pods", "cpu"])]
    return amounts


def _taints(draws: Draws) -> Json:
    themed = draws.has("taints")
    taints = []
    if draws.maybe(0.5 if themed else 0.04):
        effects = ["NoSchedule", "NoExecute", "PreferNoSchedule"]
        for key, effect in {
            (draws.one(["dedicated", "level"]), draws.one(effects)) for _ in range(draws.one([1, 1, 2]))
        }:
            taint = {"key": key, "effect": effect}
            if draws.maybe(0.9):
                taint["value"] = draws.one(["web", "5", "10"])
            taints.append(taint)
    taints.sort(key=lambda taint: (taint["key"], taint["effect"]))
    spec: Json = {}
    if draws.maybe(0.15 if themed else 0.03):
        spec["unschedulable"] = True
        if draws.maybe(0.7):
            taints.append({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"})
    if taints:
        spec["taints"] = taints
    return spec


def namespaces(draws: Draws) -> list[Json]:
    """Return all namespaces but `nowhere`, and sometimes one less."""
    wanted = {"red-1": {"team": "red"}, "blue-1": {"team": "blue"}, "bare": {}, "default": {}}
    if draws.maybe(0.3):
        wanted["default"] = {"team": "red"}
    if draws.maybe(0.05):
        del wanted["bare"]
    return [
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name, **labels}},
        }
        for name, labels in wanted.items()
    ]


def device_classes(draws: Draws) -> list[Json]:
    """Return a class that stands behind an extended resource: nodes without it may have it from devices."""
    if not (draws.has("resources") and draws.maybe(0.2)):
        return []
    spec = {"extendedResourceName": "example.com/fpga"}
    return [{"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "fpga"}, "spec": spec}]


def earlier_objects(draws: Draws, now: list[Json]) -> list[Json]:
    """Return some objects with the content of others of their kind, and some that are gone by now."""
    if draws.maybe(0.4):
        return []
    alike: dict[str, list[Json]] = defaultdict(list)
    for each in now:
        alike[each["kind"]].append(each)
    found = []
    for each in now:
        if draws.maybe(0.6):
            continue
        before = copy.deepcopy(draws.one(alike[each["kind"]]))
        name = each["metadata"]["name"] + ("-gone" if draws.maybe(0.2) else "")
        before["metadata"] |= {key: each["metadata"][key] for key in ("namespace", "uid") if key in each["metadata"]}
        before["metadata"]["name"] = name
        if name != each["metadata"]["name"]:
            before["metadata"]["uid"] = f"uid-{name}"
        found.append(before)
    draws.shuffle(found)
    return found
