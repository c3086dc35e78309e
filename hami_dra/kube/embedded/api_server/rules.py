"""Changes and checks that the API server makes before it stores an object, for the kinds used here.

Called by the memory cluster only. In: raw JSON objects. Out: the object to store; `Invalid` if the
API server would refuse it. Sources: Kubernetes 1.37
pkg/registry/resource/resourceclaim/strategy.go, pkg/apis/resource/validation,
pkg/apis/core/validation. Not modelled: content that nothing here relies on (syntax of names, CEL,
admin access, ports, volumes ...).
"""

import re
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Final

from hami_dra.api.kinds import Kind
from hami_dra.kube.protocol import Invalid

Raw = dict[str, Any]

MAX_RESERVED_FOR: Final = 256
MAX_RESULTS: Final = 32
_SHARE_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

_WITH_STATUS: Final = {
    "pods", "nodes", "namespaces", "resourceclaims", "resourcequotas", "services", "deployments", "replicasets",
    "statefulsets", "daemonsets", "jobs", "devicetaintrules", "poddisruptionbudgets",
}  # fmt: skip
_STATUS_KEPT_ON_CREATE: Final = {"nodes"}
_SERVER_FIELDS: Final = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation")
_MUTABLE_POD_SPEC: Final = {"schedulingGates", "tolerations", "activeDeadlineSeconds", "terminationGracePeriodSeconds"}
_MUTABLE_WHILE_GATED: Final = {"nodeSelector", "affinity"}


def merge_patch(target: Any, patch: Any) -> Any:
    """Return the result of an RFC 7386 merge patch.

    Objects merge, null removes, everything else (lists too) replaces.
    """
    if not isinstance(patch, Mapping):
        return deepcopy(patch)
    merged = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def apply_patch(target: Any, body: Any) -> Any:
    """Return the result of server-side apply without field ownership.

    Objects merge, lists replace, nothing is ever removed.
    """
    if not isinstance(body, Mapping) or not isinstance(target, Mapping):
        return deepcopy(body)
    merged = dict(target)
    for key, value in body.items():
        merged[key] = apply_patch(merged.get(key), value)
    return merged


def has_status(kind: Kind[Any]) -> bool:
    """Return whether `status` is a subresource, written only through it."""
    return kind.plural in _WITH_STATUS


def created(kind: Kind[Any], raw: Raw) -> Raw:
    """Return a new object with defaults and reset status, validated."""
    raw = without_nulls(raw)
    if has_status(kind) and kind.plural not in _STATUS_KEPT_ON_CREATE:
        raw.pop("status", None)
    match kind.plural:
        case "pods":
            _default_pod(raw)
        case "namespaces":
            raw["status"] = {"phase": "Active"}
        case "resourceclaims":
            _default_requests(raw.get("spec") or {})
        case "resourceclaimtemplates":
            _default_requests((raw.get("spec") or {}).get("spec") or {})
    return raw


def updated(kind: Kind[Any], old: Raw, new: Raw, subresource: str) -> Raw:
    """Return what an update stores. Server-owned fields and the other half (spec or status) come from `old`."""
    if new["metadata"].get("name") != old["metadata"]["name"]:
        raise Invalid(f"metadata.name of {kind.name} {old['metadata']['name']} is immutable")
    if subresource == "status":
        result = {**old, "status": without_nulls(new.get("status") or {})}
    else:
        result = without_nulls(new)
        if has_status(kind):
            result["status"] = old.get("status")
            if result["status"] is None:
                del result["status"]
        result["metadata"] = _updated_metadata(kind, old["metadata"], result["metadata"])
    _drop_empty(result)
    match kind.plural:
        case "pods":
            _check_pod_update(old, result)
        case "resourceclaims":
            _check_claim_update(old, result)
        case "resourceslices":
            _check_slice_update(old, result)
    if subresource != "status" and result.get("spec") != old.get("spec"):
        result["metadata"] = {**result["metadata"], "generation": old["metadata"].get("generation", 1) + 1}
    return result


def without_nulls(value: Any) -> Any:
    """Return a deep copy without null members: a typed server never stores them."""
    if isinstance(value, Mapping):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list | tuple) else value


def _updated_metadata(kind: Kind[Any], old: Raw, new: Raw) -> Raw:
    result = {key: value for key, value in new.items() if key not in _SERVER_FIELDS}
    result |= {key: old[key] for key in (*_SERVER_FIELDS, "resourceVersion", "namespace") if key in old}
    added = set(new.get("finalizers") or ()) - set(old.get("finalizers") or ())
    if "deletionTimestamp" in old and added:
        raise Invalid(
            f"metadata.finalizers of {kind.name} {old['name']}: no new finalizers can be added if the object is being "
            f"deleted, found new finalizers {sorted(added)}"
        )
    return result


def _drop_empty(raw: Raw) -> None:
    """Drop what `omitempty` drops, in places that patches can empty.

    Otherwise a no-op patch would count as a change.
    """
    raw["metadata"] = {
        key: value
        for key, value in raw["metadata"].items()
        if value or key not in ("finalizers", "ownerReferences", "labels", "annotations")
    }
    for half in ("spec", "status"):
        if isinstance(raw.get(half), dict):
            empty = [key for key in ("schedulingGates", "reservedFor", "devices", "taints") if raw[half].get(key) == []]
            if empty:
                raw[half] = {key: value for key, value in raw[half].items() if key not in empty}


def _default_pod(raw: Raw) -> None:
    spec = raw.setdefault("spec", {})
    spec.setdefault("schedulerName", "default-scheduler")
    if spec.get("schedulingGates") and spec.get("nodeName"):
        raise Invalid("spec.nodeName cannot be set until all schedulingGates have been cleared")
    for container in [*spec.get("containers", ()), *spec.get("initContainers", ())]:
        resources = container.get("resources") or {}
        if resources.get("limits"):
            resources["requests"] = {**resources["limits"], **(resources.get("requests") or {})}
    raw["status"] = {"phase": "Pending"}
    if spec.get("schedulingGates"):
        raw["status"]["conditions"] = [
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": "SchedulingGated",
                "message": "Scheduling is blocked due to non-empty scheduling gates",
            }
        ]


def _default_requests(spec: Raw) -> None:
    for request in (spec.get("devices") or {}).get("requests") or ():
        for preferences in [request.get("exactly"), *(request.get("firstAvailable") or ())]:
            if isinstance(preferences, dict):
                preferences.setdefault("allocationMode", "ExactCount")
                if preferences["allocationMode"] == "ExactCount":
                    preferences["count"] = preferences.get("count") or 1


def _check_pod_update(old: Raw, new: Raw) -> None:
    before, after = old.get("spec") or {}, new.get("spec") or {}
    if before == after:
        return
    gates_before = [gate["name"] for gate in before.get("schedulingGates") or ()]
    gates_after = [gate["name"] for gate in after.get("schedulingGates") or ()]
    if set(gates_after) - set(gates_before):
        raise Invalid(
            f"spec.schedulingGates of pod {old['metadata']['name']}: only deletion is allowed, "
            f"but found new scheduling gates {sorted(set(gates_after) - set(gates_before))}"
        )
    mutable = _MUTABLE_POD_SPEC | (_MUTABLE_WHILE_GATED if gates_before else set())
    changed = {key for key in {*before, *after} if before.get(key) != after.get(key)} - mutable
    changed -= {key for key in ("containers", "initContainers") if _same_but_image(before.get(key), after.get(key))}
    if changed:
        raise Invalid(
            f"spec of pod {old['metadata']['name']}: pod updates may not change fields other than image, tolerations "
            f"and gates: {', '.join(sorted(changed))}"
        )


def _same_but_image(before: Any, after: Any) -> bool:
    def stripped(containers: Any) -> Any:
        return [{key: value for key, value in item.items() if key != "image"} for item in containers or ()]

    return bool(stripped(before) == stripped(after))


def _check_slice_update(old: Raw, new: Raw) -> None:
    for path in ("driver", "nodeName"):
        if old["spec"].get(path) != new["spec"].get(path):
            raise Invalid(f"spec.{path} of ResourceSlice {old['metadata']['name']}: field is immutable")
    if (old["spec"].get("pool") or {}).get("name") != (new["spec"].get("pool") or {}).get("name"):
        raise Invalid(f"spec.pool.name of ResourceSlice {old['metadata']['name']}: field is immutable")


def _check_claim_update(old: Raw, new: Raw) -> None:
    name = old["metadata"]["name"]
    if old.get("spec") != new.get("spec"):
        raise Invalid(f"spec of ResourceClaim {name}: field is immutable")
    before, after = old.get("status") or {}, new.get("status") or {}
    if before == after:
        return
    allocation, reserved = after.get("allocation"), after.get("reservedFor") or []
    if before.get("allocation") and allocation and allocation != before["allocation"]:
        raise Invalid(f"status.allocation of ResourceClaim {name}: field is immutable while set")
    if reserved and not allocation:
        raise Invalid(f"status.reservedFor of ResourceClaim {name}: may not be specified when `allocated` is not set")
    if len(reserved) > MAX_RESERVED_FOR:
        raise Invalid(
            f"status.reservedFor of ResourceClaim {name}: too many: {len(reserved)}: at most {MAX_RESERVED_FOR}"
        )
    uids = [consumer.get("uid") for consumer in reserved]
    if len(set(uids)) < len(uids):
        raise Invalid(f"status.reservedFor of ResourceClaim {name}: duplicate uid")
    known = {consumer.get("uid") for consumer in before.get("reservedFor") or ()}
    if "deletionTimestamp" in old["metadata"] and set(uids) - known:
        raise Invalid(f"status.reservedFor of ResourceClaim {name}: new entries may not be added while it is deleted")
    if allocation:
        _check_allocation(name, old, allocation)


def _check_allocation(name: str, claim: Raw, allocation: Raw) -> None:
    results = (allocation.get("devices") or {}).get("results") or []
    if len(results) > MAX_RESULTS:
        raise Invalid(
            f"status.allocation.devices.results of ResourceClaim {name}: too many: {len(results)}: at most {MAX_RESULTS}"
        )
    known = set()
    for request in ((claim.get("spec") or {}).get("devices") or {}).get("requests") or ():
        known.add(request["name"])
        known |= {f"{request['name']}/{sub['name']}" for sub in request.get("firstAvailable") or ()}
    for index, result in enumerate(results):
        where = f"status.allocation.devices.results[{index}] of ResourceClaim {name}"
        if result.get("request") not in known:
            raise Invalid(f"{where}: request {result.get('request')!r} must be the name of a request in the claim")
        for field in ("driver", "pool", "device"):
            if not result.get(field):
                raise Invalid(f"{where}: {field}: required value")
        if "shareID" in result and not _SHARE_ID.fullmatch(str(result["shareID"])):
            raise Invalid(f"{where}: shareID: must be a lowercase UUID in 8-4-4-4-12 format")
