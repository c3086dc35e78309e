"""A control plane that outlives the command that started it: for `make cluster`, and for who wants
a bare one.

In: a name. Out: a `Detached` record, also kept as <cache>/clusters/<name>/state.json. A supervisor
process owns the control plane; further programs (controller, webhook) are added with spawn().
down() ends all of them and removes the folder, so nothing is left. Names are independent of each
other: several clusters can be up side by side.

    python hack/controlplane/detached.py up --name play --kwok     # prints the path of the kubeconfig
    python hack/controlplane/detached.py down --name play
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from hack.controlplane import build
from hack.controlplane.cluster import ControlPlane
from hack.controlplane.kwok_nodes import Kwok
from hack.controlplane.processes import end_group, start_time

_START_SECONDS: Final = 120


class ClusterError(Exception):
    """The command cannot be done; the message says why and what to do."""


@dataclass(frozen=True)
class Detached:
    """A cluster that is up. `started` identifies the supervisor together with its pid."""

    name: str
    version: str
    url: str
    kubeconfig: str
    logs: str
    pid: int
    started: int


def _folder(name: str) -> Path:
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,40}", name):
        raise ClusterError(f"{name!r} is no cluster name: use lower-case letters, digits and dashes")
    return build.cache_folder().parent / "clusters" / name


def find(name: str) -> Detached | None:
    """The cluster of that name if it is up."""
    try:
        state = Detached(**json.loads((_folder(name) / "state.json").read_text()))
    except FileNotFoundError:
        return None
    return state if start_time(state.pid) == state.started else None


def running() -> list[Detached]:
    """All clusters that are up."""
    folder = build.cache_folder().parent / "clusters"
    names = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
    return [state for name in names if (state := find(name))]


def up(
    name: str, version: str = build.DEFAULT_VERSION, *, kwok: bool = False, client_qps: int | None = None
) -> Detached:
    """Starts a cluster in the background and waits until it is ready; one that is up already is returned as it is."""
    if state := find(name):
        if state.version != version:
            raise ClusterError(f"cluster {name!r} is up with Kubernetes {state.version}: take it down first")
        return state
    down(name)  # what a crash may have left
    build.ensure(version)  # here, where its progress can be seen
    if kwok:
        build.ensure("kwok")
    folder = _folder(name)
    folder.mkdir(parents=True, mode=0o700)
    log = folder / "supervisor.log"
    command = [sys.executable, str(Path(__file__)), "serve", "--name", name]
    command += ["--version", version, *(["--kwok"] if kwok else [])]
    command += ["--client-qps", str(client_qps)] if client_qps else []
    supervisor = _background(command, log)
    started = start_time(supervisor)
    deadline = time.monotonic() + _START_SECONDS
    while (state := find(name)) is None:
        if started is None or start_time(supervisor) != started or time.monotonic() > deadline:
            text = log.read_text()
            _end(supervisor, started or 0)
            down(name)
            raise ClusterError(f"cluster {name!r} did not start:\n{text}")
        time.sleep(0.1)
    return state


def down(name: str) -> None:
    """Ends a cluster, the programs added to it, and removes its folder. Does nothing when there is none."""
    folder = _folder(name)
    for record in sorted(folder.glob("extra/*.json")):
        extra = json.loads(record.read_text())
        _end(extra["pid"], extra["started"])
    if state := find(name):
        _end(state.pid, state.started, grace=20)
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.parent.rmdir()


def spawn(name: str, label: str, command: Sequence[str], env: Mapping[str, str] | None = None) -> int:
    """Starts one more program in the background of a cluster that is up; returns its pid.

    It gets KUBECONFIG (the administrator's) unless `env` says otherwise, logs to <logs>/<label>.log
    and ends in down().
    """
    state = find(name)
    if state is None:
        raise ClusterError(f"cluster {name!r} is not up")
    environment = {**os.environ, "KUBECONFIG": state.kubeconfig, **(env or {})}
    pid = _background(command, Path(state.logs) / f"{label}.log", environment)
    record = _folder(name) / "extra" / f"{label}.json"
    record.parent.mkdir(exist_ok=True)
    record.write_text(json.dumps({"pid": pid, "started": start_time(pid) or 0, "command": list(command)}))
    return pid


def serve(name: str, version: str, *, kwok: bool = False, client_qps: int | None = None) -> None:
    """The supervisor's whole life: start, write the state, wait for SIGTERM, stop."""
    ended = threading.Event()
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, lambda *_: ended.set())
    folder = _folder(name)
    with ControlPlane(version, client_qps=client_qps, directory=folder / "run") as plane:
        if kwok:
            Kwok(plane).start()
        pid = os.getpid()
        state = Detached(
            name, version, plane.url, str(plane.admin_kubeconfig), str(plane.logs), pid, start_time(pid) or 0
        )
        fresh = folder / "state.json.new"
        fresh.write_text(json.dumps(asdict(state), indent=1))
        fresh.rename(folder / "state.json")
        complained: set[str] = set()
        while not ended.wait(5):
            for component in plane.components.values():
                if not component.running and component.name not in complained:
                    complained.add(component.name)
                    print(f"{component.name} has died:\n{component.tail()}", flush=True)


def _background(command: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> int:
    """Starts a program in a session of its own that nobody waits for; returns its pid."""
    writing = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    files = [
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), writing, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    return os.posix_spawnp(command[0], list(command), env or os.environ, file_actions=files, setsid=True)


def _end(pid: int, started: int, grace: float = 5.0) -> None:
    end_group(pid, started, grace)
    with contextlib.suppress(ChildProcessError):  # it was started by another process
        os.waitpid(pid, os.WNOHANG)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="A real Kubernetes control plane in the background.")
    commands = parser.add_subparsers(dest="command", required=True)
    to_start = commands.add_parser("up", help="start one and print the path of its kubeconfig")
    to_serve = commands.add_parser("serve", help="what `up` runs in the background")
    to_end = commands.add_parser("down", help="stop one and remove everything of it")
    for command in (to_start, to_serve, to_end):
        command.add_argument("--name", default="default")
    for command in (to_start, to_serve):
        command.add_argument("--version", default=build.DEFAULT_VERSION, choices=["1.37.1", "1.36.4"])
        command.add_argument("--kwok", action="store_true", help="also run kwok: it keeps nodes Ready and runs pods")
        command.add_argument("--client-qps", type=int, default=None, help="raise the components' client limits")
    commands.add_parser("list", help="print the clusters that are up")
    chosen = parser.parse_args(arguments)
    try:
        match chosen.command:
            case "up":
                cluster = up(chosen.name, chosen.version, kwok=chosen.kwok, client_qps=chosen.client_qps)
                print(cluster.kubeconfig)
            case "serve":
                serve(chosen.name, chosen.version, kwok=chosen.kwok, client_qps=chosen.client_qps)
            case "down":
                down(chosen.name)
            case _:
                for one in running():
                    print(f"{one.name}\t{one.version}\t{one.kubeconfig}")
    except (build.BuildError, ClusterError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
