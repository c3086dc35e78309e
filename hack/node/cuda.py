"""The C programs of hack/node/cuda, built once: a pretended CUDA and NVML, a library that limits as
HAMi-core does, a program that asks.

Used by node.py and tests/node. In: nothing. Out: the folder with the files; what the program needs
of this machine's C library, for an image of its own. Needs a C compiler ($CC, else gcc), as the
build of runc does. It must not import the product.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from hack.controlplane.build import BuildError, cache_folder

ASK: Final = "ask"
LIMITS: Final = "libvgpu.so"
"""Goes where HAMi-core would be installed on the node."""

_SOURCES: Final = Path(__file__).resolve().parent / "cuda"
_FLAGS: Final = ("-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-O1")
_LINKED: Final = ("-lpthread", "-ldl")  # parts of the C library before glibc 2.34
_LIBRARY: Final = ("-shared", "-fPIC", "-fvisibility=hidden")
_BUILDS: Final = {
    ASK: ("ask.c",),
    LIMITS: (*_LIBRARY, "libvgpu.c"),
    "libcuda.so.1": (*_LIBRARY[:2], "-Wl,-soname,libcuda.so.1", "gpus.c"),
    "libnvidia-ml.so.1": (*_LIBRARY[:2], "-Wl,-soname,libnvidia-ml.so.1", "gpus.c"),
}
_NEEDED: Final = re.compile(r"^\s*(?:\S+ => )?(/\S+) \(0x", re.MULTILINE)


def ensure() -> Path:
    """Return the folder with all of `_BUILDS`, which are built where they are missing. Raises BuildError."""
    digest = hashlib.sha256(repr((_BUILDS, _FLAGS, _LINKED)).encode())
    for source in sorted(_SOURCES.iterdir()):
        digest.update(source.read_bytes())
    folder = cache_folder() / f"cuda-{digest.hexdigest()[:12]}"
    if all((folder / name).exists() for name in _BUILDS):
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        for name, arguments in _BUILDS.items():
            built = Path(scratch) / name
            _compile([*_FLAGS, "-o", str(built), *arguments, *_LINKED])
            built.rename(folder / name)  # another worker may have done the same meanwhile
    return folder


def files() -> dict[str, bytes]:
    """Return the files of an image whose program is `ask`, by path: with libraries where the
    dynamic linker of this machine looks.
    """
    folder = ensure()
    needed = {path for name in _BUILDS for path in _needed(folder / name)}
    beside = next(Path(path).parent for path in sorted(needed) if Path(path).name == "libc.so.6")
    own = {
        f"{beside}/{name}": (folder / name).read_bytes() for name in _BUILDS if name.startswith(("libcuda", "libnv"))
    }
    found = {path: Path(path).read_bytes() for path in needed} | own | {f"/{ASK}": (folder / ASK).read_bytes()}
    return {path.lstrip("/"): content for path, content in sorted(found.items())}


def _needed(program: Path) -> list[str]:
    return _NEEDED.findall(subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout)


def _compile(arguments: list[str]) -> None:
    compiler = os.environ.get("CC", "gcc")
    try:
        done = subprocess.run([compiler, *arguments], cwd=_SOURCES, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise BuildError(
            f"hack/node/cuda needs a C compiler, and there is no {compiler}: install gcc, or set CC"
        ) from None
    if done.returncode:
        raise BuildError(f"hack/node/cuda cannot be built:\n{done.stderr[-2_000:]}")
