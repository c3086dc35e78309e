"""kube-scheduler's filters for one pod and one node. Pure.

Called by the embedded scheduler and workload controllers. The meaning of selectors and tolerations
is in `hami_dra.api.selectors`. The sums are deliberately not shared with the controller
(`controller.inventory`), which keeps columns and caches: on a real cluster these are two
programs, and a mistake of the controller must show here as it would there. Modelled: readiness,
cordon, taints, nodeSelector, required node affinity, every resource of `allocatable`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from hami_dra.api.core import Container, Node, Pod, QuantityText, Taint, Toleration
from hami_dra.api.quantity import NANO, InvalidQuantity, Quantity
from hami_dra.api.selectors import node_selector_matches, tolerates

Amounts = Counter[str]
"""Resource name → exact amount in units of 10^-9."""

_CORDONED = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
_NOT_READY = Taint(key="node.kubernetes.io/not-ready", effect="NoSchedule")


def unfit(pod: Pod, wanted: Amounts, node: Node, used: Amounts) -> str:
    """Return why kube-scheduler would reject the node, in its words; empty if the pod fits.

    `wanted`: `requested(pod)`; `used`: the sum of `requested` over the pods already there.
    """
    if not tolerated(pod.spec.tolerations, taints_of(node)):
        return "node(s) had untolerated taint(s)"
    if not selected(pod, node):
        return "node(s) didn't match Pod's node affinity/selector"
    allocatable = amounts(node.status.allocatable)
    for name, amount in wanted.items():
        if amount > 0 and used[name] + amount > allocatable[name]:
            return "Too many pods" if name == "pods" else f"Insufficient {name}"
    return ""


def taints_of(node: Node) -> list[Taint]:
    """Return the node's taints, including those that the node controllers would add for its state."""
    ready = any(condition.type == "Ready" and condition.status == "True" for condition in node.status.conditions)
    return [*node.spec.taints, *([_CORDONED] if node.spec.unschedulable else []), *([] if ready else [_NOT_READY])]


def tolerated(tolerations: Iterable[Toleration], taints: Iterable[Taint]) -> bool:
    tolerations = tuple(tolerations)
    blocking = [taint for taint in taints if taint.effect in ("NoSchedule", "NoExecute")]
    return all(any(tolerates(toleration, taint) for toleration in tolerations) for taint in blocking)


def selected(pod: Pod, node: Node) -> bool:
    if any(node.metadata.labels.get(key) != value for key, value in pod.spec.node_selector.items()):
        return False
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity else None
    return required is None or node_selector_matches(required, node.metadata.name, node.metadata.labels)


def requested(pod: Pod) -> Amounts:
    """Return the pod's requests as kube-scheduler counts them.

    That is max(sum of containers and sidecars, each init container on top of the sidecars before
    it) + overhead, and one pod.
    """
    spec = pod.spec
    sidecars: Amounts = Counter()
    peak: Amounts = Counter()
    for container in spec.init_containers:
        if container.restart_policy == "Always":
            sidecars += _preferences(container)
            peak |= sidecars
        else:
            peak |= sidecars + _preferences(container)
    total = sum((_preferences(container) for container in spec.containers), Counter(sidecars)) | peak
    if spec.resources is not None:
        # Pod-level requests replace the sum, for the resources they name.
        total = Counter({**total, **amounts({**spec.resources.limits, **spec.resources.requests})})
    return total + amounts(spec.overhead) + Counter({"pods": NANO})


def _preferences(container: Container) -> Amounts:
    return amounts({**container.resources.limits, **container.resources.requests})


def amounts(texts: Mapping[str, QuantityText]) -> Amounts:
    """Return exact amounts. Unreadable quantities count as 0: the API server would reject them."""
    result: Amounts = Counter()
    for name, text in texts.items():
        try:
            result[name] = Quantity.parse(str(text)).nanos
        except InvalidQuantity:
            continue
    return result
