"""Random pods with everything that the node filter reads come and go: each is allocated once, and runs where kube-scheduler may run it.

Anti-affinity, affinity, spread, host ports, volumes of all kinds, preferences. How often pods were allocated is read from the watch
of claims. The control: for every pod that waits at the end kube-scheduler alone is given the same pod without its claim, and must
not be able to run it either; what it can bind, hami-dra has overlooked. The seed is printed; $HAMI_DRA_CHURN_SEED repeats it.
"""

import os
import random

import pytest

from tests.e2e.allocation_count import AllocationCount
from tests.e2e.lab import T4
from tests.e2e.objects import cpu, part, pod, template
from tests.e2e.test_node_filter import HOST, ZONE, Provisioner, apart, made_in, prefers
from tests.e2e.test_volumes import claim, storage_class, using, volume

PODS = int(os.environ.get("HAMI_DRA_FILTER_PODS") or 500)
BATCH = 20
NODES = 24
ZONES = "abc"
LOCAL = 8
MOST = 1.02  # allocations for each allocated pod
PATIENCE = 120


@pytest.fixture
def nodes(lab):
    for zone in ZONES:
        lab.machines(T4, *(f"{zone}-{number}" for number in range(NODES // len(ZONES))), labels={ZONE: zone})
    lab.create(template("part", part("1Gi")), storage_class("local"), made_in("made", "a", "b"))
    lab.create(*(volume(f"local-{number}", "local", f"{ZONES[number % 3]}-{number // 3}") for number in range(LOCAL)))
    yield lab
    lab.clear()
    lab.api.delete(f"/api/v1/namespaces/{lab.namespace}/persistentvolumeclaims")


def spread(app, key, skew):
    return {
        "maxSkew": skew,
        "topologyKey": key,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": app}},
    }


def beside(app):
    term = {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": ZONE}
    return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


class RandomPods:
    """Makes pods, by the dice alone."""

    def __init__(self, dice):
        self._dice = dice
        self._local = 0
        self.items = {}

    def next(self):
        """The pod, and the claims of volumes that it needs."""
        dice, name = self._dice, f"pod-{len(self.items):03}"
        app = dice.choice(["red", "green", "blue"])
        kinds = ["apart", "zone", "beside", "spread", "port", "local", "made", "prefers", "cpu", "plain"]
        kind = dice.choice(kinds)
        more, claims = {}, []
        item = pod(name, templates=["part"], labels={"app": app, "kind": kind})
        if kind == "apart":
            item["spec"]["affinity"] = apart(app)
        elif kind == "zone":
            item["metadata"]["labels"]["lonely"] = str(dice.randrange(3))
            term = {"labelSelector": {"matchLabels": {"lonely": item["metadata"]["labels"]["lonely"]}}}
            terms = [{**term, "topologyKey": ZONE}]
            item["spec"]["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
        elif kind == "beside":
            item["spec"]["affinity"] = beside(app)
        elif kind == "spread":
            item["spec"]["topologySpreadConstraints"] = [spread(app, dice.choice([ZONE, HOST]), dice.randint(1, 3))]
        elif kind == "port":
            item["spec"]["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": dice.choice([8080, 8081])}]
        elif kind == "prefers":
            item["spec"]["affinity"] = prefers(dice.choice(ZONES))
        elif kind == "cpu":
            item["spec"]["containers"][0]["resources"] |= cpu(dice.choice(["1", "4"]))
        elif kind in ("local", "made"):
            claims = [claim(f"data-{name}", kind)]
            item["spec"]["volumes"] = using(f"data-{name}", name=name, **more)["spec"]["volumes"]
        self.items[name] = item
        return item, claims


def twin(item):
    """The same pod without its claim: kube-scheduler decides alone."""
    spec = {name: value for name, value in item["spec"].items() if name != "resourceClaims"}
    containers = [dict(each) for each in spec["containers"]]
    for each in containers:
        each["resources"] = {name: value for name, value in each["resources"].items() if name != "claims"}
    labels = {name: value for name, value in item["metadata"]["labels"].items() if name != "hami.io/dra"}
    metadata = {**item["metadata"], "name": f"twin-{item['metadata']['name']}", "labels": labels}
    return {**item, "metadata": metadata, "spec": {**spec, "containers": containers}}


def waiting(lab):
    return sorted(
        item["metadata"]["name"]
        for item in lab.pods(fieldSelector="spec.nodeName=")
        if "deletionTimestamp" not in item["metadata"]
    )


def holders(lab):
    """Names of the pods that have devices."""
    return {
        consumer["name"]
        for item in lab.claims()
        if "allocation" in item.get("status", {})
        for consumer in item["status"].get("reservedFor", ())
    }


def settled(lab):
    """Whether each pod is bound, or has been refused and holds nothing."""
    left = set(waiting(lab))
    told = {
        event["regarding"]["name"] for event in lab.events() if event["reason"] in ("FilteringFailed", "VolumeNotReady")
    }
    return left <= told and not left & holders(lab)


@pytest.mark.timeout(900)
def test_random_pods_are_allocated_once_and_run_where_they_can(nodes):
    lab = nodes
    seed = int(os.environ.get("HAMI_DRA_CHURN_SEED") or random.SystemRandom().randrange(1_000_000))
    print(f"HAMI_DRA_CHURN_SEED={seed}")  # noqa: T201 (pytest shows it with a failure)
    dice = random.Random(seed)
    pods = RandomPods(dice)
    alive = []
    with AllocationCount(lab.api) as count, Provisioner(lab) as provisioner:
        while len(pods.items) < PODS:
            for _ in range(BATCH):
                item, claims = pods.next()
                lab.create(*claims, item)
                alive.append(item["metadata"]["name"])
            lab.hami.wait_for("a quiet moment", lambda: settled(lab), seconds=PATIENCE)
            if len(pods.items) < PODS:
                for name in dice.sample(alive, BATCH // 2):
                    lab.delete_pod(name, gracePeriodSeconds=0)
                    alive.remove(name)
        left = waiting(lab)
        allocated = count.of(*pods.items)
        lab.create(*(twin(pods.items[name]) for name in left))
        twins = [f"twin-{name}" for name in left]
        lab.api.wait_for(
            "kube-scheduler to judge the twins", lambda: all(judged(lab, each) for each in twins), seconds=60
        )
        overlooked = [name for name in twins if lab.pod(name)["spec"].get("nodeName")]
    given = [name for name in allocated if allocated[name]]
    total = sum(allocated.values())
    undone = [(event["regarding"]["name"], event["note"]) for event in lab.events(reason="AllocationUndone")]
    print(  # noqa: T201 (as above)
        f"{PODS} pods: {len(given)} were allocated, {total} allocations, {len(left)} wait, of which "
        f"kube-scheduler alone binds {len(overlooked)}; taken back: {undone}"
    )
    assert overlooked == [], lab.describe()
    assert holders(lab) >= {name for name in alive if name not in left}
    assert total <= MOST * len(given), {name: times for name, times in allocated.items() if times > 1}
    assert (count.problems, lab.overcommitted(), provisioner.problems) == ([], [], [])


def judged(lab, name):
    return bool(lab.pod(name)["spec"].get("nodeName") or lab.refusal(name))
