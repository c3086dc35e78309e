"""Gangs on the scene of the harness: two nodes with two cards of 16 GiB each, real decisions."""

from controller.scheduling.decide import decide
from hami_dra.api import kinds
from tests.support.gang_objects import in_labelled_group
from tests.support.harness import play, pod, template

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
