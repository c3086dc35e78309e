"""Who leaves so that a namespace has what it is owed: small clusters, one thing each."""

from dataclasses import replace

import msgspec
import pytest

from controller.insight.explain import explain, with_plan
from controller.inventory import is_guarantee
from controller.preemption import NoPlan, preempt
from controller.preemption import victims as victims_of_a_place
from hami_dra.api.oversized import reduce_quota
from tests.support.gang_requests import OPTIONS, member
from tests.support.preemption.small_cluster import NOW, World
from tests.support.quotas import guarantee_object, quota_object

LEAST = 300
"""Seconds that a pod runs at least before it is reclaimed."""
GROUP, MIN = "pod-group.scheduling.sigs.k8s.io/name", "pod-group.scheduling.sigs.k8s.io/min-available"


def asks(name="asks", count=1, *, namespace="poor", memory="16Gi", cores="100", **spec):
    return member(name, count, memory=memory, cores=cores, spec={"namespace": namespace, "priority": 0, **spec})


def victims(plan):
    return [] if isinstance(plan, NoPlan) else [each.metadata.name for each in plan.victims]


def full(nodes=1, cards=4, *, of="rich", priority=10, **options):
    """A cluster whose cards one namespace has, each with a pod of its own, the last one the youngest."""
    world = World(nodes, cards)
    for number in range(nodes * cards):
        node, card = divmod(number, cards)
        since = 700 - number
        world.run(f"{of}-{number}", f"n{node:02}", [card], namespace=of, priority=priority, since=since, **options)
    return world


def test_a_namespace_takes_what_it_is_owed_from_one_of_higher_priority_the_youngest_first():
    world = full()
    assert victims(world.plan(asks())) == []
    world.guarantee("poor", gpu=2)
    plan = world.plan(asks())
    assert victims(plan) == ["rich-3"]
    (own,) = plan.reclaims
    assert (own.namespace, own.resource, own.used, own.hard) == ("poor", "limits.nvidia.com/gpu", 0, 2)
    world.guarantee("rich", gpu=3)
    own, theirs = world.plan(asks()).reclaims
    assert (own.namespace, own.used) == ("poor", 0)
    assert (theirs.namespace, theirs.resource, theirs.used, theirs.hard) == ("rich", "limits.nvidia.com/gpu", 4, 3)


def test_the_lowest_priority_goes_first_and_priority_comes_before_reclaim():
    world = World(1, 3)
    world.run("high", "n00", [0], namespace="rich", priority=9, since=301)
    world.run("equal", "n00", [1], namespace="rich", priority=0)
    world.run("low", "n00", [2], namespace="other", priority=-5, since=10)
    world.guarantee("poor", gpu=3)
    plan = world.plan(asks())
    assert (victims(plan), plan.reclaims) == (["low"], ())
    plan = world.plan(asks(count=2))
    assert (sorted(victims(plan)), len(plan.reclaims) > 0) == (["equal", "low"], True)


@pytest.mark.parametrize(
    ("owed", "count", "goes"),
    [(0, 1, False), (1, 1, False), (2, 1, True), (2, 2, False), (3, 2, True)],
)
def test_a_unit_takes_back_no_more_than_its_namespace_is_owed(owed, count, goes):
    world = World(1, 4)
    world.run("own", "n00", [0], namespace="poor")
    for number in (1, 2, 3):
        world.run(f"rich-{number}", "n00", [number], namespace="rich")
    world.guarantee("poor", gpu=owed)
    assert len(victims(world.plan(asks(count=count)))) == (count if goes else 0)


def test_every_resource_of_the_guarantee_that_the_unit_asks_for_counts():
    world = full(cards=2)
    world.guarantee("poor", gpu=4, gpumem=8 << 10)
    assert victims(world.plan(asks())) == []
    assert len(victims(world.plan(asks(memory="8Gi")))) == 1


@pytest.mark.parametrize(("owed", "most"), [(4, 0), (3, 1), (2, 2), (0, 4)])
def test_the_other_namespace_keeps_its_guarantee(owed, most):
    world = full()
    world.guarantee("poor", gpu=4)
    world.guarantee("rich", gpu=owed)
    for count in range(1, 5):
        assert len(victims(world.plan(asks(count=count)))) == (count if count <= most else 0)


@pytest.mark.parametrize("best_effort", [False, True])
def test_a_plan_by_priority_leaves_other_namespaces_their_guarantee_and_not_its_own(best_effort):
    world = full(cards=2, priority=0)
    world.guarantee("rich", gpu=2)
    assert victims(world.plan(asks(priority=100), best_effort=best_effort)) == []
    assert victims(world.plan(asks(priority=100, namespace="rich"), best_effort=best_effort)) == ["rich-1"]
    world.guarantee("rich", "second", gpu=1)
    assert victims(world.plan(asks(priority=100), best_effort=best_effort)) == []  # the larger one holds


def test_a_guarantee_that_is_made_edited_or_unlabelled_counts_at_once():
    world = full(cards=2)
    first = world.guarantee("poor", gpu=1)
    assert victims(world.plan(asks())) == ["rich-1"]
    second = world.set_quota(first, guarantee_object({"nvidia.com/gpu": 0}, namespace="poor"))
    assert victims(world.plan(asks())) == []
    third = world.set_quota(second, first)
    assert victims(world.plan(asks())) == ["rich-1"]
    unlabelled = msgspec.structs.replace(third, metadata=msgspec.structs.replace(third.metadata, labels={}))
    world.set_quota(third, unlabelled)
    assert victims(world.plan(asks())) == []
    assert world.inventory.quotas.headroom("poor").left == (1,)
    world.set_quota(unlabelled, None)
    assert (world.inventory.quotas.owed, world.inventory.quotas.namespaces) == ({}, [])


def test_another_value_of_the_label_is_a_limit_and_is_said():
    world = World()
    quota = guarantee_object({"nvidia.com/gpu": 1}, namespace="poor")
    quota.metadata.labels["hami.io/quota"] = "garantee"
    world.set_quota(None, quota)
    assert world.inventory.quotas.problem(quota) == (
        "its label hami.io/quota: garantee means nothing, and it is a limit; for a guarantee write guarantee"
    )
    assert world.inventory.quotas.headroom("poor").left == (1,)
    world.set_quota(quota, guarantee_object({"nvidia.com/gpu": 1}, namespace="poor"))
    assert (world.inventory.quotas.problem(quota), world.inventory.quotas.headroom("poor")) == ("", None)


def test_a_guarantee_limits_nothing_beside_a_quota_that_does():
    world = World(1, 3)
    world.run("own", "n00", [0], namespace="poor")
    world.guarantee("poor", gpu=1)
    assert world.inventory.quotas.headroom("poor") is None
    world.set_quota(None, quota_object({"nvidia.com/gpu": 3}, namespace="poor"))
    assert world.inventory.quotas.headroom("poor").left == (2,)
    assert [line.quota for line in world.inventory.quotas.lines()] == ["quota"]


@pytest.mark.parametrize(
    ("since", "annotations", "goes"),
    [
        (LEAST - 1, {}, False),
        (LEAST, {}, True),
        (10, {"hami.io/min-runtime": "5s"}, True),
        (10, {"hami.io/min-runtime": "0s"}, True),
        (600, {"hami.io/min-runtime": "1h"}, False),
        (600, {"hami.io/preemptible": "false"}, False),
    ],
)
def test_a_pod_runs_for_a_while_before_it_is_reclaimed(since, annotations, goes):
    world = World(1, 1)
    world.run("rich", "n00", [0], namespace="rich", since=since, annotations=annotations)
    world.guarantee("poor", gpu=1)
    plan = world.plan(asks())
    assert victims(plan) == (["rich"] if goes else [])
    if since < LEAST and not goes:
        assert plan.until == pytest.approx(1_700_000_000.0 + LEAST - since)


def test_a_pod_of_lower_priority_need_not_have_run_for_long():
    world = World(1, 1)
    world.run("rich", "n00", [0], namespace="rich", since=1, priority=-1)
    assert victims(world.plan(asks())) == ["rich"]


def test_one_that_never_preempts_does_not_reclaim():
    world = full()
    world.guarantee("poor", gpu=2)
    assert isinstance(world.plan(asks(preemptionPolicy="Never")), NoPlan)


def test_pods_of_the_own_namespace_go_only_for_a_higher_priority():
    world = full(of="poor", cards=2)
    world.guarantee("poor", gpu=4)
    assert victims(world.plan(asks())) == []
    assert victims(world.plan(asks(priority=100))) == ["poor-1"]


def test_a_pod_that_holds_nothing_of_what_is_owed_stays():
    """The node has no CPU left, because of a pod without devices, or with other ones."""
    world = World(1, 2)
    world.run("idle", "n00", [], namespace="rich", claims=[])
    world.run("gpu", "n00", [0, 1], namespace="rich", since=500)
    world.guarantee("poor", gpu=2)
    assert victims(world.plan(asks())) == ["gpu"]
    world.set_quota(guarantee_object({"nvidia.com/gpu": 2}, namespace="poor"), None)
    world.guarantee("poor", gpumem=0)
    assert victims(world.plan(asks())) == []


def test_a_budget_protects_from_reclaim_and_another_pod_goes():
    world = World(1, 2)
    world.run("free", "n00", [0], namespace="default", since=700)
    world.run("protected", "n00", [1], namespace="default", since=400, labels={"app": "db"})
    world.protect(0, app="db")
    world.guarantee("poor", gpu=2)
    assert victims(world.plan(asks())) == ["free"]
    assert victims(world.plan(asks(count=2))) == []


def test_pods_that_share_a_claim_go_together_and_count_once():
    world = World(1, 2)
    shared = world.hold("shared", "n00", [0], namespace="rich")
    for number in range(3):
        world.run(f"sharer-{number}", "n00", [], claims=[shared], namespace="rich", since=400)
    world.run("alone", "n00", [1], namespace="rich", since=400, priority=50)
    world.guarantee("poor", gpu=1)
    world.guarantee("rich", gpu=1)
    assert victims(world.plan(asks())) == ["sharer-0", "sharer-1", "sharer-2"]
    world.run("young", "n00", [], claims=[shared], namespace="rich", since=10)
    assert victims(world.plan(asks())) == ["alone"]


def gang_of(world, name, cards, least, **options):
    labels = {GROUP: name, MIN: str(least)}
    for card in cards:
        world.run(f"{name}-{card}", "n00", [card], namespace="rich", labels=labels, **options)


def test_a_gang_goes_as_a_whole_only_if_its_namespace_can_spare_it():
    world = World(1, 4)
    gang_of(world, "train", (0, 1, 2, 3), least=4)
    world.guarantee("poor", gpu=1)
    quota = world.guarantee("rich", gpu=1)
    assert victims(world.plan(asks())) == []
    world.set_quota(quota, None)
    assert sorted(victims(world.plan(asks()))) == [f"train-{card}" for card in range(4)]


def test_a_gang_spares_members_first():
    world = World(1, 4)
    gang_of(world, "train", (0, 1, 2, 3), least=3)
    world.guarantee("poor", gpu=2)
    world.guarantee("rich", gpu=3)
    assert len(victims(world.plan(asks()))) == 1
    assert victims(world.plan(asks(count=2))) == []


def test_a_gang_takes_back_what_all_of_its_members_need():
    world = full(nodes=2, cards=2)
    quota = world.guarantee("poor", gpu=2)
    members = [asks(f"m{number}") for number in range(3)]
    assert victims(world.plan(*members)) == []
    world.set_quota(quota, guarantee_object({"nvidia.com/gpu": 3}, namespace="poor"))
    assert len(victims(world.plan(*members))) == 3
    world.guarantee("rich", gpu=2)
    assert victims(world.plan(*members)) == []


def test_pods_that_terminate_or_will_be_evicted_count_no_more_for_their_namespace():
    world = World(1, 4)
    going, leaving, other = (
        world.run(name, "n00", [card], namespace="rich")
        for card, name in enumerate(("condemned", "terminates", "other"))
    )
    world.run("own", "n00", [3], namespace="poor")
    world.guarantee("poor", gpu=3)
    world.guarantee("rich", gpu=2)
    assert len(victims(world.plan(asks()))) == 1
    plan = world.plan(asks(count=2), condemned=[going])
    assert victims(plan) == []
    world.end(leaving)
    world.run("terminates", "n00", [1], namespace="rich", deletionTimestamp="2023-11-14T21:00:00Z")
    assert victims(world.plan(asks())) == []  # not waited for any more, and no use to its namespace
    assert other in world.pods.values()


def test_what_is_held_for_its_units_counts_for_the_own_namespace_and_for_no_other():
    world = full(cards=4)
    world.guarantee("poor", gpu=2)
    world.guarantee("rich", gpu=3)
    plan = world.preemption().plan(world.unit(asks()))
    assert len(plan.victims) == 1
    for options, number in (
        ({"taken": {"nvidia.com/gpu": 1}}, 1),
        ({"taken": {"nvidia.com/gpu": 2}}, 0),
        ({"promised": ["claim-rich-0-gpus"]}, 0),
    ):
        assert len(victims(world.preemption(**options).plan(world.unit(asks())))) == number


def test_the_pods_of_one_card_go_among_many_that_may():
    """More blocks than are tried in all choices, and a guarantee that spares two of them."""
    world = World(1, 8)
    for card in range(8):
        for part in range(2):
            since = 700 - 100 * part - card
            world.run(f"p{card}-{part}", "n00", [card], namespace="rich", memory="8Gi", cores="50", since=since)
    world.guarantee("poor", gpu=1)
    world.guarantee("rich", gpu=14)
    plan = world.plan(asks())
    assert len(victims(plan)) == 2
    assert len({name.partition("-")[0] for name in victims(plan)}) == 1


@pytest.mark.parametrize("spare", [3, 4])
def test_all_pods_of_one_card_go_if_they_can_be_spared(spare):
    """Four on each of eight cards, the youngest ones on different cards."""
    world = World(1, 8)
    for number in range(32):
        part, card = divmod(number, 8)
        since = 700 - 10 * part - card
        world.run(f"p{card}-{part}", "n00", [card], namespace="rich", memory="4Gi", cores="25", since=since)
    world.guarantee("poor", gpu=1)
    world.guarantee("rich", gpu=32 - spare)
    plan = world.plan(asks())
    assert len(victims(plan)) == (4 if spare == 4 else 0)
    assert len({name.partition("-")[0] for name in victims(plan)}) == (spare == 4)


@pytest.mark.parametrize("priority", [0, 100])
def test_nodes_whose_pods_are_protected_do_not_use_up_the_search(priority):
    world = World(40, 1)
    for number in range(39):
        world.run(f"kept-{number}", f"n{number:02}", [0], namespace="kept", since=400)
    world.run("rich", "n39", [0], namespace="rich", since=790)
    world.guarantee("kept", gpu=39)
    world.guarantee("poor", gpu=1)
    assert victims(world.plan(asks(priority=priority))) == ["rich"]


def test_a_pod_without_devices_goes_for_priority_though_its_namespace_can_spare_no_device():
    """It has the port that the urgent pod needs."""
    world = World(1, 2)
    ports = [{"name": "main", "ports": [{"hostPort": 80, "containerPort": 80}]}]
    world.run("plain", "n00", [], namespace="rich", claims=[], containers=ports)
    world.run("gpu", "n00", [0], namespace="rich")
    world.guarantee("rich", gpu=1)
    assert victims(world.plan(asks(priority=100, containers=ports))) == ["plain"]
    assert victims(world.plan(asks(priority=0, containers=ports))) == []


def test_two_namespaces_that_are_owed_more_than_there_is_do_not_evict_each_other():
    world = full(of="one", cards=2, priority=0)
    world.guarantee("one", gpu=2)
    world.guarantee("two", gpu=2)
    assert victims(world.plan(asks(namespace="two"))) == []
    assert victims(world.plan(asks(namespace="two", priority=1000))) == []


def test_the_reason_against_a_plan_says_what_was_tried():
    world = full(cards=1)
    world.guarantee("poor", gpu=1)
    world.guarantee("rich", gpu=1)
    assert world.plan(asks()).why == (
        "no node fits even without the pods of lower priority than 0, or those that other namespaces have beyond their guarantees"
    )


def test_explain_says_what_is_taken_back():
    world = full(cards=2)
    world.guarantee("poor", gpu=2, gpumem=64 << 10)
    request = asks()
    explained = with_plan(explain(world.inventory, request, OPTIONS), world.plan(request))
    assert explained.notes[-1] == (
        "with preemption it would fit on n00: 1 pod (rich/rich-1) would be evicted to take back what its namespace is owed: "
        "it has 0 of limits.nvidia.com/gpu and is owed 2, it has 0 of limits.nvidia.com/gpumem and is owed 65536"
    )


def test_a_quota_that_is_too_large_to_be_read_in_full_stays_a_guarantee():
    quota = guarantee_object({"nvidia.com/gpu": 2})
    reduce_quota(quota, "too large")
    assert is_guarantee(quota)


def test_many_namespaces_that_are_owed_something_cost_a_plan_nothing(monkeypatch):
    """What each can spare is read for the pods that may go, each of which is judged once, in however many places."""
    world = full(nodes=8, cards=4)
    world.guarantee("poor", gpu=32)
    world.guarantee("rich", gpu=32)
    for number in range(200):
        world.guarantee(f"other-{number}", gpu=1)
    read, asked = [], []

    class Spare(dict):
        def items(self):
            read.append("all")
            return super().items()

    def must_run_until(pod, *about):
        asked.append(pod.key)
        return 0.0

    monkeypatch.setattr(preempt, "must_run_until", must_run_until)
    members = [asks(f"m{number}") for number in range(8)]
    for spared, many in ((1, 8), (32, 0)):
        search = preempt.Search(world.preemption(), world.unit(*members))
        spare = search._guarantees._spare
        search._guarantees.__dict__["_spare"] = Spare(spare | {"rich": {"nvidia.com/gpu": spared}})
        assert isinstance(search.plan(), NoPlan) is bool(many)
    assert not read
    assert len(asked) <= 2 * 32


def test_elastic_members_that_are_not_owed_to_a_gang_are_left_out():
    world = full(nodes=1, cards=4)
    world.guarantee("poor", gpu=3)
    members = [asks(f"m{number}") for number in range(4)]
    plan = world.plan(*members, least=2)
    assert (len(victims(plan)), len(plan.placed)) == (2, 2)
    assert victims(world.plan(*members, least=4)) == []


@pytest.mark.parametrize("number", [1, 4])
def test_nothing_is_tried_for_a_unit_that_is_larger_than_what_it_is_owed(monkeypatch, number):
    world = full(nodes=4, cards=2)
    world.guarantee("poor", gpu=2 * number - 1)
    tried = []
    monkeypatch.setattr(preempt.Victims, "without", lambda *about: tried.append(about))
    assert isinstance(world.plan(*[asks(f"m{each}", 2) for each in range(number)]), NoPlan)
    assert not tried


@pytest.mark.parametrize("best_effort", [False, True])
def test_pods_whose_budget_allows_no_eviction_are_not_tried(monkeypatch, best_effort):
    world = World(4, 2)
    for number in range(8):
        world.run(f"rich-{number}", f"n{number // 2:02}", [number % 2], labels={"app": "web"})
    world.protect(0, app="web")
    tried, without = [], preempt.Victims.without
    monkeypatch.setattr(preempt.Victims, "without", lambda self, blocks: tried.append(blocks) or without(self, blocks))
    members = [asks(f"m{each}", 2, priority=5) for each in range(2)]
    assert len(victims(world.plan(*members, best_effort=best_effort))) == (4 if best_effort else 0)
    assert bool(tried) is best_effort


def test_pods_that_are_taken_away_on_trial_cost_steps(monkeypatch):
    monkeypatch.setattr(victims_of_a_place, "_PODS_OF_A_STEP", 1)
    world = full(nodes=8, cards=8)
    world.guarantee("poor", gpu=64)
    world.guarantee("rich", gpu=56)
    taken, without = [], preempt.Victims.without

    def counted(self, blocks):
        taken.append(len(blocks))
        return without(self, blocks)

    monkeypatch.setattr(preempt.Victims, "without", counted)
    rules = preempt.PreemptionRules(NOW, steps=1)
    plan = replace(world.preemption(), rules=rules).plan(world.unit(*[asks(f"m{each}") for each in range(16)]))
    assert isinstance(plan, NoPlan)
    assert plan.is_cut
    assert sum(taken) <= 200 + 64
