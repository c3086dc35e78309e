"""Read a claim for this node: which of the driver's devices it holds, with which parameters.

Called by `transaction` with the claim from the API server. In: the claim, kubelet's reference to
it, the inventory. Out: a `Record` that is not prepared yet, or `Refused` with a sentence for the pod's event.
Pure: free capacity is checked by `overcommit`.
"""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from hami_dra.api.config import DeviceConfig, NotForClaims, merge, read_device_config
from hami_dra.api.containers import takes_all
from hami_dra.api.quantity import InvalidQuantity
from hami_dra.api.resource import AllocationResult, DeviceRequestAllocationResult, ResourceClaim
from hami_dra.driver.prepare.errors import Refused
from hami_dra.driver.prepare.inventory import Inventory, PublishedDevice, rounded_up
from hami_dra.driver.prepare.records import GrantedDevice, Partition, Record

_MOST: Final = 2**63 - 1


def check_identity(claim: ResourceClaim, uid: str) -> None:
    """Check the claim's uid against kubelet's. Raises Refused."""
    if claim.metadata.uid != uid:
        raise Refused(
            f"ResourceClaim {claim.key}: metadata.uid is {claim.metadata.uid}, but kubelet asks for {uid}: the claim was deleted "
            "and created again under the same name; delete the pod, so that it is started with the new claim"
        )


def fingerprint(claim: ResourceClaim, driver: str) -> str:
    """Return the fingerprint of the allocation's part for `driver`; empty without one."""
    allocation = claim.status.allocation
    if allocation is None:
        return ""
    ours = [result for result in allocation.devices.results if result.driver == driver]
    config = [(entry.source, entry.requests, entry.opaque) for entry in _entries(allocation, driver)]
    return hashlib.sha256(msgspec.json.encode((ours, config), order="deterministic")).hexdigest()


def _owner_pod(claim: ResourceClaim) -> str:
    """Return the uid of the pod that the claim was generated for; empty for a claim that users made themselves."""
    owners = claim.metadata.owner_references
    return next(
        (owner.uid for owner in owners if owner.controller and (owner.api_version, owner.kind) == ("v1", "Pod")), ""
    )


def read_claim(claim: ResourceClaim, inventory: Inventory) -> Record:
    """Return the record of a claim before anything is prepared for it. Raises Refused."""
    if claim.metadata.deletion_timestamp is not None:
        raise Refused(
            f"ResourceClaim {claim.key}: metadata.deletionTimestamp is set, the claim is being deleted: delete the pod too, "
            "and start it with another claim"
        )
    if claim.spec.unreadable:
        raise Refused(
            f"ResourceClaim {claim.key}: cannot be read: {claim.spec.unreadable}: create the claim again, and restart its pod"
        )
    allocation = claim.status.allocation
    if allocation is None:
        raise Refused(
            f"ResourceClaim {claim.key}: status.allocation is empty, the claim was deallocated after its pod had been bound: "
            "delete the pod, so that it is scheduled again"
        )
    parameters = _Parameters(claim, allocation, inventory.driver)
    held = tuple(
        _held(result, f"ResourceClaim {claim.key}: status.allocation.devices.results[{index}]", parameters, inventory)
        for index, result in enumerate(allocation.devices.results)
        if result.driver == inventory.driver
    )
    if not held:
        raise Refused(
            f"ResourceClaim {claim.key}: status.allocation.devices.results has no device of driver {inventory.driver}: "
            "there is nothing for it to prepare"
        )
    return Record(
        namespace=claim.metadata.namespace,
        name=claim.metadata.name,
        uid=claim.metadata.uid,
        allocation=fingerprint(claim, inventory.driver),
        state="preparing",
        held=held,
        owner_pod=_owner_pod(claim),
    )


def _held(
    result: DeviceRequestAllocationResult, where: str, parameters: "_Parameters", inventory: Inventory
) -> GrantedDevice:
    if result.pool != inventory.pool:
        raise Refused(
            f"{where}.pool is {result.pool!r}, but this node's pool is {inventory.pool!r}: the device is on another node; "
            "delete the pod, so that it is scheduled where its claim is allocated"
        )
    device = inventory.devices.get(result.device)
    if device is None:
        known = ", ".join(sorted(inventory.devices)[:8]) or "none"
        raise Refused(
            f"{where}.device is {result.device!r}, which driver {inventory.driver} does not publish on this node any more "
            f"(it publishes: {known}): delete the pod and its claim, so that another device is allocated"
        )
    admin = bool(result.admin_access)
    consumed = _consumed(result, device, where)
    config, place = parameters.of(result.request), device.partition
    if not admin:
        _check_minimum(consumed, config, where)
    return GrantedDevice(
        request=result.request,
        pool=result.pool,
        device=result.device,
        card=device.card.uuid,
        numbers=device.numbers,
        share_id=result.share_id or "",
        admin=admin,
        shared=device.shared,
        whole=takes_all(consumed, device.capacity),
        consumed=consumed,
        counters=() if admin else tuple((*name, amount) for name, amount in sorted(device.consumes.items())),
        parameters=config.of_claim(),
        partition=Partition(card=place.card_uuid, profile=place.profile, start=place.start, by_runtime=place.by_runtime)
        if place
        else None,
        unpartitioned=device.site.cuttable and not admin,
    )


def _consumed(result: DeviceRequestAllocationResult, device: PublishedDevice, where: str) -> dict[str, int]:
    """Return the consumed capacities of a result.

    A device for one claim consumes nothing. Of a shared device, everything that is offered if the
    allocation states no amounts: its author did not intend sharing.
    """
    if not device.shared:
        return {}
    consumed = dict(device.capacity)
    for name, amount in result.consumed_capacity.items():
        try:
            consumed[name] = rounded_up(amount)
        except InvalidQuantity as error:
            raise Refused(f"{where}.consumedCapacity[{name}]: {error}") from error
        if consumed[name] < 0:
            raise Refused(f"{where}.consumedCapacity[{name}] is {amount}: an amount cannot be negative")
        if consumed[name] > _MOST:
            raise Refused(f"{where}.consumedCapacity[{name}] is {amount}: no device has as much")
    return consumed


def _check_minimum(consumed: Mapping[str, int], config: DeviceConfig, where: str) -> None:
    for name, least in config.minimum.items():
        if name in consumed and consumed[name] < rounded_up(least):
            raise Refused(
                f"{where}.consumedCapacity[{name}] is {consumed[name]}, less than the minimum of {least} that the claim's "
                "DeviceClass sets: delete the pod, and create a claim that requests more"
            )


# --- parameters -----------------------------------------------------------------------------------


class _Parameters:
    """Opaque parameters of class and claim, as copied into the allocation; `config.merge` decides which apply."""

    def __init__(self, claim: ResourceClaim, allocation: AllocationResult, driver: str) -> None:
        self._claim = claim.key
        self._entries: list[tuple[bool, tuple[str, ...], DeviceConfig]] = []
        """Whether it is from the class, the requests that it is for, the configuration. The order
        inside one source is the user's.
        """
        for index, entry in enumerate(allocation.devices.config):
            if entry.opaque is None or entry.opaque.driver != driver:
                continue
            config = read_device_config(bytes(entry.opaque.parameters))
            if isinstance(config, str):
                raise Refused(
                    f"ResourceClaim {claim.key}: status.allocation.devices.config[{index}].opaque.parameters: {config}: correct "
                    f"the config of the {'class' if entry.source == _FROM_CLASS else 'claim'}, and create the claim again"
                )
            self._entries.append((entry.source == _FROM_CLASS, entry.requests, config))

    def of(self, request: str) -> DeviceConfig:
        """Return the merged configuration. `request`: spelt as in the result. An entry for
        `request` also applies to all its subrequests. Raises Refused.
        """
        concerned = [
            (is_of_class, config)
            for is_of_class, requests, config in self._entries
            if not requests or request in requests or request.partition("/")[0] in requests
        ]
        of_class = [config for is_of_class, config in concerned if is_of_class]
        of_claim = [config for is_of_class, config in concerned if not is_of_class]
        try:
            return merge(of_class, of_claim, "its DeviceClass")
        except NotForClaims as error:
            raise Refused(
                f"ResourceClaim {self._claim}: status.allocation.devices.config: {error}, and create the claim again"
            ) from error


_FROM_CLASS = "FromClass"


def _entries(allocation: AllocationResult, driver: str) -> Iterator[Any]:
    return (entry for entry in allocation.devices.config if entry.opaque is not None and entry.opaque.driver == driver)
