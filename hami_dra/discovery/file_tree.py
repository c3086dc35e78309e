"""A root file system in a folder, such as that of a driver container: lookups that never leave it.

Used by `host` and by the NVML back end. Reads only. An absolute symlink inside (`/usr/lib64 ->
/usr/lib`) means a place below the same root, as it does for a process that has it as its root.
"""

import os
from pathlib import Path
from typing import Final

_MOST_LINKS: Final = 40
"""As in the kernel (MAXSYMLINKS)."""


class FolderTree:
    """Implements `hami_dra.api.containers.FileTree`."""

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
