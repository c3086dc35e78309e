"""Readings of AWS Neuron devices, from `neuron-monitor`, a stream of one JSON object a line. Pure parser.

It reports by program (runtime) and NeuronCore; here the values are summed by device. It reports
neither temperature nor power. Its fields:
https://awsdocs-neuron.readthedocs-hosted.com/en/latest/tools/neuron-sys-tools/neuron-monitor-user-guide.html
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct, field

from hami_dra.api.hardware import Card
from hami_dra.discovery.errors import Unexpected, Unreadable, shown
from hami_dra.discovery.reading import MAX_BYTES, MAX_INDEX
from hami_dra.discovery.tool import Tool
from hami_dra.monitor.readings import MAX_COUNT, Reading, Sample, ToolReport, Words, joined
from hami_dra.monitor.stream import Stream
from hami_dra.vendors.neuron import discovery as neuron
from hami_dra.vendors.neuron.records import NeuronRecord

TOOL: Final = Tool("neuron-monitor", neuron.TOOL.folders, timeout=12.0)
"""By default it reports every 5 s."""
_MONITOR: Final = "neuron-monitor"
_MOST_CORES: Final = 256
_MOST_PERCENT: Final = 110.0
"""Above 100, because the measured period is not exactly the reported one."""
_ERRORS: Final = {
    "ecc_corrected": ("mem_ecc_corrected", "sram_ecc_corrected"),
    "ecc_uncorrected": ("mem_ecc_uncorrected", "sram_ecc_uncorrected"),
}


class NeuronSampler:
    """Implements `hami_dra.monitor.readings.Sampler`."""

    source = "neuron-monitor"

    def __init__(self, tool: Tool = TOOL) -> None:
        self._stream = Stream(tool)

    def sample(self, cards: Sequence[Card]) -> Sample[Reading]:
        cores = {card.logical_cores or card.cores for card in cards if isinstance(card, NeuronRecord)}
        return joined(cards, [parse(self._stream.next(), cores.pop() if len(cores) == 1 else None)])

    def close(self) -> None:
        self._stream.close()


class _Device(Struct):
    """Sums of one device. None: a program on it does not report the value."""

    used: int | None = 0
    busy: float | None = 0.0
    """Percent, summed over its cores."""


class _Sums(Struct):
    """Sums of all devices, while programs are added."""

    per_device: int
    devices: Mapping[int, _Device]
    problems: list[str] = field(default_factory=list)

    def device(self, core: str) -> _Device:
        """Return the device of a core; cores are numbered across devices. Raises Unexpected."""
        number = int(core) if core.isdecimal() and core.isascii() and len(core) <= 6 else -1
        if number // self.per_device not in self.devices:
            raise Unexpected(f"the number of one of {len(self.devices) * self.per_device} NeuronCores", core)
        return self.devices[number // self.per_device]

    def forget(self, what: str, error: object) -> None:
        """Mark a value as unknown for all devices, because its device cannot be determined."""
        self.problems.append(f"{_MONITOR}, {what}: {error}")
        for device in self.devices.values():
            if what == "memory_used":
                device.used = None
            else:
                device.busy = None


def parse(text: str, cores_per_device: int | None = None) -> ToolReport:
    """Parse one report. Raises Unreadable.

    `cores_per_device`: logical cores as programs see them, from discovery. The report has the
    physical ones, whose number differs if several are joined to a logical one.
    """
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"{_MONITOR}: expected a line of JSON, got {shown(text)}: {error}") from error
    hardware = _object(_object(answer).get("neuron_hardware_info"))
    try:
        devices = _whole(hardware, "neuron_device_count", 1, MAX_INDEX + 1)
        memory = _whole(hardware, "neuron_device_memory_size", 1, MAX_BYTES)
        physical = _whole(hardware, "neuroncore_per_device_count", 1, _MOST_CORES)
    except Unexpected as error:
        raise Unreadable(f"{_MONITOR}, neuron_hardware_info: {error}") from error
    joint = hardware.get("logical_neuroncore_config", 1)
    per_device = physical if joint == 1 else cores_per_device
    sums = _Sums(per_device or 1, {index: _Device() for index in range(devices)})
    runtimes = _object(answer).get("neuron_runtime_data")
    if per_device is None:
        for what in ("memory_used", "neuroncore_counters"):
            sums.forget(what, f"{shown(str(joint))} physical cores are one, and nothing tells how programs number them")
    elif not isinstance(runtimes, list):
        for what in ("memory_used", "neuroncore_counters"):
            sums.forget(what, f"expected a list neuron_runtime_data, got {shown(str(runtimes))}")
    else:
        for runtime in runtimes:
            _add(sums, _object(_object(runtime).get("report")))
    errors = dict(_errors(_object(answer), sums.problems))
    return ToolReport(
        tuple(
            Reading(
                index=index,
                memory_total=memory,
                memory_used=Words(f"{_MONITOR}, device {index}", sums.problems).within(device.used, memory),
                utilization=None if device.busy is None else min(device.busy / sums.per_device, 100.0),
                ecc_corrected=errors.get((index, "ecc_corrected")),
                ecc_uncorrected=errors.get((index, "ecc_uncorrected")),
            )
            for index, device in sums.devices.items()
        ),
        tuple(dict.fromkeys(sums.problems)),
    )


def _add(sums: _Sums, report: Mapping[str, Any]) -> None:
    """Add one program's use. If a program does not report it, the value of its devices is unknown."""
    counters = _object(report.get("neuroncore_counters"))
    in_use = counters.get("neuroncores_in_use")
    try:
        _check(counters, in_use)
        for core, values in _object(in_use).items():
            busy, device = _percent(_object(values), core), sums.device(core)
            device.busy = None if device.busy is None else device.busy + busy
    except Unexpected as error:
        sums.forget("neuroncore_counters", error)
    used = _object(report.get("memory_used"))
    try:
        _check(used, used.get("neuron_runtime_used_bytes"))
        for device, amount in _memory(_object(used["neuron_runtime_used_bytes"]), _object(in_use), sums):
            device.used = None if device.used is None else device.used + amount
    except Unexpected as error:
        sums.forget("memory_used", error)


def _percent(values: Mapping[str, Any], core: str) -> float:
    busy = values.get("neuroncore_utilization")
    if isinstance(busy, bool) or not isinstance(busy, int | float) or not 0 <= busy <= _MOST_PERCENT:
        raise Unexpected(f"the percentage of core {core}", str(busy))
    return min(float(busy), 100.0)


def _memory(used: Mapping[str, Any], in_use: Mapping[str, Any], sums: _Sums) -> Iterator[tuple[_Device, int]]:
    """Yield bytes by device.

    Without values per core, the total counts only if the program has cores of one device only.
    """
    breakdown = _object(used.get("usage_breakdown")).get("neuroncore_memory_usage")
    if isinstance(breakdown, dict):
        for core, parts in breakdown.items():
            yield sums.device(core), sum(_whole(_object(parts), part, 0, MAX_BYTES) for part in _object(parts))
        return
    total = _whole(used, "neuron_device" if "neuron_device" in used else "device", 0, MAX_BYTES)
    homes = {id(device): device for device in map(sums.device, in_use)}
    if total and len(homes) != 1:
        raise Unexpected("usage_breakdown, or the cores of one device", ", ".join(in_use) or "no cores")
    for device in homes.values():
        yield device, total


def _errors(answer: Mapping[str, Any], problems: list[str]) -> Iterator[tuple[tuple[int, str], int]]:
    counters = _object(_object(answer.get("system_data")).get("neuron_hw_counters"))
    if counters.get("error"):
        problems.append(f"{_MONITOR}, neuron_hw_counters: {shown(str(counters['error']))}")
        return
    devices = counters.get("neuron_devices")
    for device in devices if isinstance(devices, list) else ():
        try:
            index = _whole(_object(device), "neuron_device_index", 0, MAX_INDEX)
            for name, parts in _ERRORS.items():
                if any(part in _object(device) for part in parts):
                    yield (index, name), sum(_whole(device, part, 0, MAX_COUNT) for part in parts if part in device)
        except Unexpected as error:
            problems.append(f"{_MONITOR}, neuron_hw_counters: {error}")


def _check(group: Mapping[str, Any], value: object) -> None:
    """Raise Unexpected if the group is missing or reports an error."""
    if group.get("error"):
        raise Unexpected("no error", str(group["error"]))
    if not isinstance(value, dict):
        raise Unexpected("an object", str(value))


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _whole(values: Mapping[str, Any], key: str, least: int, most: int) -> int:
    value = values.get(key)
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise Unexpected(f"{key}: a whole number from {least} to {most}", str(value))
    return value
