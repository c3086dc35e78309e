"""Whether this machine can run a real node. Asked by tests/node before anything starts.

It changes nothing, but that cgroup v2 passes its controllers on to children: runc would do the
same.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Final

_CGROUPS: Final = Path("/sys/fs/cgroup")
_CONTROLLERS: Final = ("cpu", "cpuacct", "cpuset", "memory")  # kubelet asks for them (container_manager_linux.go)
_UNIFIED_CONTROLLERS: Final = ("cpu", "cpuset", "memory", "pids")

_CAPABILITIES: Final = {"CAP_SYS_ADMIN": 21, "CAP_MKNOD": 27}


def why_not() -> str:
    """What is missing, as a sentence with the remedy; empty when a node can run here."""
    if not Path("/proc/self/ns").is_dir():
        return "kubelet and containerd run on Linux only"
    if os.geteuid() != 0:
        return "kubelet and containerd need root: run it as root, or with sudo"
    if missing := _missing_capabilities():
        return f"kubelet and containerd need {', '.join(missing)}: in a container, start it with --privileged"
    if not _CGROUPS.is_dir():
        return "no cgroups: mount them at /sys/fs/cgroup"
    return _unified() if (_CGROUPS / "cgroup.controllers").exists() else _separate()


def _missing_capabilities() -> list[str]:
    (line,) = (each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith("CapEff:"))
    there = int(line.split()[1], 16)
    return [name for name, bit in _CAPABILITIES.items() if not there >> bit & 1]


def _unified() -> str:
    """Version 2: every controller has to be passed on to the children of the root."""
    there = (_CGROUPS / "cgroup.controllers").read_text().split()
    if missing := [name for name in _UNIFIED_CONTROLLERS if name not in there]:
        return f"cgroup v2 without {', '.join(missing)}: start the container or the machine with them"
    passed_on = _CGROUPS / "cgroup.subtree_control"
    wanted = [name for name in _UNIFIED_CONTROLLERS if name not in passed_on.read_text().split()]
    try:
        if wanted:
            passed_on.write_text(" ".join(f"+{name}" for name in wanted))
    except OSError as error:
        return (
            f"cgroup v2 does not pass on {', '.join(wanted)} ({error.strerror}): in a container, move the processes out of its"
            " root cgroup first, or start it with --privileged --cgroupns=host"
        )
    return _writable([_CGROUPS])


def _separate() -> str:
    """Version 1: one hierarchy for each controller."""
    if missing := [name for name in _CONTROLLERS if not (_CGROUPS / name).is_dir()]:
        return f"cgroup v1 without {', '.join(missing)}: mount them below {_CGROUPS}"
    return _writable([_CGROUPS / name for name in (*_CONTROLLERS, "devices")])


def _writable(hierarchies: list[Path]) -> str:
    for hierarchy in hierarchies:
        probe = hierarchy / f"hami-dra-probe-{secrets.token_hex(4)}"
        try:
            probe.mkdir()
            probe.rmdir()
        except OSError as error:
            return f"no cgroup can be made below {hierarchy} ({error.strerror}): run it with --privileged, or on a machine of its own"
    return ""
