"""Trials: what fits once some tenants are gone or devices are masked; the inventory as before at the end."""

import msgspec
from msgspec.structs import replace

from controller.decide import Decision, Unschedulable, decide
from controller.gangs import UnitDecision
from controller.inventory.model import DeviceId
from tests.cards import DRIVER, allocated
from tests.support.gang_requests import OPTIONS, cluster, devices_of, held, member
from tests.support.quotas import quota_object

WIDE = {"containers": [{"name": "main", "resources": {"requests": {"cpu": "5"}}}]}


def run(inventory, wanted):
    """Decide the pod and let it run: bound, and its claims observed."""
    answer = decide(inventory, wanted, OPTIONS)
    assert isinstance(answer, Decision), answer
    for entry in answer.allocations:
        inventory.claim_changed(None, allocated(entry.claim, entry.allocation))
    spec = msgspec.structs.replace(wanted.pod.spec, node_name=answer.node)
    inventory.pod_changed(None, msgspec.structs.replace(wanted.pod, spec=spec))
    return answer


def claims_of(wanted):
    return [entry.claim.metadata.uid for entry in wanted.claims]


def test_what_a_victim_holds_is_free_on_trial_and_taken_again_afterwards():
    inventory = cluster(1, 4)
    inventory.quota_changed(None, quota_object({"nvidia.com/gpu": 6}))
    victim, other = member("victim", 3, spec=WIDE), member("other", 1)
    run(inventory, victim)
    run(inventory, other)
    wanted = member("wanted", 3, spec=WIDE)
    before = held(inventory)
    assert isinstance(decide(inventory, wanted, OPTIONS), Unschedulable)
    with inventory.trial() as trial:
        trial.remove(victim.pod.metadata.uid, claims_of(victim))
        answer = decide(inventory, wanted, OPTIONS)
        assert isinstance(answer, Decision)
        trial.place(wanted.pod, answer.node, answer.holdings)
        assert isinstance(decide(inventory, member("late", 1), OPTIONS), Unschedulable)
    assert held(inventory) == before
    assert isinstance(decide(inventory, wanted, OPTIONS), Unschedulable)


def test_a_claim_that_others_use_stays():
    inventory = cluster(1, 2)
    victim = member("victim", 2, spec=WIDE)
    run(inventory, victim)
    with inventory.trial() as trial:
        trial.remove(victim.pod.metadata.uid, [])
        assert isinstance(decide(inventory, member("wanted", 1), OPTIONS), Unschedulable)
        assert isinstance(decide(inventory, member("cpu", claims=[], spec=WIDE), OPTIONS), Decision)


def test_a_pod_that_moves_may_get_its_own_devices_again():
    inventory = cluster(2, 4)
    moving = member("moving", 4, spec=WIDE)
    assert run(inventory, moving).node == "n00"
    run(inventory, member("other", 1))
    before = held(inventory)
    with inventory.trial() as trial:
        trial.remove(moving.pod.metadata.uid, claims_of(moving))
        answer = decide(inventory, moving, OPTIONS)
        assert answer.node == "n00"  # it does not stand in its own way, and n01 has three cards
    assert held(inventory) == before


def test_masked_devices_are_not_chosen():
    inventory = cluster(1, 4)
    wanted = member("p", 2)
    masked = frozenset({DeviceId(DRIVER, "n00", "gpu-0"), DeviceId(DRIVER, "n00", "gpu-2")})
    answer = decide(inventory, replace(wanted, masked_devices=masked), OPTIONS)
    assert devices_of(UnitDecision(((wanted, answer),))) == {("n00", "gpu-1"): 1, ("n00", "gpu-3"): 1}
    more = masked | {DeviceId(DRIVER, "n00", "gpu-1")}
    assert isinstance(decide(inventory, replace(wanted, masked_devices=more), OPTIONS), Unschedulable)
