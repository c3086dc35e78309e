"""The few things that preparing does to the file system, each one step, so that tests can fail or kill it at every single one.

Used by `transaction` and `checkpoint`. Blocks; called from a thread. Raises OSError.
"""

import errno
import fcntl
import os
import shutil
from pathlib import Path
from typing import Final, NamedTuple

from hami_dra.driver.prepare.errors import NotWritten

_TEMPORARY: Final = ".tmp"
"""Suffix of files that are being written: containerd reads what ends in .json or .yaml."""
SELINUX_LABEL: Final = "security.selinux"
"""Extended attribute."""
CONTAINERS_LABEL: Final = b"system_u:object_r:container_file_t:s0\0"
"""SELinux label of what every container may write: the one that `:z` gives a volume (container-selinux, podman-run(1))."""
_NO_LABELS: Final = frozenset({errno.EINVAL, errno.ENOTSUP})
"""The policy has no such type, so that nothing confines containers; or the file system has no labels."""
_OWN_LABEL: Final = Path("/proc/self/attr/current")


class Stamp(NamedTuple):
    """Tells whether a file is still the one that was read or written: every write makes a new inode."""

    inode: int
    modified: int
    size: int


class Files:
    """The real thing. Overridden by tests."""

    def __init__(self, own_label: Path = _OWN_LABEL) -> None:
        """`own_label`: the file in which the kernel says how this process is labelled."""
        self._own_label = own_label

    def read(self, path: Path) -> bytes | None:
        """None: there is no such file."""
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None

    def write(self, path: Path, content: bytes, mode: int = 0o600) -> None:
        """All or nothing, also when the power fails: the old file stays until the new one is on the disk."""
        temporary = path.with_name(f"{path.name}{_TEMPORARY}")
        try:
            self.write_temporary(temporary, content, mode)
            self.rename(temporary, path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        self.sync_folder(path.parent)

    def remove(self, path: Path) -> None:
        """One that is not there is no error."""
        try:
            self.unlink(path)
        except FileNotFoundError:
            return
        self.sync_folder(path.parent)

    def names(self, folder: Path) -> list[str]:
        """Of a folder that need not exist, without files that are being written."""
        try:
            return sorted(path.name for path in folder.iterdir() if not path.name.endswith(_TEMPORARY))
        except FileNotFoundError:
            return []

    def leftovers(self, folder: Path, start: str) -> list[Path]:
        """Files whose writing was cut short; `start`: how their names begin."""
        try:
            return sorted(path for path in folder.iterdir() if _is_leftover(path.name, start))
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
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def make_folder(self, path: Path, mode: int) -> None:
        """With its parents; one that is there is given the mode. Never through a symbolic link at its end."""
        path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.fchmod(descriptor, mode)
        finally:
            os.close(descriptor)

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
        """With all that is in it; one that is not there is no error. A symbolic link is removed, not followed."""
        if path.is_symlink():
            path.unlink()
        elif path.exists():
            shutil.rmtree(path)


def _is_selinux_label(file: Path) -> bool:
    """Whether it holds `user:role:type:level`. Without SELinux it cannot be read, or holds a profile of AppArmor."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").count(":") >= 3
    except OSError:
        return False


def _is_leftover(name: str, start: str) -> bool:
    return name.startswith(start) and name.endswith(_TEMPORARY)


class FileLock:
    """Held by one process at a time: two instances of the driver run side by side while it is updated. Blocks. Raises NotWritten."""

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
                f"lock {self._path} cannot be had: {error.strerror}: free space on this disk, or make it writable for the driver"
            ) from error

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)
