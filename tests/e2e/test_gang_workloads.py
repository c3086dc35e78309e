"""JobSet, LeaderWorkerSet, a Job by labels and one that makes its PodGroup: their own controllers make the pods, which run as gangs.

Each time there is room for the gang only once a pod in the way is gone, one member is then deleted, and its controller makes
it, or the whole group, again. At last the workload itself is deleted and created again.
"""

from contextlib import contextmanager

import pytest

from hack.controlplane.api import ApiError
from hack.controlplane.variants import GANG_ALPHAS
from hack.installation import QUICK
from tests.e2e.gang_watch import GangWatcher
from tests.e2e.lab import T4
from tests.e2e.objects import jobset, pod, request, template
from tests.support.gang_objects import MIN_AVAILABLE_LABEL, NAME_LABEL

CARDS = 4


@pytest.fixture(scope="module")
def hami(make_installation):
    installation = make_installation()
    installation.start_controller("--gangs-of=leaderworkerset", *QUICK)
    installation.start_webhook()
    installation.wait_ready()
    return installation


@pytest.fixture
def cards(lab):
    """A machine with four cards, of which `in-the-way` holds one."""
    lab.machines(T4, "n0")
    lab.create(template("card", request(device_class="nvidia-gpu.hami.io")), pod("in-the-way", templates=["card"]))
    lab.wait_running(names=["in-the-way"])
    return lab


def one_card(**labels):
    """A pod template."""
    item = pod("ignored", templates=["card"], labels=labels)
    return {"metadata": {"labels": item["metadata"]["labels"]}, "spec": item["spec"]}


def leader_worker_set(name, members):
    template = {"size": members, "restartPolicy": "RecreateGroupOnPodRestart", "workerTemplate": one_card()}
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": name},
        "spec": {"replicas": 1, "leaderWorkerTemplate": template},
    }


def job(name, members):
    item = one_card()
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "completionMode": "Indexed",
            "parallelism": members,
            "completions": members,
            "scheduling": {"schedulingPolicy": {"gang": {"minCount": members}}},
            "template": {**item, "spec": {**item["spec"], "restartPolicy": "Never"}},
        },
    }


def members(lab):
    return {each["metadata"]["uid"]: each for each in lab.pods() if each["metadata"]["name"] != "in-the-way"}


def wait_whole(lab, without=()):
    """UIDs of the members, all of which run, once there are as many as cards and none of `without`."""

    def whole():
        found = members(lab)
        runs = len(found) == CARDS and all(each["status"].get("phase") == "Running" for each in found.values())
        return runs and not found.keys() & set(without) and found

    try:
        return lab.hami.wait_for("the gang running", whole, seconds=90)
    except TimeoutError as error:
        raise AssertionError(f"{error}\n{lab.describe()}") from None


@contextmanager
def created(lab, workload):
    """The controllers make no more pods after the block."""
    item = lab.create(workload)
    yield
    lab.api.remove(item)
    for path in (
        f"/apis/batch/v1/namespaces/{lab.namespace}/jobs",
        f"/apis/apps/v1/namespaces/{lab.namespace}/statefulsets",
    ):
        lab.api.delete(path, propagationPolicy="Background")


def create_again(lab, workload):
    """Delete it, and create it as soon as its name is free: its pods may still end.

    A LeaderWorkerSet's StatefulSets go first. Where garbage collection is slow, a new one of the same name takes over the
    StatefulSet of the old workers: these run on, and their gang gets successors instead of being a new one.
    """
    item = {**workload, "metadata": {**workload["metadata"], "namespace": lab.namespace}}
    lab.api.remove(item, propagationPolicy="Background")
    sets = f"/apis/apps/v1/namespaces/{lab.namespace}/statefulsets"
    lab.hami.wait_for(
        "its StatefulSets going",
        lambda: all(each["metadata"].get("deletionTimestamp") for each in lab.api.get(sets)["items"]),
        seconds=60,
    )

    def created_now():
        try:
            return lab.api.add(item)
        except ApiError as error:
            if error.status != 409:
                raise
            return None

    lab.hami.wait_for("its name being free", created_now, seconds=60)


def runs_whole_again_and_again(lab, workload):
    with GangWatcher(lab.api, lab.namespace) as watcher, created(lab, workload):
        lab.hami.wait_for("all members", lambda: len(members(lab)) == CARDS)
        lab.hami.wait_for(
            "a word on why they wait",
            lambda: any("of 4" in event["note"] for event in lab.events(reason="FilteringFailed")),
        )
        watcher.catch_up()
        assert sum(watcher.moments[-1].values()) == 1  # nothing but the card of the pod in the way
        lab.delete_pod("in-the-way")
        first = wait_whole(lab)
        victim = max(each["metadata"]["name"] for each in first.values())
        lab.delete_pod(victim)
        uid = next(uid for uid, each in first.items() if each["metadata"]["name"] == victim)
        second = wait_whole(lab, without=[uid])
        watcher.catch_up()
        whole = len(watcher.moments)
        create_again(lab, workload)
        wait_whole(lab, without=[*first, *second])
        watcher.catch_up()
        assert any(not sum(moment.values()) for moment in watcher.moments[whole:]), "a new gang, not its successor"
    assert watcher.problems == lab.overcommitted() == []


@pytest.mark.usefixtures("jobset_controller")
def test_a_jobset(cards):
    runs_whole_again_and_again(cards, jobset("train", CARDS, templates=["card"]))


@pytest.mark.usefixtures("lws_controller")
def test_a_leader_worker_set(cards):
    runs_whole_again_and_again(cards, leader_worker_set("serve", CARDS))


@pytest.mark.kubernetes(GANG_ALPHAS)
def test_a_job_that_makes_its_pod_group(cards):
    runs_whole_again_and_again(cards, job("train", CARDS))
    (group,) = cards.api.list(f"/apis/scheduling.k8s.io/v1beta1/namespaces/{cards.namespace}/podgroups")
    assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": CARDS}}


ENDING = "example.com/still-ending"


def labelled_job(name, completions):
    item = one_card(**{NAME_LABEL: name, MIN_AVAILABLE_LABEL: str(CARDS)})
    item["metadata"]["finalizers"] = [ENDING]
    spec = {"parallelism": CARDS, "completions": completions, "template": item}
    item["spec"] = {**item["spec"], "restartPolicy": "Never"}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


def end(lab, phase, *names):
    """What a kubelet writes when the containers of these pods have ended."""
    for name in names:
        lab.api.patch(f"{lab.pods_path}/{name}/status", {"status": {"phase": phase}})


def let_go(lab, *names):
    for name in names:
        found = [each for each in lab.pod(name)["metadata"].get("finalizers", ()) if each != ENDING]
        lab.api.patch(f"{lab.pods_path}/{name}", {"metadata": {"finalizers": found}})


def wait_runs(lab, count, without):
    """Names of the members that run, once there are so many besides those of `without`."""

    def running():
        found = {
            each["metadata"]["name"]
            for each in members(lab).values()
            if each["status"].get("phase") == "Running" and each["metadata"]["name"] not in without
        }
        return found if len(found) == count else None

    try:
        return lab.hami.wait_for(f"{count} more running", running, seconds=90)
    except TimeoutError as error:
        raise AssertionError(f"{error}\n{lab.describe()}") from None


def test_a_job_ends_with_fewer_pods_than_its_gang_and_comes_back_while_they_end(cards):
    """Five completions by four at a time; the last fails and is retried; suspended and resumed; then created again."""
    lab = cards
    lab.delete_pod("in-the-way")
    item = lab.create(labelled_job("train", 5))
    old = wait_runs(lab, CARDS, ())
    end(lab, "Succeeded", *old)
    last = wait_runs(lab, 1, old)
    end(lab, "Failed", *last)
    again = wait_runs(lab, 1, old | last)
    path = lab.api.path_of(item)
    lab.api.patch(path, {"spec": {"suspend": True}})
    lab.hami.wait_for("it ends", lambda: all("deletionTimestamp" in lab.pod(name)["metadata"] for name in again))
    lab.api.patch(path, {"spec": {"suspend": False}})
    resumed = wait_runs(lab, 1, old | last | again)
    lab.api.remove(item, propagationPolicy="Background")
    before = old | last | again | resumed
    let_go(lab, *old, *last, *again)

    # a second Job of that name, while the first one's last pod ends on its card: three cards are free
    with created(lab, labelled_job("train", CARDS)):
        lab.hami.wait_for("all new members", lambda: len(members(lab)) == CARDS + 1)
        first = min(
            each["metadata"]["name"] for each in members(lab).values() if each["metadata"]["name"] not in before
        )
        lab.wait_event(first, "FilteringFailed", "of 4 members")
        assert {each["metadata"]["name"] for each in members(lab).values() if each["spec"].get("nodeName")} == resumed
        let_go(lab, *resumed)
        new = wait_runs(lab, CARDS, before)
        let_go(lab, *new)
    assert lab.overcommitted() == []
