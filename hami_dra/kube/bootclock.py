"""The clock of leader election: monotonic, and not paused while the machine or process is suspended."""

import time


def boot_clock() -> float:
    """Return monotonic seconds that include suspended time, if the system has such a clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
