"""The allocation as the API wants it: what was chosen for one claim, with its configuration and where it can be used.

Called through `Solution.allocations`. In: the claim's requests and the chosen devices. Out: `status.allocation` as plain
JSON, without shareID and allocationTimestamp. A result of a shared device has the key `consumedCapacity`, be it empty: it is
due a shareID. Rules: upstream's Allocate and createNodeSelector (v0.37).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from controller.scheduling.allocation.errors import AllocatorError
from controller.scheduling.allocation.resolved import ClaimRequests, Consumption, ResolvedRequest
from controller.scheduling.inventory.model import Device
from hami_dra.api import resource as api
from hami_dra.api.core import NodeSelectorRequirement

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Pick:
    """One device for one request."""

    request: ResolvedRequest
    device: Device
    need: Consumption


def allocation_result(claim: ClaimRequests, picks: Sequence[Pick], node_name: str) -> Json:
    """Raises AllocatorError: a slice with a node selector that cannot be merged."""
    chosen = {pick.request.request_index: pick.request for pick in picks}
    devices: Json = {"results": [_device_result(pick) for pick in picks]}
    config = _configuration(claim, chosen)
    if config:
        devices["config"] = config
    allocation: Json = {"devices": devices}
    selector = _node_selector(picks, node_name)
    if selector is not None:
        allocation["nodeSelector"] = selector
    return allocation


def _device_result(pick: Pick) -> Json:
    view, device = pick.request, pick.device
    result: Json = {
        "request": view.name,
        "driver": device.id.driver,
        "pool": device.id.pool,
        "device": device.id.device,
    }
    if view.admin_access:
        result["adminAccess"] = True
    if view.tolerations:
        result["tolerations"] = [msgspec.to_builtins(toleration) for toleration in view.tolerations]
    if view.features.binding_conditions and device.spec.binding_conditions:
        result["bindingConditions"] = list(device.spec.binding_conditions)
    if view.features.binding_conditions and device.spec.binding_failure_conditions:
        result["bindingFailureConditions"] = list(device.spec.binding_failure_conditions)
    if view.shared(device):
        result["consumedCapacity"] = dict(pick.need.spelled)
    if device.slice.spec.skip_node_operations and view.features.optional_node_operations:
        result["skipNodeOperations"] = list(device.slice.spec.skip_node_operations)
    return result


# --- configuration -----------------------------------------------------------------------------------------------------


def _configuration(claim: ClaimRequests, chosen: Mapping[int, ResolvedRequest]) -> list[Json]:
    """Of the classes first, each class once for all requests that use it; then of the claim, where it concerns a request.

    What concerns every request is written without requests, which means the same.
    """
    views = [chosen[index] for index in range(len(claim.requests))]
    users: dict[str, list[ResolvedRequest]] = {}
    for view in views:
        users.setdefault(view.device_class.metadata.name, []).append(view)
    entries = [
        (_source("FromClass", entry.opaque), [view.name for view in using])
        for using in users.values()
        for entry in using[0].device_class.spec.config
    ]
    entries += [
        (_source("FromClaim", entry.opaque), list(entry.requests))
        for entry in claim.claim.spec.devices.config
        if not entry.requests or any(_concerns(entry.requests, view) for view in views)
    ]
    for config, requests in entries:
        if not all(_concerns(requests, view) for view in views) and requests:
            config["requests"] = requests
    return [config for config, _ in entries]


def _concerns(requests: Sequence[str], view: ResolvedRequest) -> bool:
    return view.parent_name in requests or view.name in requests


def _source(source: str, opaque: api.OpaqueDeviceConfiguration | None) -> Json:
    if opaque is None:
        return {"source": source}
    return {"source": source, "opaque": {"driver": opaque.driver, "parameters": msgspec.json.decode(opaque.parameters)}}


# --- where it can be used ------------------------------------------------------------------------------------------------


def _node_selector(picks: Sequence[Pick], node_name: str) -> Json | None:
    """This node where a device is local to it or binds to it, else all conditions of the slices; None = everywhere."""
    fields: list[NodeSelectorRequirement] = []
    expressions: list[NodeSelectorRequirement] = []
    for pick in picks:
        spec = pick.device.slice.spec
        place: api.ResourceSliceSpec | api.Device = pick.device.spec if spec.per_device_node_selection else spec
        if place.node_name is not None or pick.device.spec.binds_to_node:
            return _term([NodeSelectorRequirement(key="metadata.name", operator="In", values=(node_name,))], [])
        if place.node_selector is None or not place.node_selector.node_selector_terms:
            continue
        if len(place.node_selector.node_selector_terms) > 1:
            raise AllocatorError(
                f"ResourceSlice {pick.device.slice.key}: the nodeSelector of device {pick.device.id} has "
                f"{len(place.node_selector.node_selector_terms)} terms; write exactly one"
            )
        term = place.node_selector.node_selector_terms[0]
        _add_new(fields, term.match_fields)
        _add_new(expressions, term.match_expressions)
    return _term(fields, expressions) if fields or expressions else None


def _add_new(known: list[NodeSelectorRequirement], more: Sequence[NodeSelectorRequirement]) -> None:
    for requirement in more:
        if not any(
            (each.key, each.operator, set(each.values))
            == (requirement.key, requirement.operator, set(requirement.values))
            for each in known
        ):
            known.append(requirement)


def _term(fields: Sequence[NodeSelectorRequirement], expressions: Sequence[NodeSelectorRequirement]) -> Json:
    term: Json = {}
    if expressions:
        term["matchExpressions"] = [_requirement(each) for each in expressions]
    if fields:
        term["matchFields"] = [_requirement(each) for each in fields]
    return {"nodeSelectorTerms": [term]}


def _requirement(requirement: NodeSelectorRequirement) -> Json:
    plain: Json = {"key": requirement.key, "operator": requirement.operator}
    if requirement.values:
        plain["values"] = list(requirement.values)
    return plain
