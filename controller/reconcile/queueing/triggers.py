"""Maps events of the cluster to the pods to evaluate again.

Subscribed by the controller while it leads. Only moves pods within the queue and forgets what is
over; never decides. An event about a pod, or about a claim or template it refers to, makes that pod
ready. Changes that may make room (devices freed or published, nodes changed, pods deleted) are
collected as `news`, and one pod of each refused group that they may help is tried
(`queueing_hints`).
"""

from collections.abc import Callable, Iterable

from controller.assessment import has_devices
from controller.decide import pod_shape
from controller.gangs import OPTIONAL_SOURCES, gang_of
from controller.inventory import is_guarantee
from controller.reasons import RELEASED, Change
from controller.reconcile.queueing.queueing_hints import News, node_change
from controller.reconcile.queueing.refused_groups import Rank
from controller.reconcile.queueing.waiting_pods import WaitingPods
from controller.reconcile.runtime import Context
from controller.rules import resize_state
from hami_dra.api.core import Namespace, Node, Pod, ResourceQuota
from hami_dra.api.meta import Object
from hami_dra.api.podclaims import claim_keys
from hami_dra.api.podstate import has_our_gate, is_bound, is_live, is_pending, other_gates, priority
from hami_dra.api.resource import DeviceTaintRule, ResourceClaim, ResourceClaimTemplate, ResourceSlice
from hami_dra.vendors.annotations import DECISION_ANNOTATIONS


def rank(pod: Pod) -> Rank:
    return Rank(-priority(pod), pod.metadata.creation_timestamp or "", pod.key)


class Triggers:
    def __init__(self, context: Context, waiting: WaitingPods) -> None:
        self._context = context
        self._waiting = waiting
        self._guard = context.guard("triggers")
        self.news = News()
        """Collected from events, consumed by the scheduling cycle."""

    def start(self) -> None:
        """Treat everything that exists as new."""
        for pod in self._context.informers.pods.store:
            with self._guard.each(pod.key):
                self.pod_changed(None, pod)

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        self._note_room(old, new)
        for node in {pod.spec.node_name for pod in (old, new) if pod is not None} - {""}:
            if old is None or new is None or _on_node(old) != _on_node(new):
                self._node_may_help(node)
        self._note_claims(old, new)
        if new is None:
            assert old is not None
            self._gone(old)
        elif not is_live(new):
            self._gone(new)
        elif old is None or _concerns_us(old, new) or self._labels_decide(old, new):
            if old is not None and old.spec.node_name != new.spec.node_name:
                self._waiting.timeouts.forget(new.metadata.uid)
            is_same = old is not None and old.metadata.uid == new.metadata.uid and old.spec == new.spec
            if not self._is_settled(new):
                self.evaluate(new, changed=not is_same)

    def _is_settled(self, pod: Pod) -> bool:
        """Return whether the pod is neither queued nor held back, and has all its devices: so are
        nearly all pods, and those whose gate was removed, or that were bound, right now.
        """
        if pod.key in self._waiting.queue or pod.metadata.uid in self._waiting.in_flight or pod.spec.scheduling_gates:
            return False
        return gang_of(pod, OPTIONAL_SOURCES) is None and has_devices(pod, self._context.informers.claim)

    def _note_room(self, old: Pod | None, new: Pod | None) -> None:
        """Note what a change of a pod on a node may do for other pods."""
        was = old if old is not None and is_bound(old) else None
        now = new if new is not None and is_bound(new) else None
        if was is None and now is None:
            return
        change = Change.NOTHING
        if was is not None and now is None:
            # A deleted claim counts until its pods have ended.
            change = RELEASED if was.spec.resource_claims else Change.RESOURCES_FREED
        elif was is not None and now is not None and (was.spec != now.spec or resize_state(was) != resize_state(now)):
            change = Change.RESOURCES_FREED  # resized
        if change:
            self.made_room(change)
        relabelled = was is not None and now is not None and was.metadata.labels != now.metadata.labels
        if was is None or relabelled:
            self.made_room(Change.PODS_JOINED)
        if now is None or relabelled:
            self.made_room(Change.PODS_LEFT)
        if was is None or now is None or relabelled or is_live(was) != is_live(now):
            self.made_room(Change.PODS_MOVED, (new or old or was).metadata.namespace)  # type: ignore[union-attr]

    def _note_claims(self, old: Pod | None, new: Pod | None) -> None:
        if old is not None and (new is None or old.metadata.uid != new.metadata.uid):
            self._waiting.shared.remove(old.metadata.uid)
        if new is not None and self._could_run(new):
            self._waiting.shared.add(new, claim_keys(new))
        elif new is not None:
            self._waiting.shared.remove(new.metadata.uid)

    def _could_run(self, pod: Pod) -> bool:
        """Return whether pods that share a claim with it should be placed where it fits, too."""
        return (
            bool(pod.spec.resource_claims)
            and is_pending(pod)
            and pod.spec.scheduler_name in self._context.settings.scheduling.scheduler_names
            and not other_gates(pod)
        )

    def claim_changed(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        claim = new or old
        assert claim is not None
        had = old is not None and old.status.allocation is not None
        has = new is not None and new.status.allocation is not None
        if had and (
            not has or (old is not None and new is not None and old.status.allocation != new.status.allocation)
        ):
            # Undo releases what the pod counted on its node.
            self.made_room(RELEASED | Change.PODS_LEFT)
            self.made_room(Change.PODS_MOVED, claim.metadata.namespace)
        if old is not None and new is not None and _claim_decides(old) == _claim_decides(new):
            return
        for pod in self._context.informers.pods_of(claim.key):
            if is_live(pod) and (is_pending(pod) or not has):
                self.evaluate(pod)

    def template_changed(self, old: ResourceClaimTemplate | None, new: ResourceClaimTemplate | None) -> None:
        template = new or old
        assert template is not None
        if old is not None and new is not None and old.spec == new.spec and _policies(old) == _policies(new):
            return
        for pod in self._context.informers.pods_waiting_for_template(template.key):
            self.evaluate(pod)

    def node_changed(self, old: Node | None, new: Node | None) -> None:
        node = new or old
        assert node is not None
        if change := node_change(old, new):
            self.made_room(change)
            self._node_may_help(node.metadata.name)

    def class_changed(self, _old: Object | None, _new: Object | None) -> None:
        """Classes carry policies and selectors: pods that wait because of one must be assessed again."""
        self.made_room(Change.CLASS)
        self.evaluate_waiting(lambda _pod: True)

    def namespace_changed(self, old: Namespace | None, new: Namespace | None) -> None:
        if old is None or new is None or old.metadata.labels != new.metadata.labels:
            self.made_room(Change.CLASS)

    def quota_changed(self, old: ResourceQuota | None, new: ResourceQuota | None) -> None:
        """Note a limit that was raised or removed, or became a guarantee. Changes of a quota's status do not matter."""
        quota = new or old
        assert quota is not None
        if old is None or new is None or old.spec != new.spec or is_guarantee(old) != is_guarantee(new):
            self.made_room(Change.QUOTA, quota.metadata.namespace)

    def devices_changed(
        self, old: ResourceSlice | DeviceTaintRule | None, new: ResourceSlice | DeviceTaintRule | None
    ) -> None:
        """Note changed slices and taint rules. A slice's annotation lists holdings for deleted claims."""
        if old is None or new is None or old.spec != new.spec:
            self.made_room(Change.DEVICES_PUBLISHED)
        elif old.metadata.annotations != new.metadata.annotations:
            self.made_room(Change.DEVICES_FREED)

    def evaluate(self, pod: Pod, *, changed: bool = False) -> None:
        """Evaluate the pod. `changed`: it is new, or requests something else than before."""
        if pod.metadata.uid in self._waiting.in_flight:
            self._waiting.in_flight.put_off(pod.metadata.uid, pod.key)
            return
        if pod.spec.resource_claims or has_our_gate(pod):
            self._waiting.queue.ready(pod.key, self._rank(pod), changed=changed)
            self._waiting.wake.set()

    def evaluate_all(self, keys: Iterable[str]) -> None:
        """Evaluate the pods with these keys that are still there."""
        for pod in filter(None, map(self._context.informers.pod, keys)):
            self.evaluate(pod)

    def _rank(self, pod: Pod) -> Rank:
        """Return the pod's rank; for a member that of its gang."""
        gang = self._context.informers.gangs.of(pod)
        if gang is None:
            return rank(pod)
        oldest, highest = self._context.informers.gangs.age_and_priority(gang)
        return Rank(-highest, oldest, pod.key)

    def evaluate_waiting(self, concerns: Callable[[Pod], bool]) -> None:
        """Evaluate the pods that wait for an event about themselves, if it concerns them."""
        for key in self._waiting.queue.keys_in("waiting"):
            if (pod := self._context.informers.pod(key)) is not None and concerns(pod):
                self.evaluate(pod)

    def evaluate_namespace(self, namespace: str) -> None:
        """Evaluate pods of a namespace that is no longer postponed, or less so."""
        self.evaluate_waiting(lambda pod: pod.metadata.namespace == namespace)

    def _gone(self, pod: Pod) -> None:
        self._waiting.queue.drop(pod.key)
        self._waiting.refusals.pod_gone(pod.metadata.uid)
        self._waiting.timeouts.forget(pod.metadata.uid)

    def made_room(self, change: Change, namespace: str = "") -> None:
        """Let one pod of each group that this change may help try. `namespace`: it helps only pods there."""
        self.news.add(change, namespace)
        self._waiting.wake.set()

    def released(self, pod: Pod) -> None:
        """Note that the pod's assumed devices and resources no longer count."""
        self.made_room(RELEASED | Change.PODS_LEFT)
        self.made_room(Change.PODS_MOVED, pod.metadata.namespace)

    def _labels_decide(self, old: Pod, new: Pod) -> bool:
        """Return whether other nodes may fit the pod by its new labels: most labels are read by nothing."""
        if old.metadata.labels == new.metadata.labels:
            return False
        by_labels = any(map(self._context.inventory.rules.refuses_by_labels, (old, new)))
        return pod_shape(old, by_labels=by_labels) != pod_shape(new, by_labels=by_labels)

    def _node_may_help(self, node: str) -> None:
        if self._waiting.refusals.node_changed(node, self._context.clock.monotonic()):
            self.made_room(Change.REFUSAL_ENDED)


def _concerns_us(old: Pod, new: Pod) -> bool:
    return (
        old.metadata.uid != new.metadata.uid
        or old.status.resource_claim_statuses != new.status.resource_claim_statuses
        or old.status.nominated_node_name != new.status.nominated_node_name
        or old.spec != new.spec
        or _policies(old) != _policies(new)
    )


def _on_node(pod: Pod) -> object:
    """Return what a pod means for its node. Until it has finished it counts, even while being deleted."""
    return pod.spec.node_name, is_live(pod), is_bound(pod)


def _policies(found: Object) -> dict[str, str]:
    """Return the annotations that affect decisions, without our own on claims."""
    annotations = found.metadata.annotations
    return (
        {name: annotations[name] for name in DECISION_ANNOTATIONS.intersection(annotations)}
        if annotations
        else annotations
    )


def _claim_decides(claim: ResourceClaim) -> object:
    """Return everything of a claim that may matter to its pods; finalizers and labels do not."""
    return (
        claim.metadata.uid,
        claim.metadata.deletion_timestamp is None,
        claim.metadata.owner_references,
        _policies(claim),
        claim.spec,
        claim.status.allocation,
        claim.status.reserved_for,
    )
