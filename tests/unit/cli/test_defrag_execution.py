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
from hami_dra.kube.protocol import Protected
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
        said = await execution(harness, found, patience=20, cluster=Guarded(harness.cluster, refusals)).run()
        assert problem in said
        assert bool(said) is bool(problem)
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
