"""Workload controllers: create the pods of Deployments, ReplicaSets, StatefulSets, Jobs and DaemonSets.

Deliberately simpler than upstream: a Deployment owns its pods itself, pods are named
`<workload>-<lowest free number>` (DaemonSets: `<workload>-<node>`), and a changed template applies
only to new pods. The garbage collector handles the deletion of a workload.
"""

from collections.abc import Iterable
from itertools import count
from typing import Any

import msgspec
from msgspec import Struct

from hami_dra.api import kinds
from hami_dra.api.core import Node, Pod, PodSpec
from hami_dra.api.kinds import Kind
from hami_dra.api.podstate import is_finished
from hami_dra.api.workloads import Workload
from hami_dra.kube.embedded.copies import Copies, owner_reference
from hami_dra.kube.embedded.fit import selected
from hami_dra.kube.embedded.worker import WatchedStore, Worker
from hami_dra.kube.protocol import AlreadyExists


class _DesiredPods(Struct, frozen=True):
    """Names of the pods to create, in order, and the pods to delete."""

    names: list[str]
    surplus: list[Pod]


class WorkloadController:
    """Controller of one kind of workload."""

    def __init__(self, copies: Copies, kind: Kind[Workload]) -> None:
        self._copies = copies
        self._cluster = copies.cluster
        self._kind = kind
        self.watched: WatchedStore[Workload] = WatchedStore(copies.cluster, kind, uid=lambda item: [item.metadata.uid])
        self.worker = Worker(f"pods of {kind.name}", self._sync)
        self.watched.on_present(lambda workload: self.worker.add(workload.key))
        copies.pods.on_change(self._pod_changed)
        if kind == kinds.DAEMON_SET:
            copies.nodes.listeners.append(self._node_changed)

    def _pod_changed(self, pod: Pod) -> None:
        for owner in pod.metadata.owner_references:
            self.worker.add_all(item.key for item in self.watched.store.find("uid", owner.uid))

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if old is None or new is None or old.metadata.labels != new.metadata.labels:
            self.worker.add_all(self.watched.store.keys())

    async def _sync(self, key: str) -> None:
        workload = self.watched.store.get(key)
        if workload is None or workload.metadata.deletion_timestamp:
            return
        mine = [
            pod
            for pod in self._copies.pods.store.find("owner", workload.metadata.uid)
            if pod.metadata.deletion_timestamp is None
        ]
        wanted = self._wanted(workload, mine)
        for pod in wanted.surplus:
            await self._copies.pods.delete(pod)
        for name in wanted.names:
            await self._create(workload, name)

    def _wanted(self, workload: Workload, mine: list[Pod]) -> _DesiredPods:
        running = [pod for pod in mine if not is_finished(pod)]
        spec, taken = workload.spec, self._copies.pods.store
        if self._kind == kinds.DAEMON_SET:
            preferences = Pod(spec=msgspec.convert(spec.template.spec, PodSpec))
            nodes = [node.metadata.name for node in self._copies.nodes.store if selected(preferences, node)]
            names = {f"{workload.metadata.name}-{node}" for node in nodes}
            missing_names = [name for name in sorted(names) if f"{workload.metadata.namespace}/{name}" not in taken]
            return _DesiredPods(missing_names, [pod for pod in running if pod.metadata.name not in names])
        if self._kind == kinds.JOB:
            succeeded = sum(pod.status.phase == "Succeeded" for pod in mine)
            completions = 1 if spec.completions is None else spec.completions
            parallel = 1 if spec.parallelism is None else spec.parallelism
            target = min(parallel, max(completions - succeeded, 0))
        else:
            target = 1 if spec.replicas is None else spec.replicas
        numbered = sorted(running, key=lambda pod: (len(pod.metadata.name), pod.metadata.name))
        missing = max(target - len(running), 0)
        return _DesiredPods(self._free_names(workload, missing), numbered[target:])

    def _free_names(self, workload: Workload, number: int) -> list[str]:
        meta = workload.metadata
        candidates = (f"{meta.name}-{index}" for index in count())
        taken = self._copies.pods.store
        free: Iterable[str] = (name for name in candidates if f"{meta.namespace}/{name}" not in taken)
        return [name for name, _ in zip(free, range(number), strict=False)]

    async def _create(self, workload: Workload, name: str) -> None:
        meta = workload.metadata
        raw = await self._cluster.get_raw(self._kind, meta.name, meta.namespace)
        template: dict[str, Any] = (raw.get("spec") or {}).get("template") or {}
        labels = (template.get("metadata") or {}).get("labels") or {}
        body = {
            "metadata": {
                "name": name,
                "labels": labels,
                "annotations": (template.get("metadata") or {}).get("annotations") or {},
                "ownerReferences": [owner_reference(self._kind, workload)],
            },
            "spec": self._pod_spec(template.get("spec") or {}, name.removeprefix(f"{meta.name}-")),
        }
        try:
            await self._copies.pods.create(body, meta.namespace)
        except AlreadyExists:
            # A pod that the watch has not delivered yet; its event queues this workload again.
            await self._copies.pods.read(name, meta.namespace)
            raise

    def _pod_spec(self, spec: dict[str, Any], node: str) -> dict[str, Any]:
        """Return the pod's spec.

        DaemonSet pods are pinned by node affinity, as upstream does it, and bound by the scheduler.
        """
        if self._kind != kinds.DAEMON_SET:
            return spec
        field = {"key": "metadata.name", "operator": "In", "values": [node]}
        pinned = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": [field]}]}}
        tolerations = [
            {"key": f"node.kubernetes.io/{name}", "operator": "Exists", "effect": effect}
            for name, effect in (
                ("not-ready", "NoExecute"),
                ("unreachable", "NoExecute"),
                ("unschedulable", "NoSchedule"),
            )
        ]
        return {
            **spec,
            "affinity": {**(spec.get("affinity") or {}), "nodeAffinity": pinned},
            "tolerations": [*(spec.get("tolerations") or ()), *tolerations],
        }
