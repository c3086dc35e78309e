"""Why, on a real control plane: events as kubectl shows them, `hami-dra explain` on the live cluster and of the controller's kept
decisions, log lines per node and card.
"""

import json
import subprocess
import sys

import pytest

from hack.controlplane import build
from hack.controlplane.processes import free_port
from hack.installation import DRIVER, QUICK, Installation
from tests.e2e.lab import A10G, T4
from tests.e2e.objects import claim, part, pod

PORT = free_port()


@pytest.fixture(scope="module")
def hami(control_plane):
    """A controller that says all it knows: page on loopback, log level 5 in JSON."""
    installation = Installation(control_plane)
    installation.install(webhook=False)
    try:
        page = [f"--dashboard-bind=127.0.0.1:{PORT}", "--dashboard-auth=off"]
        installation.start_controller(*QUICK, *page, "-v5", "--log-format=json")
        installation.wait_ready()
        yield installation
    finally:
        installation.remove()


def explained(lab, *words):
    command = [sys.executable, "-m", "controller.cli.main", "explain", *words, "-n", lab.namespace]
    command += ["--kubeconfig", str(lab.plane.admin_kubeconfig)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def described(lab, name):
    """The lines of the table of events."""
    kubectl = [build.ensure("kubectl") / "kubectl", "--kubeconfig", lab.plane.admin_kubeconfig, "-n", lab.namespace]
    shown = subprocess.run([*kubectl, "describe", "pod", name], capture_output=True, text=True, check=True).stdout
    return [" ".join(line.split()) for line in shown.partition("\nEvents:")[2].splitlines()]


def logged(lab):
    """What the controller wrote about decisions."""
    lines = lab.hami.programs["controller"].process.tail(2_000).splitlines()
    return [entry for line in lines if line.startswith("{") and "code" in (entry := json.loads(line))]


def test_one_pod_that_fits_and_one_that_does_not(lab):
    lab.machines(T4, "n1")
    lab.machines(A10G, "n2")
    lab.create(claim("small", part(memory="7500Mi", cores="0")), pod("fits", claims=["small"]))
    lab.wait_running(names=["fits"])
    lab.create(claim("large", part(memory="90Gi", cores="0")), pod("waits", claims=["large"]))
    lab.wait_event("fits", "FilteringSucceed")
    lab.wait_event("waits", "FilteringFailed", "CardInsufficientMemory")
    placement = lab.placement("fits")
    # -- as kubectl shows it
    table = described(lab, "fits")
    reported = f"find fit node({placement.node}), 0 nodes not fit, 2 nodes fit(n1:0.00,n2:0.00)"
    assert any(
        line.startswith("Normal FilteringSucceed ") and line.endswith(f"hami.io/controller {reported}")
        for line in table
    )
    table = [line.partition("hami.io/controller ")[2] for line in described(lab, "waits") if "FilteringFailed" in line]
    why = "no node fits: needs 92160 MiB on one device; the largest has 23028 MiB (NVIDIA A10G), so it never will"
    command = f"Run: hami-dra explain waits -n {lab.namespace}"
    assert set(table) == {f"{why}. {command} [2 nodes CardInsufficientMemory]"}
    # -- computed on the live cluster, as if it had no place
    live = json.loads(explained(lab, "fits", "-o", "json"))
    assert (live["outcome"], live["node"], live["at"]) == ("placed", placement.node, "")
    assert live["runnerUp"]["because"] == "name"
    refused = json.loads(explained(lab, "waits", "-o", "json"))
    assert (refused["outcome"], refused["reasons"]) == ("refused", {"CardInsufficientMemory": 8})
    assert refused["message"] == why
    # -- as the controller decided
    url = ["--controller", f"http://127.0.0.1:{PORT}"]
    kept = json.loads(explained(lab, "claim/small", "-o", "json", *url))
    assert kept["at"]
    [chosen] = kept["chosen"]
    [result] = lab.claim("small")["status"]["allocation"]["devices"]["results"]
    assert chosen["device"] == f"{DRIVER}/{result['pool']}/{result['device']}"
    assert {name: kept[name] for name in ("node", "nodes", "chosen", "runnerUp", "policies")} == {
        name: live[name] for name in ("node", "nodes", "chosen", "runnerUp", "policies")
    }
    assert "asks 92160 MiB of memory, 15360 of 15360 MiB are free" in explained(lab, "waits", "--devices", *url)
    # -- as it is logged
    lines = [line for line in logged(lab) if line["pod"] == f"{lab.namespace}/fits"]
    assert {(line["node"], line["code"]) for line in lines if "device" not in line} == {
        ("n1", "NodeFitPod"),
        ("n2", "NodeFitPod"),
    }
    assert sum("device" in line for line in lines) == 8
    figures = {line.get("figures") for line in logged(lab) if line["code"] == "CardInsufficientMemory"}
    assert "asks 92160 MiB of memory, 23028 of 23028 MiB are free" in figures
