"""Gangs beside others: what is remembered of one concerns no gang that differs, and a gang keeps its rank."""

import pytest

from hami_dra.api import kinds
from tests.support.harness import SPACE, play, pod
from tests.unit.reconcile.gang_stories import QUICK, add_group, grouped, holders, member, prepare

RANKED = ["annotation", "nomination", "nothing"]


@pytest.mark.parametrize("touch", RANKED)
def test_a_gang_keeps_its_priority_when_only_its_oldest_member_changes(touch):
    async def story(harness):
        await prepare(harness)
        harness.start(**QUICK)
        await harness.add(kinds.POD, pod("holder", templates=["whole", "whole"], gated=True))
        await harness.bound("holder")
        await harness.add(kinds.POD, member("m0", least=2, priority=0))
        await harness.sleep(1.5)
        await harness.add(kinds.POD, member("m1", least=2, priority=100))
        await harness.sleep(1.5)
        await harness.add(kinds.POD, pod("rival", templates=["whole"], gated=True, priority=50))
        await harness.sleep(20)
        if touch == "annotation":
            patch = {"metadata": {"annotations": {"hami.io/node-scheduler-policy": "binpack"}}}
            await harness.cluster.patch(kinds.POD, "m0", patch, namespace=SPACE)
        elif touch == "nomination":
            await harness.cluster.patch(
                kinds.POD, "m0", {"status": {"nominatedNodeName": "n0"}}, namespace=SPACE, subresource="status"
            )
        await harness.sleep(30)
        await harness.delete_pod("holder")
        await harness.sleep(20)
        assert await holders(harness) == {"m0", "m1"}

    play(story, nodes=1, controller=False)


def affine(name, group, role, wants=None):
    options = {}
    if wants:
        term = {"labelSelector": {"matchLabels": {"role": wants}}, "topologyKey": "kubernetes.io/hostname"}
        options["affinity"] = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    body = grouped(name, group, **options)
    body["metadata"]["labels"] = {"role": role}
    return body


@pytest.mark.parametrize("other", [True, False])
def test_a_gang_is_not_refused_because_of_one_whose_leader_has_other_labels(other):
    async def story(harness):
        await prepare(harness)
        harness.start(**QUICK)
        for name in ("n0", "n1"):
            await harness.add_node(name, labels={"kubernetes.io/hostname": name})
        if other:
            await add_group(harness, "typo", 2)
            await harness.add(
                kinds.POD, affine("t-leader", "typo", "boss"), affine("t-worker", "typo", "worker", "leader")
            )
            await harness.sleep(5)
        await add_group(harness, "good", 2)
        await harness.add(
            kinds.POD, affine("g-leader", "good", "leader"), affine("g-worker", "good", "worker", "leader")
        )
        await harness.sleep(120)
        assert await holders(harness) == {"g-leader", "g-worker"}

    play(story, nodes=0, controller=False)


def test_the_decision_of_an_equal_gang_is_stored_for_its_members():
    async def story(h):
        await prepare(h)
        h.start(**QUICK)
        await h.add(kinds.POD, *(member(f"a{i}", "a", 5) for i in range(5)))
        await h.sleep(3)
        await h.add(kinds.POD, *(member(f"b{i}", "b", 5) for i in range(4)))
        await h.sleep(5)
        await h.add(kinds.POD, member("b4", "b", 5))
        await h.sleep(6)
        for name in ("a1", "b1", "b0"):
            found = h.controller.decision_log.of_pod(f"default/{name}")
            assert found is not None
        found = h.controller.decision_log.of_pod("default/b1")
        assert "members fit" in (found.message if found else "")

    play(story, nodes=2, controller=False)
