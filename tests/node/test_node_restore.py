"""etcd goes back to an older snapshot under a node whose containers go on: no device is in two containers' hands.

What kubelet does, seen here: a pod that the API server does not know any more, or that is not bound any more, is ended like one that
was deleted, and only then its claims are taken back. Until that the controller may give a device away whose claim went back to
unallocated; the driver keeps it until its container has ended.
"""

import json
import threading

import pytest

from hack.controlplane.cluster import ControlPlane
from hack.controlplane.snapshots import BUMP, restore_snapshot, take_snapshot
from hack.installation import QUICK, Installation
from hack.node.node import Node
from tests.e2e.objects import claim, part, pod, template
from tests.node.bench import Bench

T4 = "g4dn.12xlarge"
WHOLE = part("15Gi")


class Holders(threading.Thread):
    """Reads the driver's checkpoint all the time. `most`: memory of one card that claims held at once; `seen`: uids of holders."""

    def __init__(self, bench):
        super().__init__(daemon=True)
        self._path = bench.node.root / "plugins/nvidia.hami.io/checkpoint.json"
        self._ending = threading.Event()
        self.most, self.seen = 0, {}

    def run(self):
        while not self._ending.wait(0.02):
            claims = json.loads(self._path.read_text())["state"]["claims"]
            cards = {}
            for each in claims:
                for held in each["held"]:
                    cards.setdefault(held["card"], set()).add(each["uid"])
            self.most = max([self.most, *map(len, cards.values())])
            for card, uids in cards.items():
                for uid in uids:
                    self.seen.setdefault(card, []).append(uid)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self._ending.set()
        self.join()


@pytest.fixture
def bench(machine_room):
    """A control plane and a node that only this test uses."""
    with ControlPlane() as plane, Node(plane) as node:
        hami = Installation(plane)
        hami.install(webhook=False)
        hami.start_controller(*QUICK)
        hami.wait_ready()
        one = Bench(plane, node, hami, "restored")
        yield one
        one.close()


@pytest.mark.timeout(300)
@pytest.mark.soak
def test_what_was_given_after_the_snapshot_is_given_again_when_its_container_has_ended(bench):
    driver = bench.start_driver(T4, "--check-claims-every=0.5s")
    bench.run(template("whole", WHOLE), claim("mine", WHOLE), pod("kept", templates=["whole"]))
    kept = bench.allocated("kept")
    snapshot = take_snapshot(bench.plane, "before")
    bench.run(pod("lost", templates=["whole"]), pod("lost-2", templates=["whole"]))
    bench.create(pod("user", claims=["mine"]), terminationGracePeriodSeconds=10)
    bench.wait_running("user")
    (status,) = bench.pod("user")["status"]["containerStatuses"]
    bench.node.freeze_container(status["containerID"])
    assert len(bench.prepared()) == 4, "every card is in use"
    before = bench.prepared()

    with Holders(bench) as holders:
        restore_snapshot(bench.plane, snapshot, bump=BUMP)
        new = [f"new-{number}" for number in range(3)]
        bench.create(*(pod(name, templates=["whole"]) for name in new))
        bench.wait_running(*new, "kept", seconds=120)
    bench.wait_driver(driver)
    assert holders.most == 1
    assert {name for each in new for name in bench.allocated(each)} == set(bench.devices()) - set(kept)
    bench.got("kept")
    assert bench.allocated("kept") == kept
    assert len(bench.prepared() & before) == 1
    assert "held by restored/mine" in bench.events()
