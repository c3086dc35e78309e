"""The CDI devices that specifications of others offer, found as container runtimes find them. Pure but for reading files.

Used by `host`. In: folders, those of higher priority last. Out: devices, and what is wrong with some of them. The rules are those of
the CDI library (container-device-interface, pkg/cdi/cache.go and spec-dirs.go): files end in .json or .yaml; a device in a folder of higher
priority replaces one of the same name; one that two files of one folder describe is a conflict, and no runtime resolves it.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import yaml

from hami_dra.vendors.containers import CdiDevice

_SUFFIXES: Final = (".json", ".yaml")
_MOST: Final = 8 << 20
"""Bytes of a file that is read."""


@dataclass(frozen=True, slots=True)
class Registry:
    """What a runtime resolves, by qualified name; and sentences about what it does not."""

    devices: dict[str, CdiDevice]
    problems: tuple[str, ...] = ()


def registry_of(folders: Sequence[Sequence[Path]]) -> Registry:
    """`folders`: the files of each, in order."""
    devices: dict[str, CdiDevice] = {}
    conflicts: dict[str, str] = {}
    for files in folders:
        here: dict[str, CdiDevice] = {}
        for file in files:
            for name, device in _devices_in(file).items():
                if name in here:
                    conflicts[name] = (
                        f"CDI device {name} is in {here[name].file} and in {device.file}, so that no runtime resolves it: remove one of them"
                    )
                here[name] = device
        devices |= here
    return Registry({name: each for name, each in devices.items() if name not in conflicts}, tuple(conflicts.values()))


def _devices_in(file: Path) -> dict[str, CdiDevice]:
    """A file that cannot be read offers nothing: its owner will hear of it from the container runtime."""
    if file.suffix not in _SUFFIXES:
        return {}
    try:
        status = file.stat()
    except OSError:
        return {}
    return _read(file, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=64)
def _read(file: Path, _changed: int, _size: int) -> dict[str, CdiDevice]:
    """Vendors' specifications are long; they are read again when they change."""
    try:
        with file.open("rb") as content:
            text = content.read(_MOST).decode(errors="replace")
        spec: Any = json.loads(text) if file.suffix == ".json" else yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return {}
    kind, devices = (spec.get("kind"), spec.get("devices")) if isinstance(spec, dict) else (None, None)
    if not isinstance(kind, str) or not isinstance(devices, list):
        return {}
    common = tuple(_paths(spec, "mounts"))
    return {
        f"{kind}={device['name']}": CdiDevice(
            file=str(file),
            device_nodes=frozenset(_paths(device, "deviceNodes")),
            mounts=frozenset((*common, *_paths(device, "mounts"))),
        )
        for device in devices
        if isinstance(device, dict) and "name" in device
    }


def _paths(holder: dict[str, Any], kind: str) -> Iterator[str]:
    """On the host."""
    edits = holder.get("containerEdits")
    entries = edits.get(kind) if isinstance(edits, dict) else None
    for entry in entries if isinstance(entries, list) else ():
        path = (entry.get("hostPath") or entry.get("path")) if isinstance(entry, dict) else None
        if isinstance(path, str):
            yield path
