"""Kubernetes objects of gangs for tests: PodGroups of every API that hami-dra reads, and how a pod becomes a member.

Plain dicts, as tests/e2e/objects.py. Field names are those that the API servers of hack/controlplane serve
(test_gang_objects.py creates each kind there); of projects that no test installs, those of their sources.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

Object = dict[str, Any]

POD_GROUP_API: Final = {"1.37.1": "scheduling.k8s.io/v1beta1", "1.36.4": "scheduling.k8s.io/v1alpha2"}
"""Which API version of PodGroup a version of Kubernetes serves, where it is switched on."""
SCHEDULED_CONDITION: Final = {"1.37.1": "PodGroupInitiallyScheduled", "1.36.4": "PodGroupScheduled"}
"""The condition of a PodGroup that kube-scheduler writes."""
COSCHEDULING: Final = "scheduling.x-k8s.io/v1alpha1"

COSCHEDULING_LABEL: Final = "scheduling.x-k8s.io/pod-group"
NAME_LABEL: Final = "pod-group.scheduling.sigs.k8s.io/name"
MIN_AVAILABLE_LABEL: Final = "pod-group.scheduling.sigs.k8s.io/min-available"
KUEUE_LABEL: Final = "kueue.x-k8s.io/pod-group-name"
KUEUE_COUNT: Final = "kueue.x-k8s.io/pod-group-total-count"
REQUIRED_TOPOLOGY: Final = "kueue.x-k8s.io/podset-required-topology"
PREFERRED_TOPOLOGY: Final = "kueue.x-k8s.io/podset-preferred-topology"
VOLCANO_ANNOTATION: Final = "scheduling.k8s.io/group-name"
RACK: Final = "cloud.provider.com/topology-rack"
"""The label that Kueue's and KAI's examples use."""


def pod_group(
    name: str,
    min_count: int,
    *,
    version: str = "1.37.1",
    topology_key: str = "",
    claims: Sequence[Mapping[str, str]] = (),
    all_or_none_disrupted: bool = False,
    priority_class: str = "",
) -> Object:
    """Return a PodGroup with the gang policy, as the API of a version of Kubernetes spells it.

    `topology_key` needs TopologyAwareWorkloadScheduling. `claims` are entries of spec.resourceClaims, `{"name",
    "resourceClaimName" or "resourceClaimTemplateName"}`, and need DRAWorkloadResourceClaims; a pod of the group shares one
    by an entry of its own that is the same. Without its gate the API server drops a field in silence.
    """
    spec: Object = {"schedulingPolicy": {"gang": {"minCount": min_count}}}
    if topology_key:
        spec["schedulingConstraints"] = {"topology": [{"key": topology_key}]}
    if claims:
        spec["resourceClaims"] = [dict(claim) for claim in claims]
    if all_or_none_disrupted:
        spec["disruptionMode"] = "PodGroup" if version.startswith("1.36.") else {"all": {}}
    if priority_class:
        spec["priorityClassName"] = priority_class
    return {"apiVersion": POD_GROUP_API[version], "kind": "PodGroup", "metadata": {"name": name}, "spec": spec}


def in_pod_group(pod: Object, group: str) -> Object:
    """Return the pod as a member of a PodGroup of scheduling.k8s.io. The field is immutable."""
    return {**pod, "spec": {**pod["spec"], "schedulingGroup": {"podGroupName": group}}}


def coscheduling_group(name: str, min_member: int, *, timeout_seconds: int | None = None) -> Object:
    """Return a PodGroup of the coscheduling plugin; needs `COSCHEDULING_CRD`."""
    timeout = {} if timeout_seconds is None else {"scheduleTimeoutSeconds": timeout_seconds}
    spec = {"minMember": min_member, **timeout}
    return {"apiVersion": COSCHEDULING, "kind": "PodGroup", "metadata": {"name": name}, "spec": spec}


def in_coscheduling_group(pod: Object, group: str) -> Object:
    return labelled(pod, {COSCHEDULING_LABEL: group})


def in_labelled_group(pod: Object, group: str, min_available: int) -> Object:
    """Return the pod as a member by labels alone: no other object is needed."""
    return labelled(pod, {NAME_LABEL: group, MIN_AVAILABLE_LABEL: str(min_available)})


def in_kueue_group(pod: Object, group: str, total: int, *, queue: str = "") -> Object:
    """Return the pod as one of Kueue's plain-pod groups; all members must be there."""
    labels = {KUEUE_LABEL: group, **({"kueue.x-k8s.io/queue-name": queue} if queue else {})}
    return annotated(labelled(pod, labels), {KUEUE_COUNT: str(total)})


def in_leader_worker_set(pod: Object, name: str, *, group: int, worker: int, size: int) -> Object:
    """Return the pod as LeaderWorkerSet's webhook labels it; worker 0 is the leader.

    The controller writes a hash into group-key; only that it is the same for all of a group matters.
    """
    prefix = "leaderworkerset.sigs.k8s.io"
    labels = {
        f"{prefix}/name": name,
        f"{prefix}/group-index": str(group),
        f"{prefix}/worker-index": str(worker),
        f"{prefix}/group-key": f"{name}-{group}-key",
    }
    return annotated(labelled(pod, labels), {f"{prefix}/size": str(size)})


def in_volcano_group(pod: Object, group: str) -> Object:
    """Return the pod as Volcano's admission annotates it."""
    return annotated(pod, {VOLCANO_ANNOTATION: group})


def labelled(pod: Object, labels: Mapping[str, str]) -> Object:
    metadata = pod["metadata"]
    return {**pod, "metadata": {**metadata, "labels": {**metadata.get("labels", {}), **labels}}}


def annotated(pod: Object, annotations: Mapping[str, str]) -> Object:
    metadata = pod["metadata"]
    return {**pod, "metadata": {**metadata, "annotations": {**metadata.get("annotations", {}), **annotations}}}


def named(pod: Object, *names: str) -> list[Object]:
    """Return one pod like it under each name."""
    return [{**pod, "metadata": {**pod["metadata"], "name": name}} for name in names]


_COUNT: Final = {"type": "integer", "format": "int32"}
COSCHEDULING_CRD: Final[Object] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "podgroups.scheduling.x-k8s.io",
        # without it the API server takes no CRD of a group that ends with k8s.io
        "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/scheduler-plugins/pull/50"},
    },
    "spec": {
        "group": "scheduling.x-k8s.io",
        "scope": "Namespaced",
        "names": {
            "kind": "PodGroup",
            "listKind": "PodGroupList",
            "plural": "podgroups",
            "singular": "podgroup",
            "shortNames": ["pg", "pgs"],
        },
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "properties": {
                                    "minMember": {**_COUNT, "minimum": 1},
                                    "minResources": {
                                        "type": "object",
                                        "additionalProperties": {"x-kubernetes-int-or-string": True},
                                    },
                                    "scheduleTimeoutSeconds": _COUNT,
                                },
                            },
                            "status": {
                                "type": "object",
                                "properties": {
                                    "phase": {"type": "string"},
                                    "occupiedBy": {"type": "string"},
                                    "scheduled": _COUNT,
                                    "running": _COUNT,
                                    "succeeded": _COUNT,
                                    "failed": _COUNT,
                                    "scheduleStartTime": {"type": "string", "format": "date-time"},
                                },
                            },
                        },
                    }
                },
            }
        ],
    },
}
"""The CRD of the coscheduling plugin (scheduler-plugins v0.34.7), as far as tests need it."""

WHOLE_OR_HALF: Final = "type"
"""Attribute of the devices of `whole_or_halves`."""


def whole_or_halves(node: str, driver: str) -> list[Object]:
    """Return ResourceSlices of one GPU: taken whole, or as two halves (kubernetes#138765). The pool is called as the node."""
    counters = {"name": "gpu-0", "counters": {"halves": {"value": "2"}}}

    def device(name: str, kind: str, halves: int) -> Object:
        consumed = [{"counterSet": "gpu-0", "counters": {"halves": {"value": str(halves)}}}]
        return {"name": name, "attributes": {WHOLE_OR_HALF: {"string": kind}}, "consumesCounters": consumed}

    devices = [device("whole", "whole", 2), device("half-0", "half", 1), device("half-1", "half", 1)]
    parts: list[Object] = [{"sharedCounters": [counters]}, {"devices": devices}]
    return [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": f"{node}-{index}"},
            "spec": {
                "driver": driver,
                "nodeName": node,
                "pool": {"name": node, "generation": 1, "resourceSliceCount": len(parts)},
                **part,
            },
        }
        for index, part in enumerate(parts)
    ]


def prefers_whole(name: str, device_class: str, driver: str, *, kinds: Sequence[str] = ("whole", "half")) -> Object:
    """Return a ResourceClaimTemplate: rather the whole GPU than a half of `whole_or_halves`."""
    alternatives = [
        {
            "name": kind,
            "deviceClassName": device_class,
            "selectors": [{"cel": {"expression": f'device.attributes["{driver}"].{WHOLE_OR_HALF} == "{kind}"'}}],
        }
        for kind in kinds
    ]
    requests = [{"name": "gpu", "firstAvailable": alternatives}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": {"devices": {"requests": requests}}},
    }


VOLCANO_CRD: Final[Object] = {
    **COSCHEDULING_CRD,
    "metadata": {"name": "podgroups.scheduling.volcano.sh"},
    "spec": {
        **COSCHEDULING_CRD["spec"],
        "group": "scheduling.volcano.sh",
        "versions": [{**COSCHEDULING_CRD["spec"]["versions"][0], "name": "v1beta1"}],
    },
}
"""As far as hami-dra reads it; Volcano's own has more fields."""
