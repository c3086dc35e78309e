"""One writer of allocations: kube-scheduler cannot touch a managed device, and nobody gets around the fence."""

import pytest

from hack.controlplane.api import ApiError
from tests.e2e.fence_story import DRIVER, a_rule_deleted_while_no_controller_runs_keeps_kube_scheduler_off, the_one_rule
from tests.e2e.lab import T4, allocated_by
from tests.e2e.objects import claim, part, pod, request, template
from tests.e2e.observe import Watcher

on_1_36 = pytest.mark.on_1_36  # there the fence is in the slices; DeviceTaintRules are off by default

FENCE = "hami.io/controller-allocates"
PROVEN = "hami.io/fence-proven"


@pytest.fixture
def controller(lab):
    """The running controller; it runs again after the test, and decides."""
    program = lab.hami.programs["controller"]
    yield program
    program.process.start()
    lab.hami.wait_ready()


@on_1_36
def test_kube_scheduler_cannot_allocate_a_fenced_device(lab, controller):
    """The controller is gone, its fence is not: a claim stays unallocated, and is served when the controller is back."""
    lab.machines(T4, "t4")
    controller.process.stop()
    lab.create(claim("whole", request()), claim("part", part("1Gi")))
    lab.create(pod("whole", claims=["whole"], gated=False), pod("part", claims=["part"], gated=False))
    for name in ("whole", "part"):
        lab.hami.api.wait_for("the refusal", lambda name=name: "cannot allocate all claims" in lab.refusal(name))
    assert not any(item.get("status") for item in lab.claims())

    controller.process.start()
    placed = lab.wait_running(names=["whole", "part"])
    assert {placement.node for placement in placed} == {"t4"}
    assert {lab.bound_by(name) for name in ("whole", "part")} == {"default-scheduler"}
    assert lab.overcommitted() == []


@on_1_36
def test_the_fence_is_a_rule_or_a_taint_in_the_slices(lab, control_plane):
    lab.machines(T4, "t4")
    tainted = {
        any(taint["key"] == FENCE for taint in device.get("taints", ()))
        for item in lab.slices()
        for device in item["spec"]["devices"]
    }
    if control_plane.version.startswith("1.36."):
        assert (tainted, lab.hami.fence_rules()) == ({True}, [])
    else:
        assert tainted == {False}
        (rule,) = lab.hami.fence_rules("nvidia.hami.io")
        assert rule["spec"]["deviceSelector"] == {"driver": "nvidia.hami.io"}
        assert rule["spec"]["taint"]["effect"] == "NoSchedule"


def start_unproven(lab, controller):
    """The controller anew, without the proof that its predecessor noted."""
    controller.process.stop()
    for rule in lab.hami.fence_rules(DRIVER):
        lab.api.patch(lab.api.path_of(rule), {"metadata": {"annotations": {PROVEN: None}}})
    controller.process.start()
    lab.hami.wait_ready()


def is_untested(controller):
    return controller.metric("hami_dra_fence_untested", driver=DRIVER) == 1


def is_noted(lab):
    return all(PROVEN in rule["metadata"].get("annotations", {}) for rule in lab.hami.fence_rules(DRIVER))


@on_1_36
def test_the_fence_is_proven_on_a_machine_where_every_card_has_a_tenant(lab, controller):
    lab.machines(T4, "t4")
    names = [f"web-{number}" for number in range(4)]
    lab.create(template("most", part("14Gi")), *(pod(name, templates=["most"]) for name in names))
    lab.wait_running(names=names)
    start_unproven(lab, controller)
    assert not is_untested(controller)
    assert is_noted(lab)
    assert lab.overcommitted() == []


@on_1_36
def test_where_no_device_is_free_the_fence_holds_untested_until_one_is(lab, controller):
    lab.machines(T4, "t4", sharing={"slots": 1})
    names = [f"web-{number}" for number in range(4)]
    lab.create(template("part", part("1Gi")), *(pod(name, templates=["part"]) for name in names))
    lab.wait_running(names=names)
    start_unproven(lab, controller)
    assert is_untested(controller)
    assert not lab.hami.fence_rules(DRIVER) or not is_noted(lab)
    lab.delete_pod("web-0")
    lab.hami.wait_for("the proof", lambda: not is_untested(controller))
    assert is_noted(lab)
    lab.create(pod("next", templates=["part"]))
    lab.wait_running(names=["next"])


@on_1_36
@pytest.mark.parametrize(
    "toleration",
    [{"operator": "Exists"}, {"key": FENCE, "operator": "Exists"}, {"key": FENCE, "effect": "NoSchedule"}],
    ids=["wildcard", "the key", "equal"],
)
def test_a_claim_that_tolerates_the_fence_is_refused(lab, toleration):
    for build in (claim, template):
        with pytest.raises(ApiError) as refused:
            lab.create(build("greedy", request("mine", tolerations=[toleration])))
        assert refused.value.status == 403
        assert f"spec.devices.requests: mine: tolerations must not cover the taint {FENCE}" in refused.value.message


@on_1_36
def test_a_claim_that_asks_for_nothing_is_let_through(lab):
    lab.machines(T4, "t4")
    lab.create(claim("empty"), template("empty"))
    lab.create({**claim("emptier"), "spec": {}})
    lab.create(pod("web", claims=["emptier"], templates=["empty"]))
    lab.wait_running(names=["web"])


@on_1_36
def test_other_tolerations_are_let_through(lab):
    lab.machines(T4, "t4")
    lab.create(claim("modest", part(tolerations=[{"key": "example.com/flaky", "operator": "Exists"}])))
    lab.create(pod("web", claims=["modest"]))
    lab.wait_running(names=["web"])


def test_a_deleted_fence_rule_is_restored_and_nothing_is_given_twice(lab):
    lab.machines(T4, "n0", "n1", "n2")
    lab.create(template("part", part("5Gi")))
    names = [f"web-{number:02}" for number in range(24)]  # two on a card: all of it
    with Watcher(lab.api) as watcher:
        for number, name in enumerate(names):
            lab.create(pod(name, templates=["part"], gated=number % 2 == 0))
            if number in (6, 14):
                rules = lab.hami.fence_rules("nvidia.hami.io")
                for rule in rules:
                    lab.api.remove(rule)
        lab.wait_running(names=names)
    assert the_one_rule(lab)["metadata"]["uid"] not in {rule["metadata"]["uid"] for rule in rules}
    assert watcher.problems == []
    assert watcher.allocations_seen >= len(names)
    assert all(map(allocated_by, lab.claims()))  # none by others


def test_a_rule_deleted_while_no_controller_runs_keeps_kube_scheduler_off(lab, controller):
    lab.machines(T4, "t4")
    a_rule_deleted_while_no_controller_runs_keeps_kube_scheduler_off(lab, controller)


def test_a_changed_fence_rule_is_put_right(lab):
    rule = the_one_rule(lab)
    lab.api.patch(lab.api.path_of(rule), {"spec": {"deviceSelector": {"pool": "some"}}})

    def restored():
        (now,) = lab.hami.fence_rules("nvidia.hami.io")
        return now["spec"]["deviceSelector"] == {"driver": "nvidia.hami.io"}

    lab.hami.wait_for("the selector as it was", restored)
    lab.hami.wait_ready()
