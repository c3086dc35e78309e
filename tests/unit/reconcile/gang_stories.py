"""Gangs on the scene of the harness: two nodes with two cards of 16 GiB each, real decisions."""

from controller.decide import decide
from hami_dra.api import kinds
from tests.support.gang_objects import in_labelled_group, in_pod_group, pod_group
from tests.support.harness import SPACE, play, pod, template

QUICK = {"quiet_time": 0.0, "probe": False, "decide": decide}
WHOLE = 16
"""GiB of a card: such a claim takes all of it."""


def member(name, gang="train", least=4, **options):
    body = pod(name, templates=options.pop("templates", ["whole"]), gated=options.pop("gated", True), **options)
    return in_labelled_group(body, gang, least)


async def prepare(harness, *members):
    await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template("whole", WHOLE), template("half", WHOLE // 2))
    await harness.add(kinds.POD, *members)


async def gates(harness):
    return {found.metadata.name for found in await harness.pods() if found.spec.scheduling_gates}


async def holders(harness):
    """Names of the pods that hold a device."""
    return {user.name for held in await harness.claims() if held.status.allocation for user in held.status.reserved_for}


async def nodes(harness):
    return {found.metadata.name: found.spec.node_name for found in await harness.pods()}


def story_of(**play_options):
    """Run a story on two nodes with two cards each."""

    def run(story):
        def test():
            play(story, controller=False, **play_options)

        test.__name__, test.__doc__ = story.__name__, story.__doc__
        return test

    return run


async def refuse(harness, name, message="0/2 nodes are available: a plugin out of tree says no."):
    """What kube-scheduler says of a pod it cannot bind to the chosen node."""
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    patch = {"status": {"conditions": [condition], "nominatedNodeName": None}}
    await harness.cluster.patch(kinds.POD, name, patch, namespace=SPACE, subresource="status")


async def bind(harness, *names):
    """What kube-scheduler does with pods whose claims are allocated."""
    for name in names:
        [held] = await harness.claims_of(name)
        node = held.status.allocation.node_selector.node_selector_terms[0].match_fields[0].values[0]
        await harness.cluster.bind(name, SPACE, node)


def until_holding(harness, *names, seconds=120.0):
    """Wait until exactly these pods hold devices."""

    async def holding():
        return await holders(harness) == set(names)

    return harness.until(holding, seconds)


async def add_group(harness, name, least, **options):
    body = pod_group(name, least, **options)
    body["metadata"]["namespace"] = SPACE
    await harness.add(kinds.POD_GROUP, body)


def grouped(name, group="train", **options):
    """Return a member of a PodGroup of scheduling.k8s.io."""
    body = pod(name, templates=options.pop("templates", ["whole"]), gated=options.pop("gated", True), **options)
    return in_pod_group(body, group)
