"""Required affinity and anti-affinity between pods, in both directions, as InterPodAffinity judges them."""

import msgspec
import pytest

from controller.reasons import catalogue
from hami_dra.api.core import Namespace
from tests.cards import node, pod
from tests.unit.rules.filtered import Filtered

ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
WEB, DB = {"app": "web"}, {"app": "db"}
NEAR, APART = catalogue.NODE_POD_AFFINITY, catalogue.NODE_POD_ANTI_AFFINITY


def zoned(name, zone):
    return node(name, labels={HOST: name, **({ZONE: zone} if zone else {})})


def world():
    """Nodes a1 a2 in zone a, b1 in b, and x1 in none."""
    return Filtered(zoned("a1", "a"), zoned("a2", "a"), zoned("b1", "b"), zoned("x1", ""))


def term(labels, key=ZONE, **more):
    return {"topologyKey": key, "labelSelector": {"matchLabels": labels}, **more}


def with_terms(name="wanting", *, near=(), apart=(), labels=WEB, namespace="default", **spec):
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    affinity = {"podAffinity": {required: list(near)}, "podAntiAffinity": {required: list(apart)}}
    return pod(name, namespace=namespace, labels=labels, affinity=affinity, **spec)


def namespace(name, **labels):
    return msgspec.convert({"metadata": {"name": name, "labels": labels}}, Namespace)


def running(name, where, labels=DB, **more):
    return pod(name, labels=labels, nodeName=where, **more)


# --- affinity -----------------------------------------------------------------------------------------------------


def test_a_pod_goes_where_one_that_it_wants_is_near():
    found = world().run(running("db", "a1"))
    assert found.refused(with_terms(near=[term(DB)])) == {"b1": NEAR, "x1": NEAR}
    assert found.refused(with_terms(near=[term(DB, HOST)])) == {"a2": NEAR, "b1": NEAR, "x1": NEAR}


def test_one_pod_must_match_all_terms():
    found = world().run(running("db", "a1"), running("tier", "b1", labels={"tier": "x"}))
    assert set(found.refused(with_terms(near=[term(DB), term({"tier": "x"})]))) == {"a1", "a2", "b1", "x1"}
    found.run(running("both", "b1", labels={**DB, "tier": "x"}))
    assert set(found.refused(with_terms(near=[term(DB), term({"tier": "x"})]))) == {"a1", "a2", "x1"}


def test_the_first_of_a_series_may_start_where_the_topology_is():
    found = world()
    assert found.refused(with_terms(near=[term(WEB)])) == {"x1": NEAR}
    assert found.refused(with_terms(near=[term(WEB)], labels=DB)) == dict.fromkeys(("a1", "a2", "b1", "x1"), NEAR)
    found.run(running("first", "b1", labels=WEB))
    assert found.refused(with_terms(near=[term(WEB)])) == {"a1": NEAR, "a2": NEAR, "x1": NEAR}


def test_a_pod_that_is_nowhere_in_the_topology_does_not_keep_the_first_from_starting():
    assert world().run(running("odd", "x1", labels=WEB)).refused(with_terms(near=[term(WEB)])) == {"x1": NEAR}


# --- anti-affinity ------------------------------------------------------------------------------------------------


def test_a_pod_keeps_away_from_those_that_it_does_not_want():
    found = world().run(running("db", "a1"))
    assert found.refused(with_terms(apart=[term(DB)])) == {"a1": APART, "a2": APART}
    assert found.refused(with_terms(apart=[term(DB, HOST)])) == {"a1": APART}


def test_a_pod_that_is_there_keeps_others_away():
    found = world().run(with_terms("guard", apart=[term(WEB)], labels=DB, nodeName="a1"))
    assert found.refused(pod("wanting", labels=WEB)) == {"a1": APART, "a2": APART}
    assert found.refused(pod("wanting", labels=DB)) == {}
    assert found.refused(pod("wanting", labels=WEB, namespace="other")) == {}


def test_counts_follow_pods_that_come_go_change_and_are_assumed():
    found, apart = world(), with_terms(apart=[term(DB, HOST)])
    db = running("db", "a1")
    assert found.refused(apart) == {}
    found.run(db)
    assert found.refused(apart) == {"a1": APART}
    relabelled = msgspec.structs.replace(db, metadata=msgspec.structs.replace(db.metadata, labels=WEB))
    found.inventory.pod_changed(db, relabelled)
    assert found.refused(apart) == {}
    found.inventory.pod_changed(relabelled, None)
    replica = with_terms("replica", apart=[term(WEB, HOST)])
    found.inventory.assume_pod(replica, "b1")
    assert found.refused(with_terms(apart=[term(WEB, HOST)])) == {"b1": APART}
    assert found.refused(replica) == {}  # it does not keep itself away
    found.inventory.forget_pod(replica.metadata.uid)
    assert found.refused(with_terms(apart=[term(WEB, HOST)])) == {}


def test_a_pod_that_is_being_deleted_counts_and_one_that_finished_does_not():
    found, apart = world(), with_terms(apart=[term(DB, HOST)])
    db = running("db", "a1")
    leaving = msgspec.structs.replace(
        db, metadata=msgspec.structs.replace(db.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    )
    found.run(leaving)
    assert found.refused(apart) == {"a1": APART}
    done = msgspec.structs.replace(db, status=msgspec.structs.replace(db.status, phase="Succeeded"))
    found.inventory.pod_changed(leaving, done)
    assert found.refused(apart) == {}


def test_domains_follow_the_labels_of_nodes():
    found, apart = world().run(running("db", "a1")), with_terms(apart=[term(DB)])
    found.inventory.node_changed(zoned("a2", "a"), zoned("a2", "b"))
    assert found.refused(apart) == {"a1": APART}
    found.inventory.node_changed(zoned("a1", "a"), None)
    assert found.refused(apart) == {}
    found.inventory.node_changed(None, zoned("a1", "b"))
    assert found.refused(apart) == {"a1": APART, "a2": APART, "b1": APART}


# --- namespaces ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "counts"),
    [
        ({}, False),
        ({"namespaces": ["other"]}, True),
        ({"namespaces": ["third"]}, False),
        ({"namespaceSelector": {}}, True),
        ({"namespaceSelector": {"matchLabels": {"team": "x"}}}, True),
        ({"namespaceSelector": {"matchLabels": {"team": "y"}}}, False),
        ({"namespaces": ["other"], "namespaceSelector": {"matchLabels": {"team": "y"}}}, True),
    ],
    ids=str,
)
def test_terms_mean_the_pods_of_some_namespaces(more, counts):
    found = world()
    for each in (namespace("default", team="y"), namespace("other", team="x")):
        found.inventory.namespace_changed(None, each)
    found.run(running("db", "a1", namespace="other"))
    refused = {"a1": APART} if counts else {}
    assert found.refused(with_terms(apart=[term(DB, HOST, **more)])) == refused
    guard = with_terms("guard", apart=[term(WEB, HOST, **more)], labels={"app": "guard"}, nodeName="b1")
    refused = {"b1": APART} if counts else {}
    assert found.run(guard).refused(pod("wanting", labels=WEB, namespace="other")) == refused


def test_the_labels_of_a_namespace_may_change():
    found = world().run(running("db", "a1", namespace="other"))
    wanted = with_terms(apart=[term(DB, HOST, namespaceSelector={"matchLabels": {"team": "x"}})])
    assert found.refused(wanted) == {}
    found.inventory.namespace_changed(None, namespace("other", team="x"))
    assert found.refused(wanted) == {"a1": APART}
    found.inventory.namespace_changed(namespace("other", team="x"), namespace("other"))
    assert found.refused(wanted) == {}


# --- terms that cannot be parsed -----------------------------------------------------------------------------------


def test_a_pod_with_an_invalid_term_fits_nowhere_and_is_told_why():
    wanted = with_terms(apart=[{"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": "a b"}}}])
    fit = world().inventory.rules.node_fit(wanted)
    assert not fit.mask.any()
    assert fit.refusal is not None
    assert (
        fit.refusal.sentence == "InterPodAffinity: a term of its podAntiAffinity is invalid: 'a b' is not a label value"
    )


def test_of_a_pod_that_is_there_with_an_invalid_term_no_term_counts():
    bad = {"topologyKey": HOST, "labelSelector": {"matchExpressions": [{"key": "app", "operator": "Like"}]}}
    guard = with_terms("guard", apart=[term(WEB, HOST), bad], labels=DB, nodeName="a1")
    assert world().run(guard).refused(pod("wanting", labels=WEB)) == {}


# --- words --------------------------------------------------------------------------------------------------------


def test_refusals_name_the_pod_and_the_place():
    found = world().run(running("db", "a1"), with_terms("guard", apart=[term(WEB, HOST)], labels={}, nodeName="b1"))
    assert found.why(with_terms(apart=[term(DB)])) == {
        "a1": "InterPodAffinity: Pod default/db in zone a has app=db, which the pod's anti-affinity excludes",
        "a2": "InterPodAffinity: Pod default/db in zone a has app=db, which the pod's anti-affinity excludes",
        "b1": "InterPodAffinity: Pod default/guard on this node has an anti-affinity to app=web",
    }
    why = found.why(with_terms(near=[term(DB)], labels=DB))
    assert why["b1"] == "InterPodAffinity: no pod with app=db runs in zone b, which the pod's affinity requires"
    assert why["x1"] == (
        f"InterPodAffinity: the node has no label {ZONE}, the topologyKey of the pod's affinity to app=db"
    )


# --- the order of binding -----------------------------------------------------------------------------------------


def test_a_pod_waits_until_the_one_that_it_wants_is_bound():
    found, near = world(), with_terms(near=[term(DB)])
    found.inventory.assume_pod(pod("db", labels=DB), "a1")
    assert found.refused(near) == {"b1": NEAR, "x1": NEAR}
    assert not found.inventory.rules.fits_in_any_order(near, "a2")
    found.run(running("db", "a1"))
    assert found.inventory.rules.fits_in_any_order(near, "a2")


def test_a_series_that_is_not_bound_yet_may_grow_in_its_own_domain():
    found, near = world(), with_terms(near=[term(WEB)])
    found.inventory.assume_pod(pod("first", labels=WEB), "a1")
    assert found.inventory.rules.fits_in_any_order(near, "a2")
    found.run(running("elsewhere", "b1", labels=WEB))
    assert not found.inventory.rules.fits_in_any_order(near, "a2")
    assert found.inventory.rules.fits_in_any_order(near, "b1")


def test_a_series_that_may_start_in_two_domains_waits():
    """Whichever of the two is bound first keeps the other's domain from pods that come next."""
    found, near = world(), with_terms(near=[term(WEB)])
    found.inventory.assume_pod(pod("first", labels=WEB), "a1")
    found.inventory.assume_pod(pod("second", labels=WEB), "b1")
    assert not found.inventory.rules.fits_in_any_order(near, "a2")
    found.run(running("first", "a1", labels=WEB))
    assert found.inventory.rules.fits_in_any_order(near, "a2")


def test_anti_affinity_holds_in_any_order():
    found = world()
    found.inventory.assume_pod(pod("db", labels=DB), "a1")
    assert found.inventory.rules.fits_in_any_order(with_terms(apart=[term(DB, HOST)]), "a2")
