"""A small cluster whose pods may have to leave."""

import msgspec

from controller.gangs import GangKey, Gangs, Unit
from controller.preemption import Budgets, Preemption, PreemptionRules, Tenants
from hami_dra.api.core import Pod
from hami_dra.api.policy import PodDisruptionBudget
from tests.cards import DRIVER, claim, pod
from tests.support.gang_requests import OPTIONS, cluster, held
from tests.support.quotas import guarantee_object

NOW = 1_700_000_000.0


def moment(seconds):
    """A timestamp so many seconds before now."""
    return "2023-11-14T22:{:02}:{:02}Z".format(*divmod(13 * 60 + 20 - seconds, 60))


class World:
    def __init__(self, nodes=1, cards=2, **options):
        self.inventory = cluster(nodes, cards, **options)
        self.gangs = Gangs()
        self.claims = {}
        self.tenants = Tenants(self.gangs, self.claims.get)
        self.budgets = []
        self.pods = {}

    def run(
        self,
        name,
        node,
        cards,
        *,
        priority=0,
        since=600,
        claims=None,
        memory="16Gi",
        cores="100",
        affinity=None,
        namespace="default",
        containers=None,
        **metadata,
    ):
        """Run a pod that holds these cards of a node; `claims`: claims that were made before, in their place."""
        keys = (
            [self.hold(f"{name}-gpus", node, cards, memory, cores, namespace=namespace)] if claims is None else claims
        )
        spec = {"nodeName": node, "priority": priority, "resourceClaims": []}
        for number, key in enumerate(keys):
            spec["resourceClaims"].append({"name": f"c{number}", "resourceClaimName": key.split("/")[1]})
        if containers is not None:
            spec["containers"] = containers
        if affinity is not None:
            spec["affinity"] = affinity
        status = {"phase": "Running", "startTime": moment(since), "conditions": [{"type": "Ready", "status": "True"}]}
        raw = msgspec.to_builtins(pod(name, namespace=namespace, **spec))
        raw["metadata"] |= metadata
        raw["status"] = status
        tenant = msgspec.convert(raw, Pod)
        for feed in (self.gangs.pod_changed, self.inventory.pod_changed, self.tenants.pod_changed):
            feed(None, tenant)
        self.pods[tenant.key] = tenant
        return tenant

    def end(self, tenant):
        """Let a pod be gone, with the claim that was made for it."""
        for feed in (self.gangs.pod_changed, self.inventory.pod_changed, self.tenants.pod_changed):
            feed(tenant, None)
        self.inventory.claim_changed(self.claims.pop(f"{tenant.key}-gpus"), None)
        del self.pods[tenant.key]

    def fresh_tenants(self):
        """Tenants that are fed with everything at once."""
        tenants = Tenants(self.gangs, self.claims.get)
        for each in self.pods.values():
            tenants.pod_changed(None, each)
        return tenants

    def guarantee(self, namespace, name="guarantee", **amounts):
        """Owe a namespace `gpu` cards or `gpumem` MiB. Returns the quota."""
        return self.set_quota(
            None, guarantee_object({f"nvidia.com/{key}": each for key, each in amounts.items()}, name, namespace)
        )

    def set_quota(self, old, new):
        self.inventory.quota_changed(old, new)
        return new

    def hold(self, name, node, cards, memory="16Gi", cores="100", *, namespace="default"):
        amounts = {"memory": memory, "cores": cores, "shares": "1"}
        results = [
            {"request": "gpu", "driver": DRIVER, "pool": node, "device": f"gpu-{each}", "consumedCapacity": amounts}
            for each in cards
        ]
        taken = claim(name, namespace=namespace)
        status = msgspec.convert({"allocation": {"devices": {"results": results}}}, type(taken.status))
        taken = msgspec.structs.replace(taken, status=status)
        self.claims[taken.key] = taken
        self.inventory.claim_changed(None, taken)
        return taken.key

    def protect(self, allowed, name="budget", **labels):
        raw = {
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"selector": {"matchLabels": labels}},
            "status": {"disruptionsAllowed": allowed, "currentHealthy": 2, "desiredHealthy": 2 - allowed},
        }
        self.budgets.append(msgspec.convert(raw, PodDisruptionBudget))

    def plan(self, *members, least=None, best_effort=False, condemned=(), **unit):
        before = held(self.inventory)
        plan = self.preemption(best_effort=best_effort, condemned=condemned).plan(
            self.unit(*members, least=least, **unit)
        )
        assert held(self.inventory) == before
        return plan

    def preemption(self, *, best_effort=False, **options):
        budgets = Budgets(self.budgets, best_effort=best_effort)
        return Preemption(self.inventory, self.tenants, budgets, OPTIONS, PreemptionRules(NOW), **options)

    def unit(self, *members, least=None, **unit):
        key = GangKey("labels", "default", "urgent") if len(members) > 1 else None
        return Unit(key, members, len(members) if least is None else least, **unit)
