"""Small clusters and gangs for tests of `decide_gang`."""

from controller.decide import Options, PodClaim, SchedulingRequest
from controller.gangs import GangKey, TopologyConstraint, Unit
from controller.inventory.inventory import Inventory
from controller.scoring.policies import DevicePolicy, Policies
from tests.cards import DRIVER, card, claim, device_class, node, pod, request, slice_of
from tests.support.assumed import assume

OPTIONS = Options(managed=frozenset({DRIVER}))
CLIQUE = "nvidia.com/gpu.clique"
RACK = "topology.example.com/rack"


def cluster(nodes=2, cards=4, labels=lambda _number: {}, devices=None, **card_options):
    """Nodes n00, n01, ... `labels`: of each node, by its number; `devices`: in place of the cards."""
    inventory = Inventory()
    inventory.class_changed(None, device_class())
    for number in range(nodes):
        name = f"n{number:02}"
        inventory.node_changed(None, node(name, labels=labels(number)))
        published = devices(number) if devices else [card(index, **card_options) for index in range(cards)]
        inventory.slice_changed(None, slice_of(name, published))
    return inventory


def member(name, count=1, *, node_policy="binpack", device_policy="binpack", claims=None, spec=None, **wanted):
    """A pod with one claim of `count` cards; `claims` in its place."""
    policies = Policies(node_policy=node_policy, device_policy=DevicePolicy((device_policy,)))
    namespace = (spec or {}).get("namespace", "default")
    claims = (
        (claim(f"{name}-gpus", [request(count=count, **wanted)], namespace=namespace),) if claims is None else claims
    )
    entries = tuple(PodClaim(f"c{number}", each) for number, each in enumerate(claims))
    return SchedulingRequest(pod=pod(name, **(spec or {})), claims=entries, policies=policies)


def gang(*members, least=None, **options):
    key = GangKey("labels", "default", "train")
    return Unit(key, tuple(members), len(members) if least is None else least, **options)


def within(key, *, required=True):
    return TopologyConstraint(key, required, "PodGroup default/train spec.schedulingConstraints.topology[0].key")


def occupy(inventory, name, count, *, first=None, memory="16Gi"):
    """Take whole cards of a node, from the `first` one on; None: the first that are free."""
    if first is None:
        first = next(each for each in range(16) if inventory.usage.use_of((DRIVER, name, f"gpu-{each}")) is None)
    consumed = {"memory": memory, "cores": "100", "shares": "1"}
    results = [
        {"request": "gpu", "driver": DRIVER, "pool": name, "device": f"gpu-{each}", "consumedCapacity": consumed}
        for each in range(first, first + count)
    ]
    assume(inventory, f"tenant-{name}-{first}", {"devices": {"results": results}})


def nodes_of(decision):
    return sorted(each.node for _, each in decision.placed)


def devices_of(decision):
    """(node, device) → number of members that hold it."""
    found = {}
    for _, each in decision.placed:
        for entry in each.allocations:
            for result in entry.allocation["devices"]["results"]:
                key = each.node, result["device"]
                found[key] = found.get(key, 0) + 1
    return found


def held(inventory):
    """Everything that counts as used, by value."""
    nodes, devices = inventory.nodes, inventory.devices
    return (
        {
            str(device): (use.exclusive, use.shares, dict(use.consumed))
            for device, use in inventory.usage.uses().items()
        },
        {name: nodes.used(name).tolist() for name in ("cpu", "memory", "pods")},
        nodes.score.tolist(),
        devices.states(list(range(devices.size))).tolist(),
        devices.exclusive[: devices.size].tolist(),
        devices.blocked[: devices.size].tolist(),
        {name: dict(inventory.quotas.used(name)) for name in inventory.quotas.namespaces},
        sorted(placed.pod.metadata.uid for placed in inventory._pods.unbound()),
    )
