"""Calls to NVML with a timeout. Used by `backend` and `partitions`.

NVML can hang inside the kernel, where nothing ends it, so every visit runs in its own thread. A
hanging thread is abandoned, and until it returns every further visit fails at once.
"""

import ctypes
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, TypeVar

from hami_dra.api.background import in_background
from hami_dra.discovery.errors import ToolFailed, ToolMissing
from hami_dra.discovery.host import FolderTree
from hami_dra.vendors.nvidia.driver_files import LIBRARY_FOLDERS
from hami_dra.vendors.nvidia.nvml.calls import NvmlFailed
from hami_dra.vendors.nvidia.nvml.library import LIBRARY_NOT_FOUND, Library

T = TypeVar("T")

_LIBRARY: Final = "libnvidia-ml.so.1"


class Visits:
    """Run visits, one at a time: the caller holds a lock."""

    def __init__(self, timeout: float, doing: Callable[[], str]) -> None:
        """Set up visits. `timeout`: seconds; `doing`: the current function of NVML, for messages."""
        self._timeout = timeout
        self._doing = doing
        self._visit: Future[Any] | None = None

    @property
    def hangs(self) -> bool:
        return self._visit is not None and not self._visit.done()

    def run(self, work: Callable[[], T], patience: float = 0.0) -> T:
        """Run `work`. `patience`: seconds that the work itself may wait. Raises ToolFailed in place
        of NvmlFailed, and any other error of `work`.
        """
        if self.hangs:
            raise ToolFailed(f"NVML still hangs in {self._doing()}; restart the driver once the kernel log is clean")
        self._visit = visit = in_background(work, "nvml")
        try:
            return visit.result(self._timeout + patience)
        except NvmlFailed as failed:
            raise ToolFailed(f"{failed}; is the kernel module nvidia loaded and of the library's version?") from failed
        except TimeoutError:
            if not self.hangs:
                raise
            raise ToolFailed(
                f"NVML gave no answer within {self._timeout:g} s in {self._doing()}: the GPU's driver hangs"
            ) from None


_driver_root: list[FolderTree] = []
"""At most one. A process loads NVML once for all users."""


def use_driver_root(root: Path) -> None:
    """Search NVML below this folder first, also later: a driver container may install it after this process started."""
    _driver_root[:] = [FolderTree(root)]


def _load_from_driver_root() -> None:
    """Load the library by its path. Later loads of libnvidia-ml.so.1 get this one (dlopen matches by SONAME)."""
    for tree in _driver_root:
        for folder in ("/", *LIBRARY_FOLDERS):
            path = tree.resolve(f"{folder}/{_LIBRARY}")
            if path is None:
                continue
            try:
                ctypes.CDLL(str(tree.on_disk(path)), mode=ctypes.RTLD_GLOBAL)
            except OSError as error:
                raise ToolMissing(f"{path} of the driver root cannot be loaded: {error}") from error
            return


def open_library() -> Library:
    """Open NVML. Raises ToolMissing, NvmlFailed."""
    _load_from_driver_root()
    try:
        return Library()
    except NvmlFailed as failed:
        if failed.code == LIBRARY_NOT_FOUND:
            raise ToolMissing(
                "libnvidia-ml.so.1 was not found: this machine has no NVIDIA driver, or its libraries are not "
                "mounted into this container"
            ) from failed
        raise
