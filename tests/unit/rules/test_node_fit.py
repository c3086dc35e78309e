"""Which nodes may take a pod, devices apart, and the first reason why not."""

import msgspec
import pytest

from controller.inventory.inventory import Inventory
from controller.reasons import catalogue
from controller.reasons.catalogue import CODES
from controller.rules.node_affinity import pinned_names
from hami_dra.api import names
from hami_dra.api.core import NodeSelector, NodeSelectorRequirement, Taint, Toleration
from hami_dra.api.resource import DeviceClass
from hami_dra.api.selectors import node_selector_matches, requirement_matches, tolerates
from tests.cards import device_class, node, pod

NO_SCHEDULE = {"key": "dedicated", "value": "ml", "effect": "NoSchedule"}


def furnished(*nodes):
    inventory = Inventory()
    for each in nodes:
        inventory.node_changed(None, each)
    return inventory


def reasons(inventory, wanted):
    """Reason by node, empty where the pod fits."""
    fit = inventory.rules.node_fit(wanted)
    rows = [row for row in range(inventory.nodes.size) if inventory.nodes.present[row]]
    assert [bool(fit.mask[row]) for row in rows] == [fit.codes[row] == 0 for row in rows]
    return {inventory.nodes.names[row]: CODES[fit.codes[row]] for row in rows}


def reason(wanted, *nodes):
    (found,) = reasons(furnished(*nodes), wanted).values()
    return found


def asks(**resources):
    named = {name.replace("__", "/").replace("_", "-"): value for name, value in resources.items()}
    return pod(containers=[{"name": "main", "resources": {"requests": named}}])


def requires(*expressions, fields=(), selector=None):
    term = {"matchExpressions": list(expressions), "matchFields": list(fields)}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    return pod(affinity={"nodeAffinity": required}, nodeSelector=selector or {})


def rule(key, operator, *values):
    return {"key": key, "operator": operator, "values": list(values)}


# --- the node itself -----------------------------------------------------------------------------------------------


def test_an_ordinary_node_takes_an_ordinary_pod():
    assert reason(pod(), node()) == ""


def test_a_node_without_conditions_is_ready():
    assert reason(pod(), msgspec.structs.replace(node(), status=node().status.__class__())) == ""


@pytest.mark.parametrize(
    ("wrong", "code", "key"),
    [
        ({"unschedulable": True}, catalogue.NODE_UNSCHEDULABLE, "node.kubernetes.io/unschedulable"),
        ({"ready": "False"}, catalogue.NODE_NOT_READY, "node.kubernetes.io/not-ready"),
        ({"ready": "Unknown"}, catalogue.NODE_NOT_READY, "node.kubernetes.io/unreachable"),
        ({"taints": [NO_SCHEDULE]}, catalogue.NODE_TAINTED, "dedicated"),
        ({"taints": [{**NO_SCHEDULE, "effect": "NoExecute"}]}, catalogue.NODE_TAINTED, "dedicated"),
    ],
)
def test_what_keeps_pods_off_a_node_can_be_tolerated(wrong, code, key):
    assert reason(pod(), node(**wrong)) == code
    assert reason(pod(tolerations=[{"key": key, "operator": "Exists"}]), node(**wrong)) == ""
    assert reason(pod(tolerations=[{"key": "other", "operator": "Exists"}]), node(**wrong)) == code


def test_a_cordon_is_named_whatever_else_is_wrong():
    taints = [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}]
    assert reason(pod(), node(taints=[NO_SCHEDULE, *taints], unschedulable=True)) == catalogue.NODE_UNSCHEDULABLE
    assert reason(pod(), node(taints=taints)) == catalogue.NODE_TAINTED


def test_taints_that_only_prefer_keep_nobody_off():
    assert reason(pod(), node(taints=[{**NO_SCHEDULE, "effect": "PreferNoSchedule"}])) == ""


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "dedicated", "operator": "Exists"}, True),
        ({"key": "dedicated", "value": "ml"}, True),
        ({"key": "dedicated", "value": "ml", "operator": "Equal", "effect": "NoSchedule"}, True),
        ({"key": "dedicated", "value": "web"}, False),
        ({"key": "dedicated", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"value": "ml"}, True),
        ({"key": "dedicated", "operator": "Gt", "value": "1"}, False),
    ],
)
def test_tolerations_are_read_as_kubernetes_reads_them(toleration, tolerated):
    assert tolerates(msgspec.convert(toleration, Toleration), msgspec.convert(NO_SCHEDULE, Taint)) is tolerated


# --- selectors -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("requirement", "labels", "matches"),
    [
        (rule("a", "In", "1", "2"), {"a": "2"}, True),
        (rule("a", "In", "1"), {}, False),
        (rule("a", "In"), {"a": "1"}, False),
        (rule("a", "NotIn", "1"), {"a": "2"}, True),
        (rule("a", "NotIn", "1"), {}, True),
        (rule("a", "NotIn", "1"), {"a": "1"}, False),
        (rule("a", "NotIn"), {"a": "1"}, False),
        (rule("a", "Exists"), {"a": ""}, True),
        (rule("a", "Exists", "1"), {"a": "1"}, False),
        (rule("a", "DoesNotExist"), {"b": ""}, True),
        (rule("a", "DoesNotExist"), {"a": ""}, False),
        (rule("a", "Gt", "9"), {"a": "10"}, True),
        (rule("a", "Gt", "10"), {"a": "10"}, False),
        (rule("a", "Lt", "3"), {"a": "2"}, True),
        (rule("a", "Lt", "-1"), {"a": "-2"}, False),
        (rule("a", "NotIn", "a b"), {"a": "2"}, False),
        (rule("-a", "DoesNotExist"), {}, False),
        (rule("x.io/a", "DoesNotExist"), {}, True),
        (rule("X/a", "DoesNotExist"), {}, False),
        (rule("a", "Lt", "9"), {}, False),
        (rule("a", "Gt", "9"), {"a": "ten"}, False),
        (rule("a", "Gt", "9"), {"a": "1_0"}, False),
        (rule("a", "Gt", "9"), {"a": str(2**63)}, False),
        (rule("a", "Gt", "9", "10"), {"a": "11"}, False),
        (rule("a", "Like", "9"), {"a": "9"}, False),
    ],
    ids=str,
)
def test_requirements(requirement, labels, matches):
    assert requirement_matches(msgspec.convert(requirement, NodeSelectorRequirement), labels) is matches


@pytest.mark.parametrize(
    ("terms", "matches"),
    [
        ([], False),
        ([{}], False),
        ([{"matchExpressions": [rule("a", "Exists")]}], True),
        ([{}, {"matchExpressions": [rule("a", "Exists")]}], True),
        ([{"matchExpressions": [rule("a", "Exists"), rule("b", "Exists")]}], False),
        ([{"matchFields": [rule("metadata.name", "In", "n1")]}], True),
        ([{"matchFields": [rule("metadata.name", "In", "n1", "n2")]}], False),
        ([{"matchFields": [rule("metadata.name", "NotIn", "n1")]}], False),
        ([{"matchFields": [rule("metadata.name", "Exists")]}], False),
        ([{"matchFields": [rule("metadata.uid", "In", "n1")]}], False),
        ([{"matchExpressions": [rule("b", "Exists")], "matchFields": [rule("metadata.name", "In", "n1")]}], False),
    ],
    ids=str,
)
def test_terms_are_ored_and_requirements_anded(terms, matches):
    selector = msgspec.convert({"nodeSelectorTerms": terms}, NodeSelector)
    assert node_selector_matches(selector, "n1", {"a": "1"}) is matches


def test_selector_and_affinity_must_both_admit_the_node():
    inventory = furnished(node("n1", labels={"a": "1", "b": "1"}), node("n2", labels={"a": "1"}), node("n3"))
    assert reasons(inventory, requires(rule("b", "DoesNotExist"), selector={"a": "1"})) == {
        "n1": catalogue.NODE_AFFINITY,
        "n2": "",
        "n3": catalogue.NODE_AFFINITY,
    }


def test_a_daemonset_pod_fits_the_node_it_names():
    inventory = furnished(node("n1"), node("n2", labels={"a": "1"}), node("n3"))
    here = rule("metadata.name", "In", "n2")
    assert reasons(inventory, requires(fields=[here])) == {
        "n1": catalogue.NODE_AFFINITY,
        "n2": "",
        "n3": catalogue.NODE_AFFINITY,
    }
    assert reasons(inventory, requires(rule("a", "DoesNotExist"), fields=[here]))["n2"] == catalogue.NODE_AFFINITY
    assert reasons(inventory, requires(fields=[rule("metadata.name", "In", "n9")]))["n2"] == catalogue.NODE_AFFINITY


def test_names_pin_a_selector_only_where_every_term_has_one():
    def pinned(*terms):
        return pinned_names(msgspec.convert({"nodeSelectorTerms": list(terms)}, NodeSelector))

    named = {"matchFields": [rule("metadata.name", "In", "n1")]}
    assert pinned(named) == {"n1"}
    assert pinned(named, {"matchExpressions": [rule("a", "Exists")]}) is None
    assert pinned({"matchFields": [rule("metadata.name", "NotIn", "n1")]}) is None


# --- resources -----------------------------------------------------------------------------------------------------


def test_what_running_pods_use_is_not_free():
    inventory = furnished(node(allocatable={"cpu": "4", "memory": "8Gi", "pods": "10"}))
    running = pod("running", containers=[{"name": "c", "resources": {"requests": {"cpu": "3"}}}], nodeName="n1")
    inventory.pod_changed(None, running)
    assert reasons(inventory, asks(cpu="1"))["n1"] == ""
    assert reasons(inventory, asks(cpu="1001m"))["n1"] == catalogue.NODE_RESOURCES
    inventory.pod_changed(running, None)
    assert reasons(inventory, asks(cpu="4"))["n1"] == ""


@pytest.mark.parametrize("end", ["Succeeded", "Failed"])
def test_finished_pods_use_nothing(end):
    inventory = furnished(node(allocatable={"cpu": "4", "pods": "1"}))
    running = pod("a", nodeName="n1")
    inventory.pod_changed(None, running)
    assert reasons(inventory, pod("b"))["n1"] == catalogue.NODE_RESOURCES
    inventory.pod_changed(running, pod("a", nodeName="n1", phase=end))
    assert reasons(inventory, pod("b"))["n1"] == ""


def test_a_resource_that_the_node_does_not_offer():
    assert reason(asks(example_com__fpga="1"), node()) == catalogue.NODE_RESOURCES
    assert reason(asks(example_com__fpga="0"), node()) == ""


def test_what_every_kubelet_declares_is_not_missed_but_believed():
    """A node in a file may say nothing about itself; one that says 0 is full."""
    assert reason(asks(cpu="64"), node(allocatable={})) == ""
    assert reason(asks(cpu="64"), node(allocatable={"cpu": "0"})) == catalogue.NODE_RESOURCES
    assert reason(pod(), node(allocatable={"pods": "0"})) == catalogue.NODE_RESOURCES


def test_extended_resources_of_a_device_class_come_from_claims_where_no_device_plugin_offers_them():
    """KEP-5004; noderesources/fit.go, shouldDelegateResourceToDRA."""
    inventory = furnished(node("plugin", allocatable={"example.com/gpu": "1"}), node("dra"))
    plain = asks(**{"example.com/gpu": "2"})
    assert reasons(inventory, plain) == {"plugin": catalogue.NODE_RESOURCES, "dra": catalogue.NODE_RESOURCES}
    served = device_class("gpu")
    spec = msgspec.structs.replace(served.spec, extended_resource_name="example.com/gpu")
    served: DeviceClass = msgspec.structs.replace(served, spec=spec)
    inventory.class_changed(None, served)
    assert reasons(inventory, plain) == {"plugin": catalogue.NODE_RESOURCES, "dra": ""}
    assert reasons(inventory, asks(**{"deviceclass.resource.kubernetes.io/gpu": "1"}))["dra"] == ""
    inventory.class_changed(served, None)
    assert reasons(inventory, plain)["dra"] == catalogue.NODE_RESOURCES


def test_what_a_device_plugin_still_offers_can_be_read():
    inventory = furnished(
        node("n1", allocatable={"nvidia.com/gpu": "8"}), node("n2", allocatable={"nvidia.com/gpu": "0"})
    )
    assert inventory.nodes.offers("nvidia.com/gpu").tolist() == [8, 0]
    assert inventory.nodes.offers("amd.com/gpu").tolist() == [0, 0]


def test_any_number_of_resources_is_kept():
    """Each use of a name may be the first one: of a node's offer, of a pod before its node comes and after, of a question."""

    def running(name, domain):
        requests = {f"{domain}/r{number}": "1" for number in range(40)}
        return pod(name, nodeName="n1", containers=[{"name": "main", "resources": {"requests": requests}}])

    inventory = Inventory()
    inventory.pod_changed(None, running("before", "before"))
    inventory.node_changed(None, node("n1", allocatable={f"offered/r{number}": "2" for number in range(40)}))
    inventory.pod_changed(None, running("after", "after"))
    for number in range(40):
        assert inventory.nodes.used(f"asked/r{number}").tolist() == [0]
        assert inventory.nodes.offers(f"wanted/r{number}").tolist() == [0]
        assert inventory.nodes.offers(f"offered/r{number}").tolist() == [2]
    offers = {f"{domain}/r{number}": "3" for domain in ("before", "after") for number in range(40)}
    inventory.node_changed(None, node("n2", allocatable=offers))
    for number in range(40):
        assert inventory.nodes.used(f"before/r{number}").tolist() == [1, 0]
        assert inventory.nodes.used(f"after/r{number}").tolist() == [1, 0]


def test_what_no_node_offers_takes_no_memory_however_many_pods_ask_for_it():
    inventory = furnished(node("n1", allocatable={"cpu": "4", "pods": "10"}))

    def asking(number, **spec):
        requests = {"cpu": "1", f"example.com/r{number}": "1"}
        return pod(f"p{number}", containers=[{"name": "c", "resources": {"requests": requests}}], **spec)

    for number in range(200):
        bound, waiting = asking(number, nodeName="n1"), asking(number + 1_000)
        inventory.pod_changed(None, bound)
        assert (
            inventory.rules.node_fit(waiting).codes.tolist() == inventory.rules.node_fit(asking(number)).codes.tolist()
        )
        assert not inventory.rules.node_fit(waiting).mask.any()
        inventory.assume_pod(waiting, "n1")
        assert not inventory.rules.node_fit(waiting).mask.any(), "its own use of it is none of the node's"
        inventory.forget_pod(waiting.metadata.uid)
        inventory.pod_changed(bound, None)
    assert len(inventory.nodes._resources) < 10
    assert not inventory.nodes._used_by_name


# --- assumptions ---------------------------------------------------------------------------------------------------


def test_an_assumed_pod_counts_until_it_is_bound():
    inventory = furnished(node("n1", allocatable={"cpu": "4", "pods": "10"}), node("n2", allocatable={"cpu": "4"}))
    waiting = pod("a", containers=[{"name": "c", "resources": {"requests": {"cpu": "3"}}}])
    inventory.pod_changed(None, waiting)
    inventory.assume_pod(waiting, "n1")
    inventory.assume_pod(waiting, "n1")
    assert inventory.assumed_node("pod-a") == "n1"
    assert inventory.nodes.used("cpu").tolist() == [3000, 0]
    bound = msgspec.structs.replace(waiting, spec=msgspec.structs.replace(waiting.spec, node_name="n2"))
    inventory.pod_changed(waiting, bound)
    assert inventory.assumed_node("pod-a") == ""
    assert inventory.nodes.used("cpu").tolist() == [0, 3000]
    inventory.assume_pod(bound, "n1")  # too late: it is known where it runs
    assert inventory.nodes.used("cpu").tolist() == [0, 3000]


def test_an_assumed_pod_that_goes_away_is_forgotten():
    inventory = furnished(node(allocatable={"cpu": "4", "pods": "10"}))
    waiting = asks(cpu="3")
    inventory.pod_changed(None, waiting)
    inventory.assume_pod(waiting, "n1")
    inventory.pod_changed(waiting, None)
    assert (inventory.assumed_node(waiting.metadata.uid), inventory.nodes.used("cpu").tolist()) == ("", [0])


def test_a_pod_is_not_in_its_own_way():
    inventory = furnished(node(allocatable={"cpu": "4", "pods": "1"}))
    mine = asks(cpu="3")
    inventory.assume_pod(mine, "n1")
    assert reasons(inventory, mine)["n1"] == ""
    other = pod("other", containers=[{"name": "c", "resources": {"requests": {"cpu": "3"}}}])
    assert reasons(inventory, other)["n1"] == catalogue.NODE_RESOURCES


def test_pods_of_a_node_that_is_not_there_yet_count_when_it_comes():
    inventory = Inventory()
    early = pod("a", containers=[{"name": "c", "resources": {"requests": {"cpu": "3"}}}], nodeName="n1")
    inventory.pod_changed(None, early)
    inventory.node_changed(None, node(allocatable={"cpu": "4", "pods": "10"}))
    assert reasons(inventory, asks(cpu="2"))["n1"] == catalogue.NODE_RESOURCES
    inventory.node_changed(node(), None)
    inventory.pod_changed(early, None)
    inventory.node_changed(None, node(allocatable={"cpu": "4", "pods": "10"}))
    assert reasons(inventory, asks(cpu="4"))["n1"] == ""


def test_answers_follow_the_nodes():
    """Kept per kind of pod, mended for what changed."""
    inventory = furnished(node("n1"), node("n2"))
    wanted = pod(nodeSelector={"zone": "a"}, tolerations=[{"key": "x", "operator": "Exists"}])
    assert set(reasons(inventory, wanted).values()) == {catalogue.NODE_AFFINITY}
    inventory.node_changed(node("n2"), node("n2", labels={"zone": "a"}))
    assert reasons(inventory, wanted) == {"n1": catalogue.NODE_AFFINITY, "n2": ""}
    inventory.node_changed(node("n2"), node("n2", labels={"zone": "a"}, taints=[NO_SCHEDULE]))
    assert reasons(inventory, wanted)["n2"] == catalogue.NODE_TAINTED
    inventory.node_changed(node("n1"), None)
    inventory.node_changed(None, node("n3", labels={"zone": "a"}))
    assert reasons(inventory, wanted) == {"n2": catalogue.NODE_TAINTED, "n3": ""}


def test_a_heartbeat_is_no_change():
    inventory = furnished(node("n1"))
    before = inventory.nodes.changes.version
    inventory.node_changed(node("n1"), node("n1", allocatable={"cpu": "16"}))
    assert inventory.nodes.changes.version == before
    assert inventory.nodes.offers("cpu").tolist() == [16000]


# --- nodes that are held back --------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["false", "True", "1", "yes", "", "\u202etrue"])
def test_only_the_label_true_holds_a_node_back(value):
    assert reason(pod(), node(labels={names.SPARE: value})) == ""
    assert reason(pod(), node(labels={names.SPARE: "true"})) == catalogue.NODE_SPARE


def test_a_node_is_held_back_while_it_has_the_label_and_other_rules_come_first():
    inventory, rules = furnished(spare := node(labels={names.SPARE: "true"}), node("n2")), None
    rules = inventory.rules
    assert reasons(inventory, pod()) == {"n1": catalogue.NODE_SPARE, "n2": ""}
    fit = rules.node_fit(pod())
    assert "held back as a spare" in rules.why_unfit(pod(), fit, 0)
    assert rules.node_fit(pod(), uses_spares=True).mask.tolist() == [True, True]
    follow = rules.follow_fit(pod(), uses_spares=False)
    assert follow(pod()).codes.tolist() == rules.shape_fit(pod()).codes.tolist() == fit.codes.tolist()
    assert rules.shape_fit(pod(), uses_spares=True).codes.tolist() == [0, 0]
    inventory.node_changed(spare, free := node(labels={names.SPARE: "false"}))
    assert reasons(inventory, pod()) == {"n1": "", "n2": ""}
    assert rules.shape_fit(pod()).codes.tolist() == [0, 0]
    inventory.node_changed(free, node(labels={names.SPARE: "true"}, unschedulable=True))
    assert reasons(inventory, pod())["n1"] == catalogue.NODE_UNSCHEDULABLE
    assert rules.node_fit(pod(), uses_spares=True).mask.tolist() == [False, True]
