"""Node selectors, label selectors and tolerations, as kube-scheduler evaluates them. Pure.

Called by the inventory, and by the embedded kube-scheduler and workload controllers.
"""

import re
from collections.abc import Mapping
from typing import Final

from hami_dra.api.core import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Taint, Toleration
from hami_dra.api.meta import LabelSelector, LabelSelectorRequirement

Labels = Mapping[str, str]
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,30}")


def node_selector_matches(selector: NodeSelector, name: str, labels: Labels) -> bool:
    """Return whether the node matches. Terms are or-ed, the requirements of a term and-ed.

    A term without any requirement matches nothing.
    """
    return any(term_matches(term, name, labels) for term in selector.node_selector_terms)


def term_matches(term: NodeSelectorTerm, name: str, labels: Labels) -> bool:
    if not term.match_expressions and not term.match_fields:
        return False
    return all(requirement_matches(each, labels) for each in term.match_expressions) and all(
        _field_matches(each, name) for each in term.match_fields
    )


def requirement_matches(requirement: NodeSelectorRequirement | LabelSelectorRequirement, labels: Labels) -> bool:
    """Return whether the labels meet the requirement.

    As upstream, a requirement that the API server would refuse (such as In without values) matches
    nothing.
    """
    value, values = labels.get(requirement.key), requirement.values
    match requirement.operator:
        case "In":
            return value is not None and value in values
        case "NotIn":
            return bool(values) and value not in values
        case "Exists":
            return not values and value is not None
        case "DoesNotExist":
            return not values and value is None
        case "Gt" | "Lt":
            mine, theirs = _int64(value), _int64(values[0] if len(values) == 1 else None)
            if mine is None or theirs is None:
                return False
            return mine > theirs if requirement.operator == "Gt" else mine < theirs
    return False


def _field_matches(requirement: NodeSelectorRequirement, name: str) -> bool:
    """Return whether the name meets a requirement on metadata.name, the only field, with
    one value.
    """
    if requirement.key != "metadata.name" or len(requirement.values) != 1:
        return False
    if requirement.operator == "In":
        return requirement.values[0] == name
    return requirement.operator == "NotIn" and requirement.values[0] != name


def _int64(text: str | None) -> int | None:
    """Return the result of Go's ParseInt(text, 10, 64), or None."""
    if text is None or _INTEGER.fullmatch(text) is None:
        return None
    number = int(text)
    return number if -(2**63) <= number < 2**63 else None


def label_selector_matches(selector: LabelSelector | None, labels: Labels) -> bool:
    """Return whether the labels match. None selects nothing, an empty selector everything."""
    if selector is None:
        return False
    if any(labels.get(key) != value for key, value in selector.match_labels.items()):
        return False
    return all(requirement_matches(each, labels) for each in selector.match_expressions)


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Return corev1.Toleration.ToleratesTaint: an empty effect or key matches all."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator in {"", "Equal"}:
        return toleration.value == taint.value
    return toleration.operator == "Exists"
