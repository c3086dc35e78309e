"""Check ResourceSlices against what the API server demands of them, without an API server.

Called by `hami-dra slices --check` and by tests of everything that publishes. In: objects. Out: violations, each with the
object, the field and the fix. Pure. The rules are those of k8s.io/kubernetes pkg/apis/resource/validation 1.37 with default
feature gates (ValidateResourceSlice), and of a pool as a whole, which no API server checks (resourceslice/validation.go).
One rule is stricter here: names with two slashes, which Kubernetes lets through by mistake.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from hami_dra.api.resource import Device, ResourceSlice, ResourceSliceSpec
from hami_dra.driver.limits import formats
from hami_dra.driver.limits.common import Found, at_most, counters, formatted, unique
from hami_dra.driver.limits.device import check_device, needs_advanced_features
from hami_dra.driver.limits.nodes import node_selection

MAX_DEVICES: Final = 128
MAX_DEVICES_ADVANCED: Final = 64
"""With taints, counters or list attributes on any device of the slice."""
MAX_COUNTER_SETS: Final = 8


class Violation(NamedTuple):
    object: str
    field: str
    problem: str

    def __str__(self) -> str:
        return f"{self.object}: {self.field}: {self.problem}"


def check_slice(body: Mapping[str, Any]) -> list[Violation]:
    """Of one ResourceSlice as JSON, with a name or generateName."""
    meta = body.get("metadata")
    meta = meta if isinstance(meta, Mapping) else {}
    name = str(meta.get("name") or meta.get("generateName") or "(no name)")
    try:
        decoded = msgspec.convert(body, ResourceSlice)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `$")
        return [Violation(name, path.strip("`.") or "(object)", problem)]
    found = [*_name(decoded), *_spec(decoded.spec)]
    return [Violation(name, field, problem) for field, problem in found]


def check_pools(bodies: Iterable[Mapping[str, Any]]) -> list[Violation]:
    """What makes consumers ignore a pool: wrong counts, two generations, doubled devices, unknown counters.

    Only slices that `check_slice` accepts may come in.
    """
    pools: dict[tuple[str, str], list[ResourceSlice]] = {}
    for body in bodies:
        decoded = msgspec.convert(body, ResourceSlice)
        pools.setdefault((decoded.spec.driver, decoded.spec.pool.name), []).append(decoded)
    violations: list[Violation] = []
    for (driver, pool), slices in pools.items():
        violations.extend(Violation(f"{driver}/{pool}", field, problem) for field, problem in _pool(slices))
    return violations


def device_limit(devices: Iterable[Mapping[str, Any]]) -> int:
    """How many devices such as these one slice may hold."""
    advanced = any(needs_advanced_features(msgspec.convert(device, Device)) for device in devices)
    return MAX_DEVICES_ADVANCED if advanced else MAX_DEVICES


def _name(decoded: ResourceSlice) -> Found:
    meta = decoded.metadata
    if meta.name or not meta.generate_name:
        yield from formatted("metadata.name", meta.name, formats.subdomain)
    else:
        yield from formatted("metadata.generateName", meta.generate_name.rstrip("-"), formats.subdomain)


def _spec(spec: ResourceSliceSpec) -> Found:
    yield from formatted("spec.driver", spec.driver, formats.driver)
    yield from formatted("spec.pool.name", spec.pool.name, formats.pool)
    if spec.pool.resource_slice_count <= 0:
        yield "spec.pool.resourceSliceCount", "must be the number of slices of the pool, so at least 1"
    if spec.pool.generation < 0:
        yield "spec.pool.generation", "must not be negative: begin with 1 and raise it with every change of the pool"
    yield from node_selection("spec", spec, per_device=spec.per_device_node_selection)
    if spec.devices and spec.shared_counters:
        yield "spec", "has both devices and sharedCounters: put the counters into a slice of their own"
    advanced = any(needs_advanced_features(device) for device in spec.devices)
    limit = MAX_DEVICES_ADVANCED if advanced else MAX_DEVICES
    if len(spec.devices) > limit:
        why = " with taints, counters or list attributes" if advanced else ""
        yield "spec.devices", f"has {len(spec.devices)} devices{why}: split them over several slices of at most {limit}"
        return
    yield from unique("spec.devices", "name", [device.name for device in spec.devices])
    for number, device in enumerate(spec.devices):
        yield from check_device(f"spec.devices[{number}]", device, per_device=bool(spec.per_device_node_selection))
    yield from at_most("spec.sharedCounters", spec.shared_counters, MAX_COUNTER_SETS)
    yield from unique("spec.sharedCounters", "name", [counter_set.name for counter_set in spec.shared_counters])
    for number, counter_set in enumerate(spec.shared_counters):
        field = f"spec.sharedCounters[{number}]"
        yield from formatted(f"{field}.name", counter_set.name, formats.label)
        yield from counters(f"{field}.counters", counter_set.counters)


def _pool(slices: Sequence[ResourceSlice]) -> Found:
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
    yield from unique("spec.devices", "name", [device.name for item in slices for device in item.spec.devices])
    counter_sets = [counter_set for item in slices for counter_set in item.spec.shared_counters]
    yield from unique("spec.sharedCounters", "name", [counter_set.name for counter_set in counter_sets])
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
