"""Hard topologySpreadConstraints, counted as kube-scheduler counts them."""

import msgspec
import pytest

from controller.inventory.inventory import Inventory
from controller.reasons import catalogue
from controller.reasons.catalogue import CODES
from tests.cards import node, pod

ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
APP = {"app": "web"}
CORDON_LIKE = {"key": "dedicated", "value": "x", "effect": "NoSchedule"}


def constraint(key=ZONE, *, skew=1, labels=APP, when="DoNotSchedule", **more):
    selector = {"labelSelector": {"matchLabels": labels}} if labels is not None else {}
    return {"topologyKey": key, "maxSkew": skew, "whenUnsatisfiable": when, **selector, **more}


def wanting(*constraints, labels=APP, **spec):
    return pod("wanting", labels=labels, topologySpreadConstraints=list(constraints), **spec)


def zoned(name, zone, **more):
    return node(name, labels={ZONE: zone, HOST: name, **more.pop("labels", {})}, **more)


class ZonedCluster:
    """Nodes a1 a2 in zone a, b1 in b, c1 in c, unless told otherwise."""

    def __init__(self, *nodes):
        self.inventory = Inventory()
        for each in nodes or (zoned("a1", "a"), zoned("a2", "a"), zoned("b1", "b"), zoned("c1", "c")):
            self.inventory.node_changed(None, each)
        self.count = 0

    def run(self, *where, labels=APP, **more):
        for name in where:
            self.count += 1
            namespace = more.get("namespace", "default")
            each = pod(f"run-{self.count}", labels=labels, nodeName=name, namespace=namespace)
            if more.get("deleting"):
                meta = msgspec.structs.replace(each.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
                each = msgspec.structs.replace(each, metadata=meta)
            self.inventory.pod_changed(None, each)
        return self

    def open_to(self, wanted):
        rows, fit = self.inventory.nodes, self.inventory.rules.node_fit(wanted)
        codes = {rows.names[row]: CODES[fit.codes[row]] for row in range(rows.size) if rows.present[row]}
        assert set(codes.values()) <= {
            "",
            catalogue.NODE_TOPOLOGY_SPREAD,
            catalogue.NODE_AFFINITY,
            catalogue.NODE_TAINTED,
        }
        return {name for name, code in codes.items() if not code}


def test_the_emptiest_domains_come_first():
    cluster = ZonedCluster().run("a1", "b1")
    assert cluster.open_to(wanting(constraint())) == {"c1"}
    assert cluster.open_to(wanting(constraint(skew=2))) == {"a1", "a2", "b1", "c1"}
    cluster.run("c1")
    assert cluster.open_to(wanting(constraint())) == {"a1", "a2", "b1", "c1"}


def test_domains_count_their_pods_not_their_nodes():
    assert ZonedCluster().run("a1", "a2").open_to(wanting(constraint())) == {"b1", "c1"}
    assert ZonedCluster().run("a1").open_to(wanting(constraint(HOST))) == {"a2", "b1", "c1"}


def test_soft_constraints_refuse_nothing():
    assert len(ZonedCluster().run("a1", "a1").open_to(wanting(constraint(when="ScheduleAnyway")))) == 4


def test_a_node_without_the_label_is_refused_and_not_counted():
    cluster = ZonedCluster(zoned("a1", "a"), zoned("b1", "b"), node("nowhere")).run("nowhere", "nowhere")
    assert cluster.open_to(wanting(constraint())) == {"a1", "b1"}


def test_a_node_must_have_the_labels_of_all_constraints_to_be_counted():
    """b1 has no rack: its pods and its zone do not exist for the constraint on zones either."""
    cluster = ZonedCluster(
        zoned("a1", "a", labels={"rack": "1"}), zoned("a2", "a", labels={"rack": "2"}), zoned("b1", "b")
    )
    both = wanting(constraint(skew=1), constraint("rack"))
    assert cluster.run("a1").open_to(both) == {"a2"}


def test_pods_of_other_namespaces_or_labels_or_on_their_way_out_do_not_count():
    cluster = ZonedCluster().run("a1", namespace="other").run("a1", labels={"app": "db"}).run("a1", deleting=True)
    assert len(cluster.open_to(wanting(constraint()))) == 4
    assert ZonedCluster().run("a1").open_to(wanting(constraint())) == {"b1", "c1"}


def test_a_pod_that_its_own_selector_does_not_match_adds_nothing():
    cluster = ZonedCluster().run("a1")
    assert len(cluster.open_to(wanting(constraint(), labels={"app": "db"}))) == 4
    assert cluster.run("a1").open_to(wanting(constraint(), labels={"app": "db"})) == {"b1", "c1"}


def test_too_few_domains_make_the_minimum_zero():
    cluster = ZonedCluster(zoned("a1", "a"), zoned("b1", "b")).run("a1", "b1")
    assert cluster.open_to(wanting(constraint(minDomains=2))) == {"a1", "b1"}
    assert cluster.open_to(wanting(constraint(minDomains=3))) == set()


def test_nodes_that_the_pod_may_not_use_are_not_counted_unless_told():
    cluster = ZonedCluster(zoned("a1", "a"), zoned("b1", "b"), zoned("c1", "c", labels={"gpu": "no"})).run("a1", "b1")
    picky = {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms("gpu")}}}
    assert cluster.open_to(wanting(constraint(), **picky)) == {"a1", "b1"}
    assert cluster.open_to(wanting(constraint(nodeAffinityPolicy="Ignore"), **picky)) == set()


def terms(key):
    return {"nodeSelectorTerms": [{"matchExpressions": [{"key": key, "operator": "DoesNotExist"}]}]}


def test_taints_count_only_when_told():
    cluster = ZonedCluster(zoned("a1", "a"), zoned("b1", "b"), zoned("c1", "c", taints=[CORDON_LIKE])).run("a1", "b1")
    assert cluster.open_to(wanting(constraint())) == set()
    assert cluster.open_to(wanting(constraint(nodeTaintsPolicy="Honor"))) == {"a1", "b1"}
    tolerant = {"tolerations": [{"key": "dedicated", "operator": "Exists"}]}
    assert cluster.open_to(wanting(constraint(nodeTaintsPolicy="Honor"), **tolerant)) == {"c1"}


def test_match_label_keys_count_only_pods_of_the_same_revision():
    cluster = ZonedCluster().run("a1", labels={**APP, "hash": "old"}).run("b1", labels={**APP, "hash": "new"})
    keyed = constraint(matchLabelKeys=["hash", "absent"])
    assert cluster.open_to(wanting(keyed, labels={**APP, "hash": "new"})) == {"a1", "a2", "c1"}
    assert cluster.open_to(wanting(keyed)) == {"c1"}


@pytest.mark.parametrize("labels", [{}, None], ids=["empty selector", "no selector"])
def test_a_selector_without_requirements_counts_no_pods(labels):
    """countPodsMatchSelector returns 0 for an empty selector; none matches nothing."""
    assert len(ZonedCluster().run("a1", "a1", "a1").open_to(wanting(constraint(labels=labels)))) == 4


def test_expressions_select_too():
    selector = {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["db"]}]}
    wanted = wanting({**constraint(labels=None), "labelSelector": selector})
    assert ZonedCluster().run("a1").run("b1", labels={"app": "db"}).open_to(wanted) == {"b1", "c1"}


def test_assumed_pods_count_where_they_were_put_and_not_for_themselves():
    cluster = ZonedCluster()
    mine = wanting(constraint())
    cluster.inventory.pod_changed(None, mine)
    cluster.inventory.assume_pod(mine, "a1")
    assert len(cluster.open_to(mine)) == 4
    twin = pod("twin", labels=APP, topologySpreadConstraints=[constraint()])
    assert cluster.open_to(twin) == {"b1", "c1"}
    cluster.inventory.forget_pod(mine.metadata.uid)
    assert len(cluster.open_to(twin)) == 4


def test_counts_follow_pods_and_nodes():
    cluster = ZonedCluster().run("a1")
    wanted = wanting(constraint())
    assert cluster.open_to(wanted) == {"b1", "c1"}
    cluster.run("b1", "c1")
    assert len(cluster.open_to(wanted)) == 4
    cluster.inventory.pod_changed(pod("run-3", labels=APP, nodeName="c1"), None)
    assert cluster.open_to(wanted) == {"c1"}
    cluster.inventory.node_changed(zoned("c1", "c"), None)
    assert cluster.open_to(wanted) == {"a1", "a2", "b1"}
    cluster.inventory.node_changed(None, zoned("d1", "d"))
    assert cluster.open_to(wanted) == {"d1"}
    cluster.inventory.node_changed(zoned("d1", "d"), zoned("d1", "a"))
    assert cluster.open_to(wanted) == {"a1", "a2", "b1", "d1"}
    relabelled = pod("run-2", labels={"app": "db"}, nodeName="b1")
    cluster.inventory.pod_changed(pod("run-2", labels=APP, nodeName="b1"), relabelled)
    assert cluster.open_to(wanted) == {"b1"}
    leaving = msgspec.structs.replace(
        pod("run-1", labels=APP, nodeName="a1"),
        metadata=msgspec.structs.replace(pod("run-1", labels=APP).metadata, deletion_timestamp="2026-01-01T00:00:00Z"),
    )
    cluster.inventory.pod_changed(None, leaving)
    assert cluster.open_to(wanted) == {"a1", "a2", "b1", "d1"}


def test_a_service_over_three_zones_is_even_at_the_first_try():
    """30 nodes in 3 zones, 12 pods one after the other, each put on the first node that fits."""
    nodes = [zoned(f"{zone}{number}", zone) for zone in "abc" for number in range(10)]
    cluster = ZonedCluster(*nodes)
    for number in range(12):
        each = pod(f"web-{number}", labels=APP, topologySpreadConstraints=[constraint()])
        cluster.inventory.assume_pod(each, min(cluster.open_to(each)))
    placed = [cluster.inventory.assumed_node(f"pod-web-{number}")[0] for number in range(12)]
    assert {zone: placed.count(zone) for zone in "abc"} == {"a": 4, "b": 4, "c": 4}
