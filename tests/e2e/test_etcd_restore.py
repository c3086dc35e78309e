"""etcd is put back to an older snapshot under a running hami-dra: it notices, and no device is given twice.

The worst case: nobody restarts hami-dra, and revisions go back, so that a watch from the newest known one is silent. `make soak`
adds what etcd's documentation advises (skip revisions, mark the older ones compacted), and a controller that is restarted.
"""

import os

import pytest

from hack.controlplane.snapshots import BUMP, restore_snapshot, take_snapshot
from hack.installation import QUICK, Installation
from tests.e2e.lab import T4, Lab
from tests.e2e.objects import claim, part, pod, template
from tests.e2e.observe import Watcher

NAMESPACE = "restored"
TURNS = ((0, False), (BUMP, False), (2 * BUMP, True))[: 3 if "HAMI_DRA_SOAK" in os.environ else 1]
"""Revisions to skip, and whether the controller is restarted."""
KEPT = {f"kept-{number}" for number in range(4)}


@pytest.fixture
def lab(make_control_plane):
    """Eight cards; nobody but us uses the control plane."""
    plane = make_control_plane()
    plane.api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    hami = Installation(plane)
    hami.install(webhook=False)
    hami.start_controller(*QUICK)
    hami.wait_ready()
    one = Lab(plane, hami, NAMESPACE)
    one.machines(T4, "n0", "n1")
    one.create(template("whole", part("15Gi")))
    return one


def whole(*names):
    return [pod(name, templates=["whole"]) for name in names]


def devices(lab):
    return {each.pod: (each.node, each.devices) for each in lab.placements()}


@pytest.mark.timeout(300)
def test_a_past_state_is_taken_as_it_is(lab):
    lab.create(claim("shared", part("15Gi")), *whole(*KEPT))
    lab.wait_running(names=KEPT)
    kept = devices(lab)
    snapshot = take_snapshot(lab.plane, "before")
    for turn, (bump, restarts) in enumerate(TURNS):
        lose_some_allocations(lab, turn)
        if restarts:
            lab.hami.programs["controller"].process.stop()
        restore_snapshot(lab.plane, snapshot, bump=bump)
        assert {item["metadata"]["name"] for item in lab.pods()} == KEPT
        # as many as fit, at once, one of them with the claim whose allocation is lost; and one more
        new = {f"new-{turn}-{number}" for number in range(3)}
        lab.create(*whole(*new), pod("user", claims=["shared"]))
        with Watcher(lab.api) as watcher:
            if restarts:
                lab.hami.programs["controller"].process.start()
            lab.wait_running(names=KEPT | new | {"user"}, seconds=90)
        assert watcher.problems == lab.overcommitted() == []
        assert kept.items() <= devices(lab).items()
        lab.create(*whole(f"last-{turn}"))
        lab.wait_event(f"last-{turn}", "FilteringFailed")


def lose_some_allocations(lab, turn):
    """Two pods go and their devices are free, which is no longer so after the restore; and three others get devices."""
    for item in lab.pods():
        if item["metadata"]["name"] not in KEPT - {"kept-0", "kept-1"}:
            lab.delete_pod(item["metadata"]["name"])
    lab.hami.wait_for("their claims gone", lambda: len(lab.claims()) == 3)
    lost = {f"lost-{turn}-0", f"lost-{turn}-1"}
    lab.create(*whole(*lost), pod("user", claims=["shared"]))
    lab.wait_running(names=lost | {"user"})
