"""An image of hami-dra for tests/node: the checkout, what it requires, and the Python that runs
this, all at their own paths.

Called by tests/node. It stands in for the Dockerfile, which needs a registry: the files are those
of an installation without extras, and the shared libraries that they are linked with. Bytecode is
left out.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Final

from hack.node.image import Image

NAME: Final = "hami-dra.test/hami-dra"
_ROOT: Final = Path(__file__).resolve().parents[2]
_PARTS: Final = ("hami_dra", "controller", "manifests", "deviceclasses", "examples")
_LEFT_OUT: Final = {
    "__pycache__",
    "test",
    "idlelib",
    "lib2to3",
    "ensurepip",
    "tkinter",
    "site-packages",
    "dist-packages",
}
_SCRIPT: Final = """#!{python} -IB
import sys
sys.path[:0] = {paths}
from controller.cli.main import run
run()
"""


def of_checkout() -> Image:
    """Return the image; its entrypoint is `hami-dra`. Raises CalledProcessError where a library's
    links cannot be read.
    """
    python = Path(os.path.realpath(sys.executable))
    packages = Path(sysconfig.get_path("purelib"))
    found = {python, *_tree(Path(sysconfig.get_path("stdlib"))), *_required("hami-dra")}
    for part in _PARTS:
        found.update(_tree(_ROOT / part))
    libraries = [file for file in found if file == python or (".so" in file.suffixes and "_tkinter" not in file.name)]
    found.update(_linked(libraries))
    files = {str(file).lstrip("/"): file.read_bytes() for file in found}
    script = _SCRIPT.format(python=python, paths=[str(_ROOT), str(packages)])
    return Image({**files, "hami-dra": script.encode()}, "/hami-dra")


def _tree(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in _LEFT_OUT and not name.startswith("config-")]
        yield from (Path(place) / name for name in names)


def _required(name: str, known: set[str] | None = None) -> Iterator[Path]:
    """Yield the files of what a distribution requires, extras left out; what is not installed is
    for another platform.
    """
    known = {name} if known is None else known
    for requirement in metadata.distribution(name).requires or ():
        other = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
        if "extra ==" in requirement or other in known:
            continue
        known.add(other)
        try:
            files = metadata.distribution(other).files or ()
        except metadata.PackageNotFoundError:
            continue
        for file in files:
            path = Path(os.path.normpath(str(file.locate())))
            if path.exists() and path.suffix != ".pyc":
                yield path
        yield from _required(other, known)


def _linked(files: Iterable[Path]) -> Iterator[Path]:
    """Yield the shared libraries that the files are linked with, by the names under which the loader looks for them."""
    output = subprocess.run(["ldd", *map(str, files)], check=True, capture_output=True, text=True).stdout
    for match in re.finditer(r"^\s(?:\S+ => )?(/\S+) \(0x", output, flags=re.MULTILINE):
        yield Path(os.path.normpath(match[1]))
