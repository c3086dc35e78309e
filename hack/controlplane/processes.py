"""Child processes of a test cluster: started in groups of their own, measured, stopped, and never
left behind.

Used by cluster.py (components), kwok_nodes.py and detached.py. In: a command and a log file. Out: a
handle to stop, kill, pause and measure it. A `Guardian` process kills what is left when its owner
dies, even by SIGKILL. (PR_SET_PDEATHSIG would not do: it fires when the *thread* that forked ends,
and tests restart components from worker threads.) Must not know what the processes are for.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
_EPHEMERAL_PORTS: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")


class ComponentDied(Exception):
    """A process ended on its own; the message carries the end of its log."""


def free_port() -> int:
    """A loopback TCP port that nobody listens on.

    Below the range of ephemeral ports, so that no outgoing connection can take it while its server
    restarts.
    """
    below = int(_EPHEMERAL_PORTS.read_text().split()[0]) if _EPHEMERAL_PORTS.exists() else 32768
    for _ in range(1000):
        port = random.randrange(min(10_000, below // 2), below)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError("no free TCP port on 127.0.0.1")


def _status_fields(pid: int) -> list[str]:
    """The fields of /proc/<pid>/stat from the state (field 3) on; empty when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return text[text.rindex(")") + 2 :].split()


def start_time(pid: int) -> int | None:
    """Kernel ticks since boot at which a process started: with the pid an identity. None when it is
    gone or a zombie.
    """
    fields = _status_fields(pid)
    return int(fields[19]) if fields and fields[0] not in "ZX" else None


def cpu_seconds(pid: int) -> float:
    """User and system CPU time of a process so far, its threads included; 0 when it is gone."""
    fields = _status_fields(pid)
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND if fields else 0.0


def memory_bytes(pid: int) -> int:
    """Resident memory of a process; 0 when it is gone."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    return 0


def end_group(pid: int, started: int, grace: float = 5.0) -> None:
    """SIGTERM, then SIGKILL, for the group of a process that is not our child; a reused pid is left alone."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + grace
        if start_time(pid) == started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, sign)
        while start_time(pid) == started and time.monotonic() < deadline:
            time.sleep(0.02)


class Guardian:
    """Kills the watched process groups, then removes a folder, as soon as the process that made it is gone."""

    def __init__(self, folder: Path | None = None) -> None:
        # -I -S: starts in some ten milliseconds and imports nothing but the standard library
        command = [sys.executable, "-I", "-S", __file__, *([str(folder)] if folder else [])]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, start_new_session=True)
        assert self._process.stdin is not None
        self._pipe = self._process.stdin

    def watch(self, pid: int) -> None:
        self._tell(f"+{pid}")

    def forget(self, pid: int) -> None:
        self._tell(f"-{pid}")

    def check(self) -> None:
        """Raises RuntimeError after close(): what starts now would be guarded by nobody."""
        if self._pipe.closed:
            raise RuntimeError("this cluster has been stopped; make a new one")

    def close(self) -> None:
        self._pipe.close()
        self._process.wait()

    def _tell(self, line: str) -> None:
        self.check()
        self._pipe.write(f"{line}\n")
        self._pipe.flush()


def _guard(folder: str | None) -> None:
    """The guardian's whole life: note process groups until the pipe of the owner closes."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    watched: set[int] = set()
    for line in sys.stdin:
        (watched.add if line[0] == "+" else watched.discard)(int(line[1:]))
    for pid in watched:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
    if folder:
        shutil.rmtree(folder, ignore_errors=True)


class Component:
    """One process that can be started again and again; its CPU time adds up over its lives."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, guardian: Guardian, env: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.command = list(command)
        self.log = log
        self._guardian = guardian
        self._env = {**os.environ, **(env or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._cpu_of_former_lives = 0.0

    @property
    def pid(self) -> int:
        """The pid, which is the process group too. Raises ComponentDied when it was never started or was stopped."""
        if self._process is None:
            raise ComponentDied(f"{self.name} is not started")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and not self._has_ended(self._process.pid)

    @property
    def was_stopped(self) -> bool:
        """On purpose, or never started."""
        return self._process is None

    def start(self) -> None:
        if self.running:
            return
        self._guardian.check()
        self._bury()  # it may have died by itself
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._env, start_new_session=True
            )
        self._guardian.watch(self._process.pid)

    def ask_to_stop(self) -> None:
        """SIGTERM without waiting, to end several at a time; stop() has to follow."""
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)  # a paused process does not see the first one otherwise

    def stop(self, grace: float = 5.0) -> None:
        """SIGTERM, and after `grace` seconds SIGKILL. Does nothing when it is not running."""
        if self._process is not None:
            self.ask_to_stop()
            deadline = time.monotonic() + grace
            while not self._has_ended(self._process.pid) and time.monotonic() < deadline:
                time.sleep(0.02)
        self.kill()

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        self._bury()

    def pause(self) -> None:
        """Stops the process where it is (SIGSTOP), sockets open: what a hanging component looks like."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def cpu_seconds(self) -> float:
        return self._cpu_of_former_lives + (cpu_seconds(self._process.pid) if self._process else 0.0)

    def memory_bytes(self) -> int:
        return memory_bytes(self._process.pid) if self._process else 0

    def check(self) -> None:
        """Raises ComponentDied when it is not running."""
        if not self.running:
            raise ComponentDied(f"{self.name} is not running; the end of {self.log}:\n{self.tail()}")

    def tail(self, lines: int = 20) -> str:
        if not self.log.exists():
            return "(no log)"
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _signal(self, sign: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, sign)

    def _bury(self) -> None:
        if self._process is None:
            return
        os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        self._cpu_of_former_lives += cpu_seconds(self._process.pid)  # a zombie still has its times
        self._guardian.forget(self._process.pid)
        self._process.wait()
        self._process = None

    @staticmethod
    def _has_ended(pid: int) -> bool:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


if __name__ == "__main__":
    _guard(sys.argv[1] if len(sys.argv) > 1 else None)
