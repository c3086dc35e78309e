"""HAMi-core for a node that lacks it: from a folder with the library to the files that the node needs.

Called by `hami-dra install-library` through `PLUGIN.library_files`. In: the folder, as HAMi's image
has it (`/k8s-vgpu/lib/nvidia`) or an administrator fills it. Out: files to write. Writes nothing.
As HAMi's docker/vgpu-init.sh does: `ld.so.preload` is never copied but made, since it must name the
library where it is on the node.
"""

import os
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from hami_dra.api.options import VendorSettings
from hami_dra.vendors.nvidia.hami_core import library_path, preload_file
from hami_dra.vendors.nvidia.options import LIBRARY_VERSION

LIBRARY: Final = "libvgpu.so"
MOST_BYTES: Final = 64 << 20
"""HAMi-core has about 1 MB."""
_ELF: Final = struct.Struct("<4sBB10xHH")
"""Magic number, class (2: 64 bits), byte order (1: little endian), type (3: shared), machine."""
_MACHINES: Final = {"x86_64": 62, "aarch64": 183}
_VERSIONED: Final = re.compile(rf"{re.escape(LIBRARY)}\.[A-Za-z0-9][A-Za-z0-9._+-]*")


class NoLibrary(ValueError):
    """The folder has no library that can be installed; the message says why, and the fix."""


def library_files(source: Path, settings: VendorSettings) -> Mapping[str, bytes]:
    """Return path on the node → content, in the order in which they are to be written. Raises NoLibrary, OSError."""
    chosen = _chosen(source, settings[LIBRARY_VERSION])
    content = _content(source, chosen)
    _check(chosen, content, os.uname().machine)
    path, preload = preload_file(settings)
    return {library_path(settings): content, path: preload}


def _chosen(source: Path, version: str) -> Path:
    """Return the library of this version; without one the plain name, or the only one there is."""
    found = {path.name: path for path in source.iterdir() if path.name == LIBRARY or _VERSIONED.fullmatch(path.name)}
    if version:
        names = [name for name in (f"{LIBRARY}.{version}",) if name in found]
    else:
        names = [LIBRARY] if LIBRARY in found else sorted(found)
    if len(names) == 1:
        return found[names[0]]
    there = ", ".join(sorted(found)) or "neither it nor a version of it"
    wanted = f"{LIBRARY}.{version}" if version else LIBRARY
    raise NoLibrary(
        f"{source} has {there}, and {wanted} is wanted: name the folder that has it, or one version by --library-version"
    )


def _content(source: Path, path: Path) -> bytes:
    real = path.resolve(strict=True)
    if not real.is_relative_to(source.resolve()) or not real.is_file():
        raise NoLibrary(f"{path} is no file of {source}: give a folder with the library itself")
    if real.stat().st_size > MOST_BYTES:
        raise NoLibrary(f"{path} has {real.stat().st_size} bytes, more than {MOST_BYTES}: it is no HAMi-core")
    return real.read_bytes()


def _check(path: Path, content: bytes, machine: str) -> None:
    """Raise NoLibrary for what this machine cannot load: each program would complain of it."""
    wanted = _MACHINES.get(machine)
    if len(content) < _ELF.size:
        raise NoLibrary(f"{path} has {len(content)} bytes: it is no library")
    magic, size, order, kind, built_for = _ELF.unpack_from(content)
    if (magic, size, order, kind) != (b"\x7fELF", 2, 1, 3):
        raise NoLibrary(f"{path} is no shared library of 64 bits")
    if wanted is not None and built_for != wanted:
        names = {number: name for name, number in _MACHINES.items()}
        raise NoLibrary(f"{path} is for {names.get(built_for, f'machine {built_for}')}, and this node is {machine}")
