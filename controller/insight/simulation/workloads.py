"""Expands Deployments, StatefulSets, ReplicaSets, Jobs, DaemonSets, JobSets and LeaderWorkerSets to
the pods they would create.

Called by `controller.insight.simulation`. In: the workloads, nodes and pods of the input. Out: pods
as JSON, named `<workload>-<i>`. Pods of the input that a workload owns count as its own, so that
objects read from a cluster are not duplicated. Pure.
"""

from collections.abc import Iterable, Sequence
from itertools import count
from typing import Final

from controller.insight.manifests import BadManifest, Item, Raw, describe, read
from controller.insight.simulation.pod_sets import DeclaredGroups, jobs_of, leaders_and_workers, pod_count
from controller.insight.simulation.volume_claims import of_stateful_set, with_claims
from controller.rules import admits, pinned_names, taint_code
from hami_dra.api import kinds
from hami_dra.api.core import Node, Pod
from hami_dra.api.podstate import is_live

_HASH_LABEL: Final = "pod-template-hash"
_DAEMON_TOLERATIONS: Final = (
    ("not-ready", "NoExecute"),
    ("unreachable", "NoExecute"),
    ("disk-pressure", "NoSchedule"),
    ("memory-pressure", "NoSchedule"),
    ("pid-pressure", "NoSchedule"),
    ("unschedulable", "NoSchedule"),
)
"""Tolerations added by the DaemonSet controller (pkg/controller/daemon/util, AddOrUpdateDaemonPodTolerations)."""


EXPANDED: Final = (*kinds.WORKLOADS, *kinds.POD_SETS)
"""Kinds that `Workloads.pods_of` takes."""


class Workloads:
    """Pods of workloads. `nodes`: in the order in which DaemonSet pods are numbered."""

    def __init__(self, items: Sequence[Item], nodes: Sequence[Node]) -> None:
        self.volume_claims: list[tuple[str, Raw]] = []
        """PersistentVolumeClaims of the pods that `pods_of` returned, each with its source."""
        self._nodes = nodes
        self._workloads = {
            (item.kind.name, item.object.metadata.namespace, item.object.metadata.name)
            for item in items
            if item.kind in EXPANDED
        }
        self.groups = DeclaredGroups(items)
        """PodGroups of the Workloads in the input."""
        pods = [item for item in items if item.kind is kinds.POD]
        self._taken = {item.key for item in pods}
        self._owned: dict[tuple[str, str, str], list[Pod]] = {}
        for item in pods:
            pod: Pod = item.object
            if is_live(pod):
                for owner in _owners(pod):
                    self._owned.setdefault(owner, []).append(pod)

    def pods_of(self, item: Item) -> list[Raw]:
        """Return the pods that do not exist yet. Raises BadManifest."""
        if self._belongs_to_another(item):
            return []
        if item.kind is kinds.JOB_SET:
            group = self.groups.of(item)
            return [_in_group(pod, group) for job in jobs_of(item) for pod in self._pods_of(job)]
        if item.kind is kinds.LEADER_WORKER_SET:
            return self._leaders_and_workers(item)
        return [_in_group(pod, self.groups.of(item)) for pod in self._pods_of(item)]

    def _leaders_and_workers(self, item: Item) -> list[Raw]:
        namespace, group = item.object.metadata.namespace, self.groups.of(item)
        pods = []
        for name, template in leaders_and_workers(item):
            if f"{namespace}/{name}" not in self._taken:
                self._taken.add(f"{namespace}/{name}")
                metadata = {**template["metadata"], "name": name, "namespace": namespace}
                raw = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template.get("spec", {})}
                pods.append(_in_group(raw, group))
        return pods

    def _pods_of(self, item: Item) -> list[Raw]:
        meta = item.object.metadata
        if not item.raw.get("spec", {}).get("template"):
            raise BadManifest(f"{item.source}: {describe(item.kind, item.raw)}: spec.template is missing")
        template = read(
            item.source,
            kinds.POD,
            {**item.raw["spec"]["template"], "apiVersion": "v1", "kind": "Pod"},
            (describe(item.kind, item.raw), "spec.template"),
        )
        there = self._owned.get((item.kind.name, meta.namespace, meta.name), [])
        if item.kind is kinds.DAEMON_SET:
            return [_pinned(pod, node) for pod, node in self._daemons(item, template, there)]
        wanted = _wanted(item) - len(there)
        return [self._pod(item, template, name) for name in self._free_names(meta.namespace, meta.name, wanted)]

    def _belongs_to_another(self, item: Item) -> bool:
        """Return whether a ReplicaSet's Deployment is in the input too: the Deployment covers both."""
        return any(
            owner.controller and (owner.kind, item.object.metadata.namespace, owner.name) in self._workloads
            for owner in item.object.metadata.owner_references
        )

    def _daemons(self, item: Item, template: Item, there: Sequence[Pod]) -> Iterable[tuple[Raw, str]]:
        """Return one pod, with its node, for each node that the DaemonSet's pods may run on."""
        meta = item.object.metadata
        tolerating = _tolerating(template.raw)
        probe: Pod = read(item.source, kinds.POD, tolerating).object
        covered = {node for pod in there for node in _nodes_of(pod)}
        nodes = [
            node.metadata.name
            for node in self._nodes
            if node.metadata.name not in covered
            and admits(probe, node)
            and not taint_code(probe.spec.tolerations, node)
        ]
        free = self._free_names(meta.namespace, meta.name, len(nodes))
        for name, node in zip(free, nodes, strict=True):
            yield self._pod(item, Item(template.source, template.kind, tolerating, probe), name), node

    def _pod(self, item: Item, template: Item, name: str) -> Raw:
        meta = item.object.metadata
        own = {**template.raw["metadata"], "name": name, "namespace": meta.namespace}
        own.pop("uid", None)
        spec = template.raw.get("spec", {})
        if item.kind is kinds.STATEFUL_SET:
            self.volume_claims += [(item.source, each) for each in of_stateful_set(item.raw, name, meta.namespace)]
            spec = with_claims(spec, item.raw, name)
        return {"apiVersion": "v1", "kind": "Pod", "metadata": own, "spec": spec}

    def _free_names(self, namespace: str, workload: str, number: int) -> list[str]:
        names: list[str] = []
        for index in count():
            if len(names) >= number:
                return names
            name = f"{workload}-{index}"
            if f"{namespace}/{name}" not in self._taken:
                self._taken.add(f"{namespace}/{name}")
                names.append(name)
        return names


def _in_group(pod: Raw, group: str) -> Raw:
    """Return the pod as a member of its workload's PodGroup, unless it states a group itself."""
    if not group or "schedulingGroup" in pod["spec"]:
        return pod
    return {**pod, "spec": {**pod["spec"], "schedulingGroup": {"podGroupName": group}}}


def _wanted(item: Item) -> int:
    spec = item.object.spec
    if item.kind is kinds.JOB:
        if item.raw["spec"].get("suspend") is True:
            return 0
        parallel = _count(item, "parallelism", 1)
        return parallel if spec.completions is None else min(parallel, _count(item, "completions", 1))
    return _count(item, "replicas", 1)


def _count(item: Item, field: str, default: int) -> int:
    value = getattr(item.object.spec, field)
    return default if value is None else pod_count(item, value, f"spec.{field}")


def _owners(pod: Pod) -> Iterable[tuple[str, str, str]]:
    """Yield the controller of the pod, and the Deployment behind a ReplicaSet: (kind, namespace, name)."""
    namespace = pod.metadata.namespace
    for owner in pod.metadata.owner_references:
        if owner.controller:
            yield owner.kind, namespace, owner.name
            suffix = "-" + pod.metadata.labels.get(_HASH_LABEL, "")
            if owner.kind == kinds.REPLICA_SET.name and suffix != "-" and owner.name.endswith(suffix):
                yield kinds.DEPLOYMENT.name, namespace, owner.name.removesuffix(suffix)


def _nodes_of(pod: Pod) -> Iterable[str]:
    """Return the nodes on which a DaemonSet's pod runs or will run."""
    if pod.spec.node_name:
        return [pod.spec.node_name]
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity else None
    return (pinned_names(required) or ()) if required else ()


def _tolerating(template: Raw) -> Raw:
    spec = template.get("spec", {})
    added = [
        {"key": f"node.kubernetes.io/{name}", "operator": "Exists", "effect": effect}
        for name, effect in _DAEMON_TOLERATIONS
    ]
    return {**template, "spec": {**spec, "tolerations": [*spec.get("tolerations", ()), *added]}}


def _pinned(pod: Raw, node: str) -> Raw:
    """Pin the pod to a node as the DaemonSet controller does: its node selector terms are replaced."""
    spec = pod["spec"]
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    affinity = spec.get("affinity", {})
    node_affinity = affinity.get("nodeAffinity", {})
    pinned = {**node_affinity, "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    return {**pod, "spec": {**spec, "affinity": {**affinity, "nodeAffinity": pinned}}}
