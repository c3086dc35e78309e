"""nodeSelector and required node affinity (kube-scheduler's NodeAffinity)."""

from hami_dra.api.core import Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod
from hami_dra.api.selectors import node_selector_matches


def required_affinity(pod: Pod) -> NodeSelector | None:
    affinity = pod.spec.affinity
    if affinity is None or affinity.node_affinity is None:
        return None
    return affinity.node_affinity.required_during_scheduling_ignored_during_execution


def admits(pod: Pod, node: Node) -> bool:
    """Return whether nodeSelector and required node affinity of the pod allow the node."""
    labels = node.metadata.labels
    if any(labels.get(key) != value for key, value in pod.spec.node_selector.items()):
        return False
    required = required_affinity(pod)
    return required is None or node_selector_matches(required, node.metadata.name, labels)


def pinned_names(selector: NodeSelector) -> frozenset[str] | None:
    """Return the only names that the selector can match, or None if labels alone decide."""
    found: set[str] = set()
    for term in selector.node_selector_terms:
        fixed = [each.values for each in term.match_fields if each.key == "metadata.name" and each.operator == "In"]
        if not fixed:
            return None
        found.update(fixed[0])
    return frozenset(found)


def affinity_sentence(pod: Pod, node: Node) -> str:
    labels = node.metadata.labels
    for key, value in pod.spec.node_selector.items():
        if labels.get(key) != value:
            has = f"has {key}={labels[key]}" if key in labels else f"has no label {key}"
            return f"NodeAffinity: the node selector wants {key}={value}, the node {has}"
    required = required_affinity(pod)
    terms = required.node_selector_terms if required is not None else ()
    wanted = " or ".join(_words(term) for term in terms) or "nothing"
    return f"NodeAffinity: the required node affinity wants {wanted}"


def _words(term: NodeSelectorTerm) -> str:
    parts = [expression_text(each) for each in (*term.match_expressions, *term.match_fields)]
    return " and ".join(parts) or "an empty term"


def expression_text(requirement: NodeSelectorRequirement) -> str:
    """Return `zone In (a, b)`."""
    values = f" ({', '.join(requirement.values)})" if requirement.values else ""
    return f"{requirement.key} {requirement.operator}{values}"
