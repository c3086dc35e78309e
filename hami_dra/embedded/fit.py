"""Where a pod may run, as kube-scheduler's filters see it: pure, one pod and one node at a time.

Called by the embedded scheduler only. This is deliberately not the controller's own filter (`controller.inventory`): the two
programs are two in real life, and a mistake of the controller must show here as it would there.
Modelled: readiness, cordon, taints, nodeSelector, required node affinity, every resource of `allocatable`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from hami_dra.api.core import (
    Container,
    Node,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Pod,
    QuantityText,
    Taint,
    Toleration,
)
from hami_dra.api.quantity import NANO, InvalidQuantity, Quantity

Amounts = Counter[str]
"""Resource name -> exact amount in units of 10^-9."""

_CORDONED = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
_NOT_READY = Taint(key="node.kubernetes.io/not-ready", effect="NoSchedule")


def unfit(pod: Pod, wanted: Amounts, node: Node, used: Amounts) -> str:
    """Why kube-scheduler would pass over the node, in its words; empty when it fits.

    `wanted`: `requested(pod)`; `used`: the same, summed over the pods already there.
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
    """With those that the node controllers would add for its state."""
    ready = any(condition.type == "Ready" and condition.status == "True" for condition in node.status.conditions)
    return [
        *node.spec.taints,
        *([_CORDONED] if node.spec.unschedulable else []),
        *([] if ready else [_NOT_READY]),
    ]


def tolerated(tolerations: Iterable[Toleration], taints: Iterable[Taint]) -> bool:
    tolerations = tuple(tolerations)
    blocking = [taint for taint in taints if taint.effect in ("NoSchedule", "NoExecute")]
    return all(any(_tolerates(toleration, taint) for toleration in tolerations) for taint in blocking)


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    return bool(toleration.key) and toleration.operator in ("", "Equal") and toleration.value == taint.value


def selected(pod: Pod, node: Node) -> bool:
    if any(node.metadata.labels.get(key) != value for key, value in pod.spec.node_selector.items()):
        return False
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity else None
    return required is None or matches(required, node)


def matches(selector: NodeSelector, node: Node) -> bool:
    """Terms are alternatives; an empty term matches nothing."""
    return any(_term_matches(term, node) for term in selector.node_selector_terms)


def _term_matches(term: NodeSelectorTerm, node: Node) -> bool:
    if not term.match_expressions and not term.match_fields:
        return False
    return all(_holds(rule, node.metadata.labels) for rule in term.match_expressions) and all(
        _holds(rule, {"metadata.name": node.metadata.name}) for rule in term.match_fields
    )


def _holds(rule: NodeSelectorRequirement, values: Mapping[str, str]) -> bool:
    value = values.get(rule.key)
    match rule.operator:
        case "In":
            return value in rule.values
        case "NotIn":
            return value not in rule.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" if value is not None and len(rule.values) == 1:
            try:
                left, right = int(value), int(rule.values[0])
            except ValueError:
                return False
            return left > right if rule.operator == "Gt" else left < right
        case _:
            return False


def requested(pod: Pod) -> Amounts:
    """max(sum of containers and sidecars, each init container on top of the sidecars before it) + overhead, and one pod."""
    spec = pod.spec
    sidecars: Amounts = Counter()
    peak: Amounts = Counter()
    for container in spec.init_containers:
        if container.restart_policy == "Always":
            sidecars += _wishes(container)
            peak |= sidecars
        else:
            peak |= sidecars + _wishes(container)
    total = sum((_wishes(container) for container in spec.containers), Counter(sidecars)) | peak
    if spec.resources is not None:
        # pod-level requests replace the sum, for the resources they name
        total = Counter({**total, **amounts({**spec.resources.limits, **spec.resources.requests})})
    return total + amounts(spec.overhead) + Counter({"pods": NANO})


def _wishes(container: Container) -> Amounts:
    return amounts({**container.resources.limits, **container.resources.requests})


def amounts(texts: Mapping[str, QuantityText]) -> Amounts:
    """A quantity that cannot be read counts as nothing: the API server would not have let it in."""
    result: Amounts = Counter()
    for name, text in texts.items():
        try:
            result[name] = Quantity.parse(str(text)).nanos
        except InvalidQuantity:
            continue
    return result
