"""What the API server demands of a ResourceSlice, as an oracle for tests of everything that publishes.

The rules are those of k8s.io/kubernetes pkg/apis/resource/validation 1.37 with default feature gates (ValidateResourceSlice);
tests/conformance/test_slices_validation.py holds them against its answers. One rule is stricter here: names with two slashes,
which Kubernetes lets through by mistake.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from hami_dra.api.resource import ResourceSlice, ResourceSliceSpec
from hami_dra.driver.limits import (
    MAX_COUNTER_SETS,
    MAX_DEVICES,
    MAX_DEVICES_ADVANCED,
    Violation,
    name_of,
    needs_advanced_features,
    unreadable,
)
from tests.support.slice_limits import formats
from tests.support.slice_limits.common import Found, at_most, counters, formatted, unique
from tests.support.slice_limits.device import check_device
from tests.support.slice_limits.nodes import node_selection


def check_slice(body: Mapping[str, Any]) -> list[Violation]:
    """Of one ResourceSlice as JSON, with a name or generateName."""
    if (violation := unreadable(body)) is not None:
        return [violation]
    decoded = msgspec.convert(body, ResourceSlice)
    found = [*_name(decoded), *_spec(decoded.spec)]
    return [Violation(name_of(body), field, problem) for field, problem in found]


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
