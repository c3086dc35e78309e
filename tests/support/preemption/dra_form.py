"""A world with DRA devices in place of the extended resource: what hami-dra reads. Names stay as they are."""

from __future__ import annotations

import copy
from typing import Any, Final

from tests.support.preemption.model import CARD

Json = dict[str, Any]

_DRIVER: Final = "nvidia.hami.io"
_CLASS: Final = "nvidia-gpu.hami.io"
_ASKED: Final = "nvidia.com/gpu"
_MEMORY: Final = "16384Mi"


def in_dra_form(world: Json) -> list[Json]:
    """Return nodes, slices, pods that run with the claims that they hold, budgets, and the pod that waits, which is last."""
    world = copy.deepcopy(world)
    objects: list[Json] = []
    free: dict[str, list[int]] = {}
    for node in world["nodes"]:
        name, cards = node["metadata"]["name"], int(node["status"]["allocatable"][CARD])
        for room in (node["status"]["allocatable"], node["status"]["capacity"]):
            room.pop(CARD, None)
        free[name] = list(range(cards))
        objects += [node, _slice(name, cards)] if cards else [node]
    for pod in (*world["pods"], world["pod"]):
        (main,) = pod["spec"]["containers"]
        cards = int(main["resources"]["limits"].get(CARD, 0))
        for amounts in main["resources"].values():
            amounts.pop(CARD, None)
        node = pod["spec"].get("nodeName")
        if node is None:
            main["resources"]["limits"][_ASKED] = str(cards)
        elif cards:
            held = [free[node].pop(0) for _ in range(cards)]
            claim = _claim(pod, node, held)
            objects.append(claim)
            pod["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": claim["metadata"]["name"]}]
            main["resources"]["claims"] = [{"name": "gpu"}]
        objects.append(pod)
    waiting = objects.pop()
    return [*objects, *world["pdbs"], waiting]


def _slice(node: str, cards: int) -> Json:
    capacity = {
        "memory": _consumable(_MEMORY, validRange={"min": "1Mi", "max": _MEMORY, "step": "1Mi"}, default=_MEMORY),
        "cores": _consumable("100", validRange={"min": "0", "max": "100", "step": "1"}, default="0"),
        "shares": _consumable("10", validValues=["1"], default="1"),
    }
    devices = [
        {
            "name": f"gpu-{index}",
            "allowMultipleAllocations": True,
            "attributes": {
                "hami.io/uuid": {"string": f"GPU-{node}-{index}"},
                "hami.io/vendor": {"string": "nvidia"},
                "hami.io/productName": {"string": "T4"},
                "hami.io/index": {"int": index},
            },
            "capacity": capacity,
        }
        for index in range(cards)
    ]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": _DRIVER, "nodeName": node, "pool": pool, "devices": devices}
    meta = {"name": f"nvidia-{node}"}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": meta, "spec": spec}


def _consumable(value: str, **policy: Any) -> Json:
    return {"value": value, "requestPolicy": policy}


def _claim(pod: Json, node: str, cards: list[int]) -> Json:
    """The claim of a pod that runs, with these cards as a whole."""
    meta = pod["metadata"]
    number = int.from_bytes(meta["uid"].encode()[-12:], "big") * 2654435761 % (1 << 32)
    results = [
        {
            "request": "gpu",
            "driver": _DRIVER,
            "pool": node,
            "device": f"gpu-{index}",
            "shareID": f"{number:08x}-0000-4000-8000-{index:012d}",
            "consumedCapacity": {"memory": _MEMORY, "cores": "0", "shares": "1"},
        }
        for index in cards
    ]
    only_here = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    allocation = {
        "allocationTimestamp": "2026-01-01T00:00:00Z",
        "devices": {"results": results},
        "nodeSelector": {"nodeSelectorTerms": [only_here]},
    }
    request = {"name": "gpu", "exactly": {"deviceClassName": _CLASS, "count": len(cards)}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "name": f"{meta['name']}-gpu",
            "namespace": meta["namespace"],
            "uid": f"{meta['uid']}-gpu",
            "finalizers": ["resource.kubernetes.io/delete-protection"],
        },
        "spec": {"devices": {"requests": [request]}},
        "status": {
            "allocation": allocation,
            "reservedFor": [{"resource": "pods", "name": meta["name"], "uid": meta["uid"]}],
        },
    }
