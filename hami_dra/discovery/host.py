"""The machine as containers' edits see it: which files and device nodes there are, what the kernel says, what CDI offers.

Made by the node driver, once; every question is answered from the files as they are now. Reads only. On simulated machines `/sys` and
`/proc` are looked for below another folder, and device nodes in that of the settings.
"""

import json
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from hami_dra.vendors.containers import HostSettings

CDI_FOLDERS: Final = (Path("/etc/cdi"), Path("/var/run/cdi"))
_KERNEL: Final = ("/sys/", "/proc/")
_MOST: Final = 1 << 20
"""Bytes of a file that is read."""


class MachineHost:
    """Implements `hami_dra.vendors.containers.Host`."""

    def __init__(
        self,
        settings: HostSettings | None = None,
        *,
        kernel_root: Path = Path("/"),
        cdi_folders: Sequence[Path] = CDI_FOLDERS,
        not_from: Collection[str] = (),
    ) -> None:
        """`not_from`: CDI kinds that are our own, whose files are not read."""
        self.settings = settings or HostSettings()
        self._root = kernel_root
        self._cdi_folders = tuple(cdi_folders)
        self._ours = frozenset(not_from)

    @property
    def cdi_devices(self) -> frozenset[str]:
        """A file that cannot be read offers nothing: its owner will hear of it from the container runtime."""
        files = (file for folder in self._cdi_folders for file in _listing(folder))
        return frozenset(name for file in files for name in self._offered(file))

    def exists(self, path: str) -> bool:
        return os.path.lexists(self._place(path))

    def read(self, path: str) -> str | None:
        return _text(self._place(path))

    def names(self, folder: str) -> tuple[str, ...]:
        return tuple(file.name for file in _listing(self._place(folder)))

    def _place(self, path: str) -> Path:
        return self._root / path.lstrip("/") if path.startswith(_KERNEL) else Path(path)

    def _offered(self, file: Path) -> list[str]:
        if file.suffix not in (".json", ".yaml", ".yml") or any(
            file.name.startswith(f"{kind.partition('/')[0]}-") for kind in self._ours
        ):
            return []
        spec = _parsed(file)
        kind, devices = spec.get("kind"), spec.get("devices")
        if not isinstance(kind, str) or not isinstance(devices, list) or kind in self._ours:
            return []
        return [f"{kind}={device['name']}" for device in devices if isinstance(device, dict) and "name" in device]


def _parsed(file: Path) -> Mapping[str, Any]:
    text = _text(file)
    try:
        spec = json.loads(text or "") if file.suffix == ".json" else yaml.safe_load(text or "")
    except (ValueError, yaml.YAMLError, RecursionError):
        return {}
    return spec if isinstance(spec, dict) else {}


def _listing(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _text(file: Path) -> str | None:
    try:
        with file.open("rb") as content:
            return content.read(_MOST).decode(errors="replace")
    except OSError:
        return None
