"""Node selectors, label selectors and tolerations, as kube-scheduler evaluates them. Pure.

Called by the inventory, and by the embedded kube-scheduler and workload controllers.
"""

import re
from collections.abc import Collection, Hashable, Mapping
from functools import lru_cache
from typing import Final

from hami_dra.api.core import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Taint, Toleration
from hami_dra.api.meta import LabelSelector, LabelSelectorRequirement
from hami_dra.api.short_texts import SHORT

Labels = Mapping[str, str]
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,63}")
_LABEL_NAME: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LONGEST_SUBDOMAIN: Final = 253


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


def term_problem(term: NodeSelectorTerm) -> str:
    """Return why a term of node affinity cannot be parsed, or an empty text."""
    return next(filter(None, map(requirement_problem, term.match_expressions)), "")


def requirement_matches(requirement: NodeSelectorRequirement | LabelSelectorRequirement, labels: Labels) -> bool:
    """Return whether the labels meet the requirement.

    As upstream, a requirement that cannot be parsed (In without values, a value that is no label
    value) matches nothing.
    """
    if requirement_problem(requirement):
        return False
    value, values = labels.get(requirement.key), requirement.values
    match requirement.operator:
        case "In":
            return value is not None and value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            mine, theirs = int64_of(value), int64_of(values[0])
            if mine is None or theirs is None:
                return False
            return mine > theirs if requirement.operator == "Gt" else mine < theirs
    return False


def _field_matches(requirement: NodeSelectorRequirement, name: str) -> bool:
    """Return whether the name meets a requirement on metadata.name, the only field, with one value."""
    if requirement.key != "metadata.name" or len(requirement.values) != 1:
        return False
    if requirement.operator == "In":
        return requirement.values[0] == name
    return requirement.operator == "NotIn" and requirement.values[0] != name


def int64_of(text: str | None) -> int | None:
    """Return the result of Go's ParseInt(text, 10, 64), or None."""
    if text is None or _INTEGER.fullmatch(text) is None:
        return None
    number = int(text)
    return number if -(2**63) <= number < 2**63 else None


class ParsedSelector:
    """A label selector, parsed once for all labels that it is held against: what a match costs
    depends on its requirements, not on the number of their values.

    `problem`: why it cannot be parsed, or an empty text. Such a selector matches nothing.

    >>> ParsedSelector(LabelSelector(match_labels={"app": "a b"})).problem
    "'a b' is not a label value"
    """

    __slots__ = ("_requirements", "problem", "source")

    def __init__(self, source: LabelSelector) -> None:
        self.source = source
        self.problem = selector_problem(source)
        self._requirements = (
            *[(key, (value,), True) for key, value in source.match_labels.items()],
            *[_parsed_requirement(each) for each in source.match_expressions],
        )
        """Key, values and whether the label must be there with one of them; without values: at all."""

    @property
    def size(self) -> int:
        return len(self._requirements)

    @property
    def key(self) -> Hashable:
        """Equal for equal selectors."""
        return tuple(sorted(self.source.match_labels.items())), self.source.match_expressions

    def matches(self, labels: Labels) -> bool:
        if self.problem:
            return False
        for key, values, is_wanted in self._requirements:
            value = labels.get(key)
            if (value is not None if values is None else value in values) is not is_wanted:
                return False
        return True


def parsed(selector: LabelSelector | None) -> ParsedSelector | None:
    """Parse a selector. None selects nothing, an empty selector everything."""
    return None if selector is None else ParsedSelector(selector)


def label_selector_matches(selector: LabelSelector | None, labels: Labels) -> bool:
    """Return whether the labels match. For a selector that is held against few labels."""
    return selector is not None and ParsedSelector(selector).matches(labels)


def _parsed_requirement(requirement: LabelSelectorRequirement) -> tuple[str, Collection[str] | None, bool]:
    values = requirement.values
    is_wanted = requirement.operator in {"In", "Exists"}
    return requirement.key, (values if len(values) <= _SHORT else frozenset(values)) or None, is_wanted


def selector_problem(selector: LabelSelector | None) -> str:
    """Return why a label selector cannot be parsed (labels.NewRequirement), or an empty text."""
    if selector is None:
        return ""
    for key, value in selector.match_labels.items():
        if problem := requirement_problem(LabelSelectorRequirement(key=key, operator="In", values=(value,))):
            return problem
    for requirement in selector.match_expressions:
        if requirement.operator not in _LABEL_OPERATORS:
            return f"{requirement.operator!r} is not a label selector operator"
        if problem := requirement_problem(requirement):
            return problem
    return ""


_LABEL_OPERATORS: Final = frozenset({"In", "NotIn", "Exists", "DoesNotExist"})


def requirement_problem(requirement: NodeSelectorRequirement | LabelSelectorRequirement) -> str:
    """Return why a requirement cannot be parsed, or an empty text."""
    is_short = len(requirement.values) <= _SHORT and max(map(len, (requirement.key, *requirement.values))) <= SHORT
    return _problem_of_short(requirement) if is_short else _problem_of(requirement)


def _problem_of(requirement: NodeSelectorRequirement | LabelSelectorRequirement) -> str:
    values = requirement.values
    match requirement.operator:
        case "In" | "NotIn" if not values:
            return f"{requirement.operator} {requirement.key!r} needs values"
        case "Exists" | "DoesNotExist" if values:
            return f"{requirement.operator} {requirement.key!r} takes no values"
        case "Gt" | "Lt" if len(values) != 1 or int64_of(values[0]) is None:
            return f"{requirement.operator} {requirement.key!r} needs one integer"
    if not _is_label_key(requirement.key):
        return f"{requirement.key!r} is not a label key"
    wrong = next((value for value in values if value and not _LABEL_NAME.fullmatch(value)), None)
    return "" if wrong is None else f"{wrong!r} is not a label value"


_SHORT: Final = 4
"""Values of a requirement that are read one by one. Longer lists get a set, and no place in a cache
by content: a tenant chooses how many there are.
"""
_problem_of_short: Final = lru_cache(maxsize=4096)(_problem_of)


def _is_label_key(key: str) -> bool:
    """Return whether it is a qualified name: a label name, with a DNS subdomain in front or none."""
    prefix, slash, name = key.rpartition("/")
    if slash and not (len(prefix) <= _LONGEST_SUBDOMAIN and _SUBDOMAIN.fullmatch(prefix)):
        return False
    return _LABEL_NAME.fullmatch(name) is not None


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Return corev1.Toleration.ToleratesTaint: an empty effect or key matches all."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator in {"", "Equal"}:
        return toleration.value == taint.value
    return toleration.operator == "Exists"
