"""The node of hack/node alone: it runs a pod, survives what tests do to it, and leaves nothing behind even when its owner is killed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from hack.node.cell import cgroup_folders
from tests.e2e.objects import pod
from tests.node.bench import runnable

ROOT = Path(__file__).parents[2]
PODS = "/api/v1/namespaces/default/pods"
OWNER = """
import json, sys, time
from hack.controlplane.cluster import ControlPlane
from hack.node.node import Node
from tests.e2e.objects import pod
from tests.node.bench import runnable
with ControlPlane() as plane, Node(plane) as node:
    plane.api.add(runnable(pod("orphan")))
    plane.api.wait_for("it runs", lambda: plane.api.get("/api/v1/namespaces/default/pods/orphan")["status"]["phase"] == "Running")
    print(json.dumps({"folder": str(node.folder), "cgroups": len(node.cgroups())}), flush=True)
    time.sleep(600)
"""


def _running(api, name):
    return api.get(f"{PODS}/{name}")["status"]["phase"] == "Running"


def test_a_pod_runs_through_restarts_of_everything(plane, node):
    api = plane.api
    created = api.add(runnable(pod("plain")))
    api.wait_for("it runs", lambda: _running(api, "plain"))
    api.wait_for("its output", lambda: node.outputs(created))
    (seen,) = node.outputs(created)
    assert seen["devices"]["/dev/null"] == {"major": 1, "minor": 3, "opens": True}
    assert node.cgroups()

    node.restart_kubelet(kill=True)
    node.restart_containerd(kill=True)
    node.restart_kubelet()
    assert _running(api, "plain")
    assert len(node.outputs(created)) == 1

    api.delete(f"{PODS}/plain")
    api.wait_for("nothing left", lambda: not node.pods() and not node.mounts() and not node.cgroups())


def _processes_of(folder):
    found = []
    for status in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if folder in status.read_bytes().decode(errors="replace"):
                found.append(status.parent.name)
        except OSError:
            continue  # it ended meanwhile
    return found


def test_nothing_is_left_when_the_owner_is_killed(machine_room):
    environment = os.environ | {"PYTHONPATH": "."}
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], cwd=ROOT, stdout=subprocess.PIPE, text=True, env=environment
    ) as owner:
        assert owner.stdout is not None
        try:
            said = json.loads(owner.stdout.readline())
            folder = Path(said["folder"])
            assert folder.exists()
        finally:
            owner.send_signal(signal.SIGKILL)
    assert said["cgroups"]

    def is_left():
        # the keeper is the last to go, after the folder
        return folder.exists() or cgroup_folders(folder.name) or _processes_of(folder.name)

    deadline = time.monotonic() + 30
    while is_left() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not folder.exists()
    assert not cgroup_folders(folder.name)
    assert not _processes_of(folder.name)
    assert folder.name not in Path("/proc/self/mountinfo").read_text()
