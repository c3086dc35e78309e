"""Preemption on a real control plane: who goes, who stays, and that what is freed is the preemptor's.

kube-scheduler preempts for CPU and memory, never for devices: the control at the end. Faults at every write and long waits are played in
virtual time (tests/unit/reconcile/preemption); here what only real components show: rights, the eviction API with its
budgets, kube-scheduler beside it, workloads that replace their pods.
"""

import contextlib

import pytest

from hack.controlplane.variants import GANGS, GANGS_1_36
from hack.installation import QUICK
from hami_dra.api import names
from tests.e2e.holder import Holder
from tests.e2e.lab import T4
from tests.e2e.objects import (
    budget,
    claim,
    cpu,
    deployment,
    device_class,
    jobset,
    pod,
    priority_class,
    request,
    template,
)
from tests.support.gang_objects import in_labelled_group, in_pod_group, named, pod_group

on_1_36 = pytest.mark.on_1_36
ON = (*QUICK, "--preemption=devices")
PRIORITIES = {"low": 10, "middle": 100, "high": 1000}
PAIRS = "v100-pairs-8"
FOREIGN = "gpu.nvidia.com"


@pytest.fixture(scope="module")
def hami(control_plane, make_installation):
    """With the rights for all of preemption; what a controller uses of them is its flags' business."""
    installation = make_installation(preemption="best-effort")
    installation.start_controller(*ON)
    installation.wait_ready()
    return installation


@pytest.fixture
def lab(lab):
    """With a PriorityClass for each of PRIORITIES and templates of one, two and four whole cards."""
    for name, value in PRIORITIES.items():
        lab.create(priority_class(name, value))
    lab.create(priority_class("peaceful", PRIORITIES["high"], preemptionPolicy="Never"))
    lab.create(*(template(name, request(count=count)) for name, count in (("card", 1), ("half", 2), ("node", 4))))
    return lab


def of(priority, name="", of="half", **options):
    """A pod of a priority with devices of a template."""
    return pod(name, templates=[of], priorityClassName=priority, **options)


def on(node, priority, name, of="half", **options):
    """The same, for one node."""
    return pod(
        name, templates=[of], priorityClassName=priority, nodeSelector={"kubernetes.io/hostname": node}, **options
    )


def run(lab, *pods):
    lab.create(*pods)
    lab.wait_running(names=[each["metadata"]["name"] for each in pods])


def names_of(lab):
    return {each["metadata"]["name"] for each in lab.pods()}


def evicted(lab):
    return sorted(event["regarding"]["name"] for event in lab.events(reason="Preempted"))


def check_evicted(lab, *pods):
    """These and no others. Events are written beside the decisions: the last of them may come after the preemptor runs."""
    lab.api.wait_for(f"events of the evictions of {pods}", lambda: {*pods} <= {*evicted(lab)})
    assert evicted(lab) == sorted(pods)


def wait_allowed(lab, name, evictions):
    path = f"/apis/policy/v1/namespaces/{lab.namespace}/poddisruptionbudgets/{name}"

    def allowed():
        status = lab.api.get(path).get("status", {})
        return status.get("observedGeneration") == 1 and status["disruptionsAllowed"] == evictions

    lab.api.wait_for(f"budget {name} to allow {evictions}", allowed)


@contextlib.contextmanager
def slow_to_end(lab):
    """Pods that are deleted terminate for as long as this lasts."""
    lab.plane.nodes.run_pods = False
    try:
        yield
    finally:
        lab.plane.nodes.run_pods = True


# --- who goes ----------------------------------------------------------------------------------------------------------------


@on_1_36
def test_the_cheaper_tenant_goes_and_what_replaces_it_waits_behind(lab):
    """A Deployment makes its replica anew: it gets no device before the preemptor has gone again."""
    lab.machines(T4, "n0")
    lab.create(deployment("service", 1, of("low")))
    lab.wait_running(1)
    (replica,) = names_of(lab)
    run(lab, of("middle", "batch"))
    lab.create(of("high", "urgent"))
    lab.wait_running(names=["urgent", "batch"])
    check_evicted(lab, replica)
    note = lab.wait_event("urgent", "Preempting")
    assert f"evicts 1 pod of lower priority ({replica}) on node n0" in note
    (event,) = lab.events(replica, reason="Preempted")
    assert event["note"] == f"Preempted by pod {lab.pod('urgent')['metadata']['uid']} on node n0"
    (successor,) = names_of(lab) - {"urgent", "batch"}
    lab.wait_event(successor, "FilteringFailed")
    lab.delete_pod("urgent")
    lab.wait_running(names=["batch", successor])
    check_evicted(lab, replica)
    assert lab.overcommitted() == []


@on_1_36
def test_nobody_goes_for_an_equal_a_lower_or_a_peaceful_one_nor_who_says_no(lab):
    lab.machines(T4, "n0")
    run(lab, of("low", "first"), of("middle", "second", annotations={names.PREEMPTIBLE: "false"}))
    lab.create(of("low", "equal"), of("peaceful", "peaceful"), of("high", "whole", of="node"))
    for name in ("equal", "peaceful", "whole"):
        lab.wait_event(name, "FilteringFailed")
    # the last one is decided now, and with it all before it
    lab.create(on("n0", "high", "last"))
    lab.wait_running(names=["second", "last"])
    check_evicted(lab, "first")
    assert names_of(lab) == {"second", "equal", "peaceful", "whole", "last"}


def test_budgets_are_respected_also_where_two_are_in_the_way(lab):
    """No eviction for the pods of `web`; those of `twice` are under two budgets, which the Eviction API answers with an error."""
    lab.machines(T4, "n0", "n1", "n2")
    run(
        lab,
        on("n0", "low", "web", of="node", labels={"app": "web"}),
        on("n1", "low", "twice", of="node", labels={"app": "twice"}),
        on("n2", "middle", "free", of="node"),
    )
    # the disruption controller tells one budget of a pod only; each looks at its pods when it is new
    lab.create(budget("web", "web", 1), budget("one", "twice", 0), budget("other", "twice", 0))
    wait_allowed(lab, "web", 0)
    wait_allowed(lab, "one", 1)
    wait_allowed(lab, "other", 1)
    run(lab, of("high", "urgent", of="node"))
    check_evicted(lab, "free")
    lab.create(of("high", "second", of="node"))
    lab.wait_event("second", "FilteringFailed")
    check_evicted(lab, "free")
    lab.api.remove({**budget("other", "twice", 0), "metadata": {"namespace": lab.namespace, "name": "other"}})
    lab.wait_running(names=["web", "urgent", "second"])
    check_evicted(lab, "free", "twice")
    assert lab.overcommitted() == []


def test_a_budget_that_is_used_up_just_before_the_eviction_spares_the_victim(lab):
    """The API server answers 429; what somebody else's eviction left is taken in its place."""
    lab.machines(T4, "n0", "n1")
    pods = [
        on(f"n{i}", priority, f"web-{i}", of="node", labels={"app": "web"})
        for i, priority in enumerate(("low", "middle"))
    ]
    run(lab, *pods)
    lab.create(budget("web", "web", 1))
    wait_allowed(lab, "web", 1)
    with Holder(lab.plane, "pods/eviction") as holder:
        holder.arm()
        lab.create(of("high", "urgent", of="node"))
        holder.wait_caught()
        assert lab.pod("urgent")["status"]["nominatedNodeName"] == "n0"
        lab.api.create(f"{lab.pods_path}/web-1/eviction", {"metadata": {"name": "web-1"}})
        holder.let_go()
        lab.wait_running(names=["urgent", "web-0"])
    assert lab.placement("urgent").node == "n1"
    check_evicted(lab)
    assert names_of(lab) == {"urgent", "web-0"}


@on_1_36
def test_best_effort_deletes_where_nothing_else_helps(lab):
    lab.machines(T4, "n0")
    lab.create(budget("web", "web", 1))
    run(lab, of("low", "web", of="node", labels={"app": "web"}))
    wait_allowed(lab, "web", 0)
    with lab.other_controller(*ON, "--preemption-pdb=best-effort"):
        run(lab, of("high", "urgent", of="node"))
    check_evicted(lab, "web")


def test_all_pods_of_a_claim_and_all_members_of_a_gang_go_together(lab):
    lab.machines(T4, "n0", "n1", "n2")
    lab.create(claim("shared", request(count=4)))
    sharing = named(pod(claims=["shared"], priorityClassName="low"), "s-0", "s-1", "s-2")
    run(lab, *(each | {"spec": {**each["spec"], "nodeSelector": {"kubernetes.io/hostname": "n0"}}} for each in sharing))
    gang = [in_labelled_group(on(node, "middle", f"g-{node}", of="node"), "g", 2) for node in ("n1", "n2")]
    run(lab, *gang)
    run(lab, of("high", "first", of="node"))
    check_evicted(lab, "s-0", "s-1", "s-2")
    run(lab, of("high", "second", of="node"))
    check_evicted(lab, "g-n1", "g-n2", "s-0", "s-1", "s-2")
    lab.api.wait_for("the gang's end", lambda: names_of(lab) == {"first", "second"})
    assert lab.overcommitted() == []


def test_victims_are_those_whose_cards_are_linked(lab):
    """Eight cards in pairs, a tenant on each: any two leave two cards, a required topology needs the two of a pair."""
    lab.machines(PAIRS, "n0")
    tenants = named(of("low", of="card"), *(f"t{i}" for i in range(8)))
    run(lab, *tenants)
    cards = {each.pod: each.devices for each in lab.placements()}
    required = {"hami.io/gpu-topology": "required"}
    whole = request(device_class="nvidia-gpu.hami.io", count=2)
    lab.create(template("linked", whole, annotations=required))
    run(lab, of("high", "linked", of="linked"))
    lab.api.wait_for("two evictions", lambda: len(evicted(lab)) > 1)
    victims = evicted(lab)
    assert len(victims) == 2
    assert sorted(lab.placement("linked").devices) == sorted(device for each in victims for device in cards[each])


@on_1_36
def test_a_gang_takes_as_many_nodes_as_it_needs_and_is_repaired_on_a_spare(lab):
    lab.machines(T4, "n0", "n1", "n2")
    run(lab, on("n0", "low", "a", of="node"), on("n1", "low", "b", of="node"), on("n2", "middle", "c", of="node"))
    run(lab, *(in_labelled_group(of("high", f"g-{i}", of="node"), "g", 2) for i in range(2)))
    check_evicted(lab, "a", "b")
    assert names_of(lab) == {"g-0", "g-1", "c"}
    lab.machines(T4, "spare", labels={names.SPARE: "true"})
    lab.create(of("low", "waits", of="node"))
    assert "NodeIsSpare" in lab.wait_event("waits", "FilteringFailed", "spare")
    run(lab, of("low", "guest", of="node", annotations={names.PREEMPTIBLE: "true"}))
    lost = lab.pod("g-1")["spec"]["nodeName"]
    lab.api.patch(f"/api/v1/nodes/{lost}", {"spec": {"unschedulable": True}})
    lab.delete_pod("g-1")
    run(lab, in_labelled_group(of("high", "g-2", of="node"), "g", 2))
    check_evicted(lab, "a", "b", "guest")
    assert lab.pod("g-2")["spec"]["nodeName"] == "spare"
    assert not lab.pod("waits")["spec"].get("nodeName")
    assert lab.overcommitted() == []


@pytest.mark.usefixtures("jobset_controller")
def test_a_jobset_goes_as_a_whole_and_comes_back_when_there_is_room(lab):
    """Its controllers make both pods anew, which wait: half of them would have room."""
    lab.machines(T4, "n0")
    workload = lab.create(jobset("train", 2, templates=["half"], priorityClassName="low"))
    try:
        lab.wait_running(2)
        run(lab, of("high", "urgent"))
        lab.api.wait_for("both evictions", lambda: len(evicted(lab)) == 2)
        lab.api.wait_for("two others", lambda: len(names_of(lab)) == 3)
        for name in names_of(lab) - {"urgent"}:
            lab.wait_event(name, "FilteringFailed")
        assert [each.pod for each in lab.placements()] == ["urgent"]
        lab.delete_pod("urgent")
        lab.wait_running(2)
        assert len(evicted(lab)) == 2
        assert lab.overcommitted() == []
    finally:
        lab.api.remove(workload, propagationPolicy="Foreground")


# --- beside kube-scheduler's own preemption of groups --------------------------------------------------------------------------


@pytest.mark.kubernetes(GANGS, GANGS_1_36)
def test_a_pod_group_takes_its_victims_once(lab):
    """For the CPU that it needs kube-scheduler might evict as well: it never sees the group before there is room."""
    lab.machines(T4, "n0", "n1", "n2")
    tenants = [on(f"n{i}", "low", f"t-{i}", of="node", resources=cpu("60")) for i in range(2)]
    run(lab, *tenants, on("n2", "middle", "t-2", of="node", resources=cpu("60")))
    lab.create(pod_group("g", 2, version=lab.plane.version, priority_class="high"))
    run(lab, *(in_pod_group(of("high", f"g-{i}", of="node", resources=cpu("60")), "g") for i in range(2)))
    check_evicted(lab, "t-0", "t-1")
    assert names_of(lab) == {"g-0", "g-1", "t-2"}
    assert lab.overcommitted() == []


@pytest.mark.kubernetes(GANGS)  # 1.36 drops disruptionMode without a gate of its own
def test_a_pod_group_that_is_disrupted_as_a_whole_goes_as_one(lab):
    """All four members, though three would be enough for it, and one for the preemptor."""
    lab.machines(T4, "n0")
    group = pod_group("g", 3, version=lab.plane.version, all_or_none_disrupted=True, priority_class="low")
    lab.create(group)
    members = [f"g-{i}" for i in range(4)]
    run(lab, *(in_pod_group(of("low", name, of="card"), "g") for name in members))
    run(lab, of("high", "urgent", of="card"))
    check_evicted(lab, *members)
    lab.api.wait_for("the group's end", lambda: names_of(lab) == {"urgent"})


# --- while it lasts ----------------------------------------------------------------------------------------------------------


@on_1_36
def test_while_the_victim_terminates_its_place_is_nobody_elses(lab):
    """The preemptor keeps its gate and is nominated: neither its cards nor its CPU go to another, of higher priority than the victim."""
    lab.machines(T4, "n0")
    run(lab, of("low", "victim", of="node"))
    with slow_to_end(lab):
        lab.create(of("high", "urgent", of="node", resources=cpu("60")))
        lab.api.wait_for("the eviction", lambda: "deletionTimestamp" in lab.pod("victim")["metadata"])
        lab.create(pod("plain", resources=cpu("60"), priorityClassName="middle"), of("middle", "rival"))
        lab.api.wait_for("kube-scheduler's refusal", lambda: "Insufficient cpu" in lab.refusal("plain"))
        lab.wait_event("rival", "FilteringFailed")
        urgent = lab.pod("urgent")
        assert urgent["status"]["nominatedNodeName"] == "n0"
        assert [gate["name"] for gate in urgent["spec"]["schedulingGates"]] == [names.GATE]
    lab.wait_running(names=["urgent"])
    assert lab.placement("urgent").node == "n0"
    assert names_of(lab) == {"urgent", "plain", "rival"}
    check_evicted(lab, "victim")


@pytest.mark.soak  # a minute of waiting; in virtual time it is in tests/unit/reconcile/preemption
def test_a_victim_that_does_not_end_is_given_up_after_its_time(lab):
    lab.machines(T4, "n0", "n1")
    run(
        lab, on("n0", "low", "stays", of="node", terminationGracePeriodSeconds=1), on("n1", "middle", "goes", of="node")
    )
    finalizer = ["example.com/stays"]
    lab.api.patch(f"{lab.pods_path}/stays", {"metadata": {"finalizers": finalizer}})
    try:
        lab.create(of("high", "urgent", of="node"))
        lab.wait_running(names=["urgent"], seconds=120)
        assert lab.placement("urgent").node == "n1"
        check_evicted(lab, "goes", "stays")
    finally:
        lab.api.patch(f"{lab.pods_path}/stays", {"metadata": {"finalizers": None}})


def test_two_preemptors_have_a_victim_each_beside_one_of_kube_scheduler(lab):
    """At once: two pods for cards, and one for the CPU of the same node, for which kube-scheduler preempts."""
    lab.machines(T4, "n0")
    run(lab, of("low", "a"), of("low", "b"), pod("burner", resources=cpu("60"), priorityClassName="low"))
    lab.create(
        of("high", "first"), of("high", "second"), pod("cruncher", resources=cpu("60"), priorityClassName="high")
    )
    lab.wait_running(names=["first", "second", "cruncher"])
    assert names_of(lab) == {"first", "second", "cruncher"}
    check_evicted(lab, "a", "b", "burner")
    assert lab.overcommitted() == []


def test_cpu_that_it_needs_is_freed_with_the_cards(lab):
    lab.machines(T4, "n0")
    run(lab, of("low", "cards", of="node"), pod("burner", resources=cpu("60"), priorityClassName="low"))
    run(lab, of("high", "urgent", of="node", resources=cpu("60")))
    check_evicted(lab, "burner", "cards")
    assert lab.bound_by("urgent") == "default-scheduler"


def test_an_autoscaler_may_act_first(lab):
    """For the delay the pod is visibly Unschedulable, without gate and nomination; a node that comes then spares the tenant."""
    lab.machines(T4, "n0")
    run(lab, of("low", "tenant", of="node"))
    lab.create(of("high", "urgent", of="node", annotations={names.PREEMPTION_DELAY: "30m"}))
    assert "no pod is evicted for it before" in lab.wait_event("urgent", "PreemptionDelayed")
    lab.api.wait_for("kube-scheduler's refusal", lambda: lab.refusal("urgent"))
    assert "nominatedNodeName" not in lab.pod("urgent")["status"]
    lab.machines(T4, "n1")
    lab.wait_running(names=["tenant", "urgent"])
    check_evicted(lab)


# --- a leader that is killed ---------------------------------------------------------------------------------------------------


@pytest.fixture
def controller(lab):
    """The controller's process, which is killed; afterwards there is one again."""
    process = lab.hami.programs["controller"].process
    yield process
    process.start()
    lab.hami.wait_ready()


@pytest.mark.parametrize(
    ("resource", "written"),
    [("pods/status", 0), ("pods/eviction", 0), ("pods/eviction", 1), ("resourceclaims/status", 0), ("pods", 0)],
    ids=["nomination", "first eviction", "second eviction", "allocation", "gate"],
)
def test_killed_at_a_write_it_evicts_no_other_pods(lab, controller, resource, written):
    lab.machines(T4, "n0", "n1")
    run(lab, *(on("n0", "low", name) for name in ("a", "b")), *(on("n1", "middle", name) for name in ("c", "d")))
    with Holder(lab.plane, resource) as holder:
        holder.arm(after=written)
        lab.create(of("high", "urgent", of="node"))
        holder.wait_caught()
        controller.kill()
        holder.drop()
    controller.start()
    lab.wait_running(names=["urgent", "c", "d"])
    assert names_of(lab) == {"urgent", "c", "d"}
    assert lab.overcommitted() == []


# --- controls ----------------------------------------------------------------------------------------------------------------


def test_control_without_preemption_it_waits(lab):
    lab.machines(T4, "n0")
    run(lab, of("low", "tenant", of="node"))
    with lab.other_controller(*QUICK):
        lab.create(of("high", "urgent", of="node"))
        lab.wait_event("urgent", "FilteringFailed")
        lab.api.wait_for("kube-scheduler's refusal", lambda: lab.refusal("urgent"))
        assert names_of(lab) == {"tenant", "urgent"}


def test_control_kube_scheduler_alone_starves_it(lab):
    """Cards of a driver that is not ours, with kube-scheduler's own allocation. On 1.36 the fleet's slices would carry the fence."""
    lab.machines(T4, "n0", publish_as=FOREIGN)
    lab.create(device_class("foreign", f"device.driver == '{FOREIGN}'"))
    lab.create(template("foreign", request(device_class="foreign", count=4)))
    run(lab, pod("tenant", templates=["foreign"], gated=False, priorityClassName="low"))
    lab.create(pod("urgent", templates=["foreign"], gated=False, priorityClassName="high"))
    lab.api.wait_for("kube-scheduler's refusal", lambda: "cannot allocate all claims" in lab.refusal("urgent"))
    assert "preemption: 0/1 nodes are available" in lab.refusal("urgent")
    assert lab.pod("tenant")["status"]["phase"] == "Running"
