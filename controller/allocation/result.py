"""The solution of a search, and the allocation in the form of the API: devices, configuration and
node selector.

Called through `Solution.allocations`. In: the claim's requests and the chosen devices. Out:
`status.allocation` as plain JSON, without shareID and allocationTimestamp. A result of a shared
device has the key `consumedCapacity`, even if empty: such a result gets a shareID. Rules:
upstream's Allocate and createNodeSelector (v0.37).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from controller.allocation.errors import AllocatorError
from controller.allocation.resolved import AllocationInput, ClaimRequests, Consumption, ResolvedRequest
from controller.inventory.ledger import Holding, mark_of
from controller.inventory.model import Device
from hami_dra.api import resource as api
from hami_dra.api.core import NodeSelectorRequirement
from hami_dra.api.resource import AllocationResult

_PRIORITIZED_LIST_SIZE: Final = 8

Json = dict[str, Any]


class Pick(Struct, frozen=True):
    """One device for one request."""

    request: ResolvedRequest
    device: Device
    consumption: Consumption


class Solution(Struct, frozen=True):
    """Devices for every claim of the problem."""

    node: str
    problem: AllocationInput
    picks: tuple[tuple[Pick, ...], ...]
    """By claim of the problem, in the order they were chosen."""
    steps: int

    @property
    def rank(self) -> int:
        """Upstream's score of prioritized lists; higher is better.

        8 - alternative, summed over the `firstAvailable` requests: the first alternative of one
        request and the third of another are 8 + 6 = 14.
        """
        chosen = {
            (pick.request.claim_index, pick.request.request_index): pick.request.alternative
            for picks in self.picks
            for pick in picks
            if pick.request.name != pick.request.parent_name
        }
        return sum(_PRIORITIZED_LIST_SIZE - alternative for alternative in chosen.values())

    def allocations(self) -> tuple[dict[str, Any], ...]:
        """Return the AllocationResult of each claim as plain JSON. Raises AllocatorError.

        shareID and allocationTimestamp are missing: `stamping` adds them.
        """
        return tuple(
            allocation_result(claim, picks, self.node)
            for claim, picks in zip(self.problem.claims, self.picks, strict=True)
        )


def allocation_result(claim: ClaimRequests, picks: Sequence[Pick], node_name: str) -> Json:
    """Return the allocation. Raises AllocatorError: a slice with a node selector that cannot be merged."""
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


def holdings_by(picks: Iterable[Pick], config: Sequence[Json]) -> tuple[Holding, ...]:
    """Return what a claim will hold by the allocation of these devices. `config`: of it."""
    # through text, because opaque parameters are kept as text
    entries = AllocationResult.from_json({"devices": {"config": config}}).devices.config if config else ()
    found = []
    for view, device, consumption in [(each.request, each.device, each.consumption) for each in picks]:
        if not view.admin_access:
            shared = view.shared(device)
            mark = mark_of(device.id.driver, view.name, entries, consumption.consumed if shared else {})
            held = {name: amount for name, amount, _ in consumption.amounts} if shared else None
            found.append(Holding(device.id, held, mark))
    return tuple(found)


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
    if device.spec.binding_conditions and view.features.binding_conditions:
        result["bindingConditions"] = list(device.spec.binding_conditions)
    if device.spec.binding_failure_conditions and view.features.binding_conditions:
        result["bindingFailureConditions"] = list(device.spec.binding_failure_conditions)
    if view.shared(device):
        result["consumedCapacity"] = dict(pick.consumption.consumed_capacity)
    if device.slice.spec.skip_node_operations and view.features.optional_node_operations:
        result["skipNodeOperations"] = list(device.slice.spec.skip_node_operations)
    return result


# --- configuration --------------------------------------------------------------------------------


def _configuration(claim: ClaimRequests, chosen: Mapping[int, ResolvedRequest]) -> list[Json]:
    """Return the entries of the classes, each class once for all requests that use it, then those
    of the claim.

    Entries of the claim are left out if they concern no request. An entry that concerns every
    request is written without requests, which is equivalent.
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


# --- node selector --------------------------------------------------------------------------------


def _node_selector(picks: Sequence[Pick], node_name: str) -> Json | None:
    """Return the nodes where all devices can be used; None = everywhere.

    This node if a device is local to it or binds to it, else all conditions of the slices.
    """
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
