"""explain: figures that add up, the same reasons as the refusal, and a runner-up that would really come next. Pure."""

import json

import msgspec
import pytest

from controller.decide import Decision, Options, PodClaim, SchedulingRequest, Unschedulable, decide
from controller.insight.explain.explain import explain
from controller.insight.explain.render import explanation_of
from controller.insight.explain.snapshot import take
from controller.inventory.inventory import Inventory
from controller.scoring.policies import DevicePolicy, Packing, Policies, Weights
from controller.scoring.policy_resolution import resolve_policies
from controller.views.explanation import from_json, to_json
from hami_dra.api import names
from hami_dra.api.resource import DeviceTaint
from tests.cards import DRIVER, card, claim, device_class, node, pod, request, slice_of
from tests.support.assumed import assume

OPTIONS = Options(managed=frozenset({DRIVER}))


def cluster(**nodes):
    """Node → cards, each 16 GiB."""
    inventory = Inventory()
    inventory.class_changed(None, device_class())
    for name, cards in nodes.items():
        inventory.node_changed(None, node(name))
        inventory.slice_changed(None, slice_of(name, cards))
    return inventory


def cards(count=2, memory="16Gi"):
    return [card(index, memory=memory) for index in range(count)]


def scheduling_request(*claims, name="pod", node_policy="binpack", device=DevicePolicy(("binpack",)), **options):
    entries = tuple(PodClaim(f"c{number}", each) for number, each in enumerate(claims))
    return SchedulingRequest(
        pod=pod(name), claims=entries, policies=Policies(node_policy=node_policy, device_policy=device), **options
    )


def shared(name, memory="4Gi", cores="0", count=1):
    return claim(name, [request(memory=memory, cores=cores, count=count)])


def place(inventory, wanted):
    answer = decide(inventory, wanted, OPTIONS)
    assert isinstance(answer, Decision), answer
    for entry in answer.allocations:
        assume(inventory, entry.claim.metadata.uid, entry.allocation)
    inventory.assume_pod(wanted.pod, answer.node)
    return answer


def of(explanation, name):
    return next(each for each in explanation.nodes if each.node == name)


def test_the_terms_make_up_the_scores_of_nodes_and_cards():
    inventory = cluster(n1=cards(), n2=cards())
    place(inventory, scheduling_request(shared("a", cores="30"), name="a"))
    device = DevicePolicy(("binpack",), Weights(slot=1, core=2, memory=3))
    found = explain(inventory, scheduling_request(shared("b", cores="20"), device=device), OPTIONS)
    assert (found.outcome, found.node, found.fitting, found.unfit) == ("placed", "n1", 2, 0)
    for each in found.nodes:
        assert sum(term.value for term in each.terms) == pytest.approx(each.score)
        for seen in each.cards:
            assert sum(term.value for term in seen.terms) == pytest.approx(seen.score)
    assert [(term.name, term.text) for term in of(found, "n1").terms] == [
        ("shares", "1 of 20"),
        ("cores", "30 of 200"),
        ("memory", "4096 of 32768 MiB"),
    ]
    [chosen] = [seen for seen in of(found, "n1").cards if seen.chosen]
    assert chosen.device == f"{DRIVER}/n1/gpu-0"
    assert chosen.score == pytest.approx(10 * (2 / 10 + 2 * 50 / 100 + 3 * 8 / 16))
    assert found.chosen[0].score == pytest.approx(chosen.score)
    assert found.chosen[0].device == chosen.device


@pytest.mark.parametrize("policy", names.NODE_POLICIES)
def test_the_terms_make_up_the_score_under_every_node_policy(policy):
    inventory = cluster(n1=cards(4), n2=cards(2, memory="24Gi"), n3=cards(4))
    for name in ("a", "b", "c"):
        place(inventory, scheduling_request(shared(name, memory="5Gi", cores="30"), name=name, node_policy="spread"))
    policies = Policies(node_policy=policy, packing=Packing(rare=1.0, large=1.0))
    wanted = SchedulingRequest(pod=pod("p"), claims=(PodClaim("c", shared("d", cores="20")),), policies=policies)
    found = explain(inventory, wanted, OPTIONS)
    assert len(found.nodes) == 3
    for each in found.nodes:
        assert sum(term.value for term in each.terms) == pytest.approx(each.score)
    scores = [each.score for each in found.nodes]
    assert scores == sorted(scores, reverse=policy != "spread")
    assert found.runner_up.lost_by >= 0


def test_a_card_is_refused_with_the_figures_that_were_compared():
    inventory = cluster(n1=cards(1))
    place(inventory, scheduling_request(shared("a", memory="10Gi"), name="a"))
    found = explain(inventory, scheduling_request(shared("b", memory="8Gi")), OPTIONS)
    [seen] = of(found, "n1").cards
    assert found.outcome == "refused"
    assert (seen.code, seen.text) == ("CardInsufficientMemory", "asks 8192 MiB of memory, 6144 of 16384 MiB are free")
    [seen] = of(explain(inventory, scheduling_request(shared("b", memory="20Gi")), OPTIONS), "n1").cards
    assert seen.text == "asks 20480 MiB of memory, 6144 of 16384 MiB are free"
    [seen] = of(explain(inventory, scheduling_request(shared("b", memory="1Gi", cores="100")), OPTIONS), "n1").cards
    assert (seen.code, seen.text) == (
        "ExclusiveDeviceAllocateConflict",
        "asks for a whole idle device, 1 of 10 shares are taken",
    )


def test_a_card_out_of_service_names_its_taint():
    taint = DeviceTaint(key="hami.io/xid", value="79", effect="NoSchedule")
    inventory = cluster(n1=[card(0, taints=(taint,))])
    [seen] = of(explain(inventory, scheduling_request(shared("a")), OPTIONS), "n1").cards
    assert (seen.code, seen.text) == ("CardNotHealth", "taints hami.io/xid=79:NoSchedule")


@pytest.mark.parametrize(
    "wanted",
    [
        shared("a", memory="12Gi", count=2),
        shared("a", count=3),
        shared("a", memory="9Gi", count=2),
        shared("a", memory="9Gi", cores="100", count=2),
    ],
)
def test_the_reasons_are_those_of_the_refusal(wanted):
    inventory = cluster(n1=cards(2), n2=cards(1), n3=cards(2, memory="8Gi"), n4=[])
    place(inventory, scheduling_request(shared("x", memory="9Gi"), name="x"))
    place(inventory, scheduling_request(shared("y", memory="9Gi"), name="y"))
    refusal = decide(inventory, scheduling_request(wanted), OPTIONS)
    assert isinstance(refusal, Unschedulable)
    found = explain(inventory, scheduling_request(wanted), OPTIONS)
    assert found.reasons == dict(refusal.reasons)
    assert {each.node: each.reasons for each in found.nodes} == refusal.nodes
    assert {code: sum(code in each.reasons for each in found.nodes) for code in found.reasons} == refusal.node_counts
    for each in found.nodes:
        codes = [seen.code or "AllocatedCardsInsufficientRequest" for seen in each.cards]
        if "NodeInsufficientDevice" not in each.reasons:
            assert {code: codes.count(code) for code in codes} == each.reasons


def test_nodes_that_do_not_fit_say_why_where_the_pod_was_placed_elsewhere():
    inventory = cluster(n1=cards(), n2=cards(1))
    inventory.node_changed(None, node("n3", unschedulable=True))
    found = explain(inventory, scheduling_request(shared("a", count=2)), OPTIONS)
    assert [(each.node, each.fits) for each in found.nodes] == [("n1", True), ("n2", False), ("n3", False)]
    assert of(found, "n2").reasons == {"NodeInsufficientDevice": 1}
    assert of(found, "n3").reasons == {"NodeUnschedulable": 1}
    assert of(found, "n3").text == "NodeUnschedulable: the node is cordoned"
    assert found.reasons == {"NodeInsufficientDevice": 1, "NodeUnschedulable": 1}
    assert found.runner_up is None


@pytest.mark.parametrize("node_policy", ["binpack", "spread"])
def test_the_runner_up_is_who_would_come_next_and_loses_by_the_score(node_policy):
    inventory = cluster(n1=cards(), n2=cards(), n3=cards())
    for name, memory in (("a", "4Gi"), ("b", "2Gi"), ("c", "1Gi")):
        place(inventory, scheduling_request(shared(name, memory=memory), name=name, node_policy="spread"))
    wanted = scheduling_request(shared("d"), node_policy=node_policy)
    found = explain(inventory, wanted, OPTIONS)
    without = cluster(**{each.node: cards() for each in found.nodes})
    for name, memory in (("a", "4Gi"), ("b", "2Gi"), ("c", "1Gi")):
        place(without, scheduling_request(shared(name, memory=memory), name=name, node_policy="spread"))
    without.node_changed(None, node(found.node, unschedulable=True))
    second = decide(without, wanted, OPTIONS)
    assert found.runner_up is not None
    assert found.runner_up.node == second.node
    assert found.runner_up.because == "node score"
    assert found.runner_up.lost_by == pytest.approx(abs(of(found, found.node).score - found.runner_up.score))
    assert found.runner_up.lost_by > 0
    assert [each.node for each in found.nodes[:2]] == [found.node, second.node]


def test_equal_nodes_are_told_apart_by_name_and_a_nominated_one_by_that():
    inventory = cluster(n1=cards(), n2=cards())
    assert explain(inventory, scheduling_request(shared("a")), OPTIONS).runner_up.because == "name"
    place(inventory, scheduling_request(shared("x"), name="x"))
    found = explain(inventory, scheduling_request(shared("a"), preferred_node="n2"), OPTIONS)
    assert (found.node, found.runner_up.node, found.runner_up.because) == ("n2", "n1", "nominated")


def test_the_second_request_of_a_pod_sees_the_first():
    inventory = cluster(n1=cards(2))
    wanted = scheduling_request(
        shared("a", memory="9Gi"), shared("b", memory="4Gi"), shared("c", memory="4Gi", cores="100")
    )
    found = explain(inventory, wanted, OPTIONS)
    seen = {(each.claim, each.device[-5:]): each for each in of(found, "n1").cards}
    first, second = seen["default/a", "gpu-0"], seen["default/b", "gpu-0"]
    assert first.chosen
    assert second.chosen
    assert [term.text for term in second.terms] == ["2 of 10", "0 of 100", "13312 of 16384 MiB"]
    assert sum(term.value for term in second.terms) == pytest.approx(second.score)
    shared_card, idle = seen["default/c", "gpu-0"], seen["default/c", "gpu-1"]
    assert idle.chosen
    assert (shared_card.code, shared_card.score) == ("", 0.0)
    assert shared_card.text == "fits on its own, but not together with the pod's other devices"


def test_policies_say_where_they_come_from():
    policies = Policies(
        node_policy="spread",
        node_policy_origin="Pod default/p",
        device_policies={
            "default/a": DevicePolicy(("binpack",), origin="ResourceClaim default/a"),
            "default/b": DevicePolicy(("spread",), weights_origin="DeviceClass x"),
        },
    )
    entries = (PodClaim("c0", shared("a")), PodClaim("c1", shared("b")))
    found = explain(cluster(n1=cards()), SchedulingRequest(pod=pod("p"), claims=entries, policies=policies), OPTIONS)
    assert [(each.axis, each.value, each.origin, each.claim) for each in found.policies] == [
        ("node", "spread", "annotation of Pod default/p", ""),
        ("device", "binpack", "annotation of ResourceClaim default/a", "default/a"),
        ("weights", "slot=1,core=1,memory=1", "controller default", "default/a"),
        ("device", "spread", "controller default", "default/b"),
        ("weights", "slot=1,core=1,memory=1", "annotation of DeviceClass x", "default/b"),
    ]


def test_wishes_of_vendors_say_where_they_stand():
    asking = pod(
        "p",
        annotations={
            "nvidia.com/numa-bind": "true",
            "hami.io/device-scoring-weights": "slot=1,core=0,memory=0",
            "hami.io/packing-weights": "rare=1",
        },
    )
    mine = shared("a")
    defaults = Policies(annotations={"nvidia.com/use-gputype": "T4"})
    policies = resolve_policies(asking, [mine], {}, {}, defaults)
    found = explain(
        cluster(n1=cards()), SchedulingRequest(pod=asking, claims=(PodClaim("c", mine),), policies=policies), OPTIONS
    )
    origins = {each.axis: (each.value, each.origin) for each in found.policies}
    assert origins["nvidia.com/numa-bind"] == ("true", "annotation of Pod default/p")
    assert origins["nvidia.com/use-gputype"] == ("T4", "controller default")
    assert origins["weights"] == ("slot=1,core=0,memory=0", "annotation of Pod default/p")
    assert origins["packing"] == ("theta=0.65,left=0.5,rare=1,large=0", "annotation of Pod default/p")
    assert origins["device"] == ("spread", "controller default")


def test_an_error_is_told_without_nodes():
    found = explain(cluster(n1=cards()), scheduling_request(claim("a", [request(device_class="missing")])), OPTIONS)
    assert found.outcome == "error"
    assert "missing" in found.message
    assert found.nodes == ()


def test_first_fit_scores_nothing():
    found = explain(
        cluster(n1=cards()), scheduling_request(shared("a")), Options(managed=frozenset({DRIVER}), first_fit=True)
    )
    assert found.outcome == "placed"
    assert [seen.terms for seen in of(found, "n1").cards] == [(), ()]
    assert [each.value for each in found.policies if each.axis == "device"] == ["first-fit"]


def test_explaining_changes_nothing_and_a_picture_stays_as_it_was():
    inventory = cluster(n1=cards(), n2=cards())
    wanted = scheduling_request(shared("a"))
    answer = decide(inventory, wanted, OPTIONS)
    picture = take(inventory, wanted, OPTIONS, answer)
    before = explanation_of(picture)
    assert decide(inventory, wanted, OPTIONS) == answer
    place(inventory, wanted)
    place(inventory, scheduling_request(shared("b", cores="100"), name="b"))
    inventory.slice_changed(None, slice_of("n1", cards(1)))
    assert explanation_of(picture) == before
    assert before == explain(cluster(n1=cards(), n2=cards()), wanted, OPTIONS)


def test_of_a_large_cluster_only_the_first_are_shown():
    inventory = cluster(**{f"n{number:03}": cards(1) for number in range(80)})
    wanted = scheduling_request(shared("a"))
    found = explain(inventory, wanted, OPTIONS, most_nodes=10)
    assert [each.node for each in found.nodes] == [f"n{number:03}" for number in range(10)]
    assert found.nodes_left_out == 70
    kept = explanation_of(take(inventory, wanted, OPTIONS, decide(inventory, wanted, OPTIONS)))
    assert [each.node for each in kept.nodes] == ["n000", "n001", "n002", "n003"]
    assert (kept.fitting, kept.nodes_left_out) == (80, 76)
    refused = explanation_of(
        take(inventory, d := scheduling_request(shared("b", memory="90Gi")), OPTIONS, decide(inventory, d, OPTIONS))
    )
    assert len(refused.nodes) == 4
    assert refused.nodes[0].reasons == {"CardInsufficientMemory": 1}
    assert refused.reasons == {"CardInsufficientMemory": 80}
    assert refused.unfit == 80


def test_json_is_camel_case_and_comes_back_as_it_was():
    found = explain(cluster(n1=cards(), n2=cards()), scheduling_request(shared("a")), OPTIONS)
    assert from_json(to_json(found)) == found
    raw = json.loads(to_json(found))
    assert {"runnerUp", "nodesLeftOut", "policies", "nodes"} <= set(raw)
    assert raw["runnerUp"]["lostBy"] == 0
    assert raw["requests"][0]["deviceClass"]
    assert all(isinstance(each, str) for each in msgspec.to_builtins(found)["notes"])
