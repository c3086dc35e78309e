"""A cell for a node's processes: a PID and a mount namespace of their own, which end with whoever made it.

Used by node.py, as a module (`Cell`) and, below, as the programs that it runs. In: a folder and a name for cgroups. Out: a
command line that runs something inside. What the kernel gives for free: when process 1 of the cell is killed, all of it is
(kubelet, containerd, shims, containers), and with the last of them every mount goes. So a test that is interrupted, even by
SIGKILL, leaves no process and no mount; the keeper, which waits for the owner's end, then removes cgroups and folder.

Inside, /run, /var/lib and /var/log are empty, so that nodes live side by side with each other and with what the machine runs
itself, and the kernel settings that kubelet writes are plain files: the machine keeps its own.
Standard library only; it must not know what runs inside.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_CGROUPS: Final = Path("/sys/fs/cgroup")
_NEW_MOUNTS: Final = 0x00020000  # CLONE_NEWNS
_NEW_PIDS: Final = 0x20000000  # CLONE_NEWPID
_PRIVATE, _RECURSIVE, _BIND = 1 << 18, 1 << 14, 1 << 12  # MS_*
_SIGNAL_WHEN_PARENT_ENDS: Final = 1  # PR_SET_PDEATHSIG
_EMPTY: Final = ("/run", "/var/lib", "/var/log")
_SETTINGS: Final = (  # what kubelet's container manager writes
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)


class CellError(Exception):
    """The cell cannot be made; the message says why."""


class Cell:
    """One cell. close() ends everything in it and removes the folder."""

    def __init__(self, folder: Path, cgroup: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, "keep", str(folder), cgroup],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        first = self._process.stdout.readline().strip()
        if not first.isdigit():
            _, complaint = self._process.communicate()
            raise CellError(f"no namespaces of their own for a node's processes: {complaint.strip().splitlines()[-1:]}")
        self.pid = int(first)
        """Process 1 of the cell, as seen from outside."""

    def command(self, command: Sequence[str | Path]) -> list[str]:
        """The command line that runs `command` inside: signals reach it, and it ends when the command does."""
        return [sys.executable, "-I", "-S", __file__, "run", str(self.pid), *map(str, command)]

    def close(self) -> None:
        self._process.communicate()  # closes its input, which is what it waits for


def cgroup_folders(name: str) -> list[Path]:
    """Every cgroup of that name below the root: one for each controller in version 1, one in version 2."""
    return [path for path in (_CGROUPS / name, *_CGROUPS.glob(f"*/{name}")) if path.is_dir()]


def _libc(function: str, *arguments: object) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    answer: int = getattr(libc, function)(*arguments)
    if answer == -1:
        code = ctypes.get_errno()
        raise OSError(code, f"{function}: {os.strerror(code)}")
    return answer


def _mount(source: str, target: str, kind: str, flags: int = 0) -> None:
    _libc("mount", source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), None)


# -- programs ----------------------------------------------------------------------------------------------------------


def _keep(folder: Path, cgroup: str) -> int:
    """Makes the cell, prints the pid of its process 1, and removes everything when the input ends."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ready, announce = os.pipe()
    maker = os.fork()  # the keeper itself stays outside: it has to see the folder without what is mounted inside
    if maker == 0:
        os.close(ready)
        _libc("prctl", _SIGNAL_WHEN_PARENT_ENDS, signal.SIGKILL)
        _libc("unshare", _NEW_MOUNTS | _NEW_PIDS)
        first = os.fork()
        if first == 0:
            _libc("prctl", _SIGNAL_WHEN_PARENT_ENDS, signal.SIGKILL)
            _furnish(folder)
            os.write(announce, b"+")
            os.close(announce)
            _be_first()
        os.write(announce, f"{first}\n".encode())
        os.close(announce)
        os.waitpid(first, 0)
        os._exit(0)
    os.close(announce)
    with os.fdopen(ready) as told:
        text = told.read()  # ends when both have closed it
    if "+" not in text:
        os.waitpid(maker, 0)
        return 1
    first = int(text.replace("+", ""))
    print(first, flush=True)
    sys.stdin.read()
    with contextlib.suppress(ProcessLookupError):
        os.kill(first, signal.SIGKILL)
    os.waitpid(maker, 0)
    _remove_cgroups(cgroup)
    shutil.rmtree(folder, ignore_errors=True)
    return 0


def _furnish(folder: Path) -> None:
    _mount("none", "/", "none", _RECURSIVE | _PRIVATE)
    _mount("proc", "/proc", "proc")
    settings = folder / "kernel-settings"
    settings.mkdir(exist_ok=True)
    for index, name in enumerate(_SETTINGS):
        real = Path("/proc/sys", name)
        if real.exists():
            stand_in = settings / str(index)
            stand_in.write_text(real.read_text())
            _mount(str(stand_in), str(real), "none", _BIND)
    for path in _EMPTY:
        if Path(path).is_dir() and not folder.is_relative_to(Path(path).resolve()):
            _mount("tmpfs", path, "tmpfs")


def _be_first() -> None:
    """Process 1: orphans are reaped by the kernel, and nothing but SIGKILL from outside ends it."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        signal.pause()


def _remove_cgroups(name: str) -> None:
    """Bottom up; the kernel may still count the last processes for a moment."""
    deadline = time.monotonic() + 5
    while (folders := cgroup_folders(name)) and time.monotonic() < deadline:
        for folder in folders:
            for path, _, _ in os.walk(folder, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(path)
        time.sleep(0.02)


def _run(first: int, command: list[str]) -> int:
    """Runs the command in the cell as a child; only children change the PID namespace."""
    mounts = os.open(f"/proc/{first}/ns/mnt", os.O_RDONLY)
    pids = os.open(f"/proc/{first}/ns/pid", os.O_RDONLY)
    _libc("setns", pids, _NEW_PIDS)
    child = os.fork()
    if child == 0:
        _libc("prctl", _SIGNAL_WHEN_PARENT_ENDS, signal.SIGKILL)
        here = Path.cwd()
        _libc("setns", mounts, _NEW_MOUNTS)
        os.chdir(here)
        os.close(mounts)
        os.close(pids)
        os.execvp(command[0], command)
    os.close(mounts)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it goes to the whole group; the command decides when to end
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) & 0xFF


if __name__ == "__main__":
    if sys.argv[1] == "keep":
        sys.exit(_keep(Path(sys.argv[2]), sys.argv[3]))
    sys.exit(_run(int(sys.argv[2]), sys.argv[3:]))
