"""Backup and restore of a control plane's etcd, as an administrator would do it: snapshot, then
restore with etcdutl.

Used by tests/e2e. In: a running `ControlPlane`. Out: a snapshot file, and the cluster as it was
when that was taken.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import urllib.request
from pathlib import Path
from typing import Final

from hack.controlplane import build
from hack.controlplane.cluster import ControlPlane

BUMP: Final = 1_000_000_000
"""Revisions to skip at a restore, as etcd's documentation advises: more than were written since the snapshot."""
_READERS: Final = ("kube-scheduler", "kube-controller-manager")
"""Components with watches of their own; they must not outlive the state that they have seen."""


def take_snapshot(plane: ControlPlane, name: str) -> Path:
    """Write a snapshot of etcd as it is now to a file, by etcd's maintenance API."""
    url = f"{plane.etcd_url}/v3/maintenance/snapshot"
    path = plane.directory / f"{name}.snapshot"
    request = urllib.request.Request(url, data=b"{}", method="POST")
    with urllib.request.urlopen(request, timeout=60) as answer, path.open("wb") as file:
        for line in answer:  # one JSON object a part
            file.write(base64.b64decode(json.loads(line)["result"].get("blob", "")))
    return path


def restore_snapshot(plane: ControlPlane, snapshot: Path, *, bump: int = 0) -> None:
    """Put etcd back to a snapshot, and start the components of Kubernetes again; returns when pods
    can be created.

    `bump`: revisions to skip, so that no revision is ever used twice; clients that watch are told
    that theirs is gone. Without it revisions go back, and what was written since gets numbers that
    were given to something else before.
    """
    components = plane.components
    for name in (*_READERS, "kube-apiserver", "etcd"):
        components[name].stop(grace=1.0)
    shutil.rmtree(plane.etcd_folder)
    subprocess.run(
        [
            str(build.ensure("etcdutl") / "etcdutl"), "snapshot", "restore", str(snapshot),
            f"--data-dir={plane.etcd_folder}", "--name=default",
            f"--initial-cluster=default={plane.etcd_peer_url}", f"--initial-advertise-peer-urls={plane.etcd_peer_url}",
            *((f"--bump-revision={bump}", "--mark-compacted") if bump else ()),
        ],
        check=True, capture_output=True,
    )  # fmt: skip
    for name in ("etcd", "kube-apiserver"):
        components[name].start()
    plane.wait_ready()
    for name in reversed(_READERS):
        components[name].start()
