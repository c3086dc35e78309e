"""Which gang a pod is a member of, and what is known of each."""

from dataclasses import replace

import msgspec
import pytest

from controller.scheduling.gangs import OPTIONAL_SOURCES, GangKey, Gangs, gang_of
from hami_dra.api import names
from hami_dra.api.core import Pod, PodSchedulingGroup, PodSpec, PodStatus
from hami_dra.api.meta import ObjectMeta
from hami_dra.api.podgroups import (
    BasicSchedulingPolicy,
    GangSchedulingPolicy,
    MinMemberPodGroup,
    MinMemberSpec,
    PodGroup,
    PodGroupSchedulingConstraints,
    PodGroupSchedulingPolicy,
    PodGroupSpec,
    TopologyKey,
)

LABELS = {names.POD_GROUP_NAME: "train", names.POD_GROUP_MIN_AVAILABLE: "3"}


def pod(name, *, group="", labels=None, annotations=None, node="", phase="", priority=0, scheduler="default-scheduler"):
    meta = ObjectMeta(
        name=name,
        namespace="team",
        uid=f"uid-{name}",
        creation_timestamp=f"2026-01-01T00:00:{len(name):02d}Z",
        labels=labels or {},
        annotations=annotations or {},
    )
    scheduling_group = PodSchedulingGroup(pod_group_name=group) if group else None
    spec = PodSpec(node_name=node, priority=priority, scheduler_name=scheduler, scheduling_group=scheduling_group)
    return Pod(metadata=meta, spec=spec, status=PodStatus(phase=phase))


def pod_group(name="train", min_count=3, *, priority=None, topology=(), uid="g1", basic=False):
    policy = PodGroupSchedulingPolicy(
        basic=BasicSchedulingPolicy() if basic else None,
        gang=None if basic else GangSchedulingPolicy(min_count=min_count),
    )
    constraints = PodGroupSchedulingConstraints(topology=tuple(TopologyKey(key=key) for key in topology))
    return PodGroup(
        metadata=ObjectMeta(name=name, namespace="team", uid=uid),
        spec=PodGroupSpec(scheduling_policy=policy, scheduling_constraints=constraints, priority=priority),
    )


def fed(*pods, groups=(), source="PodGroup", also=()):
    gangs = Gangs(also)
    for each in groups:
        gangs.group_changed(source, None, each)
    for each in pods:
        gangs.pod_changed(None, each)
    return gangs


@pytest.mark.parametrize(
    ("stated", "source"),
    [
        ({"group": "train", "labels": LABELS}, "PodGroup"),
        ({"labels": {names.COSCHEDULING_GROUP: "train", names.KUEUE_GROUP: "other"}}, "coscheduling"),
        ({"labels": LABELS | {names.KUEUE_GROUP: "other"}}, "labels"),
        ({"labels": {names.KUEUE_GROUP: "train"}}, "kueue"),
        ({"labels": {names.LEADER_WORKER_GROUP: "train"}}, "leaderworkerset"),
        ({"annotations": {names.VOLCANO_GROUP: "train"}}, "volcano"),
    ],
)
def test_the_first_way_of_stating_a_group_counts(stated, source):
    member = pod("a", **stated)
    assert gang_of(member, OPTIONAL_SOURCES) == GangKey(source, "team", "train")
    if source in OPTIONAL_SOURCES:
        assert gang_of(member) is None


def test_a_pod_without_a_group_is_no_member():
    assert gang_of(pod("a", labels={names.POD_GROUP_MIN_AVAILABLE: "3"})) is None
    assert Gangs().of(pod("a")) is None


def test_members_are_counted_as_they_are_bound_and_end():
    gangs = fed(*(pod("p" * n, labels=LABELS) for n in (3, 1, 2)))
    key = GangKey("labels", "team", "train")
    state = gangs.state(key)
    assert [each.metadata.name for each in state.members] == ["p", "pp", "ppp"]
    assert (state.min_count, state.least, state.missing, state.problem) == (3, 3, 0, "")
    bound = pod("p", labels=LABELS, node="n0")
    gangs.pod_changed(pod("p", labels=LABELS), bound)
    assert (gangs.state(key).bound, gangs.state(key).least) == (1, 2)
    gangs.pod_changed(bound, done := pod("p", labels=LABELS, node="n0", phase="Succeeded"))
    assert (gangs.state(key).bound, gangs.state(key).succeeded, gangs.state(key).least) == (0, 1, 3)
    gangs.pod_changed(pod("pp", labels=LABELS), pod("pp", labels=LABELS, node="n1"))
    assert gangs.state(key).least == 1, "one that succeeded counts while others run"
    gangs.pod_changed(done, None)
    assert gangs.state(key).least == 2


def test_a_pod_that_is_made_again_under_its_name_replaces_the_old_one():
    gangs = fed(old := pod("a", labels=LABELS, node="n0"))
    new = msgspec.structs.replace(pod("a", labels=LABELS), metadata=msgspec.structs.replace(old.metadata, uid="uid-2"))
    gangs.pod_changed(old, new)
    state = gangs.state(GangKey("labels", "team", "train"))
    assert ([each.metadata.uid for each in state.members], state.bound) == (["uid-2"], 0)


def test_a_group_may_come_after_its_pods_and_go_before_them():
    gangs = fed(member := pod("a", group="train"))
    key = GangKey("PodGroup", "team", "train")
    assert gangs.of(member) == key
    assert gangs.state(key).problem == (
        "PodGroup team/train does not exist; create it, or take the pods out of the group"
    )
    gangs.group_changed("PodGroup", None, pod_group())
    assert (gangs.state(key).min_count, gangs.state(key).missing, gangs.state(key).uid) == (3, 2, "g1")
    gangs.group_changed("PodGroup", pod_group(), None)
    assert "does not exist" in gangs.state(key).problem
    gangs.pod_changed(member, None)
    assert key not in gangs
    assert not gangs.keys()


def test_pods_of_a_basic_group_are_scheduled_one_by_one():
    gangs = fed(member := pod("a", group="train"), groups=[pod_group(basic=True)])
    assert gangs.of(member) is None
    assert gangs.keys() == []


@pytest.mark.parametrize(
    ("gangs", "key", "problem"),
    [
        (
            fed(pod("a", group="train"), groups=[pod_group(min_count=0)]),
            GangKey("PodGroup", "team", "train"),
            "PodGroup team/train has spec.schedulingPolicy.gang.minCount 0; set it to the number of pods that must run together, 1 or more",
        ),
        (
            fed(
                pod("a", labels={names.COSCHEDULING_GROUP: "train"}),
                groups=[MinMemberPodGroup(metadata=ObjectMeta(name="train", namespace="team"))],
                source="coscheduling",
            ),
            GangKey("coscheduling", "team", "train"),
            "PodGroup (scheduling.x-k8s.io) team/train has spec.minMember 0; set it to the number of pods that must run together, 1 or more",
        ),
        (
            fed(pod("a", labels={names.POD_GROUP_NAME: "train"})),
            GangKey("labels", "team", "train"),
            (
                "Pod team/a of gang team/train lacks pod-group.scheduling.sigs.k8s.io/min-available; "
                "set it to the number of pods that must run together, 1 or more"
            ),
        ),
        (
            fed(pod("a", labels=LABELS | {names.POD_GROUP_MIN_AVAILABLE: "many"})),
            GangKey("labels", "team", "train"),
            (
                "Pod team/a of gang team/train has pod-group.scheduling.sigs.k8s.io/min-available: 'many'; "
                "set it to the number of pods that must run together, 1 or more"
            ),
        ),
        (
            fed(pod("a", labels=LABELS), pod("b", labels=LABELS | {names.POD_GROUP_MIN_AVAILABLE: "4"})),
            GangKey("labels", "team", "train"),
            (
                "pods of gang team/train disagree about pod-group.scheduling.sigs.k8s.io/min-available "
                "(team/a says 3, team/b says 4); give all of them one value"
            ),
        ),
        (
            fed(pod("a", labels=LABELS), pod("b", labels=LABELS, scheduler="mine")),
            GangKey("labels", "team", "train"),
            (
                "pods of gang team/train have different schedulers (team/a: default-scheduler, team/b: mine); "
                "set one spec.schedulerName for all"
            ),
        ),
        (
            fed(pod("a", group="train", priority=7), groups=[pod_group(priority=5)]),
            GangKey("PodGroup", "team", "train"),
            (
                "pod team/a has priority 7 and PodGroup team/train has 5; "
                "kube-scheduler never places such a group: use one priorityClassName for both"
            ),
        ),
    ],
)
def test_a_group_that_nobody_can_place_says_why(gangs, key, problem):
    assert gangs.state(key).problem == problem


def test_a_group_of_an_api_that_is_not_served_says_how_to_get_it():
    gangs = fed(pod("a", labels={names.COSCHEDULING_GROUP: "train"}))
    gangs.set_readable("coscheduling", False)
    assert "install the CRD podgroups.scheduling.x-k8s.io" in (
        gangs.state(GangKey("coscheduling", "team", "train")).problem
    )


def test_mixed_priorities_are_a_problem_since_1_37_only():
    gangs = fed(pod("a", group="train", priority=7), groups=[pod_group(priority=5)])
    gangs.set_version(1, 36)
    state = gangs.state(GangKey("PodGroup", "team", "train"))
    assert (state.problem, state.priority) == ("", 7)


def test_topology_is_read_from_the_group_and_from_annotations_required_first():
    annotations = {names.GANG_TOPOLOGY_KEY: "rack", names.KUEUE_REQUIRED_TOPOLOGY: "block"}
    gangs = fed(pod("a", group="train", annotations=annotations), groups=[pod_group(topology=["zone"])])
    found = gangs.state(GangKey("PodGroup", "team", "train")).topology
    assert [(each.key, each.required) for each in found] == [("zone", True), ("block", True), ("rack", False)]
    assert found[0].source == "PodGroup team/train spec.schedulingConstraints.topology[0].key"


def test_min_member_of_coscheduling_counts():
    group = MinMemberPodGroup(metadata=ObjectMeta(name="train", namespace="team"), spec=MinMemberSpec(min_member=2))
    gangs = fed(pod("a", labels={names.COSCHEDULING_GROUP: "train"}), groups=[group], source="coscheduling")
    state = gangs.state(GangKey("coscheduling", "team", "train"))
    assert (state.min_count, state.missing) == (2, 1)
    assert replace(state, bound=2).least == 0
