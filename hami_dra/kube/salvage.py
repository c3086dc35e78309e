"""The usable parts of a claim that does not fit its Struct: identity, devices, reservations.

Called by `decoding` after decoding the whole failed. In: the bytes of one claim, which are JSON,
and the problem. Out: a ResourceClaim with every part that can be read separately, and
`spec.unreadable` with the reason. Its devices are therefore not allocated to other claims, the
claim itself is neither allocated nor prepared, and uninstall still finds its marks. Pure.
"""

from collections.abc import Iterable
from typing import Any, Final, TypeVar

import msgspec

from hami_dra.api import resource
from hami_dra.api.core import NodeSelector
from hami_dra.api.meta import Object, ObjectMeta, OwnerReference

T = TypeVar("T")

_TEXTS: Final = (
    "name", "generateName", "namespace", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp",
)  # fmt: skip


def identity(document: Any) -> Object:
    """Return the readable part of an object's metadata, possibly empty. `document`: its decoded JSON."""
    found = _mapping(_mapping(document).get("metadata"))
    texts = {name: found[name] for name in _TEXTS if isinstance(found.get(name), str)}
    maps = {
        name: {key: value for key, value in _mapping(found.get(name)).items() if isinstance(value, str)}
        for name in ("labels", "annotations")
    }
    finalizers = [each for each in _sequence(found.get("finalizers")) if isinstance(each, str)]
    metadata = msgspec.convert({**texts, **maps, "finalizers": finalizers}, ObjectMeta)
    owners = _readable(_sequence(found.get("ownerReferences")), OwnerReference)
    return Object(metadata=msgspec.structs.replace(metadata, owner_references=owners))


def salvaged_claim(document: Any, problem: str) -> resource.ResourceClaim:
    """Return the claim with its readable parts.

    `document`: the claim's decoded JSON. `problem`: why it is not a ResourceClaim.
    """
    status = _mapping(_mapping(document).get("status"))
    return resource.ResourceClaim(
        metadata=identity(document).metadata,
        spec=resource.ResourceClaimSpec(unreadable=problem),
        status=resource.ResourceClaimStatus(
            allocation=_allocation(status.get("allocation")),
            reserved_for=_readable(_sequence(status.get("reservedFor")), resource.ConsumerReference),
        ),
    )


def _allocation(document: Any) -> resource.AllocationResult | None:
    """Return the allocation, or None if there is none.

    An allocation without any readable device still counts as an allocation.
    """
    if document is None:
        return None
    found = _mapping(document)
    selectors = _readable([found.get("nodeSelector")], NodeSelector)
    stamps = [each for each in (found.get("allocationTimestamp"),) if isinstance(each, str)]
    return resource.AllocationResult(
        devices=resource.DeviceAllocationResult(
            results=_results(_sequence(_mapping(found.get("devices")).get("results")))
        ),
        node_selector=selectors[0] if selectors else None,
        allocation_timestamp=stamps[0] if stamps else None,
    )


def _results(documents: Iterable[Any]) -> tuple[resource.DeviceRequestAllocationResult, ...]:
    """Return every result that names a device: it holds that device, whatever else is unreadable.

    It holds the device exclusively if its shares cannot be read.
    """
    found: list[resource.DeviceRequestAllocationResult] = []
    for document in documents:
        named = {name: _mapping(document).get(name) for name in ("request", "driver", "pool", "device")}
        found += _readable([document], resource.DeviceRequestAllocationResult) or _readable(
            [{name: value for name, value in named.items() if isinstance(value, str)}],
            resource.DeviceRequestAllocationResult,
        )
    return tuple(found)


def _readable(documents: Iterable[Any], kind: type[T]) -> tuple[T, ...]:
    """Return the documents that fit the type, in order."""
    found: list[T] = []
    for document in documents:
        try:
            found.append(msgspec.convert(document, kind))
        except msgspec.ValidationError:
            continue
    return tuple(found)


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _sequence(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
