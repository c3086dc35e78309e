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
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import PurePosixPath
from typing import Final

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


def stale_folders(parent: str, used: Collection[str], before: float) -> list[str]:
    """Return folders of containers that are gone: below `parent`, not in `used`, unchanged since
    the Unix time `before`, and with a file that this driver named.

    HAMi's device plugin keeps its folders in the same place, so others are left alone.
    """
    try:
        with os.scandir(parent) as entries:
            return sorted(entry.path for entry in entries if entry.path not in used and _is_stale(entry, before))
    except OSError:  # no container has had a folder yet
        return []


def _is_stale(entry: "os.DirEntry[str]", before: float) -> bool:
    try:
        if not entry.is_dir(follow_symlinks=False) or entry.stat(follow_symlinks=False).st_mtime >= before:
            return False
        with os.scandir(entry.path) as files:
            return any(_OWN_NAME.fullmatch(file.name) for file in islice(files, _MOST_ENTRIES))
    except OSError:
        return False
