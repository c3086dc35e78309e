"""Nothing that one object or one namespace does keeps the others from what all share: slots of commits, sweeps, events."""

import asyncio

import pytest

from hami_dra.api import kinds, names
from hami_dra.kube.protocol import Forbidden, NotFound, Unavailable
from tests.support.harness import claim, play, pod

QUICK = {"quiet_time": 0.0, "probe": False, "commits_at_once": 4, "slow_commits_at_once": 1}
DENIED = Forbidden('admission webhook "policy.example.com" denied the request: no changes on Sundays')


class Webhooks:
    """Between the controller and the API server: writes to objects of the namespace `bad` are refused, or get no answer."""

    def __init__(self, inner, kind, subresource=""):
        self._inner = inner
        self._what = (kind, subresource)
        self.error = None
        self.hangs = False
        self.asked = 0

    def __getattr__(self, name):
        return getattr(self._inner, name)

    async def patch(self, kind, name, body, *, namespace="", subresource="", **options):
        if namespace == "bad" and (kind, subresource) == self._what:
            self.asked += 1
            if self.hangs:
                await asyncio.sleep(3600)
            if self.error is not None:
                raise self.error
        return await self._inner.patch(kind, name, body, namespace=namespace, subresource=subresource, **options)


def of(namespace, body):
    body["metadata"]["namespace"] = namespace
    return body


async def add(harness, namespace, name, memory=1, **options):
    await harness.add(kinds.RESOURCE_CLAIM, of(namespace, claim(name, memory)))
    await harness.add(kinds.POD, of(namespace, pod(name, claims=[name], gated=True, cpu="1m", **options)))


async def gates(harness, namespace):
    pods = await harness.pods()
    return sum(bool(each.spec.scheduling_gates) for each in pods if each.metadata.namespace == namespace)


async def is_bound(harness, namespace, name):
    return bool((await harness.cluster.get(kinds.POD, name, namespace)).spec.node_name)


@pytest.mark.parametrize("error", [DENIED, Unavailable("failed calling webhook")])
def test_gates_that_cannot_be_lifted_hold_no_slot_and_are_told(error):
    webhooks = []

    def wrap(cluster):
        webhooks.append(Webhooks(cluster, kinds.POD))
        return webhooks[0]

    async def story(harness):
        webhooks[0].error = error
        for number in range(6):
            await add(harness, "bad", f"p{number}")
        await harness.sleep(30)
        await add(harness, "good", "victim")
        await harness.until(lambda: is_bound(harness, "good", "victim"), seconds=2)
        reported = await harness.events("GateNotLifted")
        assert {event["regarding"]["name"] for event in reported} == {f"p{number}" for number in range(6)}
        assert all(str(error) in event["note"] and names.GATE in event["note"] for event in reported)
        assert harness.metric("hami_dra_gates_not_lifted") == 6
        asked = webhooks[0].asked
        await harness.sleep(1200)
        assert webhooks[0].asked - asked < 6 * 20, "with growing pauses"
        webhooks[0].error = None
        await harness.sleep(200)
        assert await gates(harness, "bad") == 0
        assert harness.metric("hami_dra_gates_not_lifted") == 0

    play(story, wrap=wrap, **QUICK)


def test_nothing_is_remembered_of_a_pod_that_is_deleted_with_its_gate():
    async def story(harness):
        harness.cluster.fail_next(DENIED, verb="patch", kind=kinds.POD, subresource="", times=1_000)
        await add(harness, "bad", "p")
        await harness.sleep(60)
        assert harness.metric("hami_dra_gates_not_lifted") == 1
        await harness.cluster.delete(kinds.POD, "p", namespace="bad")
        await harness.sleep(1)
        assert harness.metric("hami_dra_gates_not_lifted") == 0

    play(story, **QUICK)


@pytest.mark.parametrize(
    ("kind", "subresource"),
    [(kinds.POD, ""), (kinds.POD, "status"), (kinds.RESOURCE_CLAIM, ""), (kinds.RESOURCE_CLAIM, "status")],
)
def test_writes_without_an_answer_keep_nobody_else_waiting(kind, subresource):
    """Once for a write timeout, when all slots went to the bad namespace before anybody could know; then never."""
    webhooks = []

    def wrap(cluster):
        webhooks.append(Webhooks(cluster, kind, subresource))
        return webhooks[0]

    async def story(harness):
        webhooks[0].hangs = True
        for number in range(12):
            await add(harness, "bad", f"p{number}")
        await harness.sleep(1)
        await add(harness, "good", "first")
        await harness.until(lambda: is_bound(harness, "good", "first"), seconds=7)
        for number in range(20):
            await harness.sleep(7)
            await add(harness, "good", f"victim{number}")
            await harness.until(lambda name=f"victim{number}": is_bound(harness, "good", name), seconds=1)
        webhooks[0].hangs = False
        for number in range(12):
            await harness.until(lambda name=f"p{number}": is_bound(harness, "bad", name), seconds=400)

    play(story, nodes=3, node_options={"cards": 1, "memory": 100}, wrap=wrap, **QUICK)


def test_a_claim_that_can_be_neither_written_nor_read_keeps_nobody_else_waiting():
    class Silent(Webhooks):
        async def get(self, kind, name, namespace=""):
            if namespace == "bad" and kind is kinds.RESOURCE_CLAIM:
                raise Unavailable("etcd says nothing about it")
            return await self._inner.get(kind, name, namespace)

    def wrap(cluster):
        silent = Silent(cluster, kinds.RESOURCE_CLAIM, "status")
        silent.error = Unavailable("etcd says nothing about it")
        return silent

    async def story(harness):
        for number in range(6):
            await add(harness, "bad", f"p{number}")
        await harness.sleep(120)
        await add(harness, "good", "victim")
        await harness.until(lambda: is_bound(harness, "good", "victim"), seconds=2)
        with pytest.raises(NotFound):
            await harness.cluster.get(kinds.POD, "victim", "bad")

    play(story, wrap=wrap, **QUICK)
