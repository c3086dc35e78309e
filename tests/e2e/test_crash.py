"""The controller dies, hangs, or is two: everything is placed once, and nothing leaks."""

import pytest

from hack.installation import QUICK
from tests.e2e.holder import Holder
from tests.e2e.lab import T4, is_gone
from tests.e2e.objects import claim, part, pod, template
from tests.e2e.observe import Watcher

on_1_36 = pytest.mark.on_1_36
PROTECTION = "resource.kubernetes.io/delete-protection"


@pytest.fixture
def controller(lab):
    """The controller's process, which is killed; afterwards there is one again."""
    process = lab.hami.programs["controller"].process
    yield process
    process.start()
    lab.hami.wait_ready()


@pytest.fixture
def furnished(lab):
    lab.machines(T4, "n0", "n1")
    lab.create(template("part", part("7500Mi")), template("other", part("3Gi")))
    return lab


def allocated(lab):
    return [item for item in lab.claims() if "allocation" in item.get("status", {})]


@on_1_36
@pytest.mark.parametrize("written", [0, 1], ids=["no status", "one of two"])
def test_killed_between_finalizer_and_status(furnished, controller, written):
    lab = furnished
    with Holder(lab.plane, "resourceclaims/status") as holder:
        holder.arm(after=written)
        lab.create(pod("web", templates=["part", "other"]))
        holder.wait_caught()
        # both are sent at the same time: what passed must be stored before its sender dies
        lab.hami.wait_for("the other status", lambda: len(allocated(lab)) == written)
        controller.kill()
        holder.drop()
    protected = [item for item in lab.claims() if PROTECTION in item["metadata"].get("finalizers", ())]
    assert (len(protected), len(allocated(lab))) == (2, written)

    controller.start()
    (placement,) = lab.wait_running(names=["web"])
    assert len(placement.devices) == 2
    assert len(lab.claims()) == 2
    assert lab.overcommitted() == []


@on_1_36
def test_killed_between_status_and_gate(furnished, controller):
    lab = furnished
    with Holder(lab.plane, "pods") as holder:
        holder.arm()
        lab.create(pod("web", templates=["part"]))
        holder.wait_caught()
        controller.kill()
        holder.drop()
    (before,) = allocated(lab)
    assert lab.pod("web")["spec"]["schedulingGates"] == [{"name": "hami.io/allocation"}]

    controller.start()
    lab.wait_running(names=["web"])
    (after,) = lab.claims()
    assert after["status"]["allocation"] == before["status"]["allocation"]


@on_1_36
def test_killed_between_commit_and_binding(furnished, controller):
    lab = furnished
    with lab.plane.paused("kube-scheduler"):
        lab.create(pod("web", templates=["part", "other"]))
        lab.hami.wait_for("the commit", lambda: not lab.pod("web")["spec"].get("schedulingGates"))
        controller.kill()
        before = {item["metadata"]["name"]: item["status"]["allocation"] for item in allocated(lab)}
    lab.wait_running(names=["web"])  # kube-scheduler needs nobody any more

    controller.start()
    lab.create(pod("next", templates=["part"]))
    lab.wait_running(names=["web", "next"])
    after = {item["metadata"]["name"]: item["status"]["allocation"] for item in lab.claims()}
    assert {name: after[name] for name in before} == before
    assert lab.overcommitted() == []


def test_what_a_crash_left_on_a_users_claim_does_no_harm(furnished, controller):
    """The pod is gone before the next controller starts: the finalizer stays, and the claim can be used and deleted."""
    lab = furnished
    lab.create(claim("mine", part()))
    with Holder(lab.plane, "resourceclaims/status") as holder:
        holder.arm()
        lab.create(pod("web", claims=["mine"]))
        holder.wait_caught()
        controller.kill()
        holder.drop()
    lab.delete_pod("web", gracePeriodSeconds=0)
    assert lab.claim("mine")["metadata"]["finalizers"] == [PROTECTION]
    lab.api.delete(f"{lab.claims_path}/mine")
    lab.hami.wait_for("the claim to be gone", lambda: is_gone(lab.api, f"{lab.claims_path}/mine"))
    controller.start()


@pytest.fixture
def second(lab):
    """A second controller beside the first."""
    program = lab.hami.start_controller(*QUICK, name="controller-2")
    lab.hami.wait_for("the second controller to be ready", lambda: program.get("/readyz")[0] == 200)
    yield program
    program.process.stop()
    del lab.hami.programs["controller-2"]
    lab.hami.wait_ready()


@on_1_36
def test_of_two_controllers_one_acts_and_the_other_takes_over(furnished, controller, second):
    lab = furnished
    (leading,) = [each for each in lab.hami.controllers() if each.metric("hami_dra_leader")]
    lab.create(pod("before", templates=["part"]))
    lab.wait_running(names=["before"])
    (other,) = [each for each in lab.hami.controllers() if each is not leading]
    assert other.metric("hami_dra_commits_total", result="done") == 0

    leading.process.kill()
    lab.create(pod("after", templates=["part"]))
    del lab.hami.programs[leading.name]
    lab.wait_running(names=["before", "after"])
    assert other.metric("hami_dra_commits_total", result="done") == 1
    assert lab.overcommitted() == []
    lab.hami.programs[leading.name] = leading
    leading.process.start()


def test_a_leader_that_hung_for_longer_than_its_lease_gives_nothing_twice(lab, controller, second):
    """It is continued in the middle of the next leader's work, with decisions of its own on the way."""
    lab.machines(T4, "n0", "n1", "n2", "n3")
    lab.create(template("part", part("3Gi")))  # five on a card: eighty in all
    names = [f"web-{number:02}" for number in range(80)]
    with Watcher(lab.api) as watcher:
        hung = lab.hami.leader()
        for name in names[:40]:
            lab.create(pod(name, templates=["part"]))
        hung.process.pause()
        lab.hami.wait_for(
            "the other one to lead",
            lambda: any(each.metric("hami_dra_leader") for each in lab.hami.controllers() if each is not hung),
        )
        for name in names[40:60]:
            lab.create(pod(name, templates=["part"]))
        hung.process.resume()
        for name in names[60:]:
            lab.create(pod(name, templates=["part"]))
        lab.wait_running(names=names)
    assert watcher.problems == []
    lab.hami.wait_for("one leader", lambda: sum(each.metric("hami_dra_leader") for each in lab.hami.controllers()) == 1)
