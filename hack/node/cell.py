"""A cell for a node's processes: a PID and a mount namespace of their own, which end with whoever
made it.

Used by node.py, as a module (`CardState`) and, below, as the programs that it runs. In: a folder
and a name for cgroups. Out: a command line that runs something inside. What the kernel gives for
free: when process 1 of the cell is killed, all of it is (kubelet, containerd, shims, containers),
and with the last of them every mount goes. So a test that is interrupted, even by SIGKILL, leaves
no process and no mount; the keeper, which waits for the owner's end, then removes cgroups and
folder.

Inside, a cgroup of its own is the root of all cgroups, and /run, /var/lib and /var/log are empty,
so that nodes live side by side with each other and with what the machine runs itself, and the
kernel settings that kubelet writes are plain files: the machine keeps its own. Standard library
only; it must not know what runs inside.
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
_NEW_CGROUPS: Final = 0x02000000  # CLONE_NEWCGROUP
_PRIVATE, _RECURSIVE, _BIND = 1 << 18, 1 << 14, 1 << 12  # MS_*
_SIGNAL_WHEN_PARENT_ENDS: Final = 1  # PR_SET_PDEATHSIG
_PROCESSES: Final = "processes"
"""Where the cell's own processes are: in version 2 a cgroup with processes cannot have children with limits."""
_KEEP: Final = "keep the folder"
_EMPTY: Final = ("/run", "/var/lib", "/var/log")
_SETTINGS: Final = (  # what kubelet's container manager writes
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
    "net/ipv4/ip_forward",  # by the network plugin
)


class CellError(Exception):
    """The cell cannot be made; the message says why."""


class Cell:
    """One cell. close() ends everything in it and removes the folder, unless told to keep it."""

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
        self._cgroup = cgroup
        self.pid = int(first)
        """Process 1 of the cell, as seen from outside."""

    def command(self, command: Sequence[str | Path]) -> list[str]:
        """The command line that runs `command` inside: signals reach it, and it ends when the command does."""
        return [sys.executable, "-I", "-S", __file__, "run", str(self.pid), self._cgroup, *map(str, command)]

    def close(self, *, keep_folder: bool = False) -> None:
        self._process.communicate(_KEEP if keep_folder else "")  # closes its input, which is what it waits for


def cgroup_folders(name: str) -> list[Path]:
    """The cgroups of a cell, as seen from outside: one for each hierarchy in version 1, one in version 2."""
    return [path for hierarchy in _hierarchies() if (path := hierarchy / name).is_dir()]


def _hierarchies() -> list[Path]:
    if (_CGROUPS / "cgroup.procs").exists():
        return [_CGROUPS]
    return [path for path in _CGROUPS.iterdir() if not path.is_symlink() and (path / "cgroup.procs").exists()]


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
    _make_cgroups(cgroup)
    ready, announce = os.pipe()
    maker = os.fork()  # the keeper itself stays outside: it has to see the folder without what is mounted inside
    if maker == 0:
        os.close(ready)
        _libc("prctl", _SIGNAL_WHEN_PARENT_ENDS, signal.SIGKILL)
        _join_cgroups(cgroup)
        _libc("unshare", _NEW_MOUNTS | _NEW_PIDS | _NEW_CGROUPS)
        _join_cgroups(f"{cgroup}/{_PROCESSES}")
        first = os.fork()
        if first == 0:
            _libc("prctl", _SIGNAL_WHEN_PARENT_ENDS, signal.SIGKILL)
            _furnish(folder, cgroup)
            os.write(announce, b"+")
            os.close(announce)
            _be_first()
        os.write(announce, f"{first}\n".encode())
        os.close(announce)
        os.waitpid(first, 0)
        os._exit(0)
    os.close(announce)
    with os.fdopen(ready) as reported:
        text = reported.read()  # ends when both have closed it
    if "+" not in text:
        os.waitpid(maker, 0)
        _remove_cgroups(cgroup)
        return 1
    first = int(text.replace("+", ""))
    print(first, flush=True)
    keep = sys.stdin.read() == _KEEP
    with contextlib.suppress(ProcessLookupError):
        os.kill(first, signal.SIGKILL)
    os.waitpid(maker, 0)
    _remove_cgroups(cgroup)
    if not keep:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def _make_cgroups(name: str) -> None:
    for hierarchy in _hierarchies():
        for folder in (hierarchy / name, hierarchy / name / _PROCESSES):
            folder.mkdir()
            for setting in ("cpuset.cpus", "cpuset.mems"):  # version 1 makes them empty, and then nothing may run in it
                if (hierarchy / setting).exists():
                    (folder / setting).write_text((hierarchy / setting).read_text())


def _join_cgroups(name: str) -> None:
    """Moves the calling process."""
    for hierarchy in _hierarchies():
        (hierarchy / name / "cgroup.procs").write_text("0")


def _furnish(folder: Path, cgroup: str) -> None:
    _mount("none", "/", "none", _RECURSIVE | _PRIVATE)
    _mount("proc", "/proc", "proc")
    for hierarchy in _hierarchies():
        _mount(str(hierarchy / cgroup), str(hierarchy), "none", _BIND)
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
                    Path(path).rmdir()
        time.sleep(0.02)


def _run(first: int, cgroup: str, command: list[str]) -> int:
    """Runs the command in the cell as a child; only children change the PID namespace."""
    mounts, cgroups, pids = (os.open(f"/proc/{first}/ns/{kind}", os.O_RDONLY) for kind in ("mnt", "cgroup", "pid"))
    _libc("setns", pids, _NEW_PIDS)
    child = os.fork()
    if child == 0:
        _libc("prctl", _SIGNAL_WHEN_PARENT_ENDS, signal.SIGKILL)
        here = Path.cwd()
        _join_cgroups(f"{cgroup}/{_PROCESSES}")
        _libc("setns", cgroups, _NEW_CGROUPS)
        _libc("setns", mounts, _NEW_MOUNTS)
        os.chdir(here)
        os.execvp(command[0], command)  # descriptors opened by Python are closed by it
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it goes to the whole group; the command decides when to end
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) & 0xFF


if __name__ == "__main__":
    if sys.argv[1] == "keep":
        sys.exit(_keep(Path(sys.argv[2]), sys.argv[3]))
    sys.exit(_run(int(sys.argv[2]), sys.argv[3], sys.argv[4:]))
