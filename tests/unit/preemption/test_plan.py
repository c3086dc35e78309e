"""Who leaves for whom: small clusters, one thing each."""

import pytest

from controller.preemption import NoPlan
from tests.cards import claim, request
from tests.support.gang_requests import RACK, member, within
from tests.support.preemption.small_cluster import World, moment

HOST = "kubernetes.io/hostname"
GROUP, LEAST = "pod-group.scheduling.sigs.k8s.io/name", "pod-group.scheduling.sigs.k8s.io/min-available"


def urgent(name="urgent", count=1, priority=100, **spec):
    return member(name, count, memory="16Gi", spec={"priority": priority, **spec})


def victims(plan):
    return [each.metadata.name for each in plan.victims]


def test_the_cheaper_of_two_tenants_goes():
    world = World()
    world.run("dear", "n00", [0], priority=50)
    world.run("cheap", "n00", [1], priority=10)
    plan = world.plan(urgent())
    assert victims(plan) == ["cheap"]
    assert plan.nodes == ("n00",)
    assert not plan.is_cut


def test_the_one_that_has_run_for_the_shortest_time_goes_among_equals():
    world = World()
    world.run("old", "n00", [0], since=700)
    world.run("young", "n00", [1], since=10)
    assert victims(world.plan(urgent())) == ["young"]


@pytest.mark.parametrize(("priority", "policy"), [(10, None), (100, "Never")])
def test_nobody_goes_for_a_pod_of_equal_priority_or_one_that_never_preempts(priority, policy):
    world = World(cards=1)
    world.run("tenant", "n00", [0], priority=10)
    spec = {"preemptionPolicy": policy} if policy else {}
    assert isinstance(world.plan(urgent(priority=priority, **spec)), NoPlan)


def test_a_budget_sends_the_pod_to_the_next_node():
    world = World(nodes=2, cards=1)
    world.run("protected", "n00", [0], labels={"app": "db"})
    world.run("other", "n01", [0], priority=5)
    world.protect(0, app="db")
    assert victims(world.plan(urgent())) == ["other"]
    assert victims(world.plan(urgent(), best_effort=True)) == ["other"]


def test_a_budget_is_exceeded_by_best_effort_alone():
    world = World(cards=1)
    world.run("protected", "n00", [0], labels={"app": "db"})
    world.protect(0, app="db")
    assert isinstance(world.plan(urgent()), NoPlan)
    plan = world.plan(urgent(), best_effort=True)
    assert (victims(plan), plan.violations) == (["protected"], 1)


def test_a_budget_counts_the_victims_and_not_all_that_could_go():
    world = World(cards=3)
    for number in range(3):
        world.run(f"p{number}", "n00", [number], labels={"app": "db"}, since=600 - number)
    world.protect(1, app="db")
    assert victims(world.plan(urgent())) == ["p2"]
    assert isinstance(world.plan(urgent(count=2)), NoPlan)


def test_a_pod_under_two_budgets_is_no_victim():
    world = World(cards=1)
    world.run("protected", "n00", [0], labels={"app": "db"})
    world.protect(1, "one", app="db")
    world.protect(1, "two", app="db")
    assert isinstance(world.plan(urgent()), NoPlan)
    assert victims(world.plan(urgent(), best_effort=True)) == ["protected"]


def test_pods_that_share_a_claim_go_together_or_stay_together():
    world = World(cards=2)
    shared = world.hold("shared", "n00", [0])
    for number in range(3):
        world.run(f"p{number}", "n00", [], claims=[shared])
    world.run("alone", "n00", [1], priority=5)
    assert victims(world.plan(urgent())) == ["p0", "p1", "p2"]
    world.run("dear", "n00", [], claims=[shared], priority=500)
    assert victims(world.plan(urgent())) == ["alone"]


def leaving(seconds):
    return {"deletionTimestamp": moment(seconds)}


def test_a_pod_that_terminates_is_waited_for_before_anybody_goes():
    world = World(nodes=2, cards=1)
    world.run("leaving", "n00", [0], priority=900, **leaving(30))
    world.run("cheap", "n01", [0])
    plan = world.plan(urgent())
    assert (victims(plan), plan.nodes, [each.metadata.name for each in plan.releasing]) == ([], ("n00",), ["leaving"])


def test_a_pod_that_terminates_on_another_node_is_waited_for_where_it_is_in_the_way():
    world = World(nodes=3, cards=1, labels=lambda number: {HOST: f"h{number}", RACK: f"r{number // 2}"})
    gone = "2023-11-14T22:13:20Z"
    term = {"topologyKey": RACK, "labelSelector": {"matchLabels": {"app": "web"}}}
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    world.run("shy", "n00", [0], affinity=apart, deletionTimestamp=gone)
    world.run("near", "n01", [0], deletionTimestamp=gone)
    world.run("elsewhere", "n02", [0], deletionTimestamp=gone)
    spec = {"priority": 100, "labels": {"app": "web"}, "nodeSelector": {HOST: "h1"}}
    plan = world.plan(member("urgent", memory="16Gi", spec=spec))
    assert "shy" in {each.metadata.name for each in plan.releasing}
    spec["labels"] = {"app": "db"}
    plan = world.plan(member("urgent", memory="16Gi", spec=spec))
    assert [each.metadata.name for each in plan.releasing] == ["near"]


def test_a_pod_that_should_be_gone_for_a_minute_is_not_waited_for():
    world = World(nodes=2, cards=1)
    world.run("stuck", "n00", [0], **leaving(61))
    world.run("cheap", "n01", [0])
    assert victims(world.plan(urgent())) == ["cheap"]


@pytest.mark.parametrize(
    "metadata",
    [
        {"annotations": {"hami.io/preemptible": "false"}},
        {"annotations": {"hami.io/min-runtime": "11m"}},
        {
            "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d", "controller": True}
            ]
        },
    ],
)
def test_some_pods_stay_whatever_their_priority(metadata):
    world = World(cards=1)
    world.run("stays", "n00", [0], **metadata)
    assert isinstance(world.plan(urgent()), NoPlan)


@pytest.mark.parametrize(
    "annotations", [{"hami.io/preemptible": "true"}, {"hami.io/min-runtime": "9m"}, {"hami.io/min-runtime": "long"}]
)
def test_an_annotation_that_says_nothing_protects_nobody(annotations):
    world = World(cards=1)
    world.run("goes", "n00", [0], annotations=annotations)
    assert victims(world.plan(urgent())) == ["goes"]


def train(number, least):
    return {"labels": {GROUP: "train", LEAST: str(least)}}


def test_a_gang_goes_as_a_whole_and_only_where_nothing_else_helps():
    world = World(nodes=2, cards=2)
    for number in range(3):
        world.run(f"train-{number}", f"n0{number // 2}", [number % 2], **train(number, 3))
    world.run("alone", "n01", [1])
    assert victims(world.plan(urgent())) == ["alone"]
    plan = world.plan(urgent(count=2))
    assert plan.groups_broken == 1
    assert sorted(victims(plan)) == ["train-0", "train-1", "train-2"]


def test_members_that_a_gang_can_spare_go_one_by_one():
    world = World(cards=3)
    for number in range(3):
        world.run(f"train-{number}", "n00", [number], since=600 - number, **train(number, 2))
    plan = world.plan(urgent())
    assert (victims(plan), plan.groups_broken) == (["train-2"], 0)
    plan = world.plan(urgent(count=2))
    assert (sorted(victims(plan)), plan.groups_broken) == (["train-0", "train-1", "train-2"], 1)


def test_a_gang_does_not_spare_a_member_twice():
    world = World(nodes=3, cards=1)
    gang = [world.run(f"train-{number}", f"n0{number}", [0], **train(number, 2)) for number in range(3)]
    assert len(world.plan(urgent()).victims) == 1
    plan = world.plan(urgent("first"), urgent("second"), condemned=gang[:1])
    assert isinstance(plan, NoPlan)


def test_a_gang_makes_room_in_one_domain():
    world = World(nodes=4, cards=1, labels=lambda number: {RACK: f"r{number // 2}"})
    for number, priority in enumerate((0, 90, 50, 50)):
        world.run(f"p{number}", f"n0{number}", [0], priority=priority)
    members = [urgent(f"urgent-{number}") for number in range(2)]
    assert victims(world.plan(*members, topology=(within(RACK),))) == ["p2", "p3"]
    assert sorted(victims(world.plan(*members))) in (["p0", "p2"], ["p0", "p3"])


@pytest.mark.parametrize("in_order", [1, -1])
def test_each_kind_of_members_finds_the_nodes_where_victims_help_it(in_order):
    world = World(nodes=2, cards=1, labels=lambda number: {HOST: f"h{number}"})
    for number in range(2):
        world.run(f"p{number}", f"n0{number}", [0])
    members = [urgent(f"urgent-{number}", nodeSelector={HOST: f"h{number}"}) for number in range(2)]
    assert sorted(victims(world.plan(*members[::in_order]))) == ["p0", "p1"]


def test_members_that_share_a_claim_need_its_devices_once():
    world = World(cards=1)
    world.run("tenant", "n00", [0])
    shared = claim("shared", [request(memory="16Gi")])
    members = [member(f"urgent-{number}", claims=[shared], spec={"priority": 100}) for number in range(2)]
    assert victims(world.plan(*members)) == ["tenant"]


def test_a_gang_takes_more_nodes_where_a_budget_protects_the_first_ones():
    world = World(nodes=2)
    world.run("low-0", "n00", [0], labels={"app": "db"})
    world.run("low-1", "n00", [1], labels={"app": "db"})
    world.run("other", "n01", [0], priority=5)
    world.run("stays", "n01", [1], priority=200)
    world.protect(1, app="db")
    plan = world.plan(*(urgent(f"urgent-{number}") for number in range(2)))
    assert (len(plan.victims), plan.nodes) == (2, ("n00", "n01"))


@pytest.mark.parametrize(("size", "nodes"), [(24, 24), (100, 100), (100, 128), (24, 60), (300, 300)])
def test_a_gang_of_any_size_has_a_plan(size, nodes):
    world = World(nodes=nodes, cards=1)
    names = sorted(world.inventory.nodes.names)
    for number, name in enumerate(names):
        world.run(f"p{number}", name, [0], priority=number % 3)
    plan = world.plan(*(urgent(f"urgent-{number}") for number in range(size)))
    assert size <= len(plan.victims) <= size + size // 10


def test_a_gang_evicts_for_the_members_that_must_run():
    world = World(cards=3)
    for number in range(3):
        world.run(f"p{number}", "n00", [number], since=600 - number)
    members = [urgent(f"urgent-{number}") for number in range(3)]
    plan = world.plan(*members, least=2)
    assert (victims(plan), len(plan.placed)) == (["p1", "p2"], 2)


def test_a_pod_that_no_victims_help_costs_no_trial():
    world = World(nodes=3, cards=2)
    for number in range(3):
        world.run(f"p{number}", f"n0{number}", [0], priority=200)
        world.run(f"q{number}", f"n0{number}", [1])
    plan = world.plan(urgent(count=2))
    assert isinstance(plan, NoPlan)
    assert not plan.is_cut
