"""Node selectors and label selectors, as kube-scheduler evaluates them. Pure."""

from collections.abc import Mapping

from hami_dra.api.core import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from hami_dra.api.meta import LabelSelector

Labels = Mapping[str, str]


def node_selector_matches(selector: NodeSelector, name: str, labels: Labels) -> bool:
    """Terms are or-ed, the requirements of a term and-ed. A term without any requirement matches nothing."""
    return any(term_matches(term, name, labels) for term in selector.node_selector_terms)


def term_matches(term: NodeSelectorTerm, name: str, labels: Labels) -> bool:
    if not term.match_expressions and not term.match_fields:
        return False
    fields = {"metadata.name": name}
    return all(requirement_matches(each, labels) for each in term.match_expressions) and all(
        requirement_matches(each, fields) for each in term.match_fields
    )


def requirement_matches(requirement: NodeSelectorRequirement, labels: Labels) -> bool:
    value = labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return value is not None and value in requirement.values
        case "NotIn":
            return value is None or value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            return _compare(requirement, value)
    return False


def _compare(requirement: NodeSelectorRequirement, value: str | None) -> bool:
    """Both sides must be integers; the API server has checked the one in the selector."""
    try:
        mine, theirs = int(value or ""), int(requirement.values[0])
    except (ValueError, IndexError):
        return False
    return mine > theirs if requirement.operator == "Gt" else mine < theirs


def label_selector_matches(selector: LabelSelector | None, labels: Labels) -> bool:
    """None selects nothing, an empty selector everything."""
    if selector is None:
        return False
    if any(labels.get(key) != value for key, value in selector.match_labels.items()):
        return False
    return all(
        requirement_matches(NodeSelectorRequirement(key=each.key, operator=each.operator, values=each.values), labels)
        for each in selector.match_expressions
    )
