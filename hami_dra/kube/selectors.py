"""Label and field selectors as text, in the form that list and watch accept.

Called by the memory cluster; `match_expressions` by code that writes a LabelSelector. In:
`a=b,c!=d,e in (x,y),f notin (z),g,!h` and raw JSON objects. Out: predicates.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

Raw = Mapping[str, Any]
Predicate = Callable[[Raw], bool]

_TERM: Final = re.compile(
    r"\s*(?:(?P<absent>!)\s*(?P<absent_key>[\w./-]+)"
    r"|(?P<set_key>[\w./-]+)\s+(?P<set_op>in|notin)\s*\((?P<values>[^)]*)\)"
    r"|(?P<key>[\w./-]+)\s*(?:(?P<op>==|=|!=)\s*(?P<value>[\w.-]*))?)\s*(?:,|$)"
)
_FIELD_TERM: Final = re.compile(r"(?P<path>[\w.]+)(?P<op>==|=|!=)(?P<value>.*)")

_EVERYWHERE: Final = ("metadata.name", "metadata.namespace")
SELECTABLE_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "pods": ("spec.nodeName", "spec.schedulerName", "spec.restartPolicy", "status.phase", "status.nominatedNodeName"),
    "nodes": ("spec.unschedulable",),
    "resourceslices": ("spec.nodeName", "spec.driver", "spec.pool.name"),
    "namespaces": ("status.phase",),
}
"""By plural, in addition to name and namespace; any other field is refused, as by the API server."""


class InvalidSelector(ValueError):
    """The text is not a selector, or the field cannot be selected on."""


def label_predicate(selector: str) -> Predicate:
    """Return the predicate of a label selector; an empty one matches everything. Raises InvalidSelector."""
    tests = [_label_test(term) for term in _terms(selector)]
    if not tests:
        return lambda _raw: True
    return lambda raw: all(test(raw["metadata"].get("labels") or {}) for test in tests)


def match_expressions(selector: str) -> list[dict[str, Any]]:
    """Return a label selector as the `matchExpressions` of a LabelSelector. Raises InvalidSelector."""
    return [_match_expression(term) for term in _terms(selector)]


def _terms(selector: str) -> Iterator[re.Match[str]]:
    position = 0
    while position < len(selector):
        match = _TERM.match(selector, position)
        if match is None:
            raise InvalidSelector(f"label selector {selector!r} cannot be read at {selector[position:]!r}")
        yield match
        position = match.end()


def _match_expression(term: re.Match[str]) -> dict[str, Any]:
    if term["absent"]:
        return {"key": term["absent_key"], "operator": "DoesNotExist"}
    if term["set_op"]:
        values = [value.strip() for value in term["values"].split(",")]
        return {"key": term["set_key"], "operator": "In" if term["set_op"] == "in" else "NotIn", "values": values}
    if term["op"] is None:
        return {"key": term["key"], "operator": "Exists"}
    return {"key": term["key"], "operator": "NotIn" if term["op"] == "!=" else "In", "values": [term["value"]]}


def _label_test(match: re.Match[str]) -> Callable[[Mapping[str, str]], bool]:
    if match["absent"]:
        absent = match["absent_key"]
        return lambda labels: absent not in labels
    if match["set_op"]:
        key, values = match["set_key"], {value.strip() for value in match["values"].split(",")}
        if match["set_op"] == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    key, value = match["key"], match["value"]
    if match["op"] is None:
        return lambda labels: key in labels
    if match["op"] == "!=":
        return lambda labels: labels.get(key) != value
    return lambda labels: labels.get(key) == value


def field_predicate(selector: str, plural: str) -> Predicate:
    """Return the predicate of a field selector. Raises InvalidSelector.

    Absent fields compare as the empty string, booleans as `true` and `false`.
    """
    tests: list[tuple[tuple[str, ...], str, bool]] = []
    for term in filter(None, selector.split(",")):
        match = _FIELD_TERM.fullmatch(term.strip())
        if match is None:
            raise InvalidSelector(f"field selector {term!r} is not of the form path=value or path!=value")
        if match["path"] not in (*_EVERYWHERE, *SELECTABLE_FIELDS.get(plural, ())):
            raise InvalidSelector(f"field label not supported for {plural}: {match['path']}")
        tests.append((tuple(match["path"].split(".")), match["value"], match["op"] != "!="))
    if not tests:
        return lambda _raw: True
    return lambda raw: all((_field(raw, path) == value) == wanted for path, value, wanted in tests)


def _field(raw: Raw, path: tuple[str, ...]) -> str:
    value: Any = raw
    for step in path:
        value = value.get(step) if isinstance(value, Mapping) else None
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "false" if path[-1] == "unschedulable" else ""
    return str(value)
