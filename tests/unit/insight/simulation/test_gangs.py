"""Gangs in files: all members or none, by every way of stating a group, and what JobSets, LeaderWorkerSets and Workloads mean."""

import pytest

from controller.gangs import OPTIONAL_SOURCES
from controller.insight.manifests import BadManifest
from hami_dra.api import names
from tests.support.gang_objects import (
    COSCHEDULING_LABEL,
    coscheduling_group,
    in_kueue_group,
    in_labelled_group,
    in_pod_group,
    in_volcano_group,
    labelled,
    named,
    pod_group,
)
from tests.support.manifests import cluster, node, part, pod, simulated, slices, template, workload

VOLCANO = "scheduling.volcano.sh/v1beta1"
WHOLE = part("15Gi", "100")
"""All memory of a T4."""
CARDS = [*cluster("n1", "n2"), template("card", WHOLE)]
"""Two nodes of four T4s each."""


def members(number, make, limits=None):
    return [make(each) for each in named(pod("m", "template:card", limits=limits), *(f"m{i}" for i in range(number)))]


def placed(report):
    return sorted(entry["pod"].removeprefix("default/") for entry in report.placements)


def test_a_gang_that_fits_is_placed_whole():
    report = simulated(*CARDS, pod_group("train", 5), *members(5, lambda each: in_pod_group(each, "train")))
    assert placed(report) == ["m0", "m1", "m2", "m3", "m4"]
    assert report.document()["gangs"] == [
        {
            "gang": "PodGroup default/train",
            "minCount": 5,
            "members": [f"default/m{i}" for i in range(5)],
            "placed": 5,
            "domain": "",
            "message": "",
        }
    ]


def test_a_gang_that_does_not_fit_takes_nothing():
    gang = members(9, lambda each: in_labelled_group(each, "train", 9))
    report = simulated(*CARDS, *gang, pod("single", "template:card"))
    assert placed(report) == ["single"]
    assert {entry["message"] for entry in report.unplaced} == {report.gangs[0]["message"]}
    assert report.gangs[0]["message"].startswith("gang default/train: 8 of 9 members fit")


def test_members_above_min_count_are_placed_where_they_fit():
    report = simulated(*CARDS, *members(9, lambda each: in_labelled_group(each, "train", 6)))
    assert len(placed(report)) == 8
    [left] = report.unplaced
    assert left["reasons"]


@pytest.mark.parametrize(
    ("objects", "number", "message"),
    [
        (
            [pod_group("train", 3)],
            2,
            ("PodGroup default/train is incomplete: 2 of 3 members exist; none is placed until the others exist"),
        ),
        ([], 2, "PodGroup default/train does not exist; create it, or take the pods out of the group"),
        (
            [pod_group("train", 0)],
            2,
            (
                "PodGroup default/train has spec.schedulingPolicy.gang.minCount 0; set it to the number of pods that must run together, 1 or more"
            ),
        ),
    ],
)
def test_a_gang_that_cannot_be_decided_says_why(objects, number, message):
    report = simulated(*CARDS, *objects, *members(number, lambda each: in_pod_group(each, "train")))
    assert placed(report) == []
    assert [entry["error"] for entry in report.unplaced] == [message] * number


def test_a_member_that_cannot_be_decided_is_named():
    gang = members(2, lambda each: in_labelled_group(each, "train", 2))
    gang[1] = {**gang[1], "spec": {**gang[1]["spec"], "schedulingGates": [{"name": "example.com/quota"}]}}
    report = simulated(*CARDS, *gang)
    assert placed(report) == []
    assert report.gangs[0]["message"] == (
        "gang default/train: Pod default/m1: spec.schedulingGates: waits for example.com/quota"
    )


def test_the_same_group_may_be_stated_in_every_way():
    for make, group in (
        (lambda each: labelled(each, {COSCHEDULING_LABEL: "train"}), [coscheduling_group("train", 9)]),
        (lambda each: in_kueue_group(each, "train", 9), []),
        (lambda each: in_volcano_group(each, "train"), [{**coscheduling_group("train", 9), "apiVersion": VOLCANO}]),
    ):
        report = simulated(*CARDS, *group, *members(9, make), gang_sources=OPTIONAL_SOURCES)
        assert placed(report) == []
        assert len(report.gangs) == 1


def test_members_that_run_count():
    running = in_labelled_group(pod("m0", nodeName="n1"), "train", 2)
    report = simulated(*CARDS, running, in_labelled_group(pod("m1", "template:card"), "train", 2))
    assert placed(report) == ["m1"]


def test_pods_of_a_job_with_a_workload_are_one_gang():
    job = workload("Job", "train", {"containers": [{"name": "main"}], **claimed("card")}, parallelism=9, completions=9)
    policy = {"schedulingPolicy": {"gang": {"minCount": 9}}}
    declared = {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "Workload",
        "metadata": {"name": "train"},
        "spec": {
            "controllerRef": {"apiGroup": "batch", "kind": "Job", "name": "train"},
            "podGroupTemplates": [{"name": "workers", **policy}],
        },
    }
    report = simulated(*CARDS, declared, job)
    assert placed(report) == []
    assert report.gangs[0]["gang"] == "PodGroup default/train-workers"
    assert len(placed(simulated(*CARDS, job))) == 8, "without it they are placed one by one"
    two = {**declared, "spec": {**declared["spec"], "podGroupTemplates": [{"name": "a"}, {"name": "b"}]}}
    assert any("has 2 podGroupTemplates" in note for note in simulated(*CARDS, two, job).notes)


def claimed(name):
    return {"resourceClaims": [{"name": "c", "resourceClaimTemplateName": name}]}


def job_set(replicas, parallelism, labels):
    spec = {"containers": [{"name": "main"}], **claimed("card")}
    inner = {"metadata": {"labels": labels}, "spec": spec}
    job = {"spec": {"parallelism": parallelism, "completions": parallelism, "template": inner}}
    replicated = [{"name": "workers", "replicas": replicas, "template": job}]
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "js"},
        "spec": {"replicatedJobs": replicated},
    }


def test_a_job_set_is_expanded_to_its_jobs_pods():
    report = simulated(*CARDS, job_set(2, 2, {}))
    assert placed(report) == [f"js-workers-{job}-{index}" for job in (0, 1) for index in (0, 1)]
    labels = {"pod-group.scheduling.sigs.k8s.io/name": "js", "pod-group.scheduling.sigs.k8s.io/min-available": "10"}
    report = simulated(*CARDS, job_set(5, 2, labels))
    assert (placed(report), len(report.unplaced)) == ([], 10)


def leader_worker_set(replicas, size):
    templates = {"workerTemplate": {"spec": {"containers": [{"name": "main"}], **claimed("card")}}, "size": size}
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": "vllm"},
        "spec": {"replicas": replicas, "leaderWorkerTemplate": templates},
    }


def test_each_group_of_a_leader_worker_set_is_a_gang():
    report = simulated(*CARDS, leader_worker_set(2, 5), gang_sources=frozenset({"leaderworkerset"}))
    assert placed(report) == ["vllm-0", *(f"vllm-0-{index}" for index in range(1, 5))]
    assert [(gang["placed"], gang["minCount"]) for gang in report.gangs] == [(5, 5), (0, 5)]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (leader_worker_set(-1, 2), "spec.replicas is -1; a number from 0 to 100000 is wanted"),
        (leader_worker_set(1, "two"), "spec.leaderWorkerTemplate.size is two"),
        ({**leader_worker_set(1, 1), "spec": {}}, "spec.leaderWorkerTemplate.workerTemplate is missing"),
        ({**job_set(1, 1, {}), "spec": {"replicatedJobs": "all"}}, "spec.replicatedJobs must be a list of objects"),
    ],
)
def test_a_set_that_cannot_be_expanded_says_which_field(raw, message):
    with pytest.raises(BadManifest, match=message):
        simulated(raw)


@pytest.mark.parametrize(
    ("stated", "running", "on_the_spare"),
    [(None, 0, False), ("false", 0, False), ("true", 0, True), (None, 1, True), (None, 2, False)],
    ids=["ordinary", "protected", "preemptible", "repair", "has-its-minimum"],
)
def test_spares_are_for_preemptible_gangs_and_for_those_that_lost_a_member(stated, running, on_the_spare):
    spare = [
        node("n1", labels={names.SPARE: "true"}),
        *slices("n1", "g4dn.12xlarge"),
        *CARDS[:3],
        template("card", WHOLE),
    ]
    notes = None if stated is None else {names.PREEMPTIBLE: stated}
    waiting = in_labelled_group(pod("m", "template:card", annotations=notes), "train", 2)
    runs = in_labelled_group(pod("r", nodeName="n1"), "train", 2)
    runs["status"] = {"phase": "Running"}
    gang = [
        *named(waiting, *(f"m{i}" for i in range(2 - running or 1))),
        *named(runs, *(f"r{i}" for i in range(running))),
    ]
    report = simulated(*spare, *gang)
    assert bool(placed(report)) is on_the_spare
    if not on_the_spare:
        assert {code for each in report.unplaced for code in each["reasons"]} == {"NodeIsSpare"}
