"""What happens to a pod, its namesake, its claims and its companions while a write is under way is never forgotten.

docs/design/decision.md, "No wake-up is lost". Each story runs without a restart: a new term looks at every pod and would hide it. The random
form is tests/property/test_reconcile_churn.py.
"""

import asyncio

import pytest

from hami_dra.api import kinds
from hami_dra.kube.protocol import Unavailable
from tests.support.harness import SPACE, claim, play, pod, template

QUICK = {"quiet_time": 0.0, "probe": False}
CLAIM = kinds.RESOURCE_CLAIM


class SlowAnswers:
    """The API server carries out the controller's patches at once, and the answers to some of them come late."""

    def __init__(self, inner, *, kind, subresource="", seconds=2.0):
        self._inner = inner
        self._slow = (kind, subresource)
        self._seconds = seconds
        self.carried_out = asyncio.Event()
        """One of them."""

    async def patch(self, kind, *arguments, **options):
        try:
            return await self._inner.patch(kind, *arguments, **options)
        finally:
            if (kind, options.get("subresource", "")) == self._slow:
                self.carried_out.set()
                await asyncio.sleep(self._seconds)

    def __getattr__(self, name):
        return getattr(self._inner, name)


def started(harness, subresource="status", seconds=2.0):
    slow = SlowAnswers(harness.cluster, kind=CLAIM, subresource=subresource, seconds=seconds)
    harness.start(through=slow, **QUICK)
    return slow


async def check_all(harness):
    await harness.check_never_overcommitted()
    await harness.check_bound_pods_have_their_claims()
    await harness.sleep(100)
    await harness.check_nothing_leaked()


@pytest.mark.parametrize("subresource", ["", "status"])
def test_a_pod_made_again_under_its_name_while_the_first_one_is_being_committed(subresource):
    """As a StatefulSet does. The commit of the first pod looks at its own pod, and that is gone."""

    async def story(harness):
        slow = started(harness, subresource)
        await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template("t"))
        body = pod("web-0", templates=["t"], gated=True)
        await harness.add(kinds.POD, body)
        await slow.carried_out.wait()
        await harness.delete_pod("web-0")
        await harness.add(kinds.POD, body)
        await harness.bound("web-0", seconds=30)
        await check_all(harness)

    play(story, controller=False)


def test_a_pod_whose_partner_is_deleted_while_it_is_being_committed():
    """The other one came after the decision and was told to wait for the claim that is being written.

    The watch shows the last write to the claim before its answer is there, so even that comes too early to help.
    """

    async def story(harness):
        begun = asyncio.Event()

        async def late(request):
            if request.label == "patch pods/status" and request.name == "a" and not begun.is_set():
                begun.set()
                await asyncio.sleep(2)  # by then the pod is gone

        harness.cluster.hooks.append(late)
        started(harness, "")
        await harness.add(CLAIM, claim("shared"))
        await harness.add(kinds.POD, pod("a", claims=["shared"], gated=True))
        await begun.wait()
        await harness.add(kinds.POD, pod("b", claims=["shared"], gated=True))
        await harness.sleep(0.5)
        await harness.delete_pod("a")
        await harness.bound("b", seconds=30)
        await check_all(harness)

    play(story, controller=False)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_claim_that_is_taken_back_before_the_answer_to_our_own_write(restarted):
    """kube-scheduler may clear an allocation at any time, so also while we wait to be told that it is written.

    A restart before it is no help: the first commits of the new term forget as well.
    """

    async def story(harness):
        if restarted:
            task = harness.start(**QUICK)
            await harness.sleep(30)
            await harness.stop(task)
        slow = started(harness)
        await harness.add(CLAIM, claim("c"))
        await harness.add(kinds.POD, pod("p", claims=["c"]))
        await slow.carried_out.wait()
        cleared = {"status": {"allocation": None, "reservedFor": None}}
        await harness.cluster.patch(CLAIM, "c", cleared, namespace=SPACE, subresource="status")
        await harness.sleep(5)  # the answer is there

        async def allocated():
            return (await harness.claim("c")).status.allocation is not None

        await harness.until(allocated, seconds=60)

    play(story, controller=False, scheduler=False)


def test_a_claim_made_again_under_its_name_while_the_first_one_is_being_written():
    async def story(harness):
        slow = started(harness, "")
        await harness.add(CLAIM, claim("c"))
        await harness.add(kinds.POD, pod("p", claims=["c"], gated=True))
        await slow.carried_out.wait()
        await harness.cluster.patch(CLAIM, "c", {"metadata": {"finalizers": None}}, namespace=SPACE)
        await harness.cluster.delete(CLAIM, "c", namespace=SPACE)
        await harness.add(CLAIM, claim("c"))
        await harness.bound("p", seconds=60)
        await check_all(harness)

    play(story, controller=False)


def test_a_newcomer_while_claims_are_being_taken_back():
    """Undo writes as well: a pod that comes to share the claim meanwhile waits for its end."""

    async def story(harness):
        await harness.add(CLAIM, claim("shared"))
        await harness.add(kinds.POD, pod("a", claims=["shared"], gated=True))
        slow = started(harness, seconds=0.0)

        async def allocated():
            return (await harness.claim("shared")).status.allocation is not None

        await harness.until(allocated)
        slow._seconds = 2.0
        slow.carried_out.clear()
        await harness.patch_node("n0", {"spec": {"unschedulable": True}})
        await slow.carried_out.wait()
        await harness.add(kinds.POD, pod("b", claims=["shared"], gated=True))
        await harness.sleep(0.5)
        await harness.delete_pod("a")
        await harness.until(allocated, seconds=60)
        [consumer] = (await harness.claim("shared")).status.reserved_for
        assert consumer.name == "b"

    play(story, controller=False, scheduler=False)


def test_two_pods_of_one_claim_whose_commits_fail_do_not_wake_each_other_for_ever():
    async def story(harness):
        writes = 0

        async def fail(request):
            nonlocal writes
            if request.is_write and request.kind is CLAIM and request.verb == "patch":
                writes += 1
                raise Unavailable("away")

        harness.cluster.hooks.append(fail)
        started(harness)
        await harness.add(CLAIM, claim("shared"))
        await harness.add(kinds.POD, *(pod(name, claims=["shared"], gated=True) for name in ("a", "b")))
        await harness.sleep(1_800)
        assert writes < 2 * 6 * (1_800 / 60 + 10)  # six attempts of a commit, a minute between two commits of a pod
        harness.cluster.hooks.remove(fail)
        await harness.bound("a", "b", seconds=130)

    play(story, controller=False)


def test_what_a_pod_that_waits_held_of_a_claim_that_vanished_is_given_on():
    """Nobody creates the claim again, so that its pod is never decided. For a minute it may have been bound before."""

    async def story(harness):
        await harness.add(CLAIM, claim("c", 16), claim("d", 16))
        await harness.add(kinds.POD, pod("p", claims=["c"], gated=True))

        async def allocated(name):
            return (await harness.claim(name)).status.allocation is not None

        await harness.until(lambda: allocated("c"))
        await harness.cluster.patch(CLAIM, "c", {"metadata": {"finalizers": None}}, namespace=SPACE)
        await harness.cluster.delete(CLAIM, "c", namespace=SPACE)
        await harness.add(kinds.POD, pod("q", claims=["d"], gated=True))
        await harness.sleep(30)
        assert not await allocated("d")
        await harness.until(lambda: allocated("d"), seconds=35)

    play(story, nodes=1, node_options={"cards": 1}, scheduler=False, **QUICK)
