"""The clock of leader election: monotonic, and it goes on while the machine sleeps or the process is stopped."""

import time


def boot_clock() -> float:
    """Monotonic seconds that go on while the machine is suspended, where the system has such a clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
