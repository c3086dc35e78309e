"""Terms of inter-pod affinity, read as kube-scheduler reads them."""

import pytest

from controller.cluster.pods.affinity_terms import attraction_of
from tests.cards import pod

REQUIRED, PREFERRED = (
    "requiredDuringSchedulingIgnoredDuringExecution",
    "preferredDuringSchedulingIgnoredDuringExecution",
)


def term(key, **selector):
    return {"topologyKey": key, "labelSelector": selector}


def weighted(weight, key, **selector):
    return {"weight": weight, "podAffinityTerm": term(key, **selector)}


BAD = {"matchExpressions": [{"key": "app", "operator": "In", "values": []}]}


@pytest.mark.parametrize(
    ("bad", "left"),
    [
        (None, {"a": 1, "b": 10, "c": -100}),
        ("a", {"b": 10, "c": -100}),
        ("b", {"a": 1, "c": -100}),
        ("c", {"a": 1, "b": 10}),
    ],
)
def test_a_term_that_cannot_be_parsed_spoils_its_list_only(bad, left):
    def selector(key):
        return BAD if key == bad else {}

    affinity = {
        "podAffinity": {REQUIRED: [term("a", **selector("a"))], PREFERRED: [weighted(10, "b", **selector("b"))]},
        "podAntiAffinity": {PREFERRED: [weighted(100, "c", **selector("c"))]},
    }
    found = {each.term.topology_key: each.weight for each in attraction_of(pod(affinity=affinity))}
    assert found == left
