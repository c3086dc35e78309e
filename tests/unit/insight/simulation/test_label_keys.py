"""matchLabelKeys and mismatchLabelKeys of pods in files, as the API server writes them into the selector."""

import msgspec

from controller.insight.simulation.label_keys import with_label_keys
from hami_dra.api.core import Pod
from tests.cards import pod

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def term(**more):
    return {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "web"}}, **more}


def expressions(found: Pod, kind="pod_anti_affinity"):
    (each,) = getattr(found.spec.affinity, kind).required_during_scheduling_ignored_during_execution
    return [(rule.key, rule.operator, rule.values) for rule in each.label_selector.match_expressions]


def test_the_pods_own_values_are_required_or_excluded():
    rules = [term(matchLabelKeys=["hash", "absent"], mismatchLabelKeys=["tenant"])]
    labels = {"app": "web", "hash": "x", "tenant": "t"}
    found = with_label_keys(pod(labels=labels, affinity={"podAntiAffinity": {REQUIRED: rules}}))
    assert expressions(found) == [("hash", "In", ("x",)), ("tenant", "NotIn", ("t",))]
    assert with_label_keys(found) is found  # it is stored so


def test_preferred_terms_have_keys_too():
    preferred = [{"weight": 5, "podAffinityTerm": term(matchLabelKeys=["hash"])}]
    found = with_label_keys(pod(labels={"hash": "x"}, affinity={"podAffinity": {PREFERRED: preferred}}))
    (each,) = found.spec.affinity.pod_affinity.preferred_during_scheduling_ignored_during_execution
    assert each.pod_affinity_term.label_selector.match_expressions[0].values == ("x",)


def test_a_term_without_a_selector_stays_as_it_is():
    rules = [{"topologyKey": "zone", "matchLabelKeys": ["hash"]}]
    found = pod(labels={"hash": "x"}, affinity={"podAffinity": {REQUIRED: rules}})
    assert with_label_keys(found) is found
    assert msgspec.json.encode(found)
