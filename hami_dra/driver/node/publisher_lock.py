"""The lock that decides which of two drivers on a node publishes: during a rolling update the old
and the new one run side by side.

Used by `service`, one per driver. Both would write the same slices, and if the new version writes
them differently, each would revert the other's changes. The first driver therefore holds a lock on
a file until it ends, for whatever reason. The second one waits for it, and serves kubelet in the
meantime, because kubelet calls the newer driver.
"""

import asyncio
import fcntl
import os
from pathlib import Path
from typing import Final

from hami_dra.api.errors import ConfigError

_EVERY: Final = 0.5


class PublisherLock:
    """A file lock. `is_ours` from `take` until `give_back` or the end of the process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None

    @property
    def is_ours(self) -> bool:
        return self._file is not None

    async def take(self) -> None:
        """Wait for the lock and take it. Raises ConfigError if the file cannot be created."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(
                f"{self._path} cannot be created: {error.strerror}; the driver needs a writable folder for plugins of kubelet (--root)"
            ) from error
        try:
            while not _lock(file):  # noqa: ASYNC110 (the kernel sets no event)
                await asyncio.sleep(_EVERY)
        except BaseException:
            os.close(file)
            raise
        self._file = file

    def give_back(self) -> None:
        """Release the lock. Idempotent."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


def _lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
