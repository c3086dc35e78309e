"""Small cluster objects for tests: nodes, cards, slices, classes, claims, pods. Every argument has a default."""

import msgspec

from hami_dra.api.core import Node, Pod
from hami_dra.api.resource import (
    AllocationResult,
    DeviceClass,
    ResourceClaim,
    ResourceClaimStatus,
    ResourceSlice,
)

DRIVER = "nvidia.hami.io"
CLASS = "nvidia-vgpu.hami.io"


def card(index, *, memory="16Gi", shares="10", cores="100", product="Tesla T4", **extra):
    """A shared card as our driver publishes it."""
    policy = {"memory": {"default": memory, "validRange": {"min": "0", "step": "1Mi", "max": memory}}}
    policy["cores"] = {"default": cores, "validRange": {"min": "0", "step": "1", "max": cores}}
    policy["shares"] = {"default": "1", "validValues": ["1"]}
    values = {"memory": memory, "cores": cores, "shares": shares}
    return {
        "name": f"gpu-{index}",
        "allowMultipleAllocations": True,
        "attributes": {
            "hami.io/productName": {"string": product},
            "hami.io/uuid": {"string": f"GPU-{index}"},
            "hami.io/index": {"int": index},
        },
        "capacity": {name: {"value": values[name], "requestPolicy": policy[name]} for name in values},
        **extra,
    }


def whole(index, **extra):
    """An exclusive device without capacities."""
    return {"name": f"dev-{index}", **extra}


def slice_of(node="n1", devices=(), *, name=None, driver=DRIVER, pool=None, generation=1, count=1, version="1", **spec):
    reach = {} if spec else {"nodeName": node}
    return msgspec.convert(
        {
            "metadata": {
                "name": name or f"{node}-{driver}",
                "uid": f"slice-{name or node}",
                "resourceVersion": version,
            },
            "spec": {
                "driver": driver,
                "pool": {"name": pool or node, "generation": generation, "resourceSliceCount": count},
                "devices": list(devices),
                **reach,
                **spec,
            },
        },
        ResourceSlice,
    )


def node(name="n1", *, labels=None, allocatable=None, unschedulable=False, taints=(), ready="True"):
    resources = {"cpu": "8", "memory": "64Gi", "pods": "110"} if allocatable is None else allocatable
    return msgspec.convert(
        {
            "metadata": {"name": name, "uid": f"node-{name}", "labels": labels or {}},
            "spec": {"unschedulable": unschedulable, "taints": list(taints)},
            "status": {"allocatable": resources, "conditions": [{"type": "Ready", "status": ready}]},
        },
        Node,
    )


def device_class(name=CLASS, expression=f'device.driver == "{DRIVER}"', **annotations):
    return msgspec.convert(
        {
            "metadata": {"name": name, "annotations": annotations},
            "spec": {"selectors": [{"cel": {"expression": expression}}]},
        },
        DeviceClass,
    )


def request(name="gpu", *, class_name=CLASS, count=1, selectors=(), **capacity):
    exactly = {"deviceClassName": class_name, "count": count, "allocationMode": "ExactCount"}
    exactly["selectors"] = [{"cel": {"expression": expression}} for expression in selectors]
    if capacity:
        exactly["capacity"] = {"requests": capacity}
    return {"name": name, "exactly": exactly}


def claim(name="claim", requests=None, *, namespace="default", allocation=None, uid=None, config=()):
    requests = [request(memory="1Gi", cores="0")] if requests is None else requests
    raw = {
        "metadata": {"name": name, "namespace": namespace, "uid": uid or f"claim-{name}", "resourceVersion": "1"},
        "spec": {"devices": {"requests": requests, "config": list(config)}},
    }
    found = msgspec.json.decode(msgspec.json.encode(raw), type=ResourceClaim)  # opaque parameters stay text
    return found if allocation is None else allocated(found, allocation)


def allocated(found, allocation):
    """The claim with an allocation (JSON)."""
    status = ResourceClaimStatus(allocation=msgspec.convert(allocation, AllocationResult, strict=False))
    return msgspec.structs.replace(found, status=status)


def pod(name="pod", *, namespace="default", labels=None, uid=None, phase="", annotations=None, **spec):
    spec.setdefault("containers", [{"name": "main"}])
    return msgspec.convert(
        {
            "metadata": {
                "name": name,
                "namespace": namespace,
                "uid": uid or f"pod-{name}",
                "labels": labels or {},
                "annotations": annotations or {},
            },
            "spec": spec,
            "status": {"phase": phase},
        },
        Pod,
    )
