"""The few operations of preparation on the file system, each one step, so that tests can fail or
kill it at every single one.

Used by `transaction` and `checkpoint`. Blocks; called from a thread. Raises OSError.
"""

import errno
import fcntl
import os
from pathlib import Path
from typing import Final, NamedTuple

from hami_dra.discovery.durable import sync_folder
from hami_dra.driver.prepare.errors import NotWritten
from hami_dra.driver.prepare.trees import remove_tree

_TEMPORARY: Final = ".tmp"
"""Suffix of files that are being written: containerd reads files that end in .json or .yaml."""
SELINUX_LABEL: Final = "security.selinux"
"""Extended attribute."""
CONTAINERS_LABEL: Final = b"system_u:object_r:container_file_t:s0\0"
"""SELinux label of files that every container may write: the one that `:z` gives a volume
(container-selinux, podman-run(1)).
"""
_NO_LABELS: Final = frozenset({errno.EINVAL, errno.ENOTSUP})
"""The policy has no such type, so that nothing confines containers; or the file system has no labels."""
_OWN_LABEL: Final = Path("/proc/self/attr/current")


class Stamp(NamedTuple):
    """Identity of a file's version: every write creates a new inode."""

    inode: int
    modified: int
    size: int


class Files:
    """The real file system. Overridden by tests."""

    def __init__(self, own_label: Path = _OWN_LABEL) -> None:
        """Use the real file system. `own_label`: the kernel's file with the label of this process."""
        self._own_label = own_label

    def read(self, path: Path) -> bytes | None:
        """Return the content of a file; None if it does not exist."""
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None

    def write(self, path: Path, content: bytes, mode: int = 0o600) -> None:
        """Write a file atomically, even on power failure: the old file stays until the new one is on the disk."""
        temporary = path.with_name(f"{path.name}{_TEMPORARY}")
        try:
            self.write_temporary(temporary, content, mode)
            self.rename(temporary, path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        self.sync_folder(path.parent)

    def remove(self, path: Path) -> None:
        """Remove a file; a missing one is no error."""
        try:
            self.unlink(path)
        except FileNotFoundError:
            return
        self.sync_folder(path.parent)

    def names(self, folder: Path) -> list[str]:
        """Return the names in a folder, which may be missing, without files that are being written."""
        try:
            return sorted(path.name for path in folder.iterdir() if not path.name.endswith(_TEMPORARY))
        except FileNotFoundError:
            return []

    def leftovers(self, folder: Path, start: str) -> list[Path]:
        """Return files of interrupted writes; `start`: the start of their names."""
        try:
            return sorted(
                path for path in folder.iterdir() if path.name.startswith(start) and path.name.endswith(_TEMPORARY)
            )
        except FileNotFoundError:
            return []

    def stamp(self, path: Path) -> Stamp | None:
        try:
            found = path.stat()
        except FileNotFoundError:
            return None
        return Stamp(found.st_ino, found.st_mtime_ns, found.st_size)

    # --- single steps ---

    def write_temporary(self, path: Path, content: bytes, mode: int) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(content)
            file.flush()
            os.fsync(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        source.replace(target)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def sync_folder(self, folder: Path) -> None:
        sync_folder(folder)

    def make_folder(self, path: Path, mode: int) -> None:
        """Create a folder with its parents; an existing one gets the mode. Never follows a symbolic link at its end."""
        path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.fchmod(descriptor, mode)
        finally:
            os.close(descriptor)

    def touch(self, path: Path) -> None:
        """Create an empty file, if there is none."""
        path.touch(0o600)

    def label_for_containers(self, path: Path) -> None:
        """Let containers write to a folder where SELinux confines them; does nothing where it is off."""
        if not _is_selinux_label(self._own_label):
            return
        try:
            os.setxattr(path, SELINUX_LABEL, CONTAINERS_LABEL, follow_symlinks=False)
        except OSError as error:
            if error.errno not in _NO_LABELS:
                raise

    def remove_folder(self, path: Path) -> None:
        """Remove a folder with its content, a file, or a symbolic link itself; a missing one is no error."""
        remove_tree(path)


def _is_selinux_label(file: Path) -> bool:
    """Return whether it is `user:role:type:level`; without SELinux it is missing, or a profile of AppArmor."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").count(":") >= 3
    except OSError:
        return False


class FileLock:
    """A lock held by one process at a time: an update runs two instances side by side. Blocks. Raises NotWritten."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1

    def __enter__(self) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        except OSError as error:
            raise NotWritten(
                f"lock {self._path} cannot be acquired: {error.strerror}: free space on this disk, or make it writable for the driver"
            ) from error

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)
