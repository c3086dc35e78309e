"""What happens to a pod, its namesake, its claims and its companions while a write is under way is never forgotten.

docs/decision.md, "No wake-up is lost". Each story runs without a restart: a new term looks at every pod and would hide it. The random
form is tests/property/test_reconcile_churn.py.
"""

import asyncio

import pytest

from hami_dra.api import kinds
from hami_dra.kube.protocol import Unavailable
from tests.support.scene import SPACE, claim, play, pod, template

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


def started(scene, subresource="status", seconds=2.0):
    slow = SlowAnswers(scene.cluster, kind=CLAIM, subresource=subresource, seconds=seconds)
    scene.start(through=slow, **QUICK)
    return slow


async def check_all(scene):
    await scene.check_never_overcommitted()
    await scene.check_bound_pods_have_their_claims()
    await scene.sleep(100)
    await scene.check_nothing_leaked()


@pytest.mark.parametrize("subresource", ["", "status"])
def test_a_pod_made_again_under_its_name_while_the_first_one_is_being_committed(subresource):
    """As a StatefulSet does. The commit of the first pod looks at its own pod, and that is gone."""

    async def story(scene):
        slow = started(scene, subresource)
        await scene.add(kinds.RESOURCE_CLAIM_TEMPLATE, template("t"))
        body = pod("web-0", templates=["t"], gated=True)
        await scene.add(kinds.POD, body)
        await slow.carried_out.wait()
        await scene.delete_pod("web-0")
        await scene.add(kinds.POD, body)
        await scene.bound("web-0", seconds=30)
        await check_all(scene)

    play(story, controller=False)


def test_a_pod_whose_partner_is_deleted_while_it_is_being_committed():
    """The other one came after the decision and was told to wait for the claim that is being written.

    The watch shows the last write to the claim before its answer is there, so even that comes too early to help.
    """

    async def story(scene):
        begun = asyncio.Event()

        async def late(request):
            if request.label == "patch pods/status" and request.name == "a" and not begun.is_set():
                begun.set()
                await asyncio.sleep(2)  # by then the pod is gone

        scene.cluster.hooks.append(late)
        started(scene, "")
        await scene.add(CLAIM, claim("shared"))
        await scene.add(kinds.POD, pod("a", claims=["shared"], gated=True))
        await begun.wait()
        await scene.add(kinds.POD, pod("b", claims=["shared"], gated=True))
        await scene.sleep(0.5)
        await scene.delete_pod("a")
        await scene.bound("b", seconds=30)
        await check_all(scene)

    play(story, controller=False)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_claim_that_is_taken_back_before_the_answer_to_our_own_write(restarted):
    """kube-scheduler may clear an allocation at any time, so also while we wait to be told that it is written.

    A restart before it is no help: the first commits of the new term forget as well.
    """

    async def story(scene):
        if restarted:
            task = scene.start(**QUICK)
            await scene.sleep(30)
            await scene.stop(task)
        slow = started(scene)
        await scene.add(CLAIM, claim("c"))
        await scene.add(kinds.POD, pod("p", claims=["c"]))
        await slow.carried_out.wait()
        cleared = {"status": {"allocation": None, "reservedFor": None}}
        await scene.cluster.patch(CLAIM, "c", cleared, namespace=SPACE, subresource="status")
        await scene.sleep(5)  # the answer is there

        async def allocated():
            return (await scene.claim("c")).status.allocation is not None

        await scene.until(allocated, seconds=60)

    play(story, controller=False, scheduler=False)


def test_a_claim_made_again_under_its_name_while_the_first_one_is_being_written():
    async def story(scene):
        slow = started(scene, "")
        await scene.add(CLAIM, claim("c"))
        await scene.add(kinds.POD, pod("p", claims=["c"], gated=True))
        await slow.carried_out.wait()
        await scene.cluster.patch(CLAIM, "c", {"metadata": {"finalizers": None}}, namespace=SPACE)
        await scene.cluster.delete(CLAIM, "c", namespace=SPACE)
        await scene.add(CLAIM, claim("c"))
        await scene.bound("p", seconds=60)
        await check_all(scene)

    play(story, controller=False)


def test_a_newcomer_while_claims_are_being_taken_back():
    """Undo writes as well: a pod that comes to share the claim meanwhile waits for its end."""

    async def story(scene):
        await scene.add(CLAIM, claim("shared"))
        await scene.add(kinds.POD, pod("a", claims=["shared"], gated=True))
        slow = started(scene, seconds=0.0)

        async def allocated():
            return (await scene.claim("shared")).status.allocation is not None

        await scene.until(allocated)
        slow._seconds = 2.0
        slow.carried_out.clear()
        await scene.patch_node("n0", {"spec": {"unschedulable": True}})
        await slow.carried_out.wait()
        await scene.add(kinds.POD, pod("b", claims=["shared"], gated=True))
        await scene.sleep(0.5)
        await scene.delete_pod("a")
        await scene.until(allocated, seconds=60)
        [consumer] = (await scene.claim("shared")).status.reserved_for
        assert consumer.name == "b"

    play(story, controller=False, scheduler=False)


def test_two_pods_of_one_claim_whose_commits_fail_do_not_wake_each_other_for_ever():
    async def story(scene):
        writes = 0

        async def fail(request):
            nonlocal writes
            if request.is_write and request.kind is CLAIM and request.verb == "patch":
                writes += 1
                raise Unavailable("away")

        scene.cluster.hooks.append(fail)
        started(scene)
        await scene.add(CLAIM, claim("shared"))
        await scene.add(kinds.POD, *(pod(name, claims=["shared"], gated=True) for name in ("a", "b")))
        await scene.sleep(1_800)
        assert writes < 2 * 6 * (1_800 / 60 + 10)  # six attempts of a commit, a minute between two commits of a pod
        scene.cluster.hooks.remove(fail)
        await scene.bound("a", "b", seconds=130)

    play(story, controller=False)
