"""Calls of nvidia-ml-py: its answer, or NvmlFailed.

Called by `library`, which has a method for each function of NVML.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from hami_dra.discovery.errors import Unexpected

T = TypeVar("T")

NOT_SUPPORTED: Final = 3
RESET_REQUIRED: Final = 16
_LOST: Final = {15, RESET_REQUIRED, 28}
"""GPU_IS_LOST, RESET_REQUIRED, GPU_NOT_FOUND: the GPU does not answer any more."""
_ABSENT: Final = {2, NOT_SUPPORTED, 6, 13}
"""INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND, FUNCTION_NOT_FOUND: not on this GPU or driver."""
_GARBLED: Final = -1


class NvmlFailed(Exception):
    """A call failed; `code` is NVML's."""

    def __init__(self, call: str, code: int, text: str) -> None:
        super().__init__(f"{call} failed with NVML error {code}: {text}")
        self.code = code

    @property
    def lost(self) -> bool:
        """Return whether the GPU is gone, so that no more calls are possible."""
        return self.code in _LOST

    @property
    def absent(self) -> bool:
        """Return whether this GPU or driver lacks the feature; nothing is broken."""
        return self.code in _ABSENT


@contextlib.contextmanager
def tolerated(problem: Callable[[str], None], what: str = "") -> Iterator[None]:
    """Report a failed call as a problem, which begins with `what`; one for which this GPU or driver lacks the feature
    is none. Raises NvmlFailed when the GPU is lost.
    """
    try:
        yield
    except NvmlFailed as failed:
        if failed.lost:
            raise
        if not failed.absent:
            problem(f"{what}{failed}")


def optional(read: Callable[[], T], otherwise: T, problem: Callable[[str], None]) -> T:
    """Return `otherwise` if the value is missing or unreadable. Raises NvmlFailed when the GPU is lost."""
    value = otherwise
    with tolerated(problem):
        value = read()
    return value  # noqa: RET504 (a tolerated failure leaves `otherwise`)


class Calls:
    """NVML before it is initialised."""

    def __init__(self) -> None:
        import pynvml  # a machine without NVIDIA hardware need not have it loaded

        self._nvml: Any = pynvml
        self.current = ""
        """The current function, or the last one."""

    def call(self, function: str, *arguments: Any) -> Any:
        """Return what a function of NVML answers. Raises NvmlFailed."""
        self.current = function
        return self._guarded(function, lambda: getattr(self._nvml, function)(*arguments))

    def _field(self, structure: Any, field: str) -> Any:
        """Return a field. Texts are decoded on access."""
        return self._guarded(f"{self.current}, {field}", lambda: getattr(structure, field))

    def _guarded(self, what: str, work: Callable[[], T]) -> T:
        try:
            return work()
        except self._nvml.NVMLError as error:
            raise NvmlFailed(what, error.value, str(error)) from error
        except UnicodeDecodeError as error:
            raise NvmlFailed(what, _GARBLED, str(Unexpected("text in UTF-8", repr(error.object)))) from error
