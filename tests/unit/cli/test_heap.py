"""Memory that a burst took goes back to the system, though small blocks lie between the large ones."""

import subprocess
import sys

from controller.cli.heap import return_freed_memory, return_holes

MEBIBYTE = 1 << 20
BURST = """
import sys
from pathlib import Path
from controller.cli.heap import return_freed_memory, return_holes

def resident():
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024

if sys.argv[1] == "on":
    return_freed_memory()
large = bytearray(30 << 20)
del large  # now glibc takes blocks of this size from the heap
before = resident()
kept, burst = [], []
for _ in range(100):
    burst.append(bytearray(b"x" * 300_000))
    kept.append(bytearray(b"x" * 2_000))
burst.clear()
print(resident() - before)
"""


def left(setting):
    """Bytes that a burst of 30 MB leaves behind."""
    done = subprocess.run([sys.executable, "-c", BURST, setting], capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_a_burst_leaves_little_behind():
    if return_freed_memory():
        assert left("off") > 20 * MEBIBYTE, "glibc keeps it by itself"
    assert left("on") < 4 * MEBIBYTE


HOLES = (
    BURST.partition("large =")[0]
    + """
before = resident()
kept, burst = [], []
for _ in range(1_000):
    burst.append(bytearray(b"x" * 30_000))
    kept.append(bytearray(b"x" * 2_000))
burst.clear()
if sys.argv[2] == "holes":
    return_holes()
print(resident() - before)
"""
)


def test_holes_of_the_heap_are_returned_when_asked():
    """Blocks that are too small to be mapped one by one, with small ones that stay between them."""

    def left_of_blocks(holes):
        command = [sys.executable, "-c", HOLES, "on", holes]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    if return_freed_memory():
        return_holes()
        assert left_of_blocks("kept") > 20 * MEBIBYTE
        assert left_of_blocks("holes") < 12 * MEBIBYTE
