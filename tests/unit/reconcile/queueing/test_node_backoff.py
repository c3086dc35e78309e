"""Nodes that kube-scheduler refused are avoided, for a while."""

from math import inf

from controller.reconcile.queueing.node_backoff import NodeBackoff


def test_a_refusal_ends_by_itself_and_lasts_longer_each_time():
    refusals = NodeBackoff(first=30, most=600)
    refusals.add("pod", "n1", "no cpu", now=0)
    assert refusals.nodes("pod", 29) == {"n1": "no cpu"}
    assert refusals.nodes("pod", 30) == {}
    refusals.add("pod", "n1", "again", now=100)
    assert refusals.nodes("pod", 159) == {"n1": "again"}
    assert refusals.nodes("pod", 160) == {}
    for _ in range(10):
        refusals.add("pod", "n1", "again", now=200)
    assert refusals.next_end("pod", 200) == 800


def test_a_change_of_the_node_ends_the_first_refusal_at_once():
    refusals = NodeBackoff(first=30, most=600)
    refusals.add("pod", "n1", "no cpu", now=0)
    assert refusals.node_changed("n1", now=1)
    assert refusals.nodes("pod", 1) == {}
    assert not refusals.node_changed("n1", now=2)


def test_later_refusals_keep_to_their_floor_however_busy_the_node():
    refusals = NodeBackoff(first=30, most=600)
    refusals.add("pod", "n1", "no cpu", now=0)
    refusals.add("pod", "n1", "no cpu", now=10)
    assert not refusals.node_changed("n1", now=11)
    assert refusals.nodes("pod", 24) == {"n1": "no cpu"}
    assert refusals.nodes("pod", 25) == {}
    assert refusals.next_end("pod", 11) == 25


def test_refusals_of_a_pod_are_counted_over_all_nodes():
    refusals = NodeBackoff(first=30, most=600)
    assert refusals.times("pod") == {}
    for node in ("n1", "n2", "n1"):
        refusals.add("pod", node, "x", now=0)
    assert refusals.times("pod") == {"n1": 2, "n2": 1}
    refusals.pod_gone("pod")
    assert refusals.times("pod") == {}


def test_nodes_and_pods_are_kept_apart():
    refusals = NodeBackoff(first=30, most=600)
    refusals.add("a", "n1", "x", now=0)
    refusals.add("a", "n2", "y", now=0)
    refusals.add("b", "n1", "z", now=0)
    refusals.node_changed("n2", now=1)
    assert refusals.nodes("a", 1) == {"n1": "x"}
    refusals.pod_gone("a")
    assert refusals.nodes("a", 1) == {}
    assert refusals.nodes("b", 1) == {"n1": "z"}
    assert refusals.next_end("a", 1) == inf


def test_a_nominated_node_is_not_refused():
    refusals = NodeBackoff(first=30, most=600)
    refusals.add("pod", "n1", "no cpu", now=0)
    refusals.lift("pod", "n1", now=1)
    refusals.lift("nobody", "n1", now=1)
    assert refusals.nodes("pod", 1) == {}


def test_settling_ends_by_itself_and_with_the_pod():
    refusals = NodeBackoff(first=30, most=600)
    refusals.settle("pod", now=0, until=1)
    assert refusals.settling("pod", 0.5) == 1
    assert refusals.settling("pod", 1) is None
    refusals.settle("pod", now=2, until=3)
    refusals.pod_gone("pod")
    assert refusals.settling("pod", 2) is None
