"""What pods prefer of nodes: which pods pay, what a decision does with it, and what explain shows.

That the scores are kube-scheduler's: tests/conformance/test_nodefit_conformance.py and
tests/property/test_nodefit_against_upstream.py.
"""

import msgspec
import pytest

from controller.decide import Options, PodClaim, SchedulingRequest, decide
from controller.insight.explain.explain import explain
from controller.inventory.inventory import Inventory
from controller.scoring.policies import DevicePolicy, Policies
from controller.views.explanation import PREFERENCE
from tests.cards import DRIVER, card, claim, device_class, node, pod, request, slice_of
from tests.support.assumed import assume

ZONE = "topology.kubernetes.io/zone"
SOFT_TAINT = {"key": "old", "effect": "PreferNoSchedule"}
MANAGED = frozenset({DRIVER})


def near(app, weight=50, key=ZONE):
    term = {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}}
    return {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": weight, "podAffinityTerm": term}]}


def in_zone(zone, weight=10):
    term = {"matchExpressions": [{"key": ZONE, "operator": "In", "values": [zone]}]}
    return {
        "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": weight, "preference": term}]}
    }


@pytest.fixture
def inventory():
    """n1 and n2 in zone a, n3 in zone b, two cards each."""
    found = Inventory()
    found.class_changed(None, device_class())
    for name, zone in (("n1", "a"), ("n2", "a"), ("n3", "b")):
        found.node_changed(None, node(name, labels={ZONE: zone, "kubernetes.io/hostname": name}))
        found.slice_changed(None, slice_of(name, [card(index) for index in range(2)]))
    return found


def wanted(name="p", labels=None, **spec):
    entry = PodClaim("c", claim(name, [request(memory="1Gi", cores="100")]))
    policies = Policies(node_policy="binpack", device_policy=DevicePolicy(("binpack",)))
    return SchedulingRequest(pod=pod(name, labels=labels, **spec), claims=(entry,), policies=policies)


def chosen(inventory, asked, **options):
    answer = decide(inventory, asked, Options(managed=MANAGED, **options))
    for entry in answer.allocations:
        assume(inventory, entry.claim.metadata.uid, entry.allocation)
    inventory.assume_pod(asked.pod, answer.node)
    return answer.node


def test_a_preferred_node_is_taken_while_it_is_free_and_given_up_when_it_is_full(inventory):
    found = [chosen(inventory, wanted(f"p{number}", affinity=in_zone("b"))) for number in range(3)]
    assert found == ["n3", "n3", "n1"]


def test_ignored_preferences_leave_the_node_policy(inventory):
    assert chosen(inventory, wanted(affinity=in_zone("b")), honor_preferences=False) == "n1"
    assert chosen(inventory, wanted("q", affinity=in_zone("b")), first_fit=True) == "n1"


def test_a_pod_goes_to_pods_that_it_likes_and_away_from_those_it_does_not(inventory):
    inventory.pod_changed(None, pod("web", labels={"app": "web"}, nodeName="n3"))
    assert chosen(inventory, wanted("like", affinity={"podAffinity": near("web")})) == "n3"
    inventory.pod_changed(None, pod("db", labels={"app": "db"}, nodeName="n1"))
    assert chosen(inventory, wanted("apart", affinity={"podAntiAffinity": near("db")})) == "n3"


def test_a_pod_that_is_there_may_like_one_that_states_nothing(inventory):
    liking = pod("web", labels={"app": "web"}, nodeName="n3", affinity={"podAffinity": near("guest")})
    inventory.pod_changed(None, liking)
    assert chosen(inventory, wanted("other", labels={"app": "other"})) == "n1"
    assert chosen(inventory, wanted("guest", labels={"app": "guest"})) == "n3"
    inventory.pod_changed(liking, None)
    assert chosen(inventory, wanted("late", labels={"app": "guest"})) == "n1"


def test_a_replica_is_spread_softly(inventory):
    constraint = {
        "maxSkew": 1,
        "topologyKey": ZONE,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"app": "web"}},
    }
    spread = {"labels": {"app": "web"}, "topologySpreadConstraints": [constraint]}
    found = [chosen(inventory, wanted(f"p{number}", **spread)) for number in range(3)]
    assert sorted(found[:2]) == ["n1", "n3"]
    assert [chosen(inventory, wanted(f"q{number}", **spread)) for number in range(3)].count(
        "n3"
    ) == 1  # then it is full


def test_nodes_with_a_soft_taint_come_last_unless_it_is_tolerated(inventory):
    before = inventory.nodes.node(inventory.nodes.index_of("n1"))
    tainted = node("n1", labels=before.metadata.labels, taints=[SOFT_TAINT])
    inventory.node_changed(before, tainted)
    assert chosen(inventory, wanted("plain")) == "n2"
    assert chosen(inventory, wanted("old", tolerations=[{"key": "old", "operator": "Exists"}])) in {"n1", "n2"}
    assert inventory.rules.preferences(pod("old", tolerations=[{"key": "old", "operator": "Exists"}])) is None
    inventory.node_changed(tainted, before)
    assert inventory.rules.preferences(pod("plain")) is None


def test_an_image_alone_is_no_preference_and_adds_to_others(inventory):
    big = {"names": ["model:1"], "sizeBytes": 900 << 20}
    for name in ("n2", "n3"):
        before = inventory.nodes.node(inventory.nodes.index_of(name))
        raw = msgspec.to_builtins(before)
        raw["status"]["images"] = [big]
        inventory.node_changed(before, msgspec.convert(raw, type(before)))
    containers = [{"name": "main", "image": "model:1"}]
    assert chosen(inventory, wanted("plain", containers=containers)) == "n1"
    assert chosen(inventory, wanted("zone", containers=containers, affinity=in_zone("a"))) == "n2"


def test_terms_that_cannot_be_parsed_prefer_nothing(inventory):
    wrong = {"matchExpressions": [{"key": ZONE, "operator": "Gt", "values": ["x"]}]}
    terms = [{"weight": 5, "preference": wrong}]
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}}
    assert inventory.rules.preferences(pod("p", affinity=affinity)) is None


@pytest.mark.parametrize("weight", [2**70, -(2**70)])
def test_a_weight_in_a_file_may_be_any_number(inventory, weight):
    inventory.pod_changed(None, pod("web", labels={"app": "web"}, nodeName="n3"))
    affinity = {**in_zone("b", weight), "podAffinity": near("web", weight)}
    assert chosen(inventory, wanted(affinity=affinity)) == ("n3" if weight > 0 else "n1")


def test_a_pod_that_counts_already_does_not_attract_itself(inventory):
    asked = wanted("p", labels={"app": "web"}, affinity={"podAffinity": near("web")})
    inventory.assume_pod(asked.pod, "n3")
    found = inventory.rules.preferences(asked.pod)
    rows = inventory.nodes.present[: inventory.nodes.size].nonzero()[0]
    assert not found.scores(rows).by_plugin["InterPodAffinity"].any()


def test_explain_shows_every_plugins_part_and_what_the_runner_up_lost_by(inventory):
    asked = wanted(affinity=in_zone("b"))
    options = Options(managed=MANAGED)
    shown = explain(inventory, asked, options)
    best = next(each for each in shown.nodes if each.chosen)
    assert best.node == "n3"
    assert best.preference == sum(term.value for term in best.preferences)
    assert {term.name: term.text for term in best.preferences}["NodeAffinity"] == "100 of 100, weight 2"
    assert (shown.runner_up.because, shown.runner_up.lost_by) == (PREFERENCE, 200)
