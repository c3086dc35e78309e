"""Plan the writes that bring the published slices of one pool up to date.

Called by the publisher only. In: the wanted pool and its existing slices. Out: deletes, updates,
creates, to be carried out in this order. Pure. The rules are those of Kubernetes' own library
(resourceslicecontroller.go, syncPool):

- The generation of a pool is raised whenever more than one write changes it: readers then see an
  incomplete pool, which they ignore, and never a mixture of two states. One changed slice is one
  write, so it keeps the generation.
- Obsolete slices go first: missing devices must not be offered, even if the rest cannot be written.
- `timeAdded` of a taint does not change.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import Struct

from hami_dra.api.resource import CounterSet, Device, DeviceTaint, ResourceSlice
from hami_dra.driver import slices
from hami_dra.driver.taints import TaintKey, timed, times_of


class Accepted(Struct, frozen=True):
    """The stored form of a content. The server may drop fields whose feature is off: writing again changes nothing."""

    wanted: slices.SliceContent
    devices: tuple[Device, ...]
    shared_counters: tuple[CounterSet, ...]


@dataclass(frozen=True, slots=True)
class Update:
    index: int
    current: ResourceSlice
    patch: dict[str, Any] = field(compare=False)
    """A merge patch, guarded by uid and resourceVersion."""


class Plan(Struct, frozen=True):
    deletes: tuple[ResourceSlice, ...]
    updates: tuple[Update, ...]
    creates: tuple[tuple[int, slices.Json], ...]
    """Index and body."""


def plan(pool: slices.Pool, existing: Sequence[ResourceSlice], accepted: Mapping[int, Accepted] | None = None) -> Plan:
    """Plan the writes. `existing`: all slices with this driver and pool name; `accepted`: by index in the pool."""
    accepted = accepted or {}
    by_name = {slices.slice_name(pool, index): index for index in range(len(pool.slices))}
    matched: dict[int, ResourceSlice] = {}
    deletes = []
    for current in sorted(existing, key=lambda item: item.metadata.name):
        index = by_name.get(current.metadata.name)
        # the node of a slice cannot be changed
        if index is None or current.spec.node_name != pool.node:
            deletes.append(current)
        else:
            matched[index] = current
    generation = max((current.spec.pool.generation for current in existing), default=0)
    new = [index for index in range(len(pool.slices)) if index not in matched]
    changed = {
        index
        for index, current in matched.items()
        if not _is_right(pool, index, generation, current, accepted.get(index))
    }
    if new or len(changed) > 1:
        generation += 1
        changed = set(matched)
    return Plan(
        deletes=tuple(deletes),
        updates=tuple(
            Update(index, matched[index], _patch(pool, index, generation, matched[index])) for index in sorted(changed)
        ),
        creates=tuple((index, slices.slice_body(pool, index, generation)) for index in new),
    )


def accepted_form(content: slices.SliceContent, stored: ResourceSlice) -> Accepted | None:
    """Return the stored form; None if the server stored what was sent. Times that it added do not count."""
    devices, counters = _decoded(content)
    if _with_times(devices, stored.spec.devices) == stored.spec.devices and counters == stored.spec.shared_counters:
        return None
    return Accepted(content, stored.spec.devices, stored.spec.shared_counters)


def dropped_fields(accepted: Accepted) -> str:
    """Describe for people where the stored form differs from the wanted one."""
    wanted, counters = _decoded(accepted.wanted)
    names = [
        f"{device.name}.{name}"
        for device, stored in zip(wanted, accepted.devices, strict=False)
        for name, value in msgspec.structs.asdict(device).items()
        if value != getattr(stored, name)
    ]
    if len(wanted) != len(accepted.devices):
        names.append("devices")
    if counters != accepted.shared_counters:
        names.append("sharedCounters")
    return ", ".join(names)


def _is_right(
    pool: slices.Pool, index: int, generation: int, current: ResourceSlice, accepted: Accepted | None
) -> bool:
    spec = current.spec
    content = pool.slices[index]
    if accepted is not None and accepted.wanted == content:
        devices, counters = accepted.devices, accepted.shared_counters
    else:
        devices, counters = _decoded(content)
    return (
        (spec.pool.generation, spec.pool.resource_slice_count) == (generation, len(pool.slices))
        and _with_times(devices, spec.devices) == spec.devices
        and counters == spec.shared_counters
        and spec.node_selector is None
        and spec.all_nodes is None
        and spec.per_device_node_selection is None
        and pool.labels.items() <= current.metadata.labels.items()
        and all(
            current.metadata.annotations.get(name, "") == value
            for name, value in slices.wanted_annotations(pool, index).items()
        )
        and (not pool.node_uid or [owner.uid for owner in current.metadata.owner_references] == [pool.node_uid])
    )


def _patch(pool: slices.Pool, index: int, generation: int, current: ResourceSlice) -> dict[str, Any]:
    body = slices.slice_body(pool, index, generation)
    metadata: slices.Json = {"uid": current.metadata.uid, "resourceVersion": current.metadata.resource_version}
    if pool.labels:
        metadata["labels"] = dict(pool.labels)
    if annotations := slices.wanted_annotations(pool, index):
        metadata["annotations"] = {name: value or None for name, value in annotations.items()}
    if pool.node_uid:
        metadata["ownerReferences"] = slices.owner_references(pool)
    spec = {name: body["spec"].get(name) for name in ("pool", "devices", "sharedCounters")}
    if spec["devices"] is not None:
        times = times_of(current.spec.devices)
        spec["devices"] = [timed(device, times) for device in spec["devices"]]
    return {
        "metadata": metadata,
        "spec": spec | {"nodeSelector": None, "allNodes": None, "perDeviceNodeSelection": None},
    }


def _with_times(devices: tuple[Device, ...], stored: Sequence[Device]) -> tuple[Device, ...]:
    times = times_of(stored)
    if not times:
        return devices

    def with_time(device: Device, taint: DeviceTaint) -> DeviceTaint:
        added = times.get(TaintKey(device.name, taint.key, taint.value, taint.effect))
        return taint if taint.time_added or added is None else msgspec.structs.replace(taint, time_added=added)

    return tuple(
        msgspec.structs.replace(device, taints=tuple(with_time(device, taint) for taint in device.taints))
        for device in devices
    )


def _decoded(content: slices.SliceContent) -> tuple[tuple[Device, ...], tuple[CounterSet, ...]]:
    return (
        msgspec.convert(content.devices, tuple[Device, ...]),
        msgspec.convert(content.shared_counters, tuple[CounterSet, ...]),
    )
