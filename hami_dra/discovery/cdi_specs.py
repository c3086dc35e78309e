"""The CDI devices in specifications of other programs, found as container runtimes find them. Pure
but for reading files.

Used by `host`. In: folders, those of higher priority last. Out: devices, and problems with some of
them. The rules are those of the CDI library (container-device-interface, pkg/cdi/cache.go and
spec-dirs.go): files end in .json or .yaml; a device in a folder of higher priority replaces one of
the same name; one that two files of one folder describe is a conflict, and no runtime resolves it.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml
from msgspec import Struct, field

from hami_dra.api.containers import CdiDevice, CommonEdits, DeviceNode, Edits, Hook, Mount
from hami_dra.discovery.sysfs import start_of

_SUFFIXES: Final = (".json", ".yaml")


class Registry(Struct, frozen=True):
    """Devices that a runtime resolves, by qualified name; and sentences about those that it does not."""

    devices: dict[str, CdiDevice]
    problems: tuple[str, ...] = ()
    common: tuple[CommonEdits, ...] = ()
    """Common edits, those of the folder of highest priority first."""


def registry_of(folders: Sequence[Sequence[Path]]) -> Registry:
    """Return the devices. `folders`: the files of each, in order."""
    devices: dict[str, CdiDevice] = {}
    conflicts: dict[str, str] = {}
    common: list[CommonEdits] = []
    for files in folders:
        common[:0] = [edits for file in files if (edits := _specification(file).common) is not None]
        here: dict[str, CdiDevice] = {}
        for file in files:
            for name, device in _specification(file).devices.items():
                if name in here:
                    conflicts[name] = (
                        f"CDI device {name} is in {here[name].file} and in {device.file}, so that no runtime resolves it: remove one of them"
                    )
                here[name] = device
        devices |= here
    good = {name: each for name, each in devices.items() if name not in conflicts}
    return Registry(good, tuple(conflicts.values()), tuple(common))


class _Specification(Struct, frozen=True):
    """The content of one file."""

    devices: Mapping[str, CdiDevice] = field(default_factory=dict)
    common: CommonEdits | None = None


def _specification(file: Path) -> _Specification:
    """Return the content of a file; nothing if it cannot be read: the container runtime reports that to its owner."""
    if file.suffix not in _SUFFIXES:
        return _Specification()
    try:
        status = file.stat()
    except OSError:
        return _Specification()
    return _read(file, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=64)
def _read(file: Path, _changed: int, _size: int) -> _Specification:
    """Read a file once per change, because vendors' specifications are long."""
    try:
        text = start_of(file) or ""
        spec: Any = json.loads(text) if file.suffix == ".json" else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError, RecursionError):
        return _Specification()
    kind, devices = (spec.get("kind"), spec.get("devices")) if isinstance(spec, dict) else (None, None)
    if not isinstance(kind, str) or not isinstance(devices, list):
        return _Specification()
    common = tuple(_paths(spec, "mounts"))
    offered = {
        f"{kind}={device['name']}": CdiDevice(
            file=str(file),
            device_nodes=frozenset(_paths(device, "deviceNodes")),
            mounts=frozenset((*common, *_paths(device, "mounts"))),
        )
        for device in devices
        if isinstance(device, dict) and "name" in device
    }
    return _Specification(offered, _common_edits(file, kind, spec.get("containerEdits")))


def _common_edits(file: Path, kind: str, raw: Any) -> CommonEdits | None:
    """Return the common edits; None if there are none, or some that this version does not support:
    a part of them would be worse than nothing.
    """
    if not isinstance(raw, dict) or not raw:
        return None
    try:
        found = msgspec.convert(raw, _RawEdits, strict=False)
        edits = Edits(
            env=dict(variable.split("=", 1) for variable in found.env),
            device_nodes=tuple(
                DeviceNode(node.path, node.host_path, permissions=node.permissions or "rwm")
                for node in found.device_nodes
            ),
            mounts=tuple(Mount(each.host_path, each.container_path, each.options) for each in found.mounts),
            hooks=tuple(Hook(each.path, each.args, each.env, each.hook_name) for each in found.hooks),
        )
    except (msgspec.ValidationError, ValueError):
        return None
    return CommonEdits(file=str(file), kind=kind, edits=edits)


class _RawNode(msgspec.Struct, frozen=True, rename="camel"):
    path: str
    host_path: str = ""
    permissions: str = ""


class _RawMount(msgspec.Struct, frozen=True, rename="camel"):
    host_path: str
    container_path: str
    options: tuple[str, ...] = ()


class _RawHook(msgspec.Struct, frozen=True, rename="camel"):
    hook_name: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()


class _RawEdits(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of `containerEdits` in a CDI specification that NVIDIA's tools write."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[_RawNode, ...] = ()
    mounts: tuple[_RawMount, ...] = ()
    hooks: tuple[_RawHook, ...] = ()


def _paths(holder: dict[str, Any], kind: str) -> Iterator[str]:
    """Yield the paths on the host."""
    edits = holder.get("containerEdits")
    entries = edits.get(kind) if isinstance(edits, dict) else None
    for entry in entries if isinstance(entries, list) else ():
        path = (entry.get("hostPath") or entry.get("path")) if isinstance(entry, dict) else None
        if isinstance(path, str):
            yield path
