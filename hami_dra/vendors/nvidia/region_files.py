"""The files of HAMi-core's shared regions on the node: found, opened, read, written, removed.

Called by `usage_reader`. The folder of such a file is mounted writable into a container, which runs
as any user and may be hostile. So

- the kind of a file is known before it is opened (O_PATH): opening a FIFO waits, opening a device
  node that the container has made may do anything, and a symbolic link would lead out of the
  folder;
- it is read in parts, never mapped: a container that cuts off a mapped file ends the reader of the
  mapping by SIGBUS. Positional reads see the same pages and only come out short;
- sizes are those of the known layouts, whatever the file says, so a sparse file of terabytes costs
  as much as any other;
- the name of the file is the driver's own, and folders are listed only up to a few entries.
"""

import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import PurePosixPath
from typing import Final

from hami_dra.api.containers import MARKER
from hami_dra.vendors.nvidia.shared_region import HEADER_SIZE, Layout, NotARegion, layout_of

_LOOK: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN: Final = os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_OWN_NAME: Final = re.compile(r"[0-9a-f]{16}(?:-[0-9a-f]{8})?\.cache")
"""`hami_core` names files so; HAMi's device plugin names them after a random uuid."""
_MOST_ENTRIES: Final = 64


def path_of(cache: str, mounts: Mapping[str, str]) -> str | None:
    """Return the path on the host of a file that a container has at `cache`; None: the host has no
    such file, because it is in the container's memory.

    >>> path_of("/usr/local/vgpu/a.cache", {"/usr/local/vgpu": "/usr/local/vgpu/containers/x"})
    '/usr/local/vgpu/containers/x/a.cache'
    """
    file = PurePosixPath(cache)
    folder = mounts.get(str(file.parent))
    return None if folder is None or not file.is_absolute() else f"{folder}/{file.name}"


@contextmanager
def opened(path: str, *, writable: bool = False) -> Iterator[int]:
    """Open a regular file that nothing else is linked to. Raises OSError, NotARegion."""
    file = PurePosixPath(path)
    folder = os.open(file.parent, _LOOK | os.O_DIRECTORY)
    try:
        seen = os.open(file.name, _LOOK, dir_fd=folder)
    finally:
        os.close(folder)
    try:
        found = os.fstat(seen)
        if not stat.S_ISREG(found.st_mode):
            raise NotARegion("it is no regular file")
        if found.st_nlink != 1:
            raise NotARegion(f"it has {found.st_nlink} names")
        descriptor = os.open(f"/proc/self/fd/{seen}", (os.O_RDWR if writable else os.O_RDONLY) | _OPEN)
    finally:
        os.close(seen)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def read_layout(descriptor: int) -> Layout:
    """Return the layout of an open file. Raises OSError, NotARegion."""
    return layout_of(os.pread(descriptor, HEADER_SIZE, 0), os.fstat(descriptor).st_size)


def read_part(descriptor: int, start: int, size: int) -> bytes:
    """Return the bytes from `start` on; fewer than `size` where the file ends. Raises OSError."""
    parts = []
    while size > 0 and (part := os.pread(descriptor, size, start)):
        parts.append(part)
        start, size = start + len(part), size - len(part)
    return b"".join(parts)


def own_files(parent: str) -> Iterator[str]:
    """Yield the files below `parent` that this driver named; of each folder the first `_MOST_ENTRIES` entries count."""
    for folder in _entries(parent):
        if folder.is_dir(follow_symlinks=False):
            files = islice(_entries(folder.path), _MOST_ENTRIES)
            yield from (file.path for file in files if _OWN_NAME.fullmatch(file.name))


def own_folders(parent: str) -> list[str]:
    """Return the folders that this driver made below `parent`, by their markers.

    HAMi's device plugin keeps its folders in the same place, so all others are left alone. Nothing
    that a container can change counts.
    """
    return sorted(entry.path.removesuffix(MARKER) for entry in _entries(parent) if entry.name.endswith(MARKER))


def _entries(folder: str) -> Iterator["os.DirEntry[str]"]:
    """Yield the entries of a folder; none of one that cannot be listed."""
    try:
        with os.scandir(folder) as entries:
            yield from entries
    except OSError:  # no container has had a folder yet, or it is being removed
        return
