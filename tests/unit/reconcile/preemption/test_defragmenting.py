"""A unit that has waited for long gets room by moves, one after the other, and no pod loses its place (`--defrag=execute`)."""

from collections import Counter
from datetime import datetime, timedelta
from functools import partial

import pytest

from controller.decide import decide
from controller.preemption import Tenants
from hami_dra.api import kinds
from hami_dra.api.podstate import is_bound, is_live, is_pending
from tests.support.gang_objects import in_labelled_group
from tests.support.harness import SPACE, device_class, pod, template
from tests.support.harness import play as play_scene
from tests.support.mortal import Mortal

WAIT = 60.0
MOVABLE = {"hami.io/movable": "true"}
SPREAD = {"hami.io/node-scheduler-policy": "spread"}


OURS = "nvidia.hami.io"
MANAGED = {"managed": frozenset({OURS}), "own_drivers": frozenset({OURS})}
OPTIONS = {"save_after": WAIT, "defrag": True, "quiet_time": 0.0, "probe": False, "decide": decide}


def play(story, **options):
    play_scene(story, **{"nodes": 2, "node_options": {"cards": 4}, "graceful": True, **OPTIONS, **options})


async def web(harness, replicas=4, *, labels=MOVABLE, annotations=SPREAD, device="gpu", age=400, **spec):
    """A ReplicaSet whose pods use most of a card each and have run for some time."""
    await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template("web", 12, device_class=device))
    body = pod("web", templates=["web"], gated=True, cpu="1m", annotations=annotations, **spec)
    metadata = {"labels": labels, "annotations": annotations}
    spec = {"replicas": replicas, "template": {"metadata": metadata, "spec": body["spec"]}}
    await harness.add(kinds.REPLICA_SET, {"metadata": {"name": "web", "namespace": SPACE}, "spec": spec})
    await harness.sleep(age)


async def large(harness, cards=4, *, device="gpu", **options):
    await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template("large", 12, count=cards, device_class=device))
    await harness.add(kinds.POD, pod("large", templates=["large"], gated=True, cpu="1m", **options))


async def replicas(harness):
    return [each for each in await harness.pods() if each.metadata.name.startswith("web-")]


async def nodes_of(harness):
    return Counter(each.spec.node_name for each in await replicas(harness) if is_bound(each) and is_live(each))


def test_pods_move_one_after_the_other_to_places_that_are_held_for_them():
    async def story(harness):
        await web(harness)
        assert await nodes_of(harness) == {"n0": 2, "n1": 2}
        await large(harness)
        await harness.sleep(WAIT - 5)
        assert not await harness.events("Moved")
        running = []

        async def placed():
            running.append(sum((await nodes_of(harness)).values()))
            return await harness.node_of("large")

        await harness.until(placed, 60)
        assert min(running) >= 3  # one pod at a time
        await harness.sleep(5)
        node = await harness.node_of("large")
        assert await nodes_of(harness) == {({"n0", "n1"} - {node}).pop(): 4}
        assert len(await harness.events("Moved")) == 2
        (said,) = await harness.events("Defragmenting")
        assert said["regarding"]["name"] == "large"
        assert harness.metric("hami_dra_evictions_total") == 2
        assert harness.metric("hami_dra_preemptions_total", result="moving") == 1
        await harness.check_never_overcommitted()
        await harness.check_nothing_leaked()

    play(story)


async def place(harness):
    """What is known of the place of the large pod."""
    return harness.controller.held_for((await harness.pod("large")).metadata.uid)


@pytest.mark.parametrize("preemption", [False, True])
@pytest.mark.parametrize("replicas", [6, 12])
@pytest.mark.parametrize("age", [2, 100, 250])
def test_pods_that_are_too_young_move_as_soon_as_they_may_to_where_a_place_was_reserved_or_not(
    preemption, replicas, age
):
    """The place that is reserved meanwhile, on top of those pods, keeps no pod from moving."""

    async def story(harness):
        await web(harness, replicas, age=age)
        before = await nodes_of(harness)
        began = max(each.status.start_time for each in await harness.pods())
        await large(harness)
        await harness.sleep(35)
        (said,) = await harness.events("PlaceReserved")
        assert said["regarding"]["name"] == "large"
        reserved = await place(harness)
        assert reserved.kind == "reserved"
        old = datetime.fromisoformat(began) + timedelta(minutes=5)
        assert old <= reserved.moves_begin <= old + timedelta(seconds=3)
        await harness.sleep((old - harness.clock.wall()).total_seconds() - 1)
        assert await nodes_of(harness) == before
        await hold_up_all(harness)
        await harness.sleep(15)
        assert (await place(harness)).kind == "moves"
        assert len(await harness.events("Defragmenting")) == 1
        for _ in range(3):
            await let_go_all(harness)
            await harness.sleep(5)
        assert await harness.node_of("large")
        assert sum((await nodes_of(harness)).values()) == replicas
        await harness.check_never_overcommitted()
        await harness.check_nothing_leaked()

    play(story, nodes=4, preemption=preemption, save_after=20.0)


@pytest.mark.parametrize("preemption", [False, True])
def test_the_devices_of_many_pods_are_read_in_pieces(monkeypatch, preemption):
    monkeypatch.setattr("controller.preemption.tenants._AT_ONCE", 2)
    read, moments = Tenants._read, Counter()

    async def story(harness):
        def counted(tenants, key):
            moments[harness.clock.monotonic()] += 1
            read(tenants, key)

        await web(harness, 12)
        monkeypatch.setattr(Tenants, "_read", counted)
        await large(harness)
        await harness.sleep(WAIT - 5)
        assert sum(moments.values()) >= 10
        assert max(moments.values()) <= 4
        await harness.until(partial(harness.node_of, "large"), 120)
        await harness.check_never_overcommitted()

    play(story, nodes=4, preemption=preemption)


def test_as_many_pods_move_for_a_gang_as_it_asks_for_devices():
    async def story(harness):
        await web(harness, 30)
        await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template("large", 12, count=8))
        names = ["large-0", "large-1"]
        members = [pod(name, templates=["large"], gated=True, cpu="1m") for name in names]
        await harness.add(kinds.POD, *(in_labelled_group(member, "team", 2) for member in members))
        await harness.bound(*names, seconds=300)
        assert len(await harness.events("Moved")) == 10
        assert sum((await nodes_of(harness)).values()) == 30
        await harness.check_never_overcommitted()
        await harness.check_nothing_leaked()

    play(story, nodes=6, node_options={"cards": 8})


@pytest.mark.parametrize(
    ("labels", "annotations", "options"),
    [
        ({}, {}, {}),
        (MOVABLE, {}, {"defrag": False}),
        (MOVABLE, {"hami.io/preemptible": "false"}, {}),
        (MOVABLE, {"hami.io/min-runtime": "1h"}, {}),
    ],
)
def test_no_pod_moves_that_must_not(labels, annotations, options):
    async def story(harness):
        await web(harness, labels=labels, annotations=SPREAD | annotations)
        before = {each.metadata.uid for each in await replicas(harness)}
        await large(harness)
        await harness.sleep(600)
        assert {each.metadata.uid for each in await replicas(harness)} == before
        assert not await harness.node_of("large")

    play(story, **options)


async def hold_up(harness, name):
    """Let a pod terminate until `let_go`."""
    patch = {"metadata": {"finalizers": ["example.com/slow"]}}
    await harness.cluster.patch(kinds.POD, name, patch, namespace=SPACE)


async def let_go(harness, name):
    await harness.cluster.patch(kinds.POD, name, {"metadata": {"finalizers": None}}, namespace=SPACE)


async def hold_up_all(harness):
    for each in await replicas(harness):
        await hold_up(harness, each.metadata.name)


async def let_go_all(harness):
    for each in await replicas(harness):
        await let_go(harness, each.metadata.name)


async def until_moved(harness, number=1):
    async def moved():
        return len(await harness.events("Moved")) >= number

    await harness.until(moved, 200)


def test_what_is_held_and_what_is_freed_goes_to_no_newcomer():
    """Newcomers take any card: the one that is free for the pod that moves, the one that it leaves, the one that it left."""

    async def story(harness):
        await web(harness)
        await hold_up_all(harness)
        await large(harness)
        await until_moved(harness)
        await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template("new", 12))
        for number in range(4):
            await harness.add(kinds.POD, pod(f"new-{number}", templates=["new"], gated=True, cpu="1m"))
        await harness.sleep(20)
        assert len(await harness.events("Moved")) == 1  # the first one is not gone yet
        new = [each for each in await harness.pods() if each.metadata.name.startswith("new-") and is_bound(each)]
        assert new == []
        assert await nodes_of(harness) == {"n0": 1, "n1": 3} or await nodes_of(harness) == {"n0": 3, "n1": 1}
        for _ in range(3):
            await let_go_all(harness)
            await harness.sleep(5)
        assert await harness.node_of("large")
        assert sum((await nodes_of(harness)).values()) == 4
        await harness.check_never_overcommitted()

    play(story)


def test_a_budget_that_allows_no_eviction_ends_it_and_nothing_stays_held():
    async def story(harness):
        budget = {"selector": {"matchLabels": MOVABLE}, "minAvailable": 4}
        metadata = {"name": "web", "namespace": SPACE}
        await harness.add(kinds.POD_DISRUPTION_BUDGET, {"metadata": metadata, "spec": budget})
        await web(harness)
        status = {"disruptionsAllowed": 1, "observedGeneration": 1}  # as it was: the disruption controller is behind
        await harness.cluster.patch(
            kinds.POD_DISRUPTION_BUDGET, "web", {"status": status}, namespace=SPACE, subresource="status"
        )
        await large(harness)
        await harness.sleep(WAIT + 20)
        moved = len(await harness.events("Moved"))
        assert moved <= 1
        assert sum((await nodes_of(harness)).values()) == 4
        assert not await harness.node_of("large")
        await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template("new", 2))
        names = [f"new-{number}" for number in range(4)]
        await harness.add(
            kinds.POD, *(pod(name, templates=["new"], gated=True, cpu="1m", priority=5) for name in names)
        )
        await harness.bound(*names, seconds=30)

    play(story)


def test_a_pod_that_is_not_replaced_in_time_ends_it():
    async def story(harness):
        await web(harness)
        more = {
            "spec": {
                "template": {
                    "spec": {"schedulingGates": [{"name": "hami.io/allocation"}, {"name": "example.com/slow"}]}
                }
            }
        }
        await harness.cluster.patch(kinds.REPLICA_SET, "web", more, namespace=SPACE)
        await large(harness)
        await until_moved(harness)
        await harness.sleep(800)
        assert harness.metric("hami_dra_preemptions_total", result="given_up") == 0
        await harness.sleep(200)
        assert harness.metric("hami_dra_preemptions_total", result="given_up") == 1
        assert len(await harness.events("Moved")) == 1
        moves = harness.controller._term._preemptor._defragmenter
        assert moves._is_resting(SPACE)  # whose pod it was, perhaps by an owner that is not its own
        assert not moves._is_resting("other")
        assert moves._rests_until <= harness.clock.monotonic()
        await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template("new", 12))
        await harness.add(kinds.POD, pod("new", templates=["new"], gated=True, cpu="1m", priority=5))
        await harness.bound("new", seconds=30)

    play(story)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("number", range(1, 13))
def test_a_leader_that_is_killed_at_any_write_moves_no_pod_twice(number, before):
    async def story(harness):
        await web(harness)
        first = {each.metadata.uid for each in await replicas(harness)}
        mortal = Mortal(harness.cluster, 0, before=before)
        await harness.stop(harness.controllers[0])
        task = harness.start(through=mortal, **OPTIONS)
        await harness.sleep(5)
        mortal.at_write(mortal.writes + number, before=before)
        await large(harness)
        for _ in range(300):
            await harness.sleep(1)
            if mortal.dead.is_set():
                break
        await harness.stop(task)
        harness.start(**OPTIONS)
        await harness.until(partial(harness.node_of, "large"), 1_200)
        await harness.sleep(10)
        assert sum((await nodes_of(harness)).values()) == 4
        left = {each.metadata.uid for each in await replicas(harness)}
        assert len(first & left) >= 2
        await harness.check_never_overcommitted()
        await harness.check_nothing_leaked()

    play(story)


async def begun(harness, **options):
    """Two pods must move: the first one has been evicted, and terminates. Returns the other ones of its node."""
    await web(harness, **options)
    await hold_up_all(harness)
    await large(harness, **options)
    await until_moved(harness)
    found = await replicas(harness)
    (gone,) = [each for each in found if each.metadata.deletion_timestamp is not None]
    left = [each for each in found if each.spec.node_name == gone.spec.node_name and each is not gone]
    return gone, [each.metadata.name for each in left if is_live(each)]


async def relabelled(harness, name):
    await harness.cluster.patch(kinds.POD, name, {"metadata": {"labels": {"hami.io/movable": None}}}, namespace=SPACE)


async def protected(harness, name):
    notes = {"annotations": {"hami.io/preemptible": "false"}}
    await harness.cluster.patch(kinds.POD, name, {"metadata": notes}, namespace=SPACE)


async def not_ready(harness, name):
    status = {"conditions": [{"type": "Ready", "status": "False"}]}
    await harness.cluster.patch(kinds.POD, name, {"status": status}, namespace=SPACE, subresource="status")


@pytest.mark.parametrize("change", [relabelled, protected, not_ready])
def test_a_pod_that_must_not_move_any_more_when_its_turn_comes_stays(change):
    async def story(harness):
        gone, (name,) = await begun(harness)
        await change(harness, name)
        before = (await harness.pod(name)).metadata.uid
        await let_go(harness, gone.metadata.name)
        await harness.sleep(30)
        assert (await harness.pod(name)).metadata.uid == before
        assert len(await harness.events("Moved")) == 1
        assert harness.metric("hami_dra_preemptions_total", result="given_up") == 1
        assert sum((await nodes_of(harness)).values()) == 4

    play(story)


def test_a_pod_stays_if_its_new_place_is_not_what_it_was():
    async def story(harness):
        gone, (name,) = await begun(harness)
        there = ({"n0", "n1"} - {gone.spec.node_name}).pop()

        await harness.patch_node(there, {"spec": {"unschedulable": True}})
        await let_go(harness, gone.metadata.name)
        await harness.sleep(30)
        assert len(await harness.events("Moved")) == 1
        assert await harness.pod(name)
        assert sum((await nodes_of(harness)).values()) == 4

    play(story)


def test_a_budget_whose_count_is_behind_is_asked_again():
    async def story(harness):
        budget = {"selector": {"matchLabels": MOVABLE}, "maxUnavailable": 1}
        metadata = {"name": "web", "namespace": SPACE}
        await harness.add(kinds.POD_DISRUPTION_BUDGET, {"metadata": metadata, "spec": budget})

        async def allow(number):
            status = {"disruptionsAllowed": number, "disruptedPods": None, "observedGeneration": 1}
            await harness.cluster.patch(
                kinds.POD_DISRUPTION_BUDGET, "web", {"status": status}, namespace=SPACE, subresource="status"
            )

        await web(harness)
        await allow(1)
        await large(harness)
        await until_moved(harness)
        await harness.sleep(2)
        await allow(1)
        await until_moved(harness, 2)
        await harness.bound("large", seconds=20)

    play(story)


def test_what_a_pod_that_moves_leaves_of_a_quota_goes_to_no_newcomer():
    async def story(harness):
        hard = {"limits.nvidia.com/gpu": "8"}
        await harness.add(kinds.DEVICE_CLASS, device_class("ours", OURS))
        await harness.add(
            kinds.RESOURCE_QUOTA, {"metadata": {"name": "cards", "namespace": SPACE}, "spec": {"hard": hard}}
        )
        await web(harness, device="ours")
        slow = [{"name": "hami.io/allocation"}, {"name": "example.com/slow"}]
        more = {"spec": {"template": {"spec": {"schedulingGates": slow}}}}
        await harness.cluster.patch(kinds.REPLICA_SET, "web", more, namespace=SPACE)
        await large(harness, device="ours")
        await until_moved(harness)
        await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template("new", 2, device_class="ours"))
        await harness.add(kinds.POD, pod("new", templates=["new"], gated=True, cpu="1m"))
        await harness.sleep(20)
        assert not await harness.node_of("new")
        gates = {"spec": {"schedulingGates": [{"name": "hami.io/allocation"}]}}
        await harness.cluster.patch(kinds.REPLICA_SET, "web", gates, namespace=SPACE)
        (waiting,) = [each for each in await replicas(harness) if is_pending(each)]
        await harness.cluster.patch(kinds.POD, waiting.metadata.name, gates, namespace=SPACE)
        await harness.sleep(5)
        assert (await nodes_of(harness)).most_common(1)[0][1] >= 3
        assert harness.metric("hami_dra_preemptions_total", result="given_up") == 0

    play(story, node_options={"cards": 4, "driver": OURS}, **MANAGED)
