"""Check the rules for ResourceSlices that no API server checks: that the slices of a pool belong together.

Called by `hami-dra slices --check`, and by code that cuts pools into slices for the number of
devices that one may hold. In: objects. Out: violations, each with the object, the field and the
fix. Pure. A pool that breaks one of these rules is ignored by its consumers
(k8s.io/dynamic-resource-allocation resourceslice/validation.go); the rules for a single slice are
checked by the API server (`create` with `dry_run`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from hami_dra.api.resource import Device, ResourceSlice

MAX_DEVICES: Final = 128
MAX_DEVICES_ADVANCED: Final = 64
"""With taints, counters or list attributes on any device of the slice."""
MAX_COUNTER_SETS: Final = 8

_Found = Iterator[tuple[str, str]]
"""Field and problem."""


class Violation(NamedTuple):
    object: str
    field: str
    problem: str

    def __str__(self) -> str:
        return f"{self.object}: {self.field}: {self.problem}"


def unreadable(body: Mapping[str, Any]) -> Violation | None:
    """Return why JSON is not a ResourceSlice, or None."""
    try:
        msgspec.convert(body, ResourceSlice)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `$")
        return Violation(name_of(body), path.strip("`.") or "(object)", problem)
    return None


def name_of(body: Mapping[str, Any]) -> str:
    meta = body.get("metadata")
    meta = meta if isinstance(meta, Mapping) else {}
    return str(meta.get("name") or meta.get("generateName") or "(no name)")


def check_pools(bodies: Iterable[Mapping[str, Any]]) -> list[Violation]:
    """Return the rules broken by pools: wrong counts, two generations, duplicate devices, unknown counters.

    Consumers ignore such pools. `bodies` must be readable (`unreadable`).
    """
    pools: dict[tuple[str, str], list[ResourceSlice]] = {}
    for body in bodies:
        decoded = msgspec.convert(body, ResourceSlice)
        pools.setdefault((decoded.spec.driver, decoded.spec.pool.name), []).append(decoded)
    return [
        Violation(f"{driver}/{pool}", field, problem)
        for (driver, pool), slices in pools.items()
        for field, problem in _pool(slices)
    ]


def device_limit(devices: Iterable[Mapping[str, Any]]) -> int:
    """Return how many such devices one slice may hold."""
    advanced = any(needs_advanced_features(msgspec.convert(device, Device)) for device in devices)
    return MAX_DEVICES_ADVANCED if advanced else MAX_DEVICES


def needs_advanced_features(device: Device) -> bool:
    """Return whether it has taints, counters or list attributes: a slice then holds half as many devices."""
    return bool(device.taints or device.consumes_counters) or any(
        value is not None
        for attribute in device.attributes.values()
        for value in (attribute.ints, attribute.bools, attribute.strings, attribute.versions)
    )


def _pool(slices: Sequence[ResourceSlice]) -> _Found:
    generations = sorted({item.spec.pool.generation for item in slices})
    if len(generations) > 1:
        yield (
            "spec.pool.generation",
            f"differs between slices ({', '.join(map(str, generations))}): publish all with the newest",
        )
    counts = sorted({item.spec.pool.resource_slice_count for item in slices})
    if counts != [len(slices)]:
        yield (
            "spec.pool.resourceSliceCount",
            f"is {' and '.join(map(str, counts))}, but the pool has {len(slices)} slices: set it to that number",
        )
    yield from _unique("spec.devices", [device.name for item in slices for device in item.spec.devices])
    counter_sets = [counter_set for item in slices for counter_set in item.spec.shared_counters]
    yield from _unique("spec.sharedCounters", [counter_set.name for counter_set in counter_sets])
    known = {counter_set.name: counter_set.counters for counter_set in counter_sets}
    for item in slices:
        for device in item.spec.devices:
            for consumed in device.consumes_counters:
                missing = sorted({*consumed.counters} - {*known.get(consumed.counter_set, ())})
                if missing:
                    yield (
                        f"spec.devices[{device.name}].consumesCounters[{consumed.counter_set}]",
                        f"no slice of the pool has the counters {', '.join(missing)} in that set: add them to its sharedCounters",
                    )


def _unique(field: str, names: Iterable[str]) -> _Found:
    seen: set[str] = set()
    for number, name in enumerate(names):
        if name in seen:
            yield f"{field}[{number}].name", f"{name!r} occurs twice: rename one"
        seen.add(name)
