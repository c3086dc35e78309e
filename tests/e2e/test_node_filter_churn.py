"""Random pods with everything that the node filter reads come and go: each is allocated once, and runs where kube-scheduler may run it.

How often pods were allocated is read from the watch of claims. kube-scheduler alone is the control, in two ways:

- Every few batches, and at the end, it is given each pod that waits once more, without its ResourceClaim, beside all that runs.
  What it binds then, hami-dra has overlooked. This is exact: the same cluster, the same moment.
- Afterwards the whole story is played again on the empty nodes without hami-dra: the same pods without their claims (each node
  has more room on its devices than for pods; the fence keeps kube-scheduler's own allocator from them). Which pods run depends on where those before
  them went, so the sets differ by a few and what is compared is how many ran at all; no pod that is never bound there for want of
  its PersistentVolumeClaim is bound here.

The seed is printed; $HAMI_DRA_CHURN_SEED repeats it.
"""

import os
import random
import time
from collections import Counter

import pytest

from tests.e2e.allocation_count import AllocationCount
from tests.e2e.random_filter_pods import make_nodes, random_story, volumes
from tests.e2e.test_node_filter import Provisioner

PODS = int(os.environ.get("HAMI_DRA_CHURN_PODS") or 250)
"""500 in make soak."""
CHECKED = 6
"""Batches from one look at the waiting pods to the next."""
MOST = 1.02  # allocations for each allocated pod
LEAST_RUN = 0.97  # of those that run under kube-scheduler alone
PATIENCE = 120
STEADY = 2.0
"""Seconds without a change after which nothing more happens by itself: pauses between attempts are at most one."""
CAUSES = ("node", "unschedulable", "scheduler", "sibling", "misplaced", "overlap")


@pytest.fixture
def nodes(lab):
    make_nodes(lab)
    yield lab
    empty(lab)


def empty(lab):
    """Without pods, claims and volumes."""
    lab.clear()
    path = f"/api/v1/namespaces/{lab.namespace}/persistentvolumeclaims"
    for each in (path, "/api/v1/persistentvolumes"):
        lab.api.delete(each)
        lab.api.wait_for(f"{each} empty", lambda each=each: not lab.api.list(each))


def alone(item, name):
    """The same pod without its ResourceClaim: kube-scheduler decides alone."""
    spec = {key: value for key, value in item["spec"].items() if key != "resourceClaims"}
    containers = [dict(each) for each in spec["containers"]]
    for each in containers:
        each["resources"] = {key: value for key, value in each["resources"].items() if key != "claims"}
    labels = {key: value for key, value in item["metadata"]["labels"].items() if key != "hami.io/dra"}
    metadata = {**item["metadata"], "name": name, "labels": labels}
    return {**item, "metadata": metadata, "spec": {**spec, "containers": containers}}


class Cluster:
    """The pods that are there, which of them ran at some time, and which waited when they were deleted: room that those before them
    left may have been allocated to them at the last moment.
    """

    def __init__(self, lab):
        self.lab = lab
        self.ran = set()
        self.cut_short = set()

    def read(self):
        """Names of the bound pods, and the other pods by name."""
        pods = [item for item in self.lab.pods() if "deletionTimestamp" not in item["metadata"]]
        bound = {item["metadata"]["name"] for item in pods if item["spec"].get("nodeName")}
        self.ran |= bound
        return bound, {item["metadata"]["name"]: item for item in pods if item["metadata"]["name"] not in bound}

    def holders(self):
        """Names of the pods that have devices."""
        return {
            consumer["name"]
            for item in self.lab.claims()
            if "allocation" in item.get("status", {})
            for consumer in item["status"].get("reservedFor", ())
        }

    def is_settled(self):
        """Whether each pod is bound and holds devices, or has been refused and holds none."""
        bound, waiting = self.read()
        told = {
            event["regarding"]["name"]
            for event in self.lab.events()
            if event["reason"] in ("FilteringFailed", "VolumeNotReady")
        }
        ready = self.lab.hami.programs["controller"].metric("hami_dra_pending_pods", state="ready")
        return waiting.keys() <= told and not ready and self.holders() == bound

    def is_judged(self):
        """Whether kube-scheduler has bound each pod, or said why not."""
        return all(map(refused, self.read()[1].values()))

    def wait(self, condition, *, steady=0.0):
        """Until the condition holds, and has held for so many seconds with the same pods waiting."""
        since = [time.monotonic(), None]

        def settled():
            holds, waiting = condition(), self.read()[1].keys()
            if not holds or waiting != since[1]:
                since[:] = time.monotonic(), waiting
            return holds and time.monotonic() - since[0] >= steady

        try:
            self.lab.hami.wait_for(f"{condition.__name__}", settled, seconds=PATIENCE)
        except TimeoutError as error:
            raise AssertionError(f"{error}\n{self.lab.describe()}") from None

    def overlooked(self, items):
        """Waiting pods that kube-scheduler alone binds now."""
        waiting = self.read()[1]
        twins = {f"twin-{name}": alone(items[name], f"twin-{name}") for name in waiting}
        self.lab.create(*twins.values())
        self.lab.api.wait_for("kube-scheduler to judge the twins", self.is_judged, seconds=PATIENCE)
        found = sorted(self.read()[0] & twins.keys())
        for name in twins:
            self.lab.delete_pod(name, gracePeriodSeconds=0)
        self.ran -= twins.keys()
        return found


def refused(item):
    conditions = item["status"].get("conditions", ())
    return any(each["type"] == "PodScheduled" and each["status"] == "False" for each in conditions)


def play(cluster, steps, *, change, settle):
    """`change`: what is created in place of a pod. `settle` is called with the number of each step when it is made."""
    lab = cluster.lab
    for number, step in enumerate(steps):
        lab.create(*step.late, *step.claims, *map(change, step.pods))
        settle(number)
        cluster.cut_short |= {*step.deleted} & cluster.read()[1].keys()
        for name in step.deleted:
            lab.delete_pod(name, gracePeriodSeconds=0)


@pytest.mark.timeout(1200)
def test_random_pods_are_allocated_once_and_run_where_they_can(nodes):
    lab = nodes
    seed = int(os.environ.get("HAMI_DRA_CHURN_SEED") or random.SystemRandom().randrange(1_000_000))
    print(f"HAMI_DRA_CHURN_SEED={seed}")  # noqa: T201 (pytest shows it with a failure)
    steps, items = random_story(random.Random(seed), PODS)
    undone = undos(lab)
    cluster, overlooked = Cluster(lab), {}

    def settle(number):
        look = number % CHECKED == CHECKED - 1 or number == len(steps) - 1
        cluster.wait(cluster.is_settled, steady=STEADY if look else 0.0)
        if look and (found := cluster.overlooked(items)):
            overlooked[number] = found

    lab.create(*volumes("first"))
    with AllocationCount(lab.api) as count, Provisioner(lab) as provisioner:
        play(cluster, steps, change=lambda item: item, settle=settle)
        allocated = count.of(*items)
    given = {name for name, times in allocated.items() if times}
    total = sum(allocated.values())
    problems = (count.problems, lab.overcommitted(), provisioner.problems)
    notes = {
        name: (times, items[name]["metadata"]["labels"]["kind"], [event["note"] for event in lab.events(name)])
        for name, times in allocated.items()
        if times > 1
    }
    undone = undos(lab) - undone
    ran_alone = control(lab, steps)
    print(  # noqa: T201 (as above)
        f"{PODS} pods: {len(given)} were allocated, {total} allocations; undone: {undone}; kube-scheduler alone runs "
        f"{len(ran_alone)}, of which {len(ran_alone - given)} did not run here, and of those here {len(given - ran_alone)} not there; more than once: {notes}"
    )
    assert overlooked == {}
    assert cluster.ran <= given <= cluster.ran | cluster.cut_short, "each allocation was used"
    assert total <= MOST * len(given), notes
    assert problems == ([], [], [])
    assert len(given) >= LEAST_RUN * len(ran_alone), sorted(ran_alone - given)
    assert not given & never_ready(steps)


def control(lab, steps):
    """Names of the pods that kube-scheduler runs at some time without hami-dra."""
    empty(lab)
    lab.create(*volumes("second"))
    cluster = Cluster(lab)
    with Provisioner(lab):
        play(
            cluster,
            steps,
            change=lambda item: alone(item, item["metadata"]["name"]),
            settle=lambda _number: cluster.wait(cluster.is_judged, steady=STEADY / 2),
        )
    return cluster.ran


def never_ready(steps):
    """Names of the pods whose PersistentVolumeClaim is never made."""
    made = {each["metadata"]["name"] for step in steps for each in (*step.claims, *step.late)}
    return {
        item["metadata"]["name"]
        for step in steps
        for item in step.pods
        for each in item["spec"].get("volumes", ())
        if "persistentVolumeClaim" in each and each["persistentVolumeClaim"]["claimName"] not in made
    }


def undos(lab):
    """Allocations that the controller undid, by cause."""
    controller = lab.hami.programs["controller"]
    return Counter({cause: int(controller.metric("hami_dra_undos_total", cause=cause)) for cause in CAUSES})
