"""Plans of moves on clusters that fit into the head: what moves, what stays and why, and what cannot be reached."""

import pytest

from controller.insight.defrag import BadGoal, Goal, best_of_few, plan_moves
from controller.insight.defrag import plan as planning
from controller.insight.simulation import NoSuchPod, SimulationSettings
from controller.moves import search as searching
from controller.scoring.policies import Policies
from tests.support.gang_objects import in_labelled_group
from tests.support.scattered import PACKED, Scattered, owner

SPREAD = SimulationSettings(policies=Policies(node_policy="spread"))


def planned(found, settings=PACKED, **goal):
    return plan_moves(found.documents(), settings, Goal(**goal))


def moved(plan):
    """Pod → its new node and cards."""
    return {
        each.pod.removeprefix("default/"): (each.to_node, *(device.rpartition("/")[2] for device in each.to_devices))
        for each in plan.moves
    }


def device(node, index=0):
    return f"nvidia.hami.io/{node}/gpu-{index}"


def test_the_node_with_the_fewest_pods_is_emptied_and_no_free_one_is_taken():
    found = Scattered(n1=[16, 16], n2=[16, 16], n3=[16, 16])
    found.run("a", "n1", [0], 4)
    found.run("b", "n1", [1], 4)
    found.run("c", "n2", [0], 4)
    plan = planned(found, nodes=1)
    assert list(moved(plan)) == ["c"]
    assert moved(plan)["c"][0] == "n1"
    assert (plan.frees, plan.held_nodes, plan.held_devices) == (("n2",), ("n2",), ())
    assert (plan.asked, plan.gained, plan.is_reached, plan.is_cut) == (1, 1, True, False)
    assert plan.memory == 4 << 30
    assert plan.conclusion == "Moving 1 pod (4 GiB of device memory) frees 1 node."
    assert (plan.before[0].empty_nodes, plan.after[0].empty_nodes) == (1, 2)
    assert plan.pods == 3


def test_what_is_free_is_held_where_a_pod_would_take_it():
    found = Scattered(n1=[16, 16], n2=[16, 16], n3=[16, 16])
    found.run("a", "n1", [0], 4)
    found.run("b", "n2", [0], 4)
    found.run("c", "n2", [1], 4)
    plan = planned(found, SPREAD, nodes=1)
    assert moved(plan)["a"][0] == "n2"
    assert plan.held_nodes == ("n1", "n3")


def test_devices_are_freed_one_by_one_also_on_the_same_node():
    found = Scattered(n1=[16, 16, 16])
    for index, size in enumerate((4, 5, 6)):
        found.run(f"p{index}", "n1", [index], size)
    plan = planned(found, devices=2)
    assert moved(plan).keys() == {"p0", "p1"}
    assert {each[1] for each in moved(plan).values()} == {"gpu-2"}
    assert [each.frees for each in plan.moves] == [1, 1]
    assert plan.frees == (device("n1", 0), device("n1", 1)) == plan.held_devices


def test_only_nodes_with_enough_devices_count():
    found = Scattered(n1=[16], n2=[16, 16], n3=[16, 16])
    found.run("a", "n1", [0], 4)
    found.run("b", "n2", [0], 4)
    found.run("c", "n2", [1], 4)
    found.run("d", "n3", [0], 4)
    found.run("e", "n3", [1], 8)
    assert planned(found, nodes=1).frees == ("n1",)
    assert planned(found, nodes=1, least=2).frees == ("n2",)
    assert planned(found, nodes=1, least=3).gained == 0


def test_a_third_pod_goes_first_where_that_makes_room():
    """a fits on n2 once b has left it for n3; x and c stay. With binpack b would come back to n2."""
    found = Scattered(n1=[16], n2=[24, 16], n3=[16])
    found.run("a", "n1", [0], 16)
    found.run("b", "n2", [0], 10)
    found.run("x", "n2", [1], 16, owners=[])
    found.run("c", "n3", [0], 4, owners=[])
    plan = planned(found, SPREAD, nodes=1)
    assert list(moved(plan).items()) == [("b", ("n3", "gpu-0")), ("a", ("n2", "gpu-0"))]
    assert (plan.frees, plan.gained) == (("n1",), 1)
    assert not planned(found, SPREAD, nodes=1, moves=1).moves
    assert not planned(found, nodes=1).moves


STAYING = {
    "bare": ({"owners": []}, "no controller would create it again"),
    "daemon": ({"owners": owner("DaemonSet")}, "it belongs to its node"),
    "says-no": ({"annotations": {"hami.io/preemptible": "false"}}, "its annotation hami.io/preemptible is false"),
    "young": (
        {"annotations": {"hami.io/min-runtime": "1h"}},
        "its hami.io/min-runtime of 1h has not passed",
    ),
    "local": ({"volumes": [{"name": "cache", "emptyDir": {}}]}, "the data of its volume cache would be lost"),
    "disk": ({"volumes": [{"name": "disk", "hostPath": {"path": "/"}}]}, "the data of its volume disk would be lost"),
    "budget": ({"labels": {"app": "a"}}, "PodDisruptionBudget none allows no eviction"),
    "member": (in_labelled_group({"metadata": {}}, "g", 1)["metadata"], "it is a member of gang default/g"),
    "other": ({"schedulerName": "other"}, "spec.schedulerName is other"),
}


@pytest.mark.parametrize("name", STAYING)
def test_who_stays_and_why(name):
    options, why = STAYING[name]
    found = Scattered(n1=[16], n2=[16])
    found.protect(0, "none", app="a")
    found.run(name, "n1", [0], 4, **options)
    found.run("fixed", "n2", [0], 4, owners=[])
    plan = planned(found, nodes=1)
    assert (plan.moves, plan.gained) == ((), 0)
    assert plan.stays[f"default/{name}"].startswith(why)
    assert plan.conclusion == "No moves bring 1 more free node: moves cannot free 2 other nodes."


def test_a_pod_that_tolerates_a_cordon_stays_and_another_one_moves():
    """With spread it would come back to the node that it has left."""
    found = Scattered(n1=[16, 16], n2=[16, 16])
    found.run("a", "n1", [0], 4, tolerations=[{"operator": "Exists"}])
    found.run("b", "n2", [0], 4)
    plan = planned(found, SPREAD, nodes=1)
    assert ({*moved(plan)}, plan.frees, plan.gained) == ({"b"}, ("n2",), 1)
    assert plan.stays == {"default/a": "it tolerates what is cordoned, and may come back to it"}
    assert not planned(found, SPREAD, devices=1).stays
    for raw in found.raws:
        if raw["kind"] == "ResourceClaim" and raw["metadata"]["name"] == "b-gpus":
            (asked,) = raw["spec"]["devices"]["requests"]
            asked["exactly"]["tolerations"] = [{"key": "hami.io/cordoned", "operator": "Exists"}]
    assert {*planned(found, SPREAD, devices=1).stays} == {"default/b"}


def test_a_volume_in_memory_keeps_no_pod():
    found = Scattered(n1=[16], n2=[16])
    found.run("a", "n1", [0], 4, volumes=[{"name": "shm", "emptyDir": {"medium": "Memory"}}])
    found.run("b", "n2", [0], 4, owners=[])
    assert list(moved(planned(found, nodes=1))) == ["a"]


def test_pods_that_share_a_claim_stay():
    found = Scattered(n1=[16], n2=[16])
    found.run("a", "n1", [0], 4)
    found.run("b", "n1", [0], 4, claimed="a-gpus")
    found.run("c", "n2", [0], 4, owners=[])
    plan = planned(found, nodes=1)
    assert plan.moves == ()
    assert plan.stays["default/a"] == "other pods use its ResourceClaim default/a-gpus"


def test_a_budget_allows_moves_one_after_the_other():
    found = Scattered(n1=[16, 16], n2=[16, 16])
    found.protect(1, "web", app="web")
    for name, index in (("a", 0), ("b", 1)):
        found.run(name, "n1", [index], 4, labels={"app": "web"})
    for name, index in (("c", 0), ("d", 1)):
        found.run(name, "n2", [index], 4, owners=[])
    plan = planned(found, nodes=1)
    assert list(moved(plan)) == ["a", "b"]
    (use,) = plan.budgets
    assert (use.budget, use.allowed, use.moves) == ("default/web", 1, 2)
    assert plan.moves[0].budgets == ("default/web",)


def test_as_much_as_there_is_room_for_and_why_not_more():
    found = Scattered(n1=[16], n2=[16], n3=[16])
    found.run("a", "n1", [0], 10)
    found.run("b", "n2", [0], 6)
    found.run("c", "n3", [0], 10)
    plan = planned(found, nodes=2)
    assert (plan.asked, plan.gained, len(plan.moves)) == (2, 1, 1)
    assert plan.conclusion == (
        "Moving 1 pod (6 GiB of device memory) frees 1 node, of 2 asked for: no place was found for the "
        "pods on 2 other nodes."
    )


# --- a pod that waits --------------------------------------------------------------------------------------------------------


def test_room_for_a_pod_with_the_fewest_moves():
    found = Scattered(n1=[16, 16], n2=[16, 16])
    found.run("a", "n1", [0], 4)
    found.run("b", "n1", [1], 6)
    found.run("c", "n2", [0], 4)
    found.run("d", "n2", [0], 4)
    found.wait("late", 2, 12)
    plan = planned(found, pod="default/late")
    assert [(each.memory, each.frees) for each in plan.moves] == [(4 << 30, 0)]
    assert plan.is_reached
    assert plan.conclusion.endswith(f"makes room for pod default/late on {plan.frees[0]}.")


def test_room_on_the_only_node():
    """b goes to the card of a: its own is held, for it alone is large enough."""
    found = Scattered(n1=[16, 16])
    found.run("a", "n1", [0], 4)
    found.run("b", "n1", [1], 5)
    found.wait("late", 1, 16)
    plan = planned(found, pod="default/late")
    assert len(plan.moves) == 1
    assert plan.held_nodes == ()
    assert plan.held_devices == plan.moves[0].from_devices


def test_a_pod_that_fits_needs_no_moves():
    found = Scattered(n1=[16])
    found.wait("late", 1, 16)
    plan = planned(found, pod="default/late")
    assert (plan.moves, plan.gained) == ((), 1)
    assert plan.conclusion == "Pod default/late fits on n1 now."


def test_nobody_loses_a_place_for_a_pod():
    found = Scattered(n1=[16], n2=[16])
    found.run("a", "n1", [0], 10)
    found.run("b", "n2", [0], 10)
    found.wait("late", 1, 16, priority=1_000)
    plan = planned(found, pod="default/late")
    assert (plan.moves, plan.gained, plan.asked) == ((), 0, 1)
    assert plan.conclusion == (
        "No moves bring a place for pod default/late: wherever pods that may move make room for it, they find no place "
        "themselves."
    )


def test_room_for_a_gang():
    found = Scattered(n1=[16], n2=[16], n3=[15])
    found.run("a", "n1", [0], 4)
    found.run("b", "n2", [0], 4)
    found.run("c", "n3", [0], 4, owners=[])
    for number in range(2):
        found.wait(f"m{number}", 1, 16)
        found.raws[-1] = in_labelled_group(found.raws[-1], "train", 2)
    plan = planned(found, pod="default/m1")
    assert moved(plan).keys() == {"a", "b"}
    assert {each[0] for each in moved(plan).values()} == {"n3"}
    assert (plan.asked, plan.gained) == (2, 2)
    assert {*plan.frees} == {"n1", "n2"}


def test_a_gang_that_fits_needs_no_moves():
    found = Scattered(n1=[16], n2=[16])
    for number in range(2):
        found.wait(f"m{number}", 1, 16)
        found.raws[-1] = in_labelled_group(found.raws[-1], "train", 2)
    plan = planned(found, pod="default/m0")
    assert (plan.moves, plan.gained, plan.asked) == ((), 2, 2)


def test_goals_that_name_nothing_to_plan_for():
    found = Scattered(n1=[16])
    found.run("a", "n1", [0], 4)
    found.wait("gone", 1, 4)
    found.raws[-1]["spec"]["resourceClaims"][0]["resourceClaimName"] = "none"
    with pytest.raises(BadGoal, match=r"--for default/a: the pod waits for no node \(it is on n1\)"):
        planned(found, pod="default/a")
    with pytest.raises(NoSuchPod, match="no Pod default/b"):
        planned(found, pod="default/b")
    with pytest.raises(BadGoal, match=r"--for default/gone: .*ResourceClaim default/none"):
        planned(found, pod="default/gone")


# --- without a goal, and its limits -------------------------------------------------------------------------------------------


def test_the_best_of_a_few_moves():
    found = Scattered(n1=[16, 16], n2=[16, 16])
    found.run("a", "n1", [0], 4)
    found.run("b", "n2", [0], 4)
    plan = best_of_few(found.documents(), PACKED, 5, 1)
    assert (len(plan.moves), plan.gained) == (1, 1)
    assert plan.conclusion == (
        "43% of the free nvidia capacity is on partly used devices. Moving 1 pod (4 GiB of device memory) frees 1 node."
    )
    assert best_of_few(Scattered(n1=[16]).documents(), PACKED, 5, 1).conclusion == (
        "0% of the free nvidia capacity is on partly used devices. No 5 moves free a node or device."
    )


def test_cells_are_not_tried_for_ever(monkeypatch):
    found = Scattered(**{f"n{number}": [16] for number in range(4)})
    for number in range(4):
        found.run(f"p{number}", f"n{number}", [0], 10)
    assert not planned(found, nodes=1).is_cut
    monkeypatch.setattr(searching, "_FRUITLESS", 1)
    assert planned(found, nodes=1).is_cut


def test_a_plan_that_may_not_be_the_best_says_so(monkeypatch):
    found = Scattered(n1=[16], n2=[24, 16], n3=[16])
    found.run("a", "n1", [0], 16)
    found.run("b", "n2", [0], 10)
    found.run("x", "n2", [1], 16, owners=[])
    found.run("c", "n3", [0], 4, owners=[])
    assert not planned(found, SPREAD, nodes=1).is_cut
    monkeypatch.setattr(planning, "STEPS", 1)
    assert planned(found, SPREAD, nodes=1).is_cut
    monkeypatch.setattr(planning, "STEPS", 2_000)
    monkeypatch.setattr(planning, "MOST_CHOICES", 0)
    assert planned(found, SPREAD, nodes=1).is_cut
