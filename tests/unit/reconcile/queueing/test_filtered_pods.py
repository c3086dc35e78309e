"""Pods that kube-scheduler's filters keep from a node: no device is given before, and what helps wakes them."""

import pytest

from controller.decide import decide
from hami_dra.api import kinds
from hami_dra.api.podstate import is_pending
from tests.support.harness import SPACE, play, pod, template
from tests.unit.reconcile.queueing.test_queueing_hints import QUICK, Counted, bind_in

HOST = "kubernetes.io/hostname"
WEB, DB = {"app": "web"}, {"app": "db"}


def term(labels, key=HOST):
    return {"topologyKey": key, "labelSelector": {"matchLabels": labels}}


def waiting(name, *, labels=WEB, near=(), apart=(), **spec):
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    affinity = {"podAffinity": {required: list(near)}, "podAntiAffinity": {required: list(apart)}}
    body = pod(name, templates=["t"], gated=True, affinity=affinity, **spec)
    body["metadata"]["labels"] = labels
    return body


async def furnish(harness, nodes):
    for number in range(nodes):
        await harness.add_node(f"n{number}", labels={HOST: f"n{number}"})
    await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template("t", 1))


async def allocated(harness):
    return [each.metadata.name for each in await harness.claims() if each.status.allocation is not None]


def test_replicas_that_keep_apart_are_allocated_once_each():
    counted = Counted()

    async def story(harness):
        await furnish(harness, 3)
        await harness.add(kinds.POD, *(waiting(f"w{number}", apart=[term(WEB)]) for number in range(5)))
        await harness.sleep(3)
        placed = [name for name in (f"w{number}" for number in range(5)) if await harness.node_of(name)]
        assert len(placed) == 3
        assert {await harness.node_of(name) for name in placed} == {"n0", "n1", "n2"}
        assert len(await allocated(harness)) == 3
        events = [each["note"] for each in await harness.events("FilteringFailed")]
        assert any("on this node has app=web, which the pod's anti-affinity excludes" in note for note in events)
        await harness.sleep(30)  # the gates of the others are lifted meanwhile
        before = counted.count
        for number in range(5):
            await bind_in(harness, "n0", f"other{number}")
            await harness.sleep(2)
        assert counted.count == before, "pods that come do not help against anti-affinity"
        await harness.delete_pod(placed[0])

        left = [f"w{number}" for number in range(5) if f"w{number}" != placed[0]]

        async def one_more():
            return sum([bool(await harness.node_of(name)) for name in left]) == 3

        await harness.until(one_more, seconds=3)

    play(story, nodes=0, decide=counted, **QUICK)


def test_a_pod_that_must_be_near_another_gets_its_device_when_that_is_bound():
    async def story(harness):
        await furnish(harness, 3)
        await harness.add(kinds.POD, waiting("w", near=[term(DB)]))
        await harness.sleep(5)
        assert not await allocated(harness)
        assert is_pending(await harness.pod("w"))
        await bind_in(harness, "n2", "db", **DB)
        await harness.bound("w", seconds=3)
        assert await harness.node_of("w") == "n2"

    play(story, nodes=0, decide=decide, **QUICK)


def test_a_pod_waits_while_the_one_that_it_wants_is_allocated_and_not_bound():
    async def story(harness):
        await furnish(harness, 2)
        await harness.add(kinds.POD, waiting("db", labels=DB))
        await harness.sleep(1)
        await harness.add(kinds.POD, waiting("w", near=[term(DB)]))
        await harness.sleep(3)
        assert len(await allocated(harness)) == 1, "kube-scheduler would refuse it: the other is not bound"
        [claim] = await harness.claims_of("db")
        (found,) = claim.status.allocation.node_selector.node_selector_terms
        (node,) = found.match_fields[0].values
        await harness.cluster.bind("db", SPACE, node)

        async def both():
            return len(await allocated(harness)) == 2

        await harness.until(both, seconds=3)

    play(story, nodes=0, scheduler=False, decide=decide, **QUICK)


@pytest.mark.parametrize("gone", ["deleted", "finished"])
def test_a_host_port_is_free_when_its_pod_is_over(gone):
    async def story(harness):
        await furnish(harness, 1)
        port = [{"name": "main", "ports": [{"containerPort": 80, "hostPort": 80, "protocol": "TCP"}]}]
        await harness.add(kinds.POD, pod("web", nodeName="n0", containers=port))
        await harness.add(kinds.POD, waiting("w", containers=port))
        await harness.sleep(5)
        assert not await allocated(harness)
        events = [each["note"] for each in await harness.events("FilteringFailed")]
        assert any(f"port 80/TCP is taken by Pod {SPACE}/web" in note for note in events)
        await (harness.delete_pod("web") if gone == "deleted" else harness.finish_pod("web"))
        await harness.bound("w", seconds=3)

    play(story, nodes=0, decide=decide, **QUICK)


def test_a_pod_that_fits_nowhere_whatever_the_room_waits_without_a_device_and_is_told_why():
    async def story(harness):
        await furnish(harness, 2)
        await harness.add(kinds.POD, waiting("w", apart=[term({"app": "a b"})]))
        await harness.sleep(5)
        assert (await harness.pod("w")).spec.scheduling_gates
        events = [each["note"] for each in await harness.events("FilteringFailed")]
        assert any("a term of its podAntiAffinity is invalid: 'a b' is not a label value" in note for note in events)
        await harness.sleep(10)
        assert not (await harness.pod("w")).spec.scheduling_gates, "kube-scheduler says the same"
        assert not await allocated(harness)

    play(story, nodes=0, decide=decide, **QUICK)
