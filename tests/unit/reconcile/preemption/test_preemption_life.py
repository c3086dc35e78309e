"""Pods of lower priority are evicted for one that finds no room, and what they free is given to nobody else."""

import pytest

from controller.decide import decide
from controller.preemption import Budgets
from controller.reconcile.preemption import preemptor
from hami_dra.api import kinds, names
from hami_dra.kube.protocol import Conflict, Protected, Unavailable
from tests.support.gang_objects import in_labelled_group
from tests.support.harness import play as play_scene
from tests.support.harness import pod, template
from tests.support.mortal import Mortal

QUICK = {"quiet_time": 0.0, "probe": False, "decide": decide}
ON = {**QUICK, "preemption": True}
BIG = 12
"""GiB of a card's 16: two do not fit on one."""


def play(story, **options):
    play_scene(story, **{"nodes": 1, "graceful": True, "node_options": {"cards": 1}, **ON, **options})


async def add(harness, name, priority, *, memory=BIG, labels=None, **options):
    await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template(name, memory))
    body = pod(name, templates=[name], gated=True, priority=priority, **options)
    body["metadata"]["labels"] = labels or {}
    await harness.add(kinds.POD, body)


async def names_of(harness):
    return {each.metadata.name for each in await harness.pods()}


async def fill(harness, *pod_names, priority=0, **options):
    for name in pod_names:
        await add(harness, name, priority, **options)
    await harness.bound(*pod_names)


BUDGET = {
    "metadata": {"name": "budget", "namespace": "default"},
    "spec": {"selector": {"matchLabels": {"app": "web"}}, "minAvailable": 1},
}


async def allow(harness, evictions):
    """What the disruption controller writes."""
    status = {
        "disruptionsAllowed": evictions,
        "currentHealthy": 1 + evictions,
        "desiredHealthy": 1,
        "expectedPods": 1 + evictions,
        "observedGeneration": 1,
    }
    await harness.cluster.patch(
        kinds.POD_DISRUPTION_BUDGET, "budget", {"status": status}, namespace="default", subresource="status"
    )


def test_a_pod_of_lower_priority_is_evicted_and_its_card_goes_to_the_preemptor():
    async def story(harness):
        await fill(harness, "low")
        await add(harness, "high", 1000)
        await harness.bound("high", seconds=10)
        assert await names_of(harness) == {"high"}
        (said,) = await harness.events("Preempting")
        assert said["regarding"]["name"] == "high"
        assert "evicts 1 pod of lower priority (low) on node n0" in said["note"]
        (evicted,) = await harness.events("Preempted")
        assert evicted["regarding"]["name"] == "low"
        assert "on node n0" in evicted["note"]
        assert harness.metric("hami_dra_evictions_total") == 1
        assert harness.metric("hami_dra_preemptions_total", result="begun") == 1
        assert harness.metric("hami_dra_preemptions_total", result="placed") == 1
        assert harness.metric("hami_dra_preemptions_total", result="given_up") == 0
        await harness.check_nothing_leaked()

    play(story)


@pytest.mark.parametrize("priority", [0, -1])
def test_nobody_is_evicted_for_a_pod_of_the_same_or_lower_priority(priority):
    async def story(harness):
        await fill(harness, "low")
        await add(harness, "late", priority)
        await harness.sleep(60)
        assert not await harness.node_of("late")
        assert await names_of(harness) == {"low", "late"}

    play(story)


def test_off_evicts_nobody():
    async def story(harness):
        await fill(harness, "low")
        await add(harness, "high", 1000)
        await harness.sleep(60)
        assert await harness.node_of("low")
        assert not await harness.node_of("high")

    play(story, preemption=False)


def test_what_is_freed_goes_to_the_preemptor_though_others_wait_and_come():
    """The victim's devices are free for seconds, while pods of its own priority wait for the same card."""

    async def story(harness):
        await fill(harness, "low")
        for number in range(3):
            await add(harness, f"waits-{number}", 5)
        await harness.cluster.patch(
            kinds.POD, "low", {"metadata": {"finalizers": ["example.com/slow"]}}, namespace="default"
        )
        await add(harness, "high", 1000)
        await harness.sleep(3)
        for number in range(3):
            await add(harness, f"comes-{number}", 5)
        assert (await harness.pod("low")).metadata.deletion_timestamp
        await harness.sleep(20)
        assert (await harness.pod("high")).spec.scheduling_gates
        assert (await harness.pod("high")).status.nominated_node_name == "n0"
        await harness.cluster.patch(kinds.POD, "low", {"metadata": {"finalizers": None}}, namespace="default")
        await harness.bound("high", seconds=10)
        assert [each.metadata.name for each in await harness.pods() if each.spec.node_name] == ["high"]
        assert harness.metric("hami_dra_evictions_total") == 1

    play(story)


@pytest.mark.parametrize(("cards", "cpu"), [(1, "1m"), (2, "8")])
def test_a_budget_that_allows_none_protects_and_one_that_changes_lets_go(cards, cpu):
    async def story(harness):
        await harness.add(kinds.POD_DISRUPTION_BUDGET, BUDGET)
        await allow(harness, 0)
        await fill(harness, "low", labels={"app": "web"}, cpu=cpu)
        await add(harness, "high", 1000, cpu=cpu)
        await harness.sleep(30)
        assert await names_of(harness) == {"low", "high"}
        await allow(harness, 1)
        await harness.bound("high", seconds=20)
        assert harness.metric("hami_dra_preemptions_total", result="given_up") == 0

    play(story, node_options={"cards": cards})


def test_budgets_are_read_once_for_all_units_until_one_changes(monkeypatch):
    read = []

    def budgets(*about, **options):
        read.append(about)
        return Budgets(*about, **options)

    monkeypatch.setattr(preemptor, "Budgets", budgets)

    async def story(harness):
        await harness.add(kinds.POD_DISRUPTION_BUDGET, BUDGET)
        await allow(harness, 0)
        await fill(harness, "low", labels={"app": "web"})
        for number in range(6):
            await add(harness, f"high-{number}", 1000 - number)
        await harness.sleep(30)
        assert len(read) == 1
        await allow(harness, 1)
        await harness.bound("high-0", seconds=20)
        assert len(read) <= 3

    play(story, node_options={"cards": 1})


NO_REVIEW = {"reconsider": 1e9}


def test_a_unit_is_planned_for_when_a_pod_has_run_as_long_as_it_must():
    async def story(harness):
        await fill(harness, "low", annotations={names.MIN_RUNTIME: "40s"})
        for number in range(2):
            await add(harness, f"high-{number}", 1000)
        await harness.sleep(35)
        assert await harness.node_of("low")
        await harness.sleep(15)
        assert [each.metadata.name for each in await harness.pods() if each.spec.node_name] == ["high-0"]

    play(story, **NO_REVIEW)


@pytest.mark.parametrize(("cards", "cpu"), [(1, "1m"), (2, "8")])
def test_every_unit_is_planned_for_again_when_a_pod_is_not_spared_any_more(cards, cpu):
    async def story(harness):
        await fill(harness, "low", cpu=cpu)
        harness.cluster.fail_next(Protected("evict pod: the budget allows none"), verb="evict")
        await add(harness, "high", 1000, cpu=cpu)
        await harness.sleep(5)
        await add(harness, "next", 500, cpu=cpu)
        await harness.sleep(5)
        await harness.delete_pod("high")
        await harness.sleep(40)
        assert await harness.node_of("low")
        await harness.bound("next", seconds=20)

    play(story, node_options={"cards": cards}, **NO_REVIEW)


def test_a_pod_that_never_preempts_hides_no_equal_one_that_does():
    """Equal pods that were refused are tried one for all, the most important one."""

    async def story(harness):
        await harness.add(kinds.POD_DISRUPTION_BUDGET, BUDGET)
        await allow(harness, 0)
        await fill(harness, "low", labels={"app": "web"})
        await add(harness, "never", 2000, preemptionPolicy="Never")
        await add(harness, "high", 1000)
        await harness.sleep(30)
        await allow(harness, 1)
        await harness.sleep(20)
        assert await names_of(harness) == {"never", "high"}

    play(story, **NO_REVIEW)


def test_what_happens_just_after_a_search_in_vain_is_not_missed():
    async def story(harness):
        await fill(harness, "kept-0", "kept-1", memory=4, annotations={names.PREEMPTIBLE: "false"})
        await fill(harness, "low", memory=8)
        await add(harness, "high", 1000, memory=16)
        await harness.sleep(60)
        await harness.delete_pod("kept-0")
        await harness.sleep(1)
        await harness.delete_pod("kept-1")
        await harness.bound("high", seconds=10)

    play(story, **NO_REVIEW)


def test_each_preemptor_has_a_victim_of_its_own():
    async def story(harness):
        await fill(harness, "low-0", "low-1", "low-2")
        for number in range(2):
            await add(harness, f"high-{number}", 1000)
        await harness.bound("high-0", "high-1", seconds=20)
        assert harness.metric("hami_dra_evictions_total") == 2
        assert len(await names_of(harness)) == 3

    play(story, nodes=3)


def test_a_pod_that_terminates_already_is_waited_for():
    async def story(harness):
        await fill(harness, "low", "other")
        await harness.cluster.patch(
            kinds.POD, "low", {"metadata": {"finalizers": ["example.com/slow"]}}, namespace="default"
        )
        await harness.delete_pod("low")
        await add(harness, "high", 1000)
        await harness.sleep(10)
        await harness.cluster.patch(kinds.POD, "low", {"metadata": {"finalizers": None}}, namespace="default")
        await harness.bound("high", seconds=10)
        assert harness.metric("hami_dra_evictions_total") == 0
        assert await harness.node_of("other")

    play(story, nodes=2)


def test_a_victim_that_does_not_end_is_given_up_and_another_one_is_evicted():
    async def story(harness):
        await fill(harness, "stuck", priority=1)
        await harness.cluster.patch(
            kinds.POD, "stuck", {"metadata": {"finalizers": ["example.com/never"]}}, namespace="default"
        )
        await add(harness, "high", 1000)
        await harness.sleep(20)
        await harness.add_node("n1", cards=1)
        await fill(harness, "low", priority=5)
        await harness.bound("high", seconds=200)
        assert await harness.node_of("high") == "n1"
        assert harness.metric("hami_dra_evictions_total") == 2

    play(story)


def test_a_preemptor_that_is_deleted_gives_its_place_back():
    async def story(harness):
        await fill(harness, "low")
        await harness.cluster.patch(
            kinds.POD, "low", {"metadata": {"finalizers": ["example.com/slow"]}}, namespace="default"
        )
        await add(harness, "high", 1000)
        await harness.sleep(5)
        await harness.delete_pod("high")
        await add(harness, "next", 0)
        await harness.cluster.patch(kinds.POD, "low", {"metadata": {"finalizers": None}}, namespace="default")
        await harness.bound("next", seconds=20)

    play(story)


def test_protected_pods_stay():
    async def story(harness):
        await fill(harness, "kept", annotations={names.PREEMPTIBLE: "false"})
        await add(harness, "high", 1000)
        await harness.sleep(30)
        assert await harness.node_of("kept")

    play(story)


def writes_of_a_whole_run():
    counted = []

    async def story(harness):
        await fill_by(harness, harness.cluster)
        mortal = Mortal(harness.cluster, 0, before=False)
        harness.start(through=mortal, **ON)
        await harness.bound("high")
        await harness.sleep(1)
        counted.append(mortal.writes)

    play(story, controller=False, nodes=2)
    return counted[0]


async def fill_by(harness, _cluster):
    first = harness.start(**ON)
    await fill(harness, "low-0", "low-1")
    await harness.stop(first)
    await add(harness, "high", 1000)


@pytest.mark.parametrize("before", [True, False])
def test_a_leader_that_dies_at_any_write_costs_no_second_victim(before):
    for at in range(1, writes_of_a_whole_run() + 1):

        async def story(harness, at=at):
            await fill_by(harness, harness.cluster)
            mortal = Mortal(harness.cluster, at, before=before)
            first = harness.start(through=mortal, **ON)

            async def dead():
                return mortal.dead.is_set()

            await harness.until(dead)
            await harness.stop(first)
            harness.start(**ON)
            await harness.bound("high")
            await harness.sleep(5)
            assert len(await names_of(harness)) == 2, f"write {at}"
            await harness.check_never_overcommitted()
            await harness.check_nothing_leaked()

        play(story, controller=False, nodes=2)


def test_a_victim_that_cannot_be_evicted_is_spared_and_another_one_is_evicted():
    async def story(harness):
        await fill(harness, "low", priority=0)
        await harness.add_node("n1", cards=1)
        await fill(harness, "next", priority=5)
        harness.cluster.fail_next(Protected("evict pod: the budget allows none"), verb="evict", name="low")
        await add(harness, "high", 1000)
        await harness.bound("high", seconds=20)
        assert await names_of(harness) == {"low", "high"}

    play(story)


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("error", [Unavailable("no answer"), Conflict("another UID, or changed meanwhile")])
def test_an_eviction_without_a_clear_answer_is_asked_for_again(error, applied):
    async def story(harness):
        await fill(harness, "low")
        harness.cluster.fail_next(error, verb="evict", applied=applied)
        await add(harness, "high", 1000)
        await harness.bound("high", seconds=30)
        assert len(await names_of(harness)) == 1

    play(story)


def test_a_unit_of_higher_priority_takes_a_place_that_is_held():
    async def story(harness):
        await fill(harness, "low")
        await harness.cluster.patch(
            kinds.POD, "low", {"metadata": {"finalizers": ["example.com/slow"]}}, namespace="default"
        )
        await add(harness, "high", 1000)
        await harness.sleep(5)
        await add(harness, "higher", 2000)
        await harness.sleep(5)
        await harness.cluster.patch(kinds.POD, "low", {"metadata": {"finalizers": None}}, namespace="default")
        await harness.bound("higher", seconds=20)
        await harness.sleep(30)
        assert not await harness.node_of("high")
        assert harness.metric("hami_dra_evictions_total") == 1

    play(story)


def test_a_gang_evicts_for_all_its_members_or_for_none():
    async def story(harness):
        await fill(harness, "low-0", "low-1")
        await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template("big", BIG))
        members = [pod(name, templates=["big"], gated=True, priority=1000) for name in ("a", "b")]
        await harness.add(kinds.POD, *(in_labelled_group(member, "team", 2) for member in members))
        await harness.bound("a", "b", seconds=60)
        assert await names_of(harness) == {"a", "b"}

    play(story, nodes=2)


def test_a_gang_is_evicted_as_a_whole_though_the_preemptor_runs_before():
    """The card of the first member is enough, and free while the eviction of the second one is tried again."""

    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template("big", BIG))
        for row in ("0", "1"):
            await harness.add_node(f"node-{row}", cards=1, labels={"row": row})
            member = pod(f"low-{row}", templates=["big"], gated=True, nodeSelector={"row": row})
            await harness.add(kinds.POD, in_labelled_group(member, "team", 2))
        await harness.bound("low-0", "low-1", seconds=60)
        harness.cluster.fail_next(Unavailable("no answer"), verb="evict", name="low-1")
        harness.cluster.fail_next(Unavailable("no answer"), verb="evict", name="low-1")
        await add(harness, "high", 1000, nodeSelector={"row": "0"})
        await harness.bound("high", seconds=20)
        await harness.sleep(20)
        assert await names_of(harness) == {"high"}
        assert harness.metric("hami_dra_evictions_total") == 2

    play(story, nodes=0)


def test_no_more_than_the_limit_are_evicted_in_a_minute():
    async def story(harness):
        await fill(harness, "low-0", "low-1", "low-2", cpu="1m")
        for number in range(3):
            await add(harness, f"high-{number}", 1000, cpu="1m")
        await harness.sleep(30)
        assert harness.metric("hami_dra_evictions_total") == 2
        await harness.bound("high-0", "high-1", "high-2", seconds=60)

    play(story, nodes=3, evictions_per_minute=2)


def test_a_pod_that_waits_for_the_limit_takes_room_before_pods_of_lower_priority():
    async def story(harness):
        await fill(harness, "low-0", "low-1")
        await add(harness, "high-0", 1000)
        await harness.bound("high-0", seconds=10)
        await add(harness, "high-1", 1000)
        await add(harness, "mid", 5)
        await harness.sleep(5)
        (low,) = [name for name in await names_of(harness) if name.startswith("low")]
        await harness.delete_pod(low)
        await harness.bound("high-1", seconds=10)
        assert harness.metric("hami_dra_evictions_total") == 1

    play(story, nodes=2, evictions_per_minute=1)


async def never_end(harness, *pod_names):
    for name in pod_names:
        patch = {"metadata": {"finalizers": ["example.com/never"]}}
        await harness.cluster.patch(kinds.POD, name, patch, namespace="default")


async def let_end(harness, *pod_names):
    for name in pod_names:
        await harness.cluster.patch(kinds.POD, name, {"metadata": {"finalizers": None}}, namespace="default")


def test_two_places_on_one_node_do_not_count_the_victims_of_each_other():
    async def story(harness):
        await fill(harness, "low-0", "low-1", cpu="4")
        await never_end(harness, "low-0", "low-1")
        for number in range(2):
            await add(harness, f"high-{number}", 1000, cpu="4")
        await harness.sleep(5)
        await let_end(harness, "low-0", "low-1")
        await harness.bound("high-0", "high-1", seconds=20)
        assert harness.metric("hami_dra_evictions_total") == 2
        assert harness.metric("hami_dra_preemptions_total", result="given_up") == 0

    play(story, node_options={"cards": 2})


def test_nobody_is_evicted_on_a_node_that_was_just_given_up():
    async def story(harness):
        await fill(harness, "stuck", priority=1)
        await fill(harness, "other", priority=5)
        await never_end(harness, "stuck")
        await add(harness, "high", 1000)

        async def given_up():
            return harness.metric("hami_dra_preemptions_total", result="given_up") == 1

        await harness.until(given_up)
        await harness.sleep(2)
        assert harness.metric("hami_dra_evictions_total") == 1
        await harness.bound("high", seconds=300)
        assert harness.metric("hami_dra_evictions_total") == 2
        assert harness.metric("hami_dra_preemptions_total", result="given_up") == 1

    play(story, node_options={"cards": 2})


def test_a_node_whose_victim_did_not_end_is_not_said_to_be_refused_by_kube_scheduler():
    async def story(harness):
        await fill(harness, "stuck")
        await never_end(harness, "stuck")
        await add(harness, "high", 1000)
        await harness.sleep(100)
        notes = [event["note"] for event in await harness.events() if event["regarding"].get("name") == "high"]
        assert any("on n0: it is not tried for a while: 1 pod did not end" in note for note in notes), notes
        assert not any("kube-scheduler" in note for note in notes)

    play(story)


def test_a_victim_that_another_preemptor_does_not_evict_any_more_is_evicted():
    """Both fit on the card of one victim; the first of them is deleted while its eviction is tried again."""

    async def story(harness):
        await fill(harness, "low")
        harness.cluster.fail_next(Unavailable("no answer"), verb="evict", times=3)
        await add(harness, "first", 1000, memory=8)
        await harness.sleep(0.2)
        await add(harness, "second", 1000, memory=8)
        await harness.sleep(0.2)
        await harness.delete_pod("first")
        await harness.bound("second", seconds=20)

    play(story)


def test_members_whose_places_are_swapped_are_nominated_again():
    async def story(harness):
        for number in range(2):
            await harness.add_node(f"n{number}", cards=1, labels={"fast": "yes"})
        await fill(harness, "low-0", "low-1")
        await never_end(harness, "low-0", "low-1")
        await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template("big", BIG))
        members = [
            pod("picky", templates=["big"], gated=True, priority=1000, nodeSelector={"fast": "yes"}),
            pod("plain", templates=["big"], gated=True, priority=1000),
        ]
        await harness.add(kinds.POD, *(in_labelled_group(member, "team", 2) for member in members))
        await harness.sleep(5)
        places = [(await harness.pod(name)).status.nominated_node_name for name in ("picky", "plain")]
        assert sorted(places) == ["n0", "n1"]
        await harness.patch_node(places[0], {"metadata": {"labels": {"fast": None}}})
        await harness.sleep(5)
        assert [(await harness.pod(name)).status.nominated_node_name for name in ("picky", "plain")] == places[::-1]
        await let_end(harness, "low-0", "low-1")
        await harness.bound("picky", "plain", seconds=20)
        assert [await harness.node_of(name) for name in ("picky", "plain")] == places[::-1]

    play(story, nodes=0)


def test_refused_pods_are_not_tried_again_as_long_as_a_place_is_held():
    decided = []

    def counting(inventory, request, options, *arguments):
        decided.append(request.pod.metadata.name)
        return decide(inventory, request, options, *arguments)

    async def story(harness):
        await fill(harness, "low")
        await never_end(harness, "low")
        await add(harness, "high", 1000)
        await add(harness, "refused", 0)
        await harness.sleep(30)
        before = decided.count("refused")
        for number in range(5):
            annotation = {"metadata": {"labels": {"number": str(number)}}}
            await harness.cluster.patch(kinds.POD, "high", annotation, namespace="default")
            await harness.cluster.patch(
                kinds.POD, "low", {"metadata": {"annotations": {"a": str(number)}}}, namespace="default"
            )
            await harness.sleep(2)
        assert decided.count("refused") == before
        await let_end(harness, "low")
        await harness.bound("high", seconds=10)

    play(story, decide=counting)


@pytest.mark.parametrize(("best_effort", "evicted"), [(False, 0), (True, 1)])
def test_best_effort_exceeds_a_budget(best_effort, evicted):
    async def story(harness):
        await harness.add(kinds.POD_DISRUPTION_BUDGET, BUDGET)
        await allow(harness, 0)
        await fill(harness, "low", labels={"app": "web"})
        await add(harness, "high", 1000)
        await harness.sleep(30)
        assert harness.metric("hami_dra_evictions_total") == evicted
        assert bool(await harness.node_of("high")) == best_effort

    play(story, preemption_pdb=best_effort)


def test_a_unit_that_cannot_be_decided_any_more_loses_its_place_and_others_get_it():
    async def story(harness):
        await fill(harness, "low")
        slow = {"metadata": {"finalizers": ["example.com/slow"]}}
        await harness.cluster.patch(kinds.POD, "low", slow, namespace="default")
        await add(harness, "high", 1000)
        await harness.sleep(5)
        invalid = {"metadata": {"annotations": {names.NODE_POLICY: "nonsense"}}}
        await harness.cluster.patch(kinds.POD, "high", invalid, namespace="default")
        await add(harness, "next", 5)
        await harness.cluster.patch(kinds.POD, "low", {"metadata": {"finalizers": None}}, namespace="default")
        await harness.bound("next", seconds=200)
        assert harness.metric("hami_dra_preemptions_total", result="given_up") == 1

    play(story)


@pytest.mark.parametrize(
    ("settings", "annotations"), [({"preemption_delay": 30.0}, {}), ({}, {names.PREEMPTION_DELAY: "30s"})]
)
def test_during_its_delay_a_pod_is_visibly_unschedulable_and_nobody_is_evicted(settings, annotations):
    async def story(harness):
        await fill(harness, "low")
        await add(harness, "high", 1000, annotations=annotations)
        await harness.sleep(25)
        waiting = await harness.pod("high")
        assert not waiting.spec.scheduling_gates
        assert not waiting.status.nominated_node_name
        assert await harness.node_of("low")
        (said,) = await harness.events("PreemptionDelayed")
        assert "before 20" in said["note"]
        await harness.bound("high", seconds=10)
        assert len(await harness.events("PreemptionDelayed")) == 1

    play(story, **settings)


def test_a_pod_that_is_bound_only_after_it_was_refused_is_a_victim_then():
    async def story(harness):
        await add(harness, "low", 0)
        await harness.sleep(1)
        await add(harness, "high", 10)
        await harness.sleep(20)
        assert await names_of(harness) == {"low", "high"}
        await harness.cluster.bind("low", "default", "n0")
        await harness.sleep(10)
        assert await names_of(harness) == {"high"}

    play(story, scheduler=False, graceful=False)
