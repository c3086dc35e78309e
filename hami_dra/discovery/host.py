"""The machine for containers' edits: its files and device nodes, the kernel's data, CDI devices.

Created by the node driver, once; every query reads the files as they are now. Reads only. On
simulated machines `/sys` and `/proc` are below another folder, and device nodes in that of the
settings.
"""

import logging
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from hami_dra.api.containers import CdiDevice, CommonEdits, HostSettings
from hami_dra.discovery.cdi_specs import Registry, registry_of
from hami_dra.discovery.sysfs import start_of

_MOST_LINKS: Final = 40
"""As in the kernel (MAXSYMLINKS)."""


class FolderTree:
    """Implements `hami_dra.api.containers.FileTree` for a root file system in a folder, such as that of a
    driver container: an absolute symlink inside means a place below the same root.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def resolve(self, path: str) -> str | None:
        left = path.split("/")[::-1]
        found: list[str] = []
        links = 0
        while left:
            name = left.pop()
            if name == "..":
                del found[-1:]
            elif name not in ("", "."):
                found.append(name)
                target = self.link("/".join(("", *found)))
                if target:
                    links += 1
                    if links > _MOST_LINKS:
                        return None
                    found = [] if target.startswith("/") else found[:-1]
                    left += target.split("/")[::-1]
        resolved = "/" + "/".join(found)
        return resolved if os.path.lexists(self.on_disk(resolved)) else None

    def names(self, folder: str) -> tuple[str, ...]:
        resolved = self.resolve(folder)
        try:
            return tuple(sorted(each.name for each in self.on_disk(resolved).iterdir())) if resolved is not None else ()
        except OSError:
            return ()

    def link(self, path: str) -> str:
        try:
            return str(self.on_disk(path).readlink())
        except OSError:
            return ""

    def on_disk(self, path: str) -> Path:
        """Return the path of a resolved path for this process."""
        return self._root / path.lstrip("/")


log = logging.getLogger(__name__)

CDI_FOLDERS: Final = (Path("/etc/cdi"), Path("/var/run/cdi"))
_KERNEL: Final = ("/sys/", "/proc/")


class MachineHost:
    """Implements `hami_dra.api.containers.Host`."""

    def __init__(
        self,
        settings: HostSettings | None = None,
        *,
        kernel_root: Path = Path("/"),
        cdi_folders: Sequence[Path] = CDI_FOLDERS,
        not_from: Collection[str] = (),
        driver_root: Path | None = None,
    ) -> None:
        """Set up the machine. `not_from`: hami-dra's own CDI kinds, whose files are not read.
        `driver_root`: path of the settings' driver root in this process.
        """
        self.settings = settings or HostSettings()
        self._root = kernel_root
        self._cdi_folders = tuple(dict.fromkeys(cdi_folders))
        self._ours = frozenset(not_from)
        self._reported: frozenset[str] = frozenset()
        self.driver_files = FolderTree(driver_root) if driver_root is not None else None

    @property
    def cdi_devices(self) -> Mapping[str, CdiDevice]:
        """Return the CDI devices. Those that runtimes do not resolve are left out, and logged once."""
        registry = self._registry()
        for problem in registry.problems:
            if problem not in self._reported:
                log.warning("%s", problem)
        self._reported = frozenset(registry.problems)
        return {name: device for name, device in registry.devices.items() if name.partition("=")[0] not in self._ours}

    @property
    def cdi_common_edits(self) -> tuple[CommonEdits, ...]:
        return tuple(each for each in self._registry().common if each.kind not in self._ours)

    def _registry(self) -> Registry:
        return registry_of([[file for file in _listing(each) if not self._is_ours(file)] for each in self._cdi_folders])

    def exists(self, path: str) -> bool:
        """Return whether it can be opened or mounted: a dangling symlink cannot."""
        try:
            return self._place(path).exists()
        except OSError:
            return False

    def read(self, path: str) -> str | None:
        return start_of(self._place(path))

    def names(self, folder: str) -> tuple[str, ...]:
        return tuple(file.name for file in _listing(self._place(folder)))

    def _place(self, path: str) -> Path:
        return self._root / path.lstrip("/") if path.startswith(_KERNEL) else Path(path)

    def _is_ours(self, file: Path) -> bool:
        return any(file.name.startswith(f"{kind.partition('/')[0]}-") for kind in self._ours)


def _listing(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
