"""What the API server demands of one device."""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from hami_dra.api.resource import Device, DeviceAttribute
from hami_dra.api.semver import InvalidVersion, SemVer
from tests.support.slice_limits import formats
from tests.support.slice_limits.capacity import check_capacity
from tests.support.slice_limits.common import Found, at_most, counters, formatted, unique
from tests.support.slice_limits.nodes import node_selection

MAX_ATTRIBUTES_AND_CAPACITIES: Final = 32
MAX_ATTRIBUTE_VALUES: Final = 48
MAX_TEXT: Final = 64
MAX_TAINTS: Final = 16
MAX_CONDITIONS: Final = 4
MAX_CONSUMED_SETS: Final = 2
_EFFECTS: Final = ("NoSchedule", "NoExecute", "None")
_LIST_FIELDS: Final = ("ints", "bools", "strings", "versions")


def check_device(field: str, device: Device, *, per_device: bool) -> Found:
    yield from formatted(f"{field}.name", device.name, formats.label)
    entries = len(device.attributes) + len(device.capacity)
    if entries > MAX_ATTRIBUTES_AND_CAPACITIES:
        yield field, f"has {entries} attributes and capacities: leave out all but {MAX_ATTRIBUTES_AND_CAPACITIES}"
    values = sum(_number_of_values(attribute) for attribute in device.attributes.values())
    if values > MAX_ATTRIBUTE_VALUES:
        yield f"{field}.attributes", f"have {values} values: leave out all but {MAX_ATTRIBUTE_VALUES}"
    for name, attribute in device.attributes.items():
        yield from formatted(f"{field}.attributes", name, formats.qualified_name)
        yield from _attribute(f"{field}.attributes[{name}]", attribute)
    for name, capacity in device.capacity.items():
        yield from formatted(f"{field}.capacity", name, formats.qualified_name)
        shared = bool(device.allow_multiple_allocations)
        yield from check_capacity(f"{field}.capacity[{name}]", capacity, shared=shared)
    yield from _taints(field, device)
    yield from _consumed(field, device)
    if per_device:
        yield from node_selection(field, device)
    elif device.node_name is not None or device.node_selector is not None or device.all_nodes is not None:
        yield field, "says on which nodes it is: do that in the slice, or set spec.perDeviceNodeSelection"
    yield from _conditions(field, device)


def _attribute(field: str, attribute: DeviceAttribute) -> Found:
    given = msgspec.structs.asdict(attribute)
    chosen = [name for name, value in given.items() if value is not None]
    if len(chosen) != 1:
        yield field, f"has {len(chosen)} values: give exactly one of string, int, bool or version"
    for name in _LIST_FIELDS:
        if given[name] == ():
            yield f"{field}.{name}", "is empty: leave it out"
    for name, text in _texts("string", attribute.string, attribute.strings):
        if len(text.encode()) > MAX_TEXT:
            yield f"{field}.{name}", f"has {len(text.encode())} bytes: shorten it to {MAX_TEXT}"
    for name, text in _texts("version", attribute.version, attribute.versions):
        yield from _version(f"{field}.{name}", text)


def _texts(name: str, single: str | None, several: Sequence[str] | None) -> Iterator[tuple[str, str]]:
    if single is not None:
        yield name, single
    for number, text in enumerate(several or ()):
        yield f"{name}s[{number}]", text


def _version(field: str, text: str) -> Found:
    if len(text) > MAX_TEXT:
        yield field, f"has {len(text)} characters: shorten it to {MAX_TEXT}"
        return
    try:
        SemVer.parse(text)
    except InvalidVersion as error:
        yield field, str(error)


def _taints(field: str, device: Device) -> Found:
    yield from at_most(f"{field}.taints", device.taints, MAX_TAINTS)
    for number, taint in enumerate(device.taints[:MAX_TAINTS]):
        where = f"{field}.taints[{number}]"
        yield from formatted(f"{where}.key", taint.key, formats.label_key)
        yield from formatted(f"{where}.value", taint.value, formats.label_value)
        if taint.effect not in _EFFECTS:
            yield f"{where}.effect", f"{taint.effect!r} is not an effect: use one of {', '.join(_EFFECTS)}"


def _consumed(field: str, device: Device) -> Found:
    yield from at_most(f"{field}.consumesCounters", device.consumes_counters, MAX_CONSUMED_SETS)
    sets = [consumed.counter_set for consumed in device.consumes_counters]
    yield from unique(f"{field}.consumesCounters", "counterSet", sets)
    for number, consumed in enumerate(device.consumes_counters):
        where = f"{field}.consumesCounters[{number}]"
        yield from formatted(f"{where}.counterSet", consumed.counter_set, formats.label)
        yield from counters(f"{where}.counters", consumed.counters)
        if consumed.compatibility_groups:
            yield f"{where}.compatibilityGroups", "needs the alpha feature DRADeviceCompatibilityGroups: leave it out"


def _conditions(field: str, device: Device) -> Found:
    pairs = (
        ("bindingConditions", device.binding_conditions),
        ("bindingFailureConditions", device.binding_failure_conditions),
    )
    for name, conditions in pairs:
        yield from at_most(f"{field}.{name}", conditions, MAX_CONDITIONS)
        yield from unique(f"{field}.{name}", "", conditions)
        for number, condition in enumerate(conditions[:MAX_CONDITIONS]):
            yield from formatted(f"{field}.{name}[{number}]", condition, formats.label_key)
    if bool(device.binding_conditions) != bool(device.binding_failure_conditions):
        yield field, "bindingConditions and bindingFailureConditions only work together: set both or none"
    for condition in sorted({*device.binding_conditions} & {*device.binding_failure_conditions}):
        yield f"{field}.bindingFailureConditions", f"{condition!r} is also in bindingConditions: remove it from one"


def _number_of_values(attribute: DeviceAttribute) -> int:
    lists = (attribute.ints, attribute.bools, attribute.strings, attribute.versions)
    return sum(len(values) for values in lists if values) or 1
