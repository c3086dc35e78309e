"""What the Neuron kernel driver says below `/sys/devices/virtual/neuron_device`: names, serial
numbers, error counts, neighbours.

Called by `discovery`. In: the folder `/sys`. Out: values; a file that is missing is an empty one.

The kernel driver's source of 2.24.7 (neuron_sysfs_metrics.c) shows the places of the files. Driver
2.31 moved several of them ("not backwards compatible": Neuron Sysfs User Guide of SDK 2.33.0), and
no public source shows where to. So a file that is not at its old place is searched by its name in
the whole folder of the device, and a device without it is named among the problems.
"""

import functools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

from hami_dra.api.hardware import Fault
from hami_dra.discovery.errors import Unexpected
from hami_dra.discovery.reading import identity, name_if_said, said
from hami_dra.discovery.sysfs import SYS, text_of

FILES: Final = "devices/virtual/neuron_device"
_CLASS: Final = "class/neuron_device"
"""The kernel lists the devices of a class there, independent of their own folders."""
_FOLDER: Final = re.compile(r"neuron(\d{1,4})")
_OTHERS: Final = re.compile(r"neuron_core\d+|power|subsystem|device")
_DEEPEST: Final = 5
"""Maximum depth of searched folders."""
_ECC_COUNTERS: Final = ("mem_ecc_uncorrected", "sram_ecc_uncorrected")
_INSTANCE_TYPE: Final = re.compile(r"[a-z0-9-]+\.[a-z0-9-]+")


class DeviceFiles(Struct, frozen=True):
    """The kernel driver's data about one device; empty or None = nothing."""

    index: int
    device_name: str = ""
    serial: str = ""
    architecture: str = ""
    instance_type: str = ""
    """Instance type of the device's kind: `Trn1`."""
    cores: int | None = None
    connected: tuple[int, ...] = ()
    faults: tuple[Fault, ...] = ()
    problems: tuple[str, ...] = ()
    """Events that will go unnoticed, since the file that reports them is missing."""


class MachineFacts(Struct, frozen=True):
    """The kernel's data about the whole machine; empty = nothing."""

    driver_version: str
    instance_type: str
    """`trn1.32xlarge`: EC2's name of the machine's product."""


def read_files(sys: Path = SYS) -> dict[int, DeviceFiles]:
    """Return index → data of the kernel driver; empty without the driver."""
    found: dict[int, DeviceFiles] = {}
    for place in (FILES, _CLASS):
        try:
            folders = sorted((sys / place).iterdir())
        except OSError:
            continue
        for folder in folders:
            match = _FOLDER.fullmatch(folder.name)
            if match and int(match[1]) not in found:
                found[int(match[1])] = _device_files(int(match[1]), folder)
    return found


def machine_facts(sys: Path) -> MachineFacts:
    """Return the kernel's data about the whole machine."""
    machine = text_of(sys / "devices" / "virtual" / "dmi" / "id" / "product_name") or ""
    return MachineFacts(
        driver_version=name_if_said(text_of(sys / "module" / "neuron" / "version")),
        instance_type=machine if _INSTANCE_TYPE.fullmatch(machine) else "",
    )


def _device_files(index: int, folder: Path) -> DeviceFiles:
    moved = functools.cache(lambda: _by_name(folder))

    def path(*parts: str) -> Path:
        """Return the old path, else that of any file or folder of that name."""
        known = folder.joinpath(*parts)
        return known if known.exists() else moved().get(parts[-1], known)

    def value(*parts: str) -> str:
        return said(text_of(path(*parts)))

    peers = [peer.strip() for peer in re.split(r"[,\s]+", value("connected_devices")) if peer.strip().isdecimal()]
    cores = value("core_count")
    architecture = ("info", "architecture")
    counters = [path("stats", "hardware", counter) for counter in _ECC_COUNTERS]
    problems = []
    if not path("info", "serial_number").exists():
        problems.append(f"{folder}: no file serial_number in it: the device is recognised by its place alone")
    if not any(counter.exists() for counter in counters):
        problems.append(
            f"{folder}: no file {' or '.join(_ECC_COUNTERS)} in it: errors of its memory will not be noticed"
        )
    return DeviceFiles(
        index=index,
        device_name=name_if_said(value(*architecture, "device_name")),
        serial=_serial(value("info", "serial_number")),
        architecture=name_if_said(value(*architecture, "arch_type")),
        instance_type=name_if_said(value(*architecture, "instance_type")),
        cores=int(cores) if re.fullmatch(r"[1-9][0-9]{0,2}", cores) else None,
        connected=tuple(int(peer) for peer in peers if len(peer) <= 4 and int(peer) != index),
        faults=tuple(_faults(counters)),
        problems=tuple(problems),
    )


def _by_name(folder: Path) -> dict[str, Path]:
    """Return a device's files by name, the nearest of each; not those of its cores or of power."""
    found: dict[str, Path] = {}
    level = [folder]
    for _ in range(_DEEPEST):
        entries = [entry for each in level for entry in _entries(each)]
        for entry in entries:
            found.setdefault(entry.name, entry)
        level = [entry for entry in entries if entry.is_dir() and not entry.is_symlink()]
    return found


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(entry for entry in folder.iterdir() if not _OTHERS.fullmatch(entry.name))
    except OSError:
        return []


def _serial(text: str) -> str:
    """Return the serial number; empty without one, which the device shows as zeros."""
    try:
        return identity(text, "a serial number") if text.strip("0x") else ""
    except Unexpected:
        return ""


def _faults(counters: Iterable[Path]) -> Iterator[Fault]:
    """Yield uncorrectable errors in memory since the driver was loaded."""
    for path in counters:
        count = text_of(path) or text_of(path / "total") or ""
        if count.isdecimal() and count.strip("0"):
            yield Fault(code="ecc-uncorrected", message=f"{path} is {count}")
