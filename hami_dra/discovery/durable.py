"""A small file that outlives the program: written as a whole and to the disk, or not at all.

Used for the state of back ends (`memory`, `unpartitioned`, `NotedFaults`). Blocks. Raises
NotStored, whose message names the file.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class NotStored(Exception):
    """The file cannot be read or written; the message says why."""


class DurableFile:
    """A durable file. Its folder may be missing before the first `write`. Without a path the content is
    kept in memory, and does not outlive the program.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._in_memory: bytes | None = None
        self._stamp: tuple[int, int, int] | None = None

    @property
    def changed(self) -> bool:
        """Return whether another process wrote or removed it since the last `read` or `write`."""
        return self._now() != self._stamp

    def read(self) -> bytes | None:
        """Return the content; None if the file does not exist."""
        if self.path is None:
            return self._in_memory
        try:
            self._stamp = self._now()
            return self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise NotStored(f"{self.path} cannot be read: {error.strerror}") from error

    def write(self, content: bytes) -> None:
        """Write the file; the old content stays until the new one is on the disk."""
        if self.path is None:
            self._in_memory = content
            return
        new = self.path.with_suffix(".new")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with new.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self.path)
            sync_folder(self.path.parent)
        except OSError as error:
            raise NotStored(f"{self.path} cannot be written: {error.strerror}: free space on this disk") from error
        self._stamp = self._now()

    def set_aside(self) -> None:
        """Rename a damaged file for inspection; if that is impossible it stays."""
        if self.path is not None:
            with suppress(OSError):
                self.path.replace(self.path.with_name(f"{self.path.name}.damaged"))

    def _now(self) -> tuple[int, int, int] | None:
        if self.path is None:
            return None
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size


def boot_id(path: Path = BOOT_ID) -> str:
    """Return a text that differs after each boot; empty if the kernel does not report it."""
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def sync_folder(folder: Path) -> None:
    """Write the names in a folder to the disk. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
