"""The parts of kube-scheduler that the allocation protocol relies on.

Source: pkg/scheduler/framework/plugins/dynamicresources, 1.37.

Takes pods with its scheduler name and without node or gates, highest priority first, then the
oldest. Binds to the first fitting node by name that the nodeSelectors of all its claims allow. It
allocates nothing itself (every device counts as fenced): a pod whose claims are not all allocated
is Unschedulable, as is one that fits nowhere. Like upstream it appends the pod to `reservedFor` if
missing. If no node is left, it deallocates one claim that kept the pod from an otherwise fitting
node, unless another pod reserved the claim (the deallocation in PostFilter). No preemption: it
therefore clears the nominated node of a pod that it finds unschedulable.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from hami_dra.api.core import Node, Pod
from hami_dra.api.kinds import POD
from hami_dra.api.podstate import is_done
from hami_dra.api.resource import ResourceClaim
from hami_dra.api.selectors import node_selector_matches
from hami_dra.kube.embedded.claims import ClaimController
from hami_dra.kube.embedded.copies import Copies
from hami_dra.kube.embedded.fit import Amounts, requested, unfit
from hami_dra.kube.embedded.worker import Worker


class Scheduler:
    def __init__(self, copies: Copies, claims: ClaimController, name: str = "default-scheduler") -> None:
        self._copies = copies
        self._cluster = copies.cluster
        self._claims = claims
        self._name = name
        self.worker = Worker("schedule", self._sync, first=self._most_urgent)
        self._pending: dict[str, None] = {}
        self._used: dict[str, Amounts] = {}
        copies.pods.listeners.append(self._pod_changed)
        copies.claims.on_change(
            lambda claim: self.worker.add_all(key for key in copies.pods_of(claim) if key in self._pending)
        )
        copies.nodes.listeners.append(self._node_changed)

    # --- what wakes it ----------------------------------------------------------------------------

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        self._account(old, -1)
        self._account(new, +1)
        if new is not None and self._is_mine(new):
            self._pending[new.key] = None
            if old is None or _asks(old) != _asks(new):
                self.worker.add(new.key)
        else:
            self._pending.pop((new or old).key, None)  # type: ignore[union-attr]  # one of the two exists
            if old is not None and old.spec.node_name and (new is None or is_done(new)):
                self.worker.add_all(self._pending)

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if new is not None and (old is None or _offers(old) != _offers(new)):
            self.worker.add_all(self._pending)

    def _is_mine(self, pod: Pod) -> bool:
        return (
            not pod.spec.node_name
            and not pod.spec.scheduling_gates
            and pod.spec.scheduler_name == self._name
            and pod.metadata.deletion_timestamp is None
            and not is_done(pod)
        )

    def _account(self, pod: Pod | None, sign: int) -> None:
        if pod is not None and pod.spec.node_name and not is_done(pod):
            used = self._used.setdefault(pod.spec.node_name, Counter())
            for name, amount in requested(pod).items():
                used[name] += sign * amount

    def _most_urgent(self, keys: Iterable[str]) -> str:
        def urgency(key: str) -> tuple[int, str, str]:
            pod = self._copies.pods.store.get(key)
            return (-(pod.spec.priority or 0), pod.metadata.creation_timestamp or "", key) if pod else (0, "", key)

        return min(keys, key=urgency)

    # --- one pod ----------------------------------------------------------------------------------

    async def _sync(self, key: str) -> None:
        pod = self._copies.pods.store.get(key)
        if pod is None or not self._is_mine(pod):
            return
        claims = self._copies.claims_of(pod)
        problem = _claims_problem(claims)
        if problem:
            await self._unschedulable(pod, problem)
            return
        allocated = [claim for claim in claims if claim is not None]
        node, reasons, blocking = self._choose(pod, allocated)
        if node is None:
            total = sum(reasons.values())
            words = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
            await self._unschedulable(pod, f"0/{total} nodes are available: {words or 'no nodes'}.")
            if blocking is not None:
                version = {"resourceVersion": blocking.metadata.resource_version}
                freed = {"metadata": version, "status": {"allocation": None, "reservedFor": None}}
                await self._copies.claims.patch(blocking, freed, "status")
            return
        for claim in allocated:
            await self._claims.reserve(claim, pod)
        meta = pod.metadata
        await self._cluster.bind(meta.name, meta.namespace, node.metadata.name, uid=meta.uid)
        # Count it before the next pod is scheduled.
        await self._copies.pods.read(meta.name, meta.namespace)

    def _choose(self, pod: Pod, claims: list[ResourceClaim]) -> tuple[Node | None, Counter[str], ResourceClaim | None]:
        """Return the node, or the reasons by number of nodes, and a claim to deallocate.

        That claim's allocation kept the pod from an otherwise fitting node.
        """
        reasons: Counter[str] = Counter()
        blocking: ResourceClaim | None = None
        wanted = requested(pod)
        for node in sorted(self._copies.nodes.store, key=lambda node: node.metadata.name):
            if reason := unfit(pod, wanted, node, self._used.get(node.metadata.name, Counter())):
                reasons[reason] += 1
                continue
            away = [claim for claim in claims if not _available_on(claim, node)]
            if not away:
                return node, reasons, None
            reasons["cannot allocate all claims"] += 1
            blocking = blocking or next(
                (
                    claim
                    for claim in away
                    if all(consumer.uid == pod.metadata.uid for consumer in claim.status.reserved_for)
                ),
                None,
            )
        return None, reasons, blocking

    async def _unschedulable(self, pod: Pod, message: str) -> None:
        wanted = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        raw = await self._cluster.get_raw(POD, pod.metadata.name, pod.metadata.namespace)
        status = raw.get("status") or {}
        conditions: list[dict[str, Any]] = status.get("conditions") or []
        reported = any(wanted.items() <= condition.items() for condition in conditions)
        if reported and not status.get("nominatedNodeName"):
            return
        since = self._cluster.timestamp()
        others = [condition for condition in conditions if condition.get("type") != "PodScheduled"]
        before = next((item for item in conditions if item.get("type") == "PodScheduled"), {})
        if before.get("status") == "False":
            since = before.get("lastTransitionTime", since)
        patch = {
            "metadata": {"resourceVersion": raw["metadata"]["resourceVersion"], "uid": pod.metadata.uid},
            "status": {"conditions": [*others, {**wanted, "lastTransitionTime": since}], "nominatedNodeName": None},
        }
        await self._copies.pods.patch(pod, patch, "status")


def _claims_problem(claims: list[ResourceClaim | None]) -> str:
    for claim in claims:
        if claim is None:
            return "waiting for resource claim controller to create a resourceclaim for the pod"
        if claim.metadata.deletion_timestamp:
            return f'resourceclaim "{claim.metadata.name}" is being deleted'
        if claim.status.allocation is None:
            return "cannot allocate all claims: the devices are reserved for another allocator"
    return ""


def _available_on(claim: ResourceClaim, node: Node) -> bool:
    selector = claim.status.allocation.node_selector if claim.status.allocation else None
    return selector is None or node_selector_matches(selector, node.metadata.name, node.metadata.labels)


def _asks(pod: Pod) -> tuple[Any, ...]:
    """Return the fields that can change the result of a new attempt.

    Conditions are not among them, so writing one triggers no attempt.
    """
    return pod.spec, pod.status.resource_claim_statuses, pod.metadata.deletion_timestamp


def _offers(node: Node) -> tuple[Any, ...]:
    ready = [condition.status for condition in node.status.conditions if condition.type == "Ready"]
    return node.spec, node.metadata.labels, node.status.allocatable, ready
