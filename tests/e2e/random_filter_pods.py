"""A random story of pods that come and go, with everything that the node filter reads; made by the dice alone, so that it can be
played again: by hami-dra, and by kube-scheduler without it.
"""

from dataclasses import dataclass, field

from tests.e2e.lab import T4
from tests.e2e.objects import cpu, part, pod, template
from tests.e2e.test_node_filter import HOST, PROVISIONER, ZONE, apart, made_in, prefers
from tests.e2e.test_volumes import claim, storage_class, using, volume

NODES = 24
ZONES = "abc"
BATCH = 20
ONCE = ("ReadWriteOncePod",)
PODS_OF_A_NODE = 36
"""Four T4 cards are shared by ten pods each."""
SOLO = 6
"""Volumes that one pod at a time may use."""
APPS = ("red", "green", "blue")


@dataclass
class Step:
    """`late`: claims that pods of earlier steps have waited for."""

    pods: list = field(default_factory=list)
    claims: list = field(default_factory=list)
    late: list = field(default_factory=list)
    deleted: list = field(default_factory=list)
    """Names of pods that go once all others have settled."""


def node_names(zone):
    return [f"{zone}-{number}" for number in range(NODES // len(ZONES))]


def make_nodes(lab):
    """Nodes in three zones. The driver of made volumes attaches one on each node of zone a, two in b, and is not in c.

    A node is full of pods before its devices are all taken, so that devices never decide which pods may run: kube-scheduler, the
    control, does not look at them.
    """
    for zone in ZONES:
        lab.machines(T4, *node_names(zone), labels={ZONE: zone}, allocatable={"pods": str(PODS_OF_A_NODE)})
    lab.create(template("part", part("1Gi")), storage_class("local"), storage_class("now", "Immediate"))
    lab.create(made_in("made", "a", "b"), storage_class("solo"), csi_driver())
    lab.create(*(csi_node(name, count) for zone, count in (("a", 1), ("b", 2)) for name in node_names(zone)))


def csi_driver():
    """Pods whose volumes it makes run on no node without it (VolumeLimitScaling, 1.37)."""
    spec = {"attachRequired": True, "preventPodSchedulingIfMissing": True}
    return {"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": PROVISIONER}, "spec": spec}


def csi_node(node, count):
    drivers = [{"name": PROVISIONER, "nodeID": node, "allocatable": {"count": count}, "topologyKeys": None}]
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSINode",
        "metadata": {"name": node},
        "spec": {"drivers": drivers},
    }


def volumes(prefix):
    """Local volumes: for claims that wait for their pod, for those that do not, and for one pod at a time."""
    names = [name for zone in ZONES for name in node_names(zone)]
    return [
        *(volume(f"{prefix}-local-{name}", "local", name) for name in names[::2]),
        *(volume(f"{prefix}-now-{name}", "now", name) for name in names[1::2]),
        *(volume(f"{prefix}-solo-{name}", "solo", name, modes=ONCE) for name in names[::4]),
    ]


class RandomPods:
    """Adds pods to a step."""

    def __init__(self, dice):
        self._dice = dice
        self._kinds = [name.removeprefix("_with_") for name in vars(RandomPods) if name.startswith("_with_")]
        self.items = {}
        self.waits_for = {}
        """Claim that is not made yet → the pod that names it."""

    def add_to(self, step):
        name, kind, app = f"pod-{len(self.items):03}", self._dice.choice(self._kinds), self._dice.choice(APPS)
        item = pod(name, templates=["part"], labels={"app": app, "kind": kind})
        getattr(self, f"_with_{kind}")(item, app, step)
        self.items[name] = item
        step.pods.append(item)

    def _with_nothing(self, item, app, step):
        pass

    def _with_cpu(self, item, app, step):
        item["spec"]["containers"][0]["resources"] |= cpu(self._dice.choice(["1", "4"]))

    def _with_anti_affinity(self, item, app, step):
        item["spec"]["affinity"] = apart(app)

    def _with_a_zone_alone(self, item, app, step):
        lonely = str(self._dice.randrange(3))
        item["metadata"]["labels"]["lonely"] = lonely
        term = {"labelSelector": {"matchLabels": {"lonely": lonely}}, "topologyKey": ZONE}
        item["spec"]["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}

    def _with_affinity(self, item, app, step):
        term = {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": ZONE}
        item["spec"]["affinity"] = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}

    def _with_spread(self, item, app, step):
        item["spec"]["topologySpreadConstraints"] = [self._spread(app, "DoNotSchedule")]

    def _with_soft_spread(self, item, app, step):
        item["spec"]["topologySpreadConstraints"] = [self._spread(app, "ScheduleAnyway")]

    def _spread(self, app, action):
        return {
            "maxSkew": self._dice.randint(1, 3),
            "topologyKey": self._dice.choice([ZONE, HOST]),
            "whenUnsatisfiable": action,
            "labelSelector": {"matchLabels": {"app": app}},
        }

    def _with_a_host_port(self, item, app, step):
        port = self._dice.choice([8080, 8081])
        item["spec"]["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": port}]

    def _with_a_preferred_zone(self, item, app, step):
        item["spec"]["affinity"] = prefers(self._dice.choice(ZONES))

    def _with_preferred_terms(self, item, app, step):
        term = {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": self._dice.choice([ZONE, HOST])}
        side = self._dice.choice(["podAffinity", "podAntiAffinity"])
        weighted = [{"weight": self._dice.randint(1, 100), "podAffinityTerm": term}]
        item["spec"]["affinity"] = {side: {"preferredDuringSchedulingIgnoredDuringExecution": weighted}}

    def _with_a_local_volume(self, item, app, step):
        self._uses(item, self._dice.choice(["local", "now"]), step.claims)

    def _with_a_made_volume(self, item, app, step):
        self._uses(item, "made", step.claims)

    def _with_an_ephemeral_volume(self, item, app, step):
        spec = claim("any", "made")["spec"]
        item["spec"]["volumes"] = [{"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": spec}}}]

    def _with_a_volume_alone(self, item, app, step):
        item["spec"]["volumes"] = _volumes_of(f"solo-{self._dice.randrange(SOLO)}", item)

    def _with_a_missing_claim(self, item, app, step):
        """Some are made later, others never."""
        late = []
        self._uses(item, self._dice.choice(["made", "now"]), late)
        if self._dice.random() < 0.7:
            self.waits_for[item["metadata"]["name"]] = late[0]

    def _uses(self, item, storage_class, claims):
        name = f"data-{item['metadata']['name']}"
        claims.append(claim(name, storage_class))
        item["spec"]["volumes"] = _volumes_of(name, item)


def _volumes_of(claim_name, item):
    return using(claim_name, name=item["metadata"]["name"])["spec"]["volumes"]


def random_story(dice, count):
    """Steps, and the pods by name."""
    pods, steps, alive = RandomPods(dice), [], []
    while len(pods.items) < count:
        step = Step()
        if not steps:
            step.claims += [claim(f"solo-{number}", "solo", ONCE) for number in range(SOLO)]
        for name in [name for name in pods.waits_for if dice.random() < 0.5]:
            step.late.append(pods.waits_for.pop(name))
        for _ in range(min(BATCH, count - len(pods.items))):
            pods.add_to(step)
        alive += [item["metadata"]["name"] for item in step.pods]
        if len(pods.items) < count:
            step.deleted = dice.sample(alive, BATCH // 2)
            alive = [name for name in alive if name not in step.deleted]
        steps.append(step)
    return steps, pods.items
