"""The log of decisions: what is kept of them, for how long, and that asking later gives what was true then."""

from datetime import UTC, datetime

import pytest

from controller.decide import Options, PodClaim, SchedulingRequest, decide
from controller.decide.answers import EqualRefusals, without_trace
from controller.insight.explain.explain import explain
from controller.inventory.inventory import Inventory
from controller.reconcile.runtime.decision_log import DecisionLog
from controller.scoring.policies import Policies
from controller.views.explanation import GangExplanation, GangMember
from hami_dra.api import kinds
from tests.cards import DRIVER, card, claim, device_class, node, pod, request, slice_of
from tests.support.assumed import assume
from tests.support.harness import SPACE, play
from tests.support.harness import claim as harness_claim
from tests.support.harness import pod as harness_pod

OPTIONS = Options(managed=frozenset({DRIVER}))
AT = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


@pytest.fixture
def inventory():
    found = Inventory()
    found.class_changed(None, device_class())
    for name in ("n1", "n2"):
        found.node_changed(None, node(name))
        found.slice_changed(None, slice_of(name, [card(index) for index in range(2)]))
    return found


def wanted(name, memory="4Gi", uid=None):
    entry = PodClaim("gpu", claim(f"{name}-gpu", [request(memory=memory, cores="0")]))
    return SchedulingRequest(pod=pod(name, uid=uid), claims=(entry,), policies=Policies())


def record(log, inventory, scheduling_request, *, now=0.0, at=AT, answer=None):
    answer = answer or decide(inventory, scheduling_request, OPTIONS)
    log.record(inventory, scheduling_request, OPTIONS, answer, at=at, now=now)
    return answer


def test_a_decision_is_told_later_as_it_was(inventory):
    log = DecisionLog()
    scheduling_request = wanted("a")
    then = explain(inventory, scheduling_request, OPTIONS)
    answer = record(log, inventory, scheduling_request)
    for entry in answer.allocations:
        assume(inventory, entry.claim.metadata.uid, entry.allocation)
    inventory.node_changed(None, node("n2", unschedulable=True))
    kept = log.of_pod("default/a")
    assert kept.at == "2026-01-01T12:00:00.000Z"
    assert (kept.node, kept.nodes, kept.runner_up, kept.chosen) == (then.node, then.nodes, then.runner_up, then.chosen)
    assert log.of_claim("default/a-gpu") == kept
    assert log.of_pod("default/b") is None
    assert log.of_claim("default/b") is None


def test_the_latest_of_each_pod_are_kept_newest_first_without_nodes(inventory):
    log = DecisionLog(most=3)
    for name in ("a", "b", "c", "d", "b"):
        record(log, inventory, wanted(name))
    assert [each.pod for each in log.latest(10)] == ["default/b", "default/d", "default/c"]
    assert [each.pod for each in log.latest(1)] == ["default/b"]
    assert log.latest(1)[0].nodes == ()
    assert log.latest(-1) == []
    assert log.of_pod("default/a") is None
    assert log.of_claim("default/a-gpu") is None


def test_it_is_bounded_in_bytes_too(inventory):
    log = DecisionLog(most_bytes=40_000)
    for number in range(100):
        record(log, inventory, wanted(f"p{number}"), now=float(number))
    assert 2 <= len(log.latest(100)) < 20
    assert log.of_pod("default/p99") is not None


def test_details_are_kept_of_so_many_a_second_only(inventory):
    log = DecisionLog(details_per_second=1.0)
    for number in range(60):
        record(log, inventory, wanted(f"p{number}"), now=100.0)
    without = [each.pod for each in log.latest(100) if not log.of_pod(each.pod).nodes]
    assert len(without) == 10
    brief = log.of_pod(without[0])
    assert brief.outcome == "placed"
    assert brief.node == "n1"
    assert brief.chosen[0].device
    assert brief.policies
    assert "no details of this decision were kept" in brief.notes
    record(log, inventory, wanted("later"), now=101.0)
    assert log.of_pod("default/later").nodes


def test_pods_that_fit_take_no_details_from_those_that_do_not(inventory):
    log = DecisionLog(details_per_second=1.0)
    for number in range(60):
        record(log, inventory, wanted(f"p{number}"), now=100.0)
    record(log, inventory, wanted("large", memory="90Gi"), now=100.0)
    assert log.of_pod("default/p59").nodes == ()
    assert log.of_pod("default/large").nodes


def test_the_same_refusal_again_keeps_the_details_and_counts_as_new(inventory):
    log = DecisionLog()
    scheduling_request = wanted("a", memory="90Gi")
    refusal = record(log, inventory, scheduling_request)
    record(log, inventory, wanted("b"))
    later = datetime(2026, 1, 1, 13, 0, 0, tzinfo=UTC)
    record(log, inventory, scheduling_request, answer=without_trace(refusal), at=later)
    kept = log.latest(1)[0]
    assert (kept.pod, kept.outcome, kept.at[11:13]) == ("default/a", "refused", "13")
    assert log.of_pod("default/a").nodes
    record(log, inventory, wanted("a", memory="90Gi", uid="another"), answer=without_trace(refusal))
    assert log.of_pod("default/a").nodes == ()
    assert log.of_pod("default/a").reasons == {"CardInsufficientMemory": 4}


def test_what_passes_by_itself_does_not_replace_a_decision(inventory):
    log = DecisionLog()
    scheduling_request = wanted("a")
    log.waiting(scheduling_request.pod, "its claim is not generated yet", passing=True, at=AT)
    assert (log.of_pod("default/a").outcome, log.of_pod("default/a").message) == (
        "waiting",
        "its claim is not generated yet",
    )
    record(log, inventory, scheduling_request)
    log.waiting(scheduling_request.pod, "a claim is being written", passing=True, at=AT)
    assert log.of_pod("default/a").outcome == "placed"
    log.waiting(
        scheduling_request.pod, "others must be bound first", ["default/a-gpu"], passing=True, at=AT, replacing=True
    )
    assert log.of_claim("default/a-gpu").message == "others must be bound first"
    record(log, inventory, scheduling_request)
    log.waiting(scheduling_request.pod, "Pod default/a: annotation x: no such policy", passing=False, at=AT)
    assert log.of_pod("default/a").outcome == "error"
    record(log, inventory, scheduling_request)
    log.waiting(pod("a", uid="another"), "waits", passing=True, at=AT)
    assert log.of_pod("default/a").outcome == "waiting"


def test_members_that_were_decided_together_show_their_gang(inventory):
    """Until they are decided alone; the list of all decisions names it only."""
    log = DecisionLog()
    requests = [wanted("a"), wanted("b")]
    for each in requests:
        record(log, inventory, each)
    members = (GangMember("default/a", "n1"), GangMember("default/b", "n2"))
    gang = GangExplanation("PodGroup default/train", 2, members, fits=True)
    log.together(gang, [*(each.pod for each in requests), pod("c"), pod("a", uid="another")])
    assert log.of_pod("default/a").gang == log.of_claim("default/b-gpu").gang == gang
    assert {each.gang.gang for each in log.latest(9)} == {gang.gang}
    assert {each.gang.members for each in log.latest(9)} == {()}
    record(log, inventory, requests[0])
    assert log.of_pod("default/a").gang is None
    assert log.of_pod("default/b").gang == gang


def test_what_cannot_be_explained_is_kept_without_details(inventory, monkeypatch, caplog):
    def broken(*_):
        raise ZeroDivisionError("bad luck")

    monkeypatch.setattr("controller.reconcile.runtime.decision_log.take", broken)
    log = DecisionLog()
    record(log, inventory, wanted("a"))
    assert log.of_pod("default/a").node == "n1"
    assert "cannot be kept in detail" in caplog.text


def test_the_controller_keeps_what_it_decided():
    async def story(harness):
        harness.start(decide=decide)
        await harness.add(kinds.RESOURCE_CLAIM, harness_claim("small"), harness_claim("large", 99))
        await harness.add(kinds.POD, harness_pod("p", claims=["small"]), harness_pod("q", claims=["large"]))
        await harness.bound("p")
        await harness.until(lambda: refused(harness))
        log = harness.controller.decision_log
        placed = log.of_pod(f"{SPACE}/p")
        assert (placed.outcome, placed.node) == ("placed", await harness.node_of("p"))
        assert log.of_claim(f"{SPACE}/small") == placed
        assert [each.chosen for each in placed.nodes].count(True) == 1
        assert log.of_pod(f"{SPACE}/q").reasons == {"CardInsufficientMemory": 4}

    async def refused(harness):
        kept = harness.controller.decision_log.of_pod(f"{SPACE}/q")
        return kept is not None and kept.outcome == "refused"

    play(story, controller=False)


def test_two_refusals_have_their_nodes_and_cards_in_common(inventory):
    """Otherwise a tenant's refused pods cost 15 KB each on ten nodes of eight cards."""
    log = DecisionLog()
    pictures = []
    for name in ("a", "b"):
        record(log, inventory, wanted(name, memory="1000Ti"))
        pictures.append(log._kept[f"default/{name}"].picture)
    one, other = pictures
    assert one.places
    assert other.places is one.places
    assert other.devices is one.devices
    assert other.cards is one.cards
    assert other.seen[0].codes is one.seen[0].codes
    assert other.seen[0].view is not one.seen[0].view


def test_what_changed_between_two_refusals_is_not_in_common(inventory):
    log = DecisionLog()
    record(log, inventory, wanted("a", memory="1000Ti"))
    reported = log.of_pod("default/a")
    assume(inventory, "other", decide(inventory, wanted("c"), OPTIONS).allocations[0].allocation)
    inventory.node_changed(None, node("n2", unschedulable=True))
    record(log, inventory, wanted("b", memory="1000Ti"))
    assert log.of_pod("default/a") == reported
    now = explain(inventory, wanted("b", memory="1000Ti"), OPTIONS)
    assert log.of_pod("default/b").nodes == now.nodes
    assert log.of_pod("default/b").nodes != reported.nodes


def test_equal_refusals_are_one_object(inventory):
    equal = EqualRefusals()
    one, other = (without_trace(decide(inventory, wanted(name, memory="1000Ti"), OPTIONS)) for name in ("a", "b"))
    assert one is not other
    assert equal.of(one) is equal.of(other) is one
    inventory.node_changed(None, node("n2", unschedulable=True))
    changed = without_trace(decide(inventory, wanted("c", memory="1000Ti"), OPTIONS))
    assert equal.of(changed) is changed
