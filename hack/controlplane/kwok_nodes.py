"""Runs kwok against a cluster: it keeps every node Ready and makes bound pods run, for any number
of nodes.

Used by `make cluster` and hack/bench, in place of `ControlPlane.nodes`. In: a control plane (and
Node objects that somebody creates). Out: a running kwok process, which dies with the control plane.
What kwok does is said in kwok/stages.yaml. It must not be mixed with `ControlPlane.nodes` on one
cluster: both would play the same kubelets.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final, Self

from hack.controlplane import build
from hack.controlplane.cluster import ControlPlane

_STAGES: Final = Path(__file__).with_name("kwok") / "stages.yaml"


class Kwok:
    """The kwok process of one control plane; a `with` block, or start() and stop()."""

    def __init__(self, plane: ControlPlane) -> None:
        command = [
            str(build.ensure("kwok") / "kwok"),
            f"--kubeconfig={plane.admin_kubeconfig}",
            f"--config={_STAGES}",
        ]
        self.component = plane.add_component("kwok", command)

    def start(self) -> Self:
        """Returns when kwok watches the cluster. Raises ComponentDied with the end of its log."""
        log = self.component.log
        before = log.stat().st_size if log.exists() else 0
        self.component.start()
        deadline = time.monotonic() + 30
        while b"Watch all nodes" not in log.read_bytes()[before:]:
            self.component.check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"kwok did not begin within 30 s; the end of {log}:\n{self.component.tail()}")
            time.sleep(0.05)
        return self

    def stop(self) -> None:
        self.component.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
