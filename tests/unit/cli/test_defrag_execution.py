"""A plan of moves is carried out one pod after the other, stops at the first surprise, and leaves nothing cordoned."""

import asyncio

import msgspec
import pytest

from controller.cli.defrag_execution import Execution, held_by, released_in
from controller.cli.state import KINDS
from controller.decide import decide
from controller.insight.defrag import Goal, plan_moves
from controller.insight.simulation import SimulationSettings
from controller.views.moves import MovePlan, PlannedMove
from hami_dra.api import kinds
from hami_dra.api.core import Node
from hami_dra.kube.documents import Document
from hami_dra.kube.protocol import Conflict, Forbidden, Protected, Unavailable
from tests.support.harness import node, pod, template
from tests.support.harness import play as play_scene

SETTINGS = SimulationSettings()
SPREAD = {"hami.io/node-scheduler-policy": "spread"}
CARD = 12


def play(story, **options):
    play_scene(story, **{"nodes": 3, "decide": decide, "quiet_time": 0.0, "probe": False, **options})


def move(name, to_node, from_node):
    return PlannedMove(
        pod=f"default/{name}",
        from_node=from_node,
        from_devices=(),
        to_node=to_node,
        to_devices=(),
        memory=0,
        frees=1,
        budgets=(),
    )


def plan(*moves, nodes=(), devices=()):
    return MovePlan(
        goal="1 more free node", asked=1, gained=1, moves=moves, memory=0, frees=nodes, held_nodes=nodes, held_devices=devices,
        budgets=(), is_cut=False, pods=2, stays={}, before=(), after=(), conclusion="", notes=(),
    )  # fmt: skip


async def service(harness, replicas):
    """A Deployment, one pod on each node. Returns pod → node."""
    await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template("card", CARD))
    body = pod("x", templates=["card"], gated=True, cpu="1m", annotations=SPREAD)
    labels = {"app": "service"}
    like = {"metadata": {"labels": labels, "annotations": SPREAD}, "spec": body["spec"]}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": like}
    await harness.add(kinds.DEPLOYMENT, {"metadata": {"name": "service", "namespace": "default"}, "spec": spec})
    await harness.sleep(1)
    await harness.bound(*(f"service-{number}" for number in range(replicas)))
    return await where(harness)


async def where(harness):
    return {each.metadata.name: each.spec.node_name for each in await harness.pods()}


async def cordons(harness):
    return {
        each.metadata.name: sorted(held_by(each))
        for each in (await harness.cluster.list(kinds.NODE)).items
        if held_by(each)
    }


def execution(harness, found, *, patience=60.0, said=None, cluster=None):
    return Execution(cluster or harness.cluster, found, (said if said is not None else []).append, patience=patience)


def test_each_pod_goes_where_it_was_planned_and_nothing_is_cordoned_afterwards():
    async def story(harness):
        places = await service(harness, 2)
        (emptied, other), said = places.values(), []
        spare = ({"n0", "n1", "n2"} - {emptied, other}).pop()
        await harness.patch_node(spare, {"spec": {"unschedulable": True}})
        problem = await execution(
            harness, plan(move("service-0", other, emptied), nodes=(emptied, spare)), said=said
        ).run()
        assert problem == ""
        assert set((await where(harness)).values()) == {other}
        nodes = {each.metadata.name: each for each in (await harness.cluster.list(kinds.NODE)).items}
        assert not nodes[emptied].spec.unschedulable
        assert nodes[spare].spec.unschedulable  # an operator has done that
        assert await cordons(harness) == {}
        assert [line.split(": ")[-1] for line in said] == [
            "cordoned until all moves are done",
            f"1/1 pod default/service-0 is evicted from {emptied}",
            f"1/1 pod default/{(set(await where(harness)) - {'service-1'}).pop()} runs on {other}",
            "cordoned no longer",
        ]

    play(story)


@pytest.mark.parametrize("surprise", ["another node", "gone", "not ready"])
def test_it_stops_at_a_surprise(surprise):
    async def story(harness):
        places = await service(harness, 2)
        emptied, other = places.values()
        spare = ({"n0", "n1", "n2"} - {emptied, other}).pop()
        if surprise == "another node":
            found, why = (
                plan(move("service-0", spare, emptied), move("service-1", spare, other), nodes=(emptied,)),
                "and not to",
            )
            await harness.patch_node(spare, {"spec": {"unschedulable": True}})
        elif surprise == "gone":
            found, why = plan(move("service-0", other, spare), nodes=(emptied,)), f"does not run on {spare} any more"
        else:
            found, why = plan(move("service-0", other, emptied), nodes=(emptied,)), "is on no node for 5 s"
            for name in (other, spare):
                await harness.patch_node(name, {"spec": {"unschedulable": True}})
        problem = await execution(harness, found, patience=5).run()
        assert why in problem
        assert f"0 of {len(found.moves)} moves are done" in problem
        assert await cordons(harness) == {}

    play(story)


class Guarded:
    """The cluster behind a budget that refuses the first evictions."""

    def __init__(self, cluster, refusals):
        self._cluster, self.refusals = cluster, refusals

    def __getattr__(self, name):
        return getattr(self._cluster, name)

    async def evict(self, *about, **options):
        if self.refusals:
            self.refusals -= 1
            raise Protected("Cannot evict pod as it would violate the pod's disruption budget.")
        await self._cluster.evict(*about, **options)


@pytest.mark.parametrize(
    ("refusals", "problem"), [(3, ""), (100, "cannot be evicted: Cannot evict pod as it would violate")]
)
def test_a_budget_is_waited_for(refusals, problem):
    async def story(harness):
        emptied, other = (await service(harness, 2)).values()
        spare = ({"n0", "n1", "n2"} - {emptied, other}).pop()
        found = plan(move("service-0", other, emptied), nodes=(emptied, spare))
        lines = []
        said = await execution(
            harness, found, patience=20, said=lines, cluster=Guarded(harness.cluster, refusals)
        ).run()
        assert problem in said
        assert bool(said) is bool(problem)
        waits = [line for line in lines if line.startswith("waiting: pod default/service-0 cannot be evicted: ")]
        assert len(waits) == bool(problem)
        assert await cordons(harness) == {}

    play(story)


def test_what_a_killed_run_holds_is_taken_over():
    async def story(harness):
        emptied, other = (await service(harness, 2)).values()
        spare = ({"n0", "n1", "n2"} - {emptied, other}).pop()
        first = execution(harness, plan(nodes=(emptied, spare)))
        await first._hold({emptied: frozenset({"node"}), spare: frozenset({"node"})})  # and is killed
        assert await cordons(harness) == {emptied: ["node"], spare: ["node"]}
        raws = [await harness.cluster.get_raw(kinds.NODE, name) for name in (emptied, other)]
        documents, held = released_in([Document("cluster", 1, raw) for raw in raws])
        assert held == [emptied]
        assert not any(msgspec.convert(each.raw, Node).spec.unschedulable for each in documents)
        assert await execution(harness, plan(move("service-0", other, emptied), nodes=(emptied, spare))).run() == ""
        assert await cordons(harness) == {}

    play(story)


class Killed(Exception):
    pass


class Mortal:
    """The cluster as a process sees it that is killed before its write of this number."""

    def __init__(self, cluster, writes, evicted):
        self._cluster, self._writes, self._evicted = cluster, writes, evicted

    def __getattr__(self, name):
        return getattr(self._cluster, name)

    async def _write(self, write, *about, **options):
        self._writes -= 1
        if self._writes < 0:
            raise Killed
        return await write(*about, **options)

    async def patch(self, *about, **options):
        return await self._write(self._cluster.patch, *about, **options)

    async def evict(self, name, namespace, *, uid):
        await self._write(self._cluster.evict, name, namespace, uid=uid)
        self._evicted.append(uid)


async def planned(harness):
    """Plan as the command does with `--free-nodes 2 --execute`."""
    documents = []
    for kind in KINDS:
        for each in (await harness.cluster.list(kind)).items:
            raw = await harness.cluster.get_raw(kind, each.metadata.name, each.metadata.namespace)
            documents.append(Document("cluster", 1, {"apiVersion": kind.api_version, "kind": kind.name, **raw}))
    nodes = sum(len(each) == 0 for each in (await pods_by_node(harness)).values())
    return (
        plan_moves(released_in(documents)[0], SETTINGS, Goal(nodes=2 - nodes, labelled=True)) if nodes < 2 else plan()
    )


async def pods_by_node(harness):
    places = await where(harness)
    nodes = (await harness.cluster.list(kinds.NODE)).items
    return {each.metadata.name: [name for name, node in places.items() if node == each.metadata.name] for each in nodes}


@pytest.mark.parametrize("writes", range(9))
def test_killed_before_any_write_it_is_finished_by_the_next_run_and_no_pod_moves_twice(writes):
    async def story(harness):
        await service(harness, 4)
        before = {each.metadata.uid for each in await harness.pods()}
        await harness.add(kinds.NAMESPACE, {"metadata": {"name": "default", "labels": {"hami.io/movable": "true"}}})
        evicted, rounds = [], 0
        while True:
            cluster = Mortal(harness.cluster, writes if not rounds else 1_000, evicted)
            try:
                assert await execution(harness, await planned(harness), cluster=cluster).run() == ""
                break
            except Killed:
                rounds += 1
                await harness.sleep(10)
        assert rounds == (writes < 6)
        assert {*evicted} <= before
        assert len(evicted) == len({*evicted}) == 2
        assert sorted(map(len, (await pods_by_node(harness)).values())) == [0, 0, 2, 2]
        assert await cordons(harness) == {}

    play(story, nodes=4)


def test_interrupted_it_leaves_nothing_cordoned():
    async def story(harness):
        emptied, other = (await service(harness, 2)).values()
        found = plan(
            move("service-0", other, emptied), nodes=(emptied, other, *({"n0", "n1", "n2"} - {emptied, other}))
        )
        task = asyncio.create_task(execution(harness, found).run())
        await harness.sleep(5)
        assert len(await cordons(harness)) == 3
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await cordons(harness) == {}

    play(story)


def test_devices_are_cordoned_next_to_those_of_an_operator():
    async def story(harness):
        await harness.patch_node("n0", {"metadata": {"annotations": {"hami.io/device-cordon": "0"}}})
        devices = ("nvidia.hami.io/n0/gpu-0", "nvidia.hami.io/n0/gpu-1")
        said = await execution(harness, plan(devices=devices), patience=3).run()
        assert said == "the driver does not cordon nvidia.hami.io/n0/gpu-0 for 3 s; 0 of 0 moves are done"
        (n0,) = [each for each in (await harness.cluster.list(kinds.NODE)).items if each.metadata.name == "n0"]
        assert n0.metadata.annotations["hami.io/device-cordon"] == "0"
        held = {"hami.io/defrag": "1", "hami.io/device-cordon": "0,1"}
        raw = node("n7") | {"kind": "Node"}
        raw["metadata"]["annotations"] = held
        (document,), nodes = released_in([Document("cluster", 1, raw)])
        assert (nodes, document.raw["metadata"]["annotations"]) == (["n7"], {"hami.io/device-cordon": "0"})

    play(story)


class Failing:
    """The cluster where an operation fails as long as `problem` returns an error. Called with its name and arguments."""

    def __init__(self, cluster, problem):
        self._cluster, self._problem = cluster, problem

    def __getattr__(self, name):
        found = getattr(self._cluster, name)

        async def operation(*about, **options):
            if error := self._problem(name, *about):
                raise error
            return await found(*about, **options)

        return operation


async def emptied_and_other(harness):
    """A pod each on two of three nodes. Returns the node of the first one, that of the other one, and the third node."""
    emptied, other = (await service(harness, 2)).values()
    (spare,) = {"n0", "n1", "n2"} - {emptied, other}
    return emptied, other, spare


async def read(harness, name):
    return await harness.cluster.get(kinds.NODE, name)


def test_what_cannot_be_given_back_is_named_and_all_else_is_given_back():
    async def story(harness):
        emptied, other, spare = await emptied_and_other(harness)
        writes = []

        def problem(name, *about):
            if name == "patch":
                writes.append(about[1])
                if writes.count(about[1]) > 1 and about[1] == min(emptied, spare):
                    return Forbidden("patch Node: not any more")
            return None

        found = plan(move("service-0", other, emptied), nodes=(emptied, spare))
        run = execution(harness, found, cluster=Failing(harness.cluster, problem))
        assert await run.run() == ""
        assert run.left == f"still cordoned: {min(emptied, spare)} (patch Node: not any more)"
        assert [*await cordons(harness)] == [min(emptied, spare)]

    play(story)


def test_interrupted_a_second_time_it_names_what_is_still_cordoned():
    async def story(harness):
        emptied, other, spare = await emptied_and_other(harness)
        nodes = []

        def problem(name, *about):
            if name == "patch":
                nodes.append(about[1])
            return Unavailable("no answer") if name == "patch" and nodes.count(about[1]) > 1 else None

        run = execution(
            harness,
            plan(move("service-0", other, emptied), nodes=(emptied, other, spare)),
            cluster=Failing(harness.cluster, problem),
        )
        task = asyncio.create_task(run.run())
        for _ in range(2):
            await harness.sleep(5)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert run.left == "still cordoned: n0, n1, n2 (no answer)"

    play(story)


@pytest.mark.parametrize("held", ["node", "node,run:0123", "node,7,\x1b[31m"])
def test_a_node_that_an_operator_uncordoned_after_a_killed_run_is_cordoned_again(held):
    async def story(harness):
        emptied, other, spare = await emptied_and_other(harness)
        await harness.patch_node(emptied, {"metadata": {"annotations": {"hami.io/defrag": held}}})
        await harness.patch_node(other, {"spec": {"unschedulable": True}})
        await harness.patch_node(spare, {"spec": {"unschedulable": True}})
        task = asyncio.create_task(execution(harness, plan(move("service-0", other, emptied), nodes=(emptied,))).run())
        await harness.sleep(5)
        assert (await read(harness, emptied)).spec.unschedulable
        await harness.patch_node(other, {"spec": {"unschedulable": None}})
        assert await task == ""
        assert not (await read(harness, emptied)).spec.unschedulable

    play(story)


def test_a_run_stops_when_another_one_takes_over_and_leaves_what_that_holds():
    async def story(harness):
        emptied, other, spare = await emptied_and_other(harness)
        await harness.patch_node(other, {"spec": {"unschedulable": True}})
        moves = (move("service-0", other, emptied), move("service-1", spare, other))
        first = asyncio.create_task(execution(harness, plan(*moves, nodes=(emptied, spare))).run())
        await harness.sleep(5)
        second = asyncio.create_task(execution(harness, plan(moves[1], nodes=(emptied, spare))).run())
        await harness.sleep(3)
        await harness.patch_node(other, {"spec": {"unschedulable": None}})
        assert "another run of defrag --execute has taken over what is cordoned of " in await first
        assert await cordons(harness) == {emptied: ["node"], spare: ["node"]}
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert await cordons(harness) == {}

    play(story)


def test_it_stops_when_an_operator_uncordons_what_it_holds():
    async def story(harness):
        emptied, other, spare = await emptied_and_other(harness)
        await harness.patch_node(other, {"spec": {"unschedulable": True}})
        moves = (move("service-0", other, emptied), move("service-1", spare, other))
        task = asyncio.create_task(execution(harness, plan(*moves, nodes=(emptied, spare))).run())
        await harness.sleep(5)
        await harness.patch_node(emptied, {"spec": {"unschedulable": None}})
        await harness.patch_node(other, {"spec": {"unschedulable": None}})
        assert f"node {emptied} was uncordoned" in await task
        assert await cordons(harness) == {}

    play(story)


def test_a_move_is_done_when_the_old_pod_is_gone_too():
    async def story(harness):
        emptied, other, spare = await emptied_and_other(harness)
        await harness.cluster.patch(kinds.POD, "service-0", {"metadata": {"finalizers": ["a/b"]}}, namespace="default")
        found = plan(move("service-0", other, emptied), nodes=(emptied, spare))
        problem = await execution(harness, found, patience=10).run()
        assert problem == "pod default/service-0 is evicted, and still terminates for 10 s; 0 of 1 moves are done"

    play(story)


def test_a_pod_without_a_controller_is_not_evicted():
    async def story(harness):
        emptied, other, spare = await emptied_and_other(harness)
        await harness.cluster.patch(
            kinds.POD, "service-0", {"metadata": {"ownerReferences": None}}, namespace="default"
        )
        found = plan(move("service-0", other, emptied), nodes=(emptied, spare))
        assert "has no controller any more" in await execution(harness, found).run()
        assert (await where(harness))["service-0"] == emptied

    play(story)


def test_giving_back_ends_although_the_server_does_not_answer():
    async def story(harness):
        hangs = []

        class Hung(Failing):
            async def get(self, *about):
                if hangs:
                    await asyncio.sleep(1_000)
                return await self._cluster.get(*about)

        run = execution(harness, plan(nodes=("n0", "n1", "n2")), cluster=Hung(harness.cluster, lambda *_: None))
        await run._hold({each: frozenset({"node"}) for each in ("n0", "n1", "n2")})
        hangs.append(True)
        began = asyncio.get_running_loop().time()
        await run._release()
        assert asyncio.get_running_loop().time() - began < 60
        assert run.left == "still cordoned: n0, n1, n2 (no answer)"

    play(story)


@pytest.mark.parametrize("is_evicted", [False, True])
def test_it_goes_on_when_the_server_answers_again(is_evicted):
    async def story(harness):
        emptied, other, spare = await emptied_and_other(harness)
        failures, conflicts = {"evict": 1, "list": 3}, [1]

        def problem(name, *about):
            if name == "patch" and conflicts:
                return Conflict(f"{conflicts.pop()}")
            if (name == "evict" or (name == "list" and about[0] is kinds.POD)) and failures[name]:
                failures[name] -= 1
                return Unavailable("the connection was closed")
            return None

        class Late(Failing):
            async def evict(self, *about, **options):
                if is_evicted:
                    await self._cluster.evict(*about, **options)
                await self.__getattr__("evict")(*about, **options)

        found = plan(move("service-0", other, emptied), nodes=(emptied, spare))
        assert await execution(harness, found, cluster=Late(harness.cluster, problem)).run() == ""
        assert failures == {"evict": 0, "list": 0}
        assert set((await where(harness)).values()) == {other}

    play(story)


@pytest.mark.parametrize("right", ["patch", "evict"])
def test_a_missing_right_is_the_reason_and_nothing_stays_cordoned(right):
    async def story(harness):
        emptied, other, spare = await emptied_and_other(harness)

        def problem(name, *_):
            return Forbidden("not allowed") if name == right else None

        found = plan(move("service-0", other, emptied), nodes=(emptied, spare))
        run = execution(harness, found, cluster=Failing(harness.cluster, problem))
        assert await run.run() == "not allowed; 0 of 1 moves are done"
        assert (run.left, await cordons(harness)) == ("", {})

    play(story)


def test_a_node_that_is_gone_stops_it():
    async def story(harness):
        assert await execution(harness, plan(nodes=("n1", "n9"))).run() == "node n9 is gone; 0 of 0 moves are done"
        assert await cordons(harness) == {}

    play(story)


@pytest.mark.parametrize("spec", [None, [], {"unschedulable": "x"}])
def test_nodes_that_cannot_be_read_are_left_to_those_who_read_all_of_them(spec):
    annotations = {"hami.io/defrag": "node,run:0123", "x": 1}
    raw = {"kind": "Node", "metadata": {"name": "n1", "annotations": annotations}, "spec": spec}
    (document,), nodes = released_in([Document("cluster", 1, raw)])
    assert (nodes, document.raw["metadata"]["annotations"]) == (["n1"], {"x": 1})
    for odd in (
        {"kind": "Node"},
        {"kind": "Node", "metadata": {"annotations": None}},
        {"kind": "Node", "metadata": []},
    ):
        assert [each.raw for each in released_in([Document("cluster", 1, odd)])[0]] == [odd]


def test_what_is_lost_during_the_last_move_is_said():
    async def story(harness):
        emptied, other, spare = await emptied_and_other(harness)
        await harness.cluster.patch(kinds.POD, "service-0", {"metadata": {"finalizers": ["a/b"]}}, namespace="default")
        found = plan(move("service-0", other, emptied), nodes=(emptied, spare))
        task = asyncio.create_task(execution(harness, found).run())
        await harness.sleep(5)
        await harness.patch_node(emptied, {"spec": {"unschedulable": None}})
        await harness.cluster.patch(kinds.POD, "service-0", {"metadata": {"finalizers": None}}, namespace="default")
        assert await task == f"node {emptied} was uncordoned; 1 of 1 moves are done"

    play(story)
