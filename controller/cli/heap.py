"""Make the C library return freed memory to the operating system.

glibc raises its threshold for memory that is mapped separately to the largest block that was ever
freed. After one long list answer, blocks of megabytes therefore come from the heap, and any small
object above them keeps them from being returned: a controller that once listed a cluster of hostile
objects kept 12 MiB of unused memory. With a fixed threshold such blocks are mapped and unmapped one
by one. Smaller ones leave holes in the heap, which it returns when told to.
"""

import ctypes
import gc
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_THRESHOLD: Final = 64 << 10
"""Bytes. Objects of Python are smaller, and pages of lists larger."""


def return_freed_memory() -> bool:
    """Return blocks of `_THRESHOLD` and more as soon as they are freed. Called once, when a
    long-running command starts.

    Returns whether the C library knows these settings: glibc does, others need none or have none.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return all(mallopt(name, _THRESHOLD) == 1 for name in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD))


def collect_in_pieces() -> None:
    """Look for garbage among few new objects at a time, and among all of them next to never.

    Parsing lists makes megabytes of objects and no cycles: with Python's defaults collecting takes
    most of the time. Among 100,000 objects of pods at their limit it takes 0.17 s in one piece,
    among 20,000 a fifth of that.
    """
    gc.set_threshold(20_000, 2, 12_500)


def return_holes() -> None:
    """Return the free pages of the heap. It takes milliseconds; worth it after a burst, such as the first lists."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def settle() -> None:
    """Exclude the present objects from garbage collection, and return what making them left free."""
    gc.collect(0)  # reading makes no cycles: to look for them everywhere is a twentieth of a start
    gc.freeze()
    return_holes()
