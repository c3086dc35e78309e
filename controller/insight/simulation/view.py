"""The cluster that the input describes, and its changes while pods are placed.

Called by `controller.insight.simulation.run`. In: items of the input, and decisions. Out: the
inventory that `decide` reads; claims, templates and classes by name; notes about assumptions. Pure.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec.structs import replace

from controller.allocation import ClaimOwnership, Owner, ownership_of
from controller.assessment import cluster_feeds
from controller.gangs import Gangs, Unit
from controller.insight.manifests import Item, Raw, derived_uid, read
from controller.insight.simulation.settings import SimulationSettings
from controller.insight.simulation.volume_claims import with_default_class
from controller.inventory import Inventory
from controller.preemption import Budgets, Preemption, PreemptionRules, Tenants, latest_moment
from controller.webhook import IGNORE, UNCONVERTED, LegacyConversion
from hami_dra.api import kinds, names
from hami_dra.api.core import Node, Pod
from hami_dra.api.kinds import Kind
from hami_dra.api.podclaims import ClaimRef, claim_keys
from hami_dra.api.policy import PodDisruptionBudget
from hami_dra.api.resource import (
    IMPLICIT_RESOURCE,
    AllocationResult,
    ConsumerReference,
    DeviceClass,
    ResourceClaim,
    ResourceClaimStatus,
    ResourceClaimTemplate,
    ResourceSlice,
)
from hami_dra.api.storage import PersistentVolumeClaim

_ASSUMED: Final = "(assumed)"


class SimulatedCluster:
    """Implements `scheduling.assessment.ClusterView`: it plays the resource claim controller, too."""

    def __init__(self, items: Iterable[Item], settings: SimulationSettings) -> None:
        """Set up a cluster with everything in the input but pods and workloads."""
        self.settings = settings
        self.inventory = Inventory(settings.gates.pool_gates, profiles=settings.profiles)
        self.inventory.pod_names.everywhere = True
        self.gang_sources = settings.gang_sources or frozenset()
        self.gangs = Gangs(self.gang_sources)
        """Fed with the groups and the running pods."""
        self._budgets: list[PodDisruptionBudget] = []
        if settings.kubernetes is not None:
            self.inventory.set_version(*settings.kubernetes)
            self.gangs.set_version(*settings.kubernetes)
        self.claims: dict[str, ResourceClaim] = {}
        """By key, without generated claims, which belong to one pod each."""
        self.generated: dict[str, ResourceClaim] = {}
        """By key: claims generated from templates here, with their allocation."""
        self.tenants = Tenants(self.gangs, self.claims.get)
        """The running pods of the input."""
        self._feeds = cluster_feeds(self.inventory, self.gangs, self.tenants)
        self.pods: dict[str, Pod] = {}
        """By key: pods with a node, from the input or placed here."""
        self.problems: dict[str, str] = {}
        """By key of a pod: why it cannot be decided on, whatever is free."""
        self._templates: dict[str, Item] = {}
        self.classes: dict[str, DeviceClass] = {}
        self.nodes: list[Node] = []
        """In file order."""
        self.notes: list[str] = []
        self._notices: dict[tuple[str, str], list[str]] = {}
        """Source and sentence → the objects that it is about."""
        self._allocations: dict[str, Mapping[str, Any]] = {}
        self._slices: list[ResourceSlice] = []
        for item in items:
            if item.kind not in (kinds.POD, *kinds.WORKLOADS, *kinds.POD_SETS):
                self.feed(item)
        self._assume_nodes()
        for claim in [*self.inventory.volumes.objects.claims.values()]:
            self._fill_class(claim)

    def notice(self, source: str, about: str, sentences: Iterable[str]) -> None:
        """Keep what an object says without effect; pods of one workload say it once."""
        for sentence in sentences:
            self._notices.setdefault((source, sentence), []).append(about)

    @property
    def notices(self) -> list[str]:
        """Return `source: Pod ns/a (and 7 more): sentence`, in the order in which they were kept."""
        return [
            f"{source}: {about[0]}{f' (and {len(about) - 1} more)' if len(about) > 1 else ''}: {sentence}"
            for (source, sentence), about in self._notices.items()
        ]

    # -- loading -----------------------------------------------------------------------------------

    def feed(self, item: Item) -> None:
        """Add an object of any kind but pods and workloads."""
        obj: Any = item.object
        match item.kind:
            case kinds.NODE:
                self.nodes.append(obj)
            case kinds.RESOURCE_SLICE:
                self._slices.append(obj)
            case kinds.DEVICE_CLASS:
                self.classes[obj.metadata.name] = obj
                # All devices are behind the fence, so kube-scheduler serves no extended resource from them: a
                # node has it only if it offers it itself.
                obj = replace(obj, spec=replace(obj.spec, extended_resource_name=None))
            case kinds.RESOURCE_CLAIM:
                self.claims[obj.key] = obj
                if obj.status.allocation is not None:
                    self._allocations[obj.metadata.uid] = item.raw["status"]["allocation"]
            case kinds.RESOURCE_CLAIM_TEMPLATE:
                self._templates.setdefault(item.key, item)
            case kinds.POD_DISRUPTION_BUDGET:
                self._budgets.append(obj)
        self._changed(item.kind, None, obj)

    def _changed(self, kind: Kind[Any], old: Any, new: Any) -> None:
        for feed in self._feeds.get(kind, ()):
            feed(old, new)

    def _fill_class(self, claim: PersistentVolumeClaim) -> None:
        """Give a claim that no cluster has seen the default StorageClass."""
        kind, meta = kinds.PERSISTENT_VOLUME_CLAIM, claim.metadata
        if meta.uid == derived_uid(kind, meta.namespace, meta.name):
            volumes = self.inventory.volumes
            if (filled := with_default_class(claim, volumes.objects.classes.values())) is not claim:
                volumes.changed(kind.name, claim, filled)

    def _assume_nodes(self) -> None:
        """Assume ready, empty nodes for slices if the input has no Node: enough for a first try."""
        wanted = dict.fromkeys(each.spec.node_name for each in self._slices if each.spec.node_name)
        if self.nodes:
            there = {node.metadata.name for node in self.nodes}
            absent = [name for name in wanted if name not in there]
            if absent:
                self.notes.append(f"no Node {', '.join(absent)} in the input: nothing is placed on its devices")
            return
        for name in wanted:
            metadata = {"name": name, "labels": {names.HOSTNAME_LABEL: name}}
            self.feed(read(_ASSUMED, kinds.NODE, {"metadata": metadata}))
        if wanted:
            self.notes.append(f"no Node in the input: assumed {', '.join(wanted)}, ready and empty")
        else:
            self.notes.append(
                "no ResourceSlice of a node in the input, so no pod gets a device: add those of a cluster (hami-dra snapshot) "
                "or of example machines (-f resourceslices -f deviceclasses)"
            )

    def run(self, pod: Pod) -> None:
        """Count the pod on its node."""
        self.pods[pod.key] = pod
        self._changed(kinds.POD, None, pod)

    def leave(self, pods: Iterable[Pod]) -> None:
        """Remove running pods, and deallocate the claims that no other pod uses."""
        pods = tuple(pods)
        freed = set(self.tenants.freed_by(pods))
        for pod in pods:
            del self.pods[pod.key]
            self._changed(kinds.POD, pod, None)
        for key in {key for pod in pods for key in claim_keys(pod)}:
            claim = self.claims.get(key)
            if claim is not None and claim.metadata.uid in freed:
                self.deallocate(claim)

    def deallocate(self, claim: ResourceClaim) -> None:
        """Let a claim of the input hold nothing."""
        self.claims[claim.key] = replace(claim, status=ResourceClaimStatus())
        self._changed(kinds.RESOURCE_CLAIM, claim, self.claims[claim.key])

    # -- queries -----------------------------------------------------------------------------------

    def is_converted(self, namespace: str) -> bool:
        """Return whether the webhook handles pods of this namespace (manifests/webhook.yaml)."""
        if namespace in UNCONVERTED:
            return False
        found = self.inventory.namespaces.get(namespace)
        return found is None or found.metadata.labels.get(names.WEBHOOK_LABEL) != IGNORE

    def offers(self, resource: str) -> bool:
        """Return whether a device plugin or a DeviceClass offers the extended resource."""
        return self.plugin_offers(resource) or bool(self.served_by(resource))

    def plugin_offers(self, resource: str) -> bool:
        """Return whether a device plugin offers the extended resource on some node."""
        return bool(self.inventory.nodes.offers(resource).any())

    def served_by(self, resource: str) -> str:
        """Return the DeviceClass of an extended resource that no device plugin offers, or empty."""
        if self.plugin_offers(resource):
            return ""
        implicit = resource.removeprefix(IMPLICIT_RESOURCE)
        if implicit != resource:
            return implicit
        return next(
            (name for name, each in sorted(self.classes.items()) if each.spec.extended_resource_name == resource), ""
        )

    def claim(self, pod: Pod, ref: ClaimRef) -> ResourceClaim | None:
        """Return the claim of an entry of the pod, as it would be generated if it is not there. Raises BadManifest."""
        claim = self.claims.get(ref.key)
        if claim is None and ref.template in self._templates:
            claim = self._generated(self._templates[ref.template], pod, ref.pod_claim_name)
        if claim is not None:
            self._allow_admin_access(claim)
        return claim

    def preemption(self, unit: Unit | None = None) -> Preemption:
        """Return preemption at the time of the last thing that the input says of the unit and of running pods."""
        members = () if unit is None else unit.members
        now = max(map(latest_moment, [*self.pods.values(), *(request.pod for request in members)]), default=0.0)
        return Preemption(
            self.inventory,
            self.tenants,
            Budgets(self._budgets, best_effort=self.settings.exceeds_budgets),
            self.settings.options,
            PreemptionRules(now),
        )

    def template(self, key: str) -> ResourceClaimTemplate | None:
        item = self._templates.get(key)
        return item.object if item is not None else None

    def ownership_of(self, claim: ResourceClaim) -> ClaimOwnership:
        """Every driver counts as ours. Upstream, whose order first-fit is, knows no rule of drivers."""
        if self.settings.first_fit:
            return ClaimOwnership(Owner.UNKNOWN)
        return ownership_of(self.inventory, claim, None, self.settings.gates)

    def converted_from(self, pod: Pod) -> tuple[str, ...]:
        return LegacyConversion().plugin_resources(pod)

    def allocation_of(self, claim: ResourceClaim) -> Mapping[str, Any]:
        """Return the claim's allocation, from the input or decided here."""
        return self._allocations[claim.metadata.uid]

    def _generated(self, template: Item, pod: Pod, pod_claim_name: str) -> ResourceClaim:
        """Return the claim that the resource claim controller would generate. Raises BadManifest."""
        inner: Raw = template.raw.get("spec", {})
        owner = {"apiVersion": "v1", "kind": "Pod", "name": pod.metadata.name, "uid": pod.metadata.uid}
        metadata = {
            **inner.get("metadata", {}),
            "name": f"{pod.metadata.name}-{pod_claim_name}",
            "namespace": pod.metadata.namespace,
            "ownerReferences": [{**owner, "controller": True}],
        }
        raw = {"metadata": metadata, "spec": inner.get("spec", {})}
        item = read(template.source, kinds.RESOURCE_CLAIM, raw, (f"ResourceClaimTemplate {template.key}", "spec"))
        claim: ResourceClaim = item.object
        # Distinct from a claim of that name in the input.
        uid = f"generated for {pod.metadata.uid}/{pod_claim_name}"
        return replace(claim, metadata=replace(claim.metadata, uid=uid))

    def generate_volume_claim(self, source: str, raw: Raw) -> None:
        """Add a PersistentVolumeClaim that a controller would create, unless it exists. Raises BadManifest."""
        item = read(source, kinds.PERSISTENT_VOLUME_CLAIM, raw)
        if item.key not in self.inventory.volumes.objects.claims:
            self.feed(item)
            self._fill_class(item.object)

    # -- changes -----------------------------------------------------------------------------------

    def place(self, pod: Pod, node: str) -> None:
        """Count the pod on this node from now on."""
        self.pods[pod.key] = replace(pod, spec=replace(pod.spec, node_name=node))
        self.inventory.assume_pod(pod, node)

    def allocate(self, claim: ResourceClaim, allocation: Mapping[str, Any], pod: Pod) -> None:
        """Record the allocation of the claim, reserved for the pod."""
        reserved = (ConsumerReference(resource=kinds.POD.plural, name=pod.metadata.name, uid=pod.metadata.uid),)
        status = replace(claim.status, allocation=AllocationResult.from_json(allocation), reserved_for=reserved)
        allocated = replace(claim, status=status)
        if claim.key in self.claims and self.claims[claim.key].metadata.uid == claim.metadata.uid:
            self.claims[claim.key] = allocated
        else:
            self.generated[claim.key] = allocated
        self._allocations[claim.metadata.uid] = allocation
        self._changed(kinds.RESOURCE_CLAIM, claim, allocated)

    def _allow_admin_access(self, claim: ResourceClaim) -> None:
        """Assume that a missing namespace allows admin access: the API server admits such claims nowhere else."""
        namespace = claim.metadata.namespace
        asks = any(request.exactly and request.exactly.admin_access for request in claim.spec.devices.requests)
        if asks and namespace not in self.inventory.namespaces:
            labels = {names.ADMIN_ACCESS_LABEL: "true"}
            self.feed(read(_ASSUMED, kinds.NAMESPACE, {"metadata": {"name": namespace, "labels": labels}}))
            self.notes.append(f"no Namespace {namespace} in the input: assumed to allow adminAccess")
