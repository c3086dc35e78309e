"""A real Kubernetes with hami-dra to play with: `make cluster` and `make cluster-down`.

    python hack/play.py up --version 1.37.1 --name play
    python hack/play.py apply -f examples/a-node-binpack-gpu-binpack.yaml      # for machines without kubectl
    python hack/play.py show                                                  # which pod is on which cards
    python hack/play.py down --name play

Brings up etcd, API server, scheduler, controller-manager, kwok, a simulated fleet, device classes,
controller with its page, and webhook, all in the background, and says what to try. Several clusters
with different names can be up side by side; `down` ends all processes of one and removes its
folder. What it starts is what hack/installation.py starts for the tests.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from hack.controlplane import build, detached
from hack.controlplane.api import Api, ApiError
from hack.controlplane.processes import ComponentDied, free_port, start_time

ROOT: Final = Path(__file__).resolve().parents[1]
_CLIENT_QPS: Final = 5000
_FLEET: Final = """\
# The simulated machines of this cluster. Change the file and the nodes follow. All machines: hami-dra slices --list
apiVersion: hami.io/v1alpha1
kind: Fleet
nodes:
- {machine: g4dn.12xlarge, count: 1, name: "t4-{index}"}
- {machine: g5.12xlarge, count: 1, name: "a10g-{index}"}
"""
_CONVERTED: Final = "hami.io/webhook"
"""Label of namespaces whose pods are converted."""
_NEXT: Final = """
Kubernetes {version} with hami-dra is up: a node with 4 T4, a node with 4 A10G.

  export KUBECONFIG={kubeconfig}
{missing}
Four pods, unchanged from HAMi, on one node and as few cards as hold them:
  {apply} examples/a-node-binpack-gpu-binpack.yaml
  {show}
  {delete} examples/a-node-binpack-gpu-binpack.yaml

The other three patterns are the other files; the same as claims, and with the policies on a DeviceClass:
  {apply} examples/claims/d-node-spread-gpu-spread.yaml
  {apply} examples/classes/b-node-spread-gpu-binpack.yaml

See and understand, in a browser or with the commands (in {bin}):
  {page}
  hami-dra status, hami-dra explain POD, hami-dra doctor, hami-dra whatif --node-policy spread --replace

Pods of the namespace default are converted. As with the chart, label other namespaces first:
  kubectl label namespace NAME hami.io/webhook=enabled

More machines: edit {fleet}
Logs: {logs}
Take it down, leaving nothing behind: make cluster-down{name}
"""


@dataclass
class Background:
    """A program of a detached cluster, as far as an Installation needs to know it."""

    cluster: str
    name: str
    command: list[str]
    log: Path
    pid: int = 0
    started: int | None = None
    was_stopped = False

    def start(self) -> None:
        self.pid = detached.spawn(self.cluster, self.name, self.command)
        self.started = start_time(self.pid)

    def stop(self) -> None:
        """Programs of a detached cluster end with it."""

    def check(self) -> None:
        if self.started is None or start_time(self.pid) != self.started:
            end = "\n".join(self.log.read_text(errors="replace").splitlines()[-20:]) if self.log.exists() else ""
            raise ComponentDied(f"{self.name} is not running; the end of {self.log}:\n{end}")


class DetachedHost:
    """A cluster in the background, as the `Host` of an Installation."""

    def __init__(self, state: detached.Detached) -> None:
        self.state = state
        self.url = state.url
        self.admin_kubeconfig = Path(state.kubeconfig)
        self.directory = self.admin_kubeconfig.parent
        self.ca_file = self.directory / "ca.crt"
        config = json.loads(self.admin_kubeconfig.read_text())
        self.api = Api(self.url, self.ca_file, config["users"][0]["user"]["token"])

    def add_component(self, name: str, command: list[str]) -> Background:
        return Background(self.state.name, name, command, Path(self.state.logs) / f"{name}.log")


def up(name: str, version: str) -> None:
    """Raises BuildError, ClusterError, ComponentDied, TimeoutError; then nothing is left behind."""
    if (state := detached.find(name)) is not None:
        print(f"cluster {name!r} is up already")
        _tell(state)
        return
    try:
        _bring_up(name, version)
    except BaseException:
        detached.down(name)
        raise


def _bring_up(name: str, version: str) -> None:
    from hack.installation import Installation

    start = time.monotonic()

    def say(step: int, what: str) -> None:
        print(f"[{step}/5 {time.monotonic() - start:5.1f} s] {what}", flush=True)

    say(1, f"Kubernetes {version}: etcd, kube-apiserver, kube-scheduler, kube-controller-manager, kwok")
    host = DetachedHost(detached.up(name, version, kwok=True, client_qps=_CLIENT_QPS))
    hami = Installation(host)
    say(2, "manifests and device classes")
    hami.install(namespace_selector=f"{_CONVERTED}=enabled")  # as the chart
    host.api.patch("/api/v1/namespaces/default", {"metadata": {"labels": {_CONVERTED: "enabled"}}})
    say(3, "simulated machines")
    fleet = _fleet_file(host.state)
    fleet.write_text(_FLEET)
    hami.start_fleet(fleet)
    say(4, "controller and webhook")
    address = f"127.0.0.1:{free_port()}"
    _page_file(host.state).write_text(f"http://{address}/\n")
    hami.start_controller("--dashboard-bind", address, "--dashboard-auth", "off")
    hami.start_webhook()
    say(5, "waiting until the fence holds and pods are converted")
    hami.wait_ready(seconds=120)
    nodes = "/api/v1/nodes"
    hami.wait_for("nodes that take pods", lambda: (n := host.api.list(nodes)) and not any(_is_closed(one) for one in n))
    _tell(host.state)


def _is_closed(node: dict[str, Any]) -> bool:
    return any(taint["effect"] != "PreferNoSchedule" for taint in node["spec"].get("taints", ()))


def _fleet_file(state: detached.Detached) -> Path:
    return Path(state.kubeconfig).with_name("fleet.yaml")


def _page_file(state: detached.Detached) -> Path:
    """Holds the address of the page."""
    return Path(state.kubeconfig).with_name("page")


def _tell(state: detached.Detached) -> None:
    named = "" if state.name == "play" else f" --name {state.name}"
    here = f"{Path(sys.executable)} hack/play.py"
    missing, apply, delete = "", "kubectl apply -f", "kubectl delete -f"
    if shutil.which("kubectl") is None:
        apply, delete = f"{here} apply{named} -f", f"{here} delete{named} -f"
        missing = "\n(no kubectl here: the commands below do without)\n"
    print(
        _NEXT.format(
            version=state.version,
            kubeconfig=state.kubeconfig,
            missing=missing,
            apply=apply,
            delete=delete,
            show=f"{here} show{named}",
            fleet=_fleet_file(state),
            page=_page_file(state).read_text().strip(),
            bin=Path(sys.executable).parent,
            logs=state.logs,
            name="" if state.name == "play" else f" NAME={state.name}",
        )
    )


def _host(name: str) -> DetachedHost:
    state = detached.find(name)
    if state is None:
        raise detached.ClusterError(f"cluster {name!r} is not up: make cluster NAME={name}")
    return DetachedHost(state)


def apply(name: str, files: list[Path], *, delete: bool = False) -> None:
    import yaml

    api = _host(name).api
    for path in files:
        items = [item for item in yaml.safe_load_all(path.read_text()) if item]
        for item in reversed(items) if delete else items:
            (api.remove if delete else api.apply)(item)
            print(f"{item['kind']} {item['metadata']['name']} {'deleted' if delete else 'applied'}")


def show(name: str) -> None:
    """Pods with the cards of their claims."""
    from rich.console import Console
    from rich.table import Table

    api = _host(name).api
    held: dict[str, list[str]] = {}
    for claim in api.list("/apis/resource.k8s.io/v1/resourceclaims"):
        status = claim.get("status", {})
        results = status.get("allocation", {}).get("devices", {}).get("results", [])
        cards = [f"{one['device']} {one.get('consumedCapacity', {}).get('memory', 'whole')}" for one in results]
        for consumer in status.get("reservedFor", []):
            held.setdefault(consumer["uid"], []).extend(cards)
    table = Table("NAMESPACE", "POD", "STATUS", "NODE", "CARDS", box=None)
    for pod in api.list("/api/v1/pods"):
        meta, spec = pod["metadata"], pod["spec"]
        waiting = "gated" if spec.get("schedulingGates") else pod["status"].get("phase", "")
        table.add_row(
            meta["namespace"], meta["name"], waiting, spec.get("nodeName", ""), ", ".join(held.get(meta["uid"], []))
        )
    Console().print(table)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for command, what in (
        ("up", "bring one up and say what to try"),
        ("down", "take one down; nothing is left"),
        ("show", "which pod is on which node and cards"),
        ("apply", "as kubectl apply -f"),
        ("delete", "as kubectl delete -f"),
    ):
        one = commands.add_parser(command, help=what)
        one.add_argument("--name", default="play")
        if command == "up":
            one.add_argument("--version", default=build.DEFAULT_VERSION, choices=["1.37.1", "1.36.4"])
        if command in ("apply", "delete"):
            one.add_argument("-f", "--filename", type=Path, action="append", required=True)
    chosen = parser.parse_args(arguments)
    try:
        match chosen.command:
            case "up":
                up(chosen.name, chosen.version)
            case "down":
                detached.down(chosen.name)
                print(f"cluster {chosen.name!r} is gone")
            case "show":
                show(chosen.name)
            case command:
                apply(chosen.name, chosen.filename, delete=command == "delete")
    except (build.BuildError, detached.ClusterError, ApiError, ComponentDied, TimeoutError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
