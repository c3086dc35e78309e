"""Who made an allocation: a mark inside the allocation itself.

The mark is an entry of `status.allocation.devices.config` for the driver `hami.io`, which no driver
has: node drivers skip configuration for other drivers. Only accounts that may write allocations can
write it, it cannot be removed, and it disappears with the allocation. An allocation without it was
made by kube-scheduler or another allocator.
"""

from typing import Any, Final

import msgspec

from hami_dra.api import names
from hami_dra.api.resource import AllocationResult

_KIND: Final = "AllocatedBy"


class _Mark(msgspec.Struct, frozen=True):
    kind: str = ""
    installation: str = ""


_DECODER: Final = msgspec.json.Decoder(_Mark)


def with_allocator(allocation: dict[str, Any], installation: str) -> dict[str, Any]:
    """Return the AllocationResult (JSON) with the mark of an installation. Changes nothing in
    place.

    >>> marked = with_allocator({"devices": {"results": []}}, "hami-dra")
    >>> allocator_of(AllocationResult.from_json(marked))
    'hami-dra'
    """
    parameters = {"apiVersion": names.CONFIG_API_VERSION, "kind": _KIND, "installation": installation}
    mark = {"source": "FromClass", "opaque": {"driver": names.ALLOCATION_MARK, "parameters": parameters}}
    devices = allocation["devices"]
    return {**allocation, "devices": {**devices, "config": [mark, *devices.get("config", ())]}}


def allocator_of(allocation: AllocationResult | None) -> str:
    """Return the installation that made the allocation; empty if it was another allocator."""
    if allocation is None:
        return ""
    for entry in allocation.devices.config:
        if entry.opaque is not None and entry.opaque.driver == names.ALLOCATION_MARK:
            return _installation(entry.opaque.parameters)
    return ""


def _installation(parameters: msgspec.Raw) -> str:
    try:
        mark = _DECODER.decode(parameters)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return ""
    return mark.installation if mark.kind == _KIND else ""
