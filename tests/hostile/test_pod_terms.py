"""What one tenant writes into the terms and ports of its pods does not hold up the decisions about the pods of others."""

import msgspec
import numpy as np
import pytest

from controller.cluster.incremental.changes import Shared
from controller.cluster.nodes.node_column import NodeColumn
from controller.cluster.pods.affinity_terms import AffinityTerm
from controller.cluster.pods.existing_terms import _PENDING_KEPT, Blamed, PodClass
from controller.cluster.pods.pod_groups import PodGroups
from controller.inventory.selector_budget import Heartbeat, SliceSpent
from controller.reasons import catalogue
from controller.rules.node_ports import host_ports
from controller.rules.preferences.image_locality import ImageIndex
from hami_dra.api.core import Namespace, Node
from hami_dra.api.kinds import POD
from tests.cards import node, pod
from tests.unit.rules.filtered import Filtered

HOST = "kubernetes.io/hostname"
REQUIRED, PREFERRED = (f"{each}DuringSchedulingIgnoredDuringExecution" for each in ("required", "preferred"))
MANY, NODES = 1000, 20
SOFT = {"key": "soft", "effect": "PreferNoSchedule"}


def about_all(key):
    return {"topologyKey": key, "labelSelector": {}, "namespaceSelector": {}}


def world():
    return Filtered(*[node(f"n{number}", labels={HOST: f"n{number}"}) for number in range(NODES)])


@pytest.fixture
def judged(monkeypatch):
    """How often a column asked about one node."""
    update, found = NodeColumn._update, []

    def counted(self, rows):
        found.extend(rows.tolist())
        update(self, rows)

    monkeypatch.setattr(NodeColumn, "_update", counted)
    return found


def evil(number, *terms, kind=REQUIRED):
    found = list(terms) if kind == REQUIRED else [{"weight": 1, "podAffinityTerm": each} for each in terms]
    affinity = {"podAntiAffinity": {kind: found}}
    return pod(f"evil-{number}", namespace="evil", affinity=affinity, nodeName=f"n{number % NODES}")


@pytest.mark.parametrize("kind", [REQUIRED, PREFERRED])
def test_topology_keys_that_no_node_has_cost_the_pods_of_others_nothing(judged, kind):
    """Each key was looked up on each node for each decision: 2,000 took 350 ms at 1,000 nodes."""
    found = world().run(*[evil(number, about_all(f"evil/{number}"), kind=kind) for number in range(MANY)])
    honest = pod("honest")
    assert found.refused(honest) == {}
    preferences = found.inventory.rules.preferences(honest)
    if preferences is not None:
        assert not preferences.scores(np.arange(NODES)).total.any()
    assert len(judged) < 10 * NODES


def test_a_topology_key_counts_once_a_node_has_it_and_no_longer_when_none_has():
    found = world().run(evil(0, about_all("evil/0")))
    assert found.refused(pod("honest")) == {}
    before = found.inventory.nodes.node(0)
    labelled = node("n0", labels={HOST: "n0", "evil/0": "x"})
    found.inventory.node_changed(before, labelled)
    assert found.refused(pod("honest")) == {"n0": catalogue.NODE_POD_ANTI_AFFINITY}
    found.inventory.node_changed(labelled, before)
    assert found.refused(pod("honest")) == {}


def test_labels_of_their_own_for_pods_of_one_namespace_push_out_nothing_of_the_others(monkeypatch):
    """All terms were matched again for each pod of another namespace: 7 ms at 2,000 terms."""
    found = world().run(*[evil(number, about_all(f"evil/{number}")) for number in range(10)])
    matched, matches = [], AffinityTerm.matches
    monkeypatch.setattr(AffinityTerm, "matches", lambda *given: matched.append(given[1]) or matches(*given))
    found.refused(pod("honest"))
    for number in range(300):
        found.refused(pod(f"asking-{number}", namespace="evil", labels={"evil": str(number)}))
    found.refused(pod("honest"))
    assert matched.count("default") == 10


def test_a_thousand_ports_at_addresses_of_their_own_are_read_once_for_each_pod(monkeypatch):
    """Each port read all ports of every pod that has it: 1,000 against 100 pods took a minute."""

    def asking(name, address, **more):
        ports = [{"hostPort": 1 + number, "hostIP": address} for number in range(MANY)]
        return pod(name, namespace="evil", containers=[{"name": "main", "ports": ports}], **more)

    found = world().run(
        *[asking(f"evil-{number}", f"10.0.0.{number}", nodeName=f"n{number}") for number in range(NODES)]
    )
    read = []
    monkeypatch.setattr("controller.rules.node_ports.host_ports", lambda each: read.append(each) or host_ports(each))
    assert found.refused(asking("another", "10.0.1.1")) == {}
    assert found.refused(asking("again", "10.0.0.3")) == {"n3": catalogue.NODE_PORTS}
    assert len(found.refused(asking("every", "0.0.0.0"))) == NODES
    assert len(read) < 10


def test_pods_with_hundreds_of_the_same_ports_cost_a_look_at_each_node_and_not_at_each_port(monkeypatch):
    """250,000 ports of a thousand pods took 0.15 s for each other pod that asks for one of these numbers."""

    def asking(name, start, **more):
        ports = [{"hostPort": start + number, "hostIP": f"10.0.{number}.{start}"} for number in range(100)]
        every = [{"hostPort": start + number} for number in range(100)]
        return pod(name, namespace="evil", containers=[{"name": "main", "ports": ports + every}], **more)

    found = world().run(*[asking(f"evil-{number}", 1, nodeName=f"n{number}") for number in range(NODES - 1)])
    nodes, looked_up = found.inventory.nodes, []
    monkeypatch.setattr(nodes, "index_of", lambda name: looked_up.append(name) or type(nodes).index_of(nodes, name))
    assert {*found.refused(asking("another", 1))} == {f"n{number}" for number in range(NODES - 1)}
    assert found.refused(asking("apart", 200)) == {}
    assert len(looked_up) < 5 * NODES


def test_spread_over_hundreds_of_keys_that_no_node_has_counts_no_pod(monkeypatch):
    counted = []
    monkeypatch.setattr(np, "bincount", lambda *_args, **_more: counted.append(1))
    constraint = {"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": "x"}}}
    keys = [HOST, *(f"evil-{number}" for number in range(500))]
    found = world()
    asked = pod("evil", topologySpreadConstraints=[{**constraint, "topologyKey": key} for key in keys])
    assert len(found.refused(asked)) == NODES
    assert not counted


def attacking(number):
    """A pod of which every part has a shape of its own."""
    app = {"labelSelector": {"matchLabels": {"evil": str(number)}}}
    zones = [{"key": "zone", "operator": "NotIn", "values": [str(number)]}]
    near = {"topologyKey": HOST, **app}
    return {
        "labels": {"evil": str(number)},
        "tolerations": [{"key": f"evil-{number}", "operator": "Exists"}],
        "nodeSelector": {HOST: f"n{number % NODES}"},
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": HOST, "whenUnsatisfiable": hardness, **app}
            for hardness in ("DoNotSchedule", "ScheduleAnyway")
        ],
        "affinity": {
            "nodeAffinity": {
                REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": zones}]},
                PREFERRED: [{"weight": 1, "preference": {"matchExpressions": zones}}],
            },
            "podAffinity": {REQUIRED: [near], PREFERRED: [{"weight": 1, "podAffinityTerm": near}]},
            "podAntiAffinity": {REQUIRED: [{**near, "topologyKey": "zone"}]},
        },
        "containers": [{"name": "main", "image": f"evil:{number}", "ports": [{"hostPort": 1 + number}]}],
    }


def test_shapes_of_one_namespace_push_out_none_of_the_others(monkeypatch):
    """Shapes were kept for all namespaces together: 128 pods of one made every other pod's verdicts anew."""
    found, made, get = world(), [], Shared.get

    def counted(self, key, account, make, weight=1):
        return get(self, key, account, lambda: made.append(account) or make(), weight)

    monkeypatch.setattr(Shared, "get", counted)

    def decide(asked):
        found.inventory.rules.shape_fit(asked)
        found.refused(asked)
        found.inventory.rules.preferences(asked)

    found.inventory.node_changed(
        found.inventory.nodes.node(0), tainted := node("n0", labels={HOST: "n0"}, taints=[SOFT])
    )
    assert tainted.spec.taints
    decide(pod("honest", **attacking(0)))
    assert len(made) >= 10
    for number in range(1, 300):
        decide(pod(f"evil-{number}", namespace="evil", **attacking(number)))
    made.clear()
    decide(pod("honest", **attacking(0)))
    assert not made


@pytest.mark.parametrize("kind", [REQUIRED, PREFERRED])
def test_labels_that_were_never_seen_are_held_against_the_terms_that_require_one_of_them(monkeypatch, kind):
    """They were matched against the terms of all: 7 ms at 2,000."""

    def about(number, namespace_selector):
        labels = {"matchLabels": {"app": f"evil-{number}"}}
        values = {"matchExpressions": [{"key": "app", "operator": "In", "values": [f"in-{number}", f"or-{number}"]}]}
        return {"topologyKey": HOST, "labelSelector": (labels, values)[number % 2], **namespace_selector}

    everywhere = {"namespaceSelector": {}}
    found = world().run(*[evil(number, about(number, everywhere), kind=kind) for number in range(MANY)])
    found.run(*[evil(number, about_own(), kind=kind) for number in range(MANY, MANY + 50)])
    matched, matches = [], AffinityTerm.matches
    monkeypatch.setattr(AffinityTerm, "matches", lambda *given: matched.append(given[1]) or matches(*given))
    for number in range(20):
        asked = pod("honest", labels={"app": f"evil-{number}", "run": str(number)})
        found.refused(asked)
        found.inventory.rules.preferences(asked)
    assert len(matched) <= 2 * 20
    found.inventory.namespace_changed(
        None, msgspec.convert({"metadata": {"name": "evil", "labels": {"a": "b"}}}, Namespace)
    )
    found.refused(pod("honest", labels={"app": "evil-0", "run": "0"}))
    assert len(matched) <= 2 * 20
    assert (found.refused(pod("honest", labels={"app": "evil-0"})) != {}) == (kind == REQUIRED)
    assert (found.refused(pod("honest", labels={"app": "or-1"})) != {}) == (kind == REQUIRED)


def test_a_new_term_is_held_against_the_waiting_pods_that_have_its_label(monkeypatch):
    found, matched, matches = world().run(evil(0, about_all(HOST))), [], AffinityTerm.matches
    for number in range(200):
        found.refused(pod(f"asking-{number}", labels={"app": str(number)}))
    monkeypatch.setattr(AffinityTerm, "matches", lambda *given: matched.append(given[1]) or matches(*given))
    mine = evil(1, {"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": "7"}}, "namespaces": ["default"]})
    found.run(mine)
    assert not matched
    assert "n1" in found.refused(pod("another", labels={"app": "7"}))
    assert len(matched) == 1
    for number in range(8, 200):
        found.refused(pod(f"asking-{number}", labels={"app": str(number)}))
    assert len(matched) == 1
    found.inventory.pod_changed(mine, None)
    assert "n1" not in found.refused(pod("another", labels={"app": "7"}))


def test_a_namespace_that_changes_its_labels_leaves_the_terms_of_others(monkeypatch):
    """Every change of labels of one namespace made the filters and classes of all pods anew."""
    found, made = world(), []
    for name in ("default", "evil"):
        found.inventory.namespace_changed(None, labelled_namespace(name, 0))
    found.run(evil(0, about_all(HOST)), evil(1, {**about_all(HOST), "namespaceSelector": {"matchLabels": {"n": "1"}}}))
    near = {"topologyKey": HOST, "labelSelector": {}, "namespaceSelector": {"matchLabels": {"team": "a"}}}
    asked = pod("honest", affinity={"podAntiAffinity": {REQUIRED: [near]}})
    found.refused(asked)
    start = PodClass.start
    monkeypatch.setattr(PodClass, "start", lambda *given: made.append(given) or start(*given))
    acquire = PodGroups.acquire
    monkeypatch.setattr(PodGroups, "acquire", lambda *given, **more: made.append(given) or acquire(*given, **more))
    for number in range(10):
        before, after = labelled_namespace("evil", number), labelled_namespace("evil", number + 1)
        found.inventory.namespace_changed(before, after)
        assert len(found.refused(asked)) == 1
    assert not made


def about_own():
    return {"topologyKey": HOST, "labelSelector": {}}


def labelled_namespace(name, number):
    return msgspec.convert({"metadata": {"name": name, "labels": {"n": str(number)}}}, Namespace)


def requirement(key, operator, *values):
    return {"key": key, "operator": operator, "values": list(values)}


def reduced(item):
    """The stub that decoding leaves of a pod that is too large."""
    assert POD.settled(item)
    return item


def node_affinity(*requirements):
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": list(requirements)}]}}}


def inter_pod(count, **more):
    term = {"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": "web"}}, **more}
    return {"podAntiAffinity": {REQUIRED: [term] * count}}


TOO_MUCH = {
    "1100 tolerations": {"tolerations": [{"key": f"evil-{number}", "operator": "Exists"} for number in range(1100)]},
    "1100 requirements": {"affinity": node_affinity(*[requirement(f"evil-{n}", "DoesNotExist") for n in range(1100)])},
    "100 terms": {"affinity": inter_pod(100)},
    "1100 requirements in terms": {
        "affinity": inter_pod(
            1, labelSelector={"matchExpressions": [requirement(f"evil-{n}", "DoesNotExist") for n in range(1100)]}
        )
    },
    "200 constraints": {
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": HOST, "labelSelector": {}} for _ in range(200)]
    },
}


@pytest.mark.parametrize("spec", TOO_MUCH.values(), ids=TOO_MUCH)
def test_a_pod_that_writes_more_than_is_read_is_refused_before_a_node_is_looked_at(spec, judged):
    """5,000 requirements took 25 s at 5,000 nodes; 1,000 terms 7 s beside 2,000 sets of labels."""
    found = world()
    asked = reduced(pod("evil", namespace="evil", **spec))
    fit = found.inventory.rules.node_fit(asked)
    assert not fit.mask.any()
    assert fit.refusal.sentence.startswith(f"the pod is too large: spec.{next(iter(spec))} has ")
    assert {*found.why(asked).values()} == {fit.refusal.sentence}
    assert found.inventory.rules.shape_fit(asked) is None
    assert found.inventory.rules.preferences(asked) is None
    assert not judged


@pytest.mark.parametrize("operator", ["In", "NotIn"])
def test_thousands_of_values_are_looked_up_and_read_for_no_node(operator, monkeypatch):
    """Each node read all of them: 20,000 took a second at 5,000 nodes."""
    monkeypatch.setattr("controller.rules.node_rules.admits", None)
    values = [f"n{number}" for number in range(0, 20_000, 2)]
    wanted = requirement(HOST, operator, *values)
    refused = world().refused(pod("evil", affinity=node_affinity(wanted, requirement("evil", "DoesNotExist"))))
    assert {*refused} == {f"n{number}" for number in range(NODES) if (number % 2 == 0) == (operator == "NotIn")}


def test_terms_of_a_running_pod_that_has_more_than_are_read_refuse_nobody():
    found = world().run(evil(0, *[about_all(HOST)] * 10), reduced(evil(1, *[about_all(HOST)] * 100)))
    assert {*found.refused(pod("honest"))} == {"n0"}


def test_images_that_no_node_has_are_looked_up_once(monkeypatch):
    """Each was looked for on each node, for each decision: 1,000 took 8 s at 5,000 nodes."""
    looked, sizes = [], ImageIndex.sizes
    monkeypatch.setattr(ImageIndex, "sizes", lambda *given: looked.append(given[1]) or sizes(*given))
    found = world()
    images = [{"names": ["there:1"], "sizeBytes": 500_000_000}]
    found.inventory.node_changed(found.inventory.nodes.node(0), with_images("n0", images))
    prefers = {
        "nodeAffinity": {PREFERRED: [{"weight": 1, "preference": {"matchExpressions": [requirement(HOST, "Exists")]}}]}
    }
    containers = [{"name": f"c{number}", "image": f"evil:{number}"} for number in range(MANY)]
    asked = pod("evil", affinity=prefers, containers=[*containers, {"name": "there", "image": "there:1"}])
    scores = found.inventory.rules.preferences(asked).scores(np.arange(NODES))
    assert "ImageLocality" in scores.by_plugin
    assert looked == ["there:1"]


def test_resources_that_no_node_offers_refuse_at_once(monkeypatch):
    found = world()
    requests = [{"name": f"c{n}", "resources": {"requests": {f"evil.com/{n}": "1"}}} for n in range(MANY)]
    monkeypatch.setattr(found.inventory.nodes, "loads_of", None)
    assert {*found.refused(pod("evil", containers=requests)).values()} == {catalogue.NODE_RESOURCES}


def with_images(name, images):
    body = {
        "metadata": {"name": name, "labels": {HOST: name}},
        "status": {"allocatable": {"pods": "10"}, "images": images},
    }
    return msgspec.convert(body, Node)


def test_terms_about_thousands_of_label_sets_are_counted_in_portions_and_what_is_counted_stays(monkeypatch):
    """64 terms took half a second beside 2,000 sets of labels, in which nothing else was decided."""
    monkeypatch.setattr("controller.cluster.pods.pod_groups._PORTION", 20)
    found = world().run(
        *[pod(f"r{n}", labels={"app": f"a{n}"}, nodeName=f"n{n % NODES}") for n in range(100)],
        pod("near", labels={"app": "q0"}, nodeName="n3"),
    )
    others = [f"a{n}" for n in range(100)]
    terms = [
        {
            "topologyKey": HOST,
            "labelSelector": {
                "matchExpressions": [requirement("app", "NotIn", *others, f"x{n}"), requirement("late", "DoesNotExist")]
            },
        }
        for n in range(10)
    ]
    asked = pod("asking", affinity={"podAntiAffinity": {REQUIRED: terms}})
    clock = iter(range(10**6))
    beats = []

    def beat():
        beats.append(next(clock))
        if len(beats) % 3 == 0:
            raise SliceSpent

    turns = 0
    with found.inventory.verdicts.within(Heartbeat(beat)):
        while True:
            turns += 1
            assert turns < 100
            try:
                refused = found.refused(asked)
            except SliceSpent:
                found.run(pod(f"late-{turns}", labels={"late": str(turns)}, nodeName="n1"))
                continue
            break
    assert refused == {"n3": catalogue.NODE_POD_ANTI_AFFINITY}
    assert turns > 10
    assert len(beats) < 300
    assert found.refused(asked) == refused


def test_a_namespace_that_changes_its_labels_is_seen_by_a_decision_that_began_before():
    """What a decision had counted was kept by the terms alone, whatever they meant since."""
    found = world()
    before, after = labelled_namespace("other", 0), labelled_namespace("other", 1)
    found.inventory.namespace_changed(None, before)
    found.run(pod("there", namespace="other", nodeName="n3"))
    near = {"topologyKey": HOST, "labelSelector": {}, "namespaceSelector": {"matchLabels": {"n": "1"}}}
    asked = pod("asking", affinity={"podAntiAffinity": {REQUIRED: [near]}})
    with found.inventory.verdicts.within(Heartbeat(lambda: None)):
        assert found.refused(asked) == {}
        found.inventory.namespace_changed(before, after)
        assert {*found.refused(asked)} == {"n3"}
        found.inventory.namespace_changed(after, before)
        assert found.refused(asked) == {}


def test_terms_that_come_and_go_leave_nothing_with_label_sets_that_nobody_asks_about():
    found = world()
    terms = found.inventory.rules._state.anti_affinity
    found.run(evil(0, about_all(HOST)))
    found.refused(pod("asking", labels={"app": "a"}))
    for number in range(1, 2_000):
        term = {**about_all(HOST), "namespaces": [f"x{number}"]}
        found.run(evil(number, term))
        found.inventory.pod_changed(evil(number, term), None)
    assert terms._links <= 2 * _PENDING_KEPT


def test_terms_that_are_left_for_later_are_looked_at_once_until_the_holds_change(monkeypatch):
    """Every decision went over all of them again, in one piece and at the expense of the pod decided on."""
    is_about, looked_at = Blamed.is_about, []
    monkeypatch.setattr(Blamed, "is_about", lambda *given: looked_at.append(given[1]) or is_about(*given))
    pods = [evil(number, {**about_all(HOST), "namespaces": [f"x{number}"]}) for number in range(NODES)]
    found = world().run(*pods)
    reading = found.inventory.rules.term_reading
    reading.blamed = lambda: Blamed(namespaces=frozenset({"evil"}))
    for number in range(10):
        assert found.refused(pod(f"honest-{number}")) == {}
    assert len(looked_at) == len(pods)
    reading.blamed = lambda: Blamed(uids=frozenset({pods[3].metadata.uid}))
    assert len(found.refused(pod("honest"))) == len(pods) - 1
    for each in pods:
        found.inventory.pod_changed(each, None)
    reading.blamed = Blamed
    assert found.refused(pod("honest")) == {}
    assert found.inventory.rules._state.anti_affinity._links <= _PENDING_KEPT


def test_terms_that_concern_many_label_sets_have_a_bound_and_are_read_again(monkeypatch):
    """Each of 256 sets of labels kept each of 64,000 terms about it: gigabytes."""
    monkeypatch.setattr("controller.cluster.pods.existing_terms._LINKS_KEPT", 100)
    found = world()
    terms = found.inventory.rules._state.anti_affinity
    apart = {"matchExpressions": [requirement("app", "NotIn", "1", "2")]}
    for number in range(30):
        found.run(evil(number, {**about_all(HOST), "labelSelector": apart, "namespaces": [f"x{number}"]}))
        for asked in range(5):
            refused = found.refused(pod(f"asking-{asked}", labels={"app": str(asked)}))
            assert len(refused) == (0 if asked in {1, 2} else min(number + 1, NODES))
            assert terms._links <= 130
    for number in range(30):
        gone = {**about_all(HOST), "labelSelector": apart, "namespaces": [f"x{number}"]}
        found.inventory.pod_changed(evil(number, gone), None)
    assert found.refused(pod("asking-0", labels={"app": "0"})) == {}
    found.inventory.namespace_changed(None, labelled_namespace("default", 0))
    assert terms._links == 0
