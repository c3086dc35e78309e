"""Selectors, affinity terms, spread constraints and tolerations."""

from __future__ import annotations

import copy

from tests.support.nodefit_worlds.draws import APPS, HOST, REGION, TIERS, ZONE, ZONES, Draws, Json

_BAD_REQUIREMENTS = (
    {"key": "app", "operator": "In"},
    {"key": "app", "operator": "Exists", "values": ["web"]},
    {"key": "app", "operator": "Near", "values": ["web"]},
    {"key": "not a key!", "operator": "Exists"},
    {"key": "app", "operator": "In", "values": ["not a value!"]},
    {"key": "", "operator": "Exists"},
)
_BAD_NODE_REQUIREMENTS = (
    {"key": "gen", "operator": "Gt", "values": ["many"]},
    {"key": "gen", "operator": "Lt", "values": []},
    {"key": "gen", "operator": "Gt", "values": ["1", "2"]},
    {"key": "disk", "operator": "In", "values": []},
    {"key": "disk", "operator": "NotIn"},
    {"key": "disk", "operator": "Near", "values": ["ssd"]},
    {"key": "disk", "operator": "Exists", "values": ["ssd"]},
    {"key": "not a key!", "operator": "Exists"},
    {"key": "disk", "operator": "In", "values": ["not a value!"]},
)


def selector(draws: Draws) -> Json:
    """Return a label selector that often matches pods of the world."""
    if draws.spoilt():
        return {"matchExpressions": [dict(draws.one(_BAD_REQUIREMENTS))]}
    if draws.maybe(0.45):
        return {"matchLabels": {"app": draws.one(APPS)}}
    if draws.maybe(0.3):
        return {"matchLabels": {"app": draws.one(APPS), "tier": draws.one(TIERS)}}
    if draws.maybe(0.1):
        return {}
    key = draws.one(["app", "app", "tier"])
    operator = draws.one(["In", "In", "NotIn", "Exists", "DoesNotExist"])
    requirement: Json = {"key": key, "operator": operator}
    if operator in ("In", "NotIn"):
        requirement["values"] = draws.some(APPS if key == "app" else TIERS, draws.one([1, 2]))
    return {"matchExpressions": [requirement], **({"matchLabels": {"tier": "a"}} if draws.maybe(0.1) else {})}


def pod_term(draws: Draws, labels: dict[str, str], key: str = "") -> Json:
    """Return a term of pod affinity or anti-affinity of a pod with these labels."""
    term: Json = {"topologyKey": key or draws.one([HOST, ZONE, ZONE, REGION])}
    if draws.maybe(0.03):
        term["topologyKey"] = "example.com/rack"
    if draws.maybe(0.95):
        term["labelSelector"] = selector(draws)
    if draws.maybe(0.35):
        term |= _namespaces(draws)
    if draws.maybe(0.15) and "labelSelector" in term:
        name = draws.one(["matchLabelKeys", "mismatchLabelKeys"])
        term[name] = ["version"]
        # the API server writes the values into the selector
        if "version" in labels:
            _require(term, "In" if name == "matchLabelKeys" else "NotIn", labels["version"])
    return term


def _namespaces(draws: Draws) -> Json:
    found: Json = {}
    if draws.maybe(0.5):
        found["namespaces"] = draws.some(["default", "red-1", "blue-1", "bare", "nowhere"], draws.one([1, 2]))
    if draws.maybe(0.7):
        found["namespaceSelector"] = draws.one(
            [
                {},
                {"matchLabels": {"team": draws.one(["red", "blue"])}},
                {"matchExpressions": [{"key": "team", "operator": draws.one(["Exists", "DoesNotExist"])}]},
                {"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["red"]}]},
            ]
        )
        if draws.spoilt():
            found["namespaceSelector"] = {"matchExpressions": [dict(draws.one(_BAD_REQUIREMENTS))]}
    return found


def _require(holder: Json, operator: str, value: str) -> None:
    holder["labelSelector"] = copy.deepcopy(holder["labelSelector"])
    requirement = {"key": "version", "operator": operator, "values": [value]}
    holder["labelSelector"].setdefault("matchExpressions", []).append(requirement)


def node_term(draws: Draws) -> Json:
    """Return a term of a node selector."""
    expressions = [_node_requirement(draws) for _ in range(draws.one([1, 1, 2]))]
    term: Json = {"matchExpressions": expressions}
    if draws.maybe(0.2):
        operator = draws.one(["In", "NotIn"])
        term["matchFields"] = [
            {"key": "metadata.name", "operator": operator, "values": [draws.one([*draws.node_names, "gone"])]}
        ]
        if draws.spoilt():
            term["matchFields"][0]["values"] = draws.some(draws.node_names, 2)
        if draws.maybe(0.5):
            del term["matchExpressions"]
    return {} if draws.maybe(0.03) else term


def _node_requirement(draws: Draws) -> Json:
    if draws.spoilt():
        return dict(draws.one(_BAD_NODE_REQUIREMENTS))
    operator = draws.one(["In", "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"])
    key = draws.one([ZONE, "disk", "disk", "gen"])
    if operator in ("Gt", "Lt"):
        return {
            "key": draws.one(["gen", "gen", "disk"]),
            "operator": operator,
            "values": [draws.one(["-1", "1", "2", "3"])],
        }
    if operator in ("In", "NotIn"):
        values = {ZONE: ZONES, "disk": ("ssd", "hdd"), "gen": ("1", "2", "x")}[key]
        return {"key": key, "operator": operator, "values": draws.some(values, draws.one([1, 2]))}
    return {"key": key, "operator": operator}


def spread_constraints(draws: Draws, labels: dict[str, str], *, hard: int, soft: int) -> list[Json]:
    """Return `hard` constraints that must hold and `soft` ones that are wished for."""
    found: list[Json] = []
    for when in ["DoNotSchedule"] * hard + ["ScheduleAnyway"] * soft:
        taken = {each["topologyKey"] for each in found if each["whenUnsatisfiable"] == when}
        keys = [key for key in (HOST, ZONE, REGION) if key not in taken]
        found.append(_spread_constraint(draws, labels, when, draws.one(keys)))
    return found


def _spread_constraint(draws: Draws, labels: dict[str, str], when: str, key: str) -> Json:
    constraint: Json = {"maxSkew": draws.one([1, 1, 2]), "topologyKey": key, "whenUnsatisfiable": when}
    if draws.maybe(0.03):
        constraint["topologyKey"] = "example.com/rack"
    if draws.maybe(0.95):
        own = {"matchLabels": {"app": labels.get("app", "web")}}
        constraint["labelSelector"] = draws.one([own, own, selector(draws)])
    if when == "DoNotSchedule" and draws.maybe(0.3):
        constraint["minDomains"] = draws.one([1, 2, 3, 4])
    for policy in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
        if draws.maybe(0.3):
            constraint[policy] = draws.one(["Honor", "Ignore"])
    if draws.maybe(0.3) and "labelSelector" in constraint:
        constraint["matchLabelKeys"] = draws.one([["version"], ["version", "absent"]])
        # 1.37 writes the values into the selector as well
        if draws.maybe(0.5) and "version" in labels:
            _require(constraint, "In", labels["version"])
    return constraint


def tolerations(draws: Draws) -> list[Json]:
    found = []
    for _ in range(draws.one([1, 1, 2])):
        toleration = {"key": draws.one(["dedicated", "level"]), "operator": draws.one(["Equal", "Equal", "Exists"])}
        if toleration["operator"] == "Equal":
            toleration["value"] = draws.one(["web", "5", "10"])
            if draws.maybe(0.2):
                del toleration["operator"]
        if draws.maybe(0.7):
            toleration["effect"] = draws.one(["NoSchedule", "NoExecute", "PreferNoSchedule"])
        found.append(toleration)
    if draws.maybe(0.1):
        found.append({"operator": "Exists"})
    if draws.maybe(0.2):
        found.append({"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"})
    if draws.spoilt(0.5):
        # Lt and Gt need a feature gate that is off
        found.append({"key": "level", "operator": draws.one(["Gt", "Lt", "Near"]), "value": draws.one(["7", "many"])})
    return found
