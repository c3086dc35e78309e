"""The controller is killed before or after any of its writes; another one takes over; everything is placed once."""

import pytest

from hami_dra.api import kinds
from tests.support.harness import SPACE, claim, play, pod, template
from tests.support.mortal import Mortal

QUICK = {"quiet_time": 0.5}


async def populate(harness):
    """One claim from a template, two claims of one pod, one claim of two pods; half of them gated."""
    await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template("small"))
    await harness.add(kinds.RESOURCE_CLAIM, claim("a"), claim("b"), claim("shared"))
    await harness.add(
        kinds.POD,
        pod("single", templates=["small"], gated=True),
        pod("double", claims=["a", "b"], gated=True),
        pod("left", claims=["shared"], gated=True),
        pod("right", claims=["shared"]),
    )


PODS = ("single", "double", "left", "right")


def writes_of_a_whole_run():
    counted = []

    async def story(harness):
        mortal = Mortal(harness.cluster, 0, before=False)
        await populate(harness)
        harness.start(through=mortal, **QUICK)
        await harness.bound(*PODS)
        await harness.sleep(1)
        counted.append(mortal.writes)

    play(story, controller=False)
    return counted[0]


async def die_and_take_over(harness, at, *, before, **settings):
    mortal = Mortal(harness.cluster, at, before=before)
    first = harness.start(through=mortal, **settings)

    async def dead():
        return mortal.dead.is_set()

    await harness.until(dead)
    # what was decided but not written yet gets no chance either
    await harness.stop(first)
    harness.start(**settings)
    await harness.bound(*PODS)
    await harness.check_never_overcommitted()
    await harness.check_bound_pods_have_their_claims()
    await harness.check_nothing_leaked()
    for name in PODS:
        assert not (await harness.pod(name)).spec.scheduling_gates
    for name in PODS:
        await harness.delete_pod(name)
    for name in ("a", "b", "shared"):
        await harness.cluster.delete(kinds.RESOURCE_CLAIM, name, namespace=SPACE)
    await harness.sleep(5)
    assert [held.key for held in await harness.claims()] == []


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_killed_at_any_write(before):
    total = writes_of_a_whole_run()
    assert total >= 15
    for at in range(1, total + 1):

        async def story(harness, at=at):
            await populate(harness)
            await die_and_take_over(harness, at, before=before, **QUICK)

        play(story, controller=False)


def test_killed_between_the_claims_of_a_pod_whose_node_has_filled_up_since():
    """The first claim of the pod is allocated on n0, the second finds no room there any more: both move."""

    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM, claim("a", 8), claim("b", 8))
        await harness.add(kinds.POD, pod("double", claims=["a", "b"]))

        async def only_a(request):
            if request.kind is kinds.RESOURCE_CLAIM and request.name == "b" and request.subresource == "status":
                await harness.sleep(1000)

        harness.cluster.hooks.append(only_a)
        first = harness.start(**QUICK)

        async def half_done():
            return (await harness.claim("a")).status.allocation is not None

        await harness.until(half_done)
        await harness.stop(first)
        harness.cluster.hooks.clear()
        assert (await harness.claim("a")).status.allocation.node_selector.node_selector_terms[0].match_fields[
            0
        ].values == ("n0",)
        # somebody takes the other half of n0's only card
        await harness.add(kinds.RESOURCE_CLAIM, claim("thief", 8))
        await harness.add(kinds.POD, pod("thief", claims=["thief"], nodeName="n0"))
        await harness.allocate_as_somebody_else("thief", "n0", memory=8, pod="thief")
        harness.start(**QUICK)
        await harness.bound("double")
        assert await harness.node_of("double") == "n1"
        await harness.check_never_overcommitted()
        await harness.check_bound_pods_have_their_claims()

    play(story, controller=False, node_options={"cards": 1})
