"""The machine as containers' edits see it: which files and device nodes there are, what the kernel says, what CDI offers.

Made by the node driver, once; every question is answered from the files as they are now. Reads only. On simulated machines `/sys` and
`/proc` are looked for below another folder, and device nodes in that of the settings.
"""

import json
import os
from collections.abc import Collection, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import yaml

from hami_dra.vendors.containers import HostSettings

CDI_FOLDERS: Final = (Path("/etc/cdi"), Path("/var/run/cdi"))
_KERNEL: Final = ("/sys/", "/proc/")
_MOST: Final = 8 << 20
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
        files = (file for folder in self._cdi_folders for file in _listing(folder) if not self._is_ours(file))
        return frozenset(name for file in files for name in self._offered(file))

    def exists(self, path: str) -> bool:
        return os.path.lexists(self._place(path))

    def read(self, path: str) -> str | None:
        return _text(self._place(path))

    def names(self, folder: str) -> tuple[str, ...]:
        return tuple(file.name for file in _listing(self._place(folder)))

    def _place(self, path: str) -> Path:
        return self._root / path.lstrip("/") if path.startswith(_KERNEL) else Path(path)

    def _is_ours(self, file: Path) -> bool:
        return any(file.name.startswith(f"{kind.partition('/')[0]}-") for kind in self._ours)

    def _offered(self, file: Path) -> tuple[str, ...]:
        try:
            status = file.stat()
        except OSError:
            return ()
        return tuple(
            name for name in _devices(file, status.st_mtime_ns, status.st_size) if _kind(name) not in self._ours
        )


def _kind(name: str) -> str:
    return name.partition("=")[0]


@lru_cache(maxsize=64)
def _devices(file: Path, _changed: int, _size: int) -> tuple[str, ...]:
    """Vendors' specifications are long; they are read again when they change."""
    if file.suffix not in (".json", ".yaml", ".yml"):
        return ()
    text = _text(file)
    try:
        spec: Any = json.loads(text or "") if file.suffix == ".json" else yaml.safe_load(text or "")
    except (ValueError, yaml.YAMLError, RecursionError):
        return ()
    kind, devices = (spec.get("kind"), spec.get("devices")) if isinstance(spec, dict) else (None, None)
    if not isinstance(kind, str) or not isinstance(devices, list):
        return ()
    return tuple(f"{kind}={device['name']}" for device in devices if isinstance(device, dict) and "name" in device)


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
