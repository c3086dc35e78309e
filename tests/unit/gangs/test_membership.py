"""Which gang a pod is a member of, and what is known of each."""

import sys
import typing

import msgspec
import pytest
from msgspec.structs import replace

from controller.gangs import OPTIONAL_SOURCES, GangKey, Gangs, Source, gang_of
from hami_dra.api import names
from hami_dra.api.core import Pod, PodSchedulingGroup, PodSpec, PodStatus
from hami_dra.api.meta import Condition, ObjectMeta, OwnerReference
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


def _time(minute):
    return f"2026-01-01T00:{minute:02d}:00Z"


def pod(
    name,
    *,
    group="",
    labels=None,
    annotations=None,
    node="",
    phase="",
    priority=0,
    scheduler="default-scheduler",
    created=None,
    placed=None,
    owner="",
    deleted=False,
):
    meta = ObjectMeta(
        name=name,
        namespace="team",
        uid=f"uid-{name}",
        creation_timestamp=_time(created) if created is not None else f"2026-01-01T00:00:{len(name):02d}Z",
        deletion_timestamp=_time(59) if deleted else None,
        owner_references=(OwnerReference(uid=owner, controller=True),) if owner else (),
        labels=labels or {},
        annotations=annotations or {},
    )
    scheduling_group = PodSchedulingGroup(pod_group_name=group) if group else None
    spec = PodSpec(node_name=node, priority=priority, scheduler_name=scheduler, scheduling_group=scheduling_group)
    conditions = (
        () if placed is None else (Condition(type="PodScheduled", status="True", last_transition_time=_time(placed)),)
    )
    return Pod(metadata=meta, spec=spec, status=PodStatus(phase=phase, conditions=conditions))


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


KEY = GangKey("labels", "team", "train")


def test_members_are_counted_as_they_are_bound_and_end():
    gangs = fed(*(pod("p" * n, labels=LABELS) for n in (3, 1, 2)))
    state = gangs.state(KEY)
    assert [each.metadata.name for each in state.members] == ["p", "pp", "ppp"]
    assert (state.min_count, state.least, state.missing, state.problem) == (3, 3, 0, "")
    bound = pod("p", labels=LABELS, node="n0")
    gangs.pod_changed(pod("p", labels=LABELS), bound)
    assert (gangs.state(KEY).bound, gangs.state(KEY).least) == (1, 2)
    gangs.pod_changed(bound, done := pod("p", labels=LABELS, node="n0", phase="Succeeded"))
    assert (gangs.state(KEY).bound, gangs.state(KEY).succeeded, gangs.state(KEY).missing) == (0, 0, 1)
    gangs.pod_changed(pod("pp", labels=LABELS), pod("pp", labels=LABELS, node="n1"))
    assert gangs.state(KEY).missing == 1, "p began before those that run, so it may be of another run"
    gangs.pod_changed(done, None)
    assert gangs.state(KEY).missing == 1


def test_a_member_that_is_deleted_is_no_member_any_more_wherever_it_is():
    """Its successor may exist already, and the others of its gang be gone before it."""
    gangs = fed(
        pod("p", labels=LABELS, node="n0", deleted=True),
        pod("q", labels=LABELS, node="n1", deleted=True, phase="Succeeded"),
        pod("r", labels=LABELS, deleted=True),
        pod("s", labels=LABELS, node="n2"),
        pod("t", labels=LABELS),
    )
    state = gangs.state(KEY)
    assert {each.metadata.name for each in state.members} == {"s", "t"}
    assert (state.bound, state.succeeded, state.least, state.missing) == (1, 0, 2, 1)


def done(name, created, placed, owner="", **options):
    return pod(name, labels=LABELS, created=created, placed=placed, owner=owner, phase="Succeeded", **options)


@pytest.mark.parametrize(
    ("finished", "waiting", "counted"),
    [
        ([done("a", 1, 2, "job-1"), done("b", 1, 2, "job-1")], [("c", 9, "job-1")], 2),
        ([done("a", 1, 2, "job-1"), done("b", 1, 2, "job-1")], [("c", 9, "job-2")], 0),  # a CronJob's next Job
        ([done("a", 1, 4, "job-1"), done("b", 3, 4, "job-2")], [("c", 9, "job-2")], 2),  # a leader and workers
        ([done("a", 1, 9, "job-1")], [("c", 9, "job-2")], 0),
        ([done("a", 1, 2, "job-1"), done("b", 3, 4, "job-2")], [("c", 9, "job-2")], 1),
        ([done("a", 1, 2, "job-1"), done("b", 1, 2, "job-1")], [("c", 9, "job-1"), ("d", 9, "job-2")], 0),
        ([done("a", 1, 2), done("b", 1, 2)], [("c", 9, "")], 0),  # nothing says that they are of one run
        ([done("a", 1, 2), done("b", 1, 2)], [("c", 9, "job-1")], 0),
    ],
)
def test_members_that_ended_well_count_for_those_of_their_run(finished, waiting, counted):
    pending = [pod(name, labels=LABELS, created=created, owner=owner) for name, created, owner in waiting]
    state = fed(*finished, *pending).state(KEY)
    assert state.succeeded == counted
    assert state.missing == 3 - counted - len(pending)


def test_the_jobs_of_a_jobset_are_of_one_run():
    jobset = {"labels": LABELS | {names.JOBSET_UID: "set-1"}}
    leader = pod("a", created=1, placed=1, owner="job-1", phase="Succeeded", **jobset)
    worker = pod("b", created=1, owner="job-2", **jobset)
    assert fed(leader, worker).state(KEY).succeeded == 1


def test_those_that_ended_well_only_stand_in_for_members_that_do_not_exist():
    """Of 3 that must run, 2 exist: both at once. The third came in the meantime: all three."""
    finished = [done(name, 1, 2, "job") for name in "abcd"]
    waiting = [pod(name, labels=LABELS, created=9, owner="job") for name in "efg"]
    assert [fed(*finished, *waiting[:n]).state(KEY).least for n in (1, 2, 3)] == [1, 2, 3]


def test_a_pod_without_a_controller_is_of_the_run_of_its_group_or_of_a_member_that_runs():
    group = msgspec.structs.replace(
        pod_group(), metadata=ObjectMeta(name="train", namespace="team", uid="g", creation_timestamp=_time(5))
    )
    earlier, later = (
        pod(name, group="train", created=1, placed=at, phase="Succeeded") for name, at in (("a", 4), ("b", 6))
    )
    waits = pod("c", group="train", created=9)
    assert fed(earlier, later, waits, groups=[group]).state(GangKey("PodGroup", "team", "train")).succeeded == 1
    runs = pod("r", labels=LABELS, created=3, node="n0")
    assert fed(done("a", 1, 2), done("b", 3, 4), runs, pod("c", labels=LABELS, created=9)).state(KEY).succeeded == 1


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
    annotations = {names.GANG_TOPOLOGY_KEY: "rack", names.KUEUE_REQUIRED_TOPOLOGY: "zone"}
    gangs = fed(pod("a", group="train", annotations=annotations), groups=[pod_group(topology=["zone"])])
    found = gangs.state(GangKey("PodGroup", "team", "train")).topology
    assert [(each.key, each.required) for each in found] == [("zone", True), ("rack", False)]
    assert found[0].source == "PodGroup team/train spec.schedulingConstraints.topology[0].key"


def test_min_member_of_coscheduling_counts():
    group = MinMemberPodGroup(metadata=ObjectMeta(name="train", namespace="team"), spec=MinMemberSpec(min_member=2))
    gangs = fed(pod("a", labels={names.COSCHEDULING_GROUP: "train"}), groups=[group], source="coscheduling")
    state = gangs.state(GangKey("coscheduling", "team", "train"))
    assert (state.min_count, state.missing) == (2, 1)
    assert replace(state, bound=2).least == 0


def test_no_two_gangs_are_named_alike():
    assert len({str(GangKey(source, "team", "train")) for source in typing.get_args(Source)}) == 6


def stated(**annotations):
    return {getattr(names, name): key for name, key in annotations.items()}


@pytest.mark.parametrize(
    ("members", "problem"),
    [
        ([stated(KUEUE_REQUIRED_TOPOLOGY="a"), stated(KUEUE_REQUIRED_TOPOLOGY="a"), {}], ""),
        (
            [stated(KUEUE_REQUIRED_TOPOLOGY="a"), stated(KUEUE_REQUIRED_TOPOLOGY="b")],
            (
                "gang team/train requires more than one topology key (annotation kueue.x-k8s.io/podset-required-topology of "
                "pod team/p0 says a, annotation kueue.x-k8s.io/podset-required-topology of pod team/p1 says b); require one "
                "key for all its pods"
            ),
        ),
        ([stated(KUEUE_PREFERRED_TOPOLOGY=key) for key in "abc"], ""),
        (
            [stated(KUEUE_PREFERRED_TOPOLOGY=f"a{at}", GANG_TOPOLOGY_KEY=f"b{at}") for at in range(500)],
            (
                "gang team/train prefers more than 3 topology keys (annotation kueue.x-k8s.io/podset-preferred-topology of "
                "pod team/p0 says a0, annotation kueue.x-k8s.io/podset-preferred-topology of pod team/p1 says a1, annotation "
                "kueue.x-k8s.io/podset-preferred-topology of pod team/p2 says a2, and more); give all its pods the same ones, "
                "at most 3"
            ),
        ),
    ],
)
def test_a_gang_has_one_required_and_few_preferred_topology_keys(members, problem):
    gangs = fed(*(pod(f"p{at}", labels=LABELS, annotations=each) for at, each in enumerate(members)))
    state = gangs.state(GangKey("labels", "team", "train"))
    assert state.problem == problem
    assert len(state.topology) <= 4


def test_a_disagreement_names_three_pods():
    gangs = fed(*(pod(f"p{at}", labels=LABELS | {names.POD_GROUP_MIN_AVAILABLE: f"{at + 1}"}) for at in range(500)))
    assert gangs.state(GangKey("labels", "team", "train")).problem == (
        "pods of gang team/train disagree about pod-group.scheduling.sigs.k8s.io/min-available "
        "(team/p0 says 1, team/p1 says 2, team/p2 says 3, and 497 more); give all of them one value"
    )


def test_what_a_member_states_counts_as_long_as_it_is_there():
    other = pod("b", labels=LABELS | {names.POD_GROUP_MIN_AVAILABLE: "4"}, scheduler="mine", priority=9)
    gangs, key = fed(pod("a", labels=LABELS), other), GangKey("labels", "team", "train")
    assert gangs.state(key).problem
    assert gangs.age_and_priority(key) == ("2026-01-01T00:00:01Z", 9)
    gangs.pod_changed(other, None)
    assert not gangs.state(key).problem
    assert gangs.age_and_priority(key) == ("2026-01-01T00:00:01Z", 0)
    assert gangs.has_members(key)


def calls_of(work):
    """Number of calls of Python functions that the work makes."""
    count = 0

    def note(_frame, event, _argument):
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("disagree", [False, True])
def test_an_event_costs_the_same_however_many_members_there_are(disagree):
    key = GangKey("labels", "team", "train")

    def live_and_die(many):
        labels = [LABELS | {names.POD_GROUP_MIN_AVAILABLE: str(9_999 + at * disagree)} for at in range(many)]
        pods = [pod(f"p{at:05}", labels=each) for at, each in enumerate(labels)]
        gangs = Gangs()

        def look():
            gangs.first_waiting(key, {"default-scheduler"})
            gangs.age_and_priority(key)
            assert gangs.cannot_run(key) is (len(gangs.members(key)) > 64)

        for each in pods:
            gangs.pod_changed(None, each)
            look()
        for each in pods:
            gangs.pod_changed(each, None)
            look()

    few, many = calls_of(lambda: live_and_die(100)), calls_of(lambda: live_and_die(800))
    assert many < 8 * few * 1.3
