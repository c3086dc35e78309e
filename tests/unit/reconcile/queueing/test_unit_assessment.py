"""Which members of a gang can be decided, and how few looks that takes while claims are still being generated."""

from controller.assessment import Ignored, assess_unit
from controller.decide import SchedulingRequest
from controller.gangs import GangKey, GangState
from controller.inventory import Inventory
from controller.reconcile.queueing.pod_assessment import Pending
from hami_dra.api.core import Pod, PodSpec
from hami_dra.api.meta import ObjectMeta

KEY = GangKey("labels", "team", "train")


def pods(count, bound=0):
    return tuple(
        Pod(
            metadata=ObjectMeta(name=f"m{i:02}", namespace="team", uid=f"u{i}"),
            spec=PodSpec(node_name="n1" if i < bound else ""),
        )
        for i in range(count)
    )


def assess(least, members, *, bound=0, missing=(), allocated=(), first=""):
    """Return the assessment, and the pods that were looked at."""
    looks = []

    def look(pod):
        looks.append(pod.metadata.name)
        if pod.metadata.name in missing:
            return Pending("its claim is not generated yet")
        if pod.metadata.name in allocated:
            return Ignored("all its claims are allocated")
        return SchedulingRequest(pod, ())

    state = GangState(KEY, least, members, bound, 0)
    pending = state.pending
    unit = assess_unit(pending[0], pending, state, look, first=first, node_of=lambda pod: f"n-{pod.metadata.name}")
    return unit, looks


def names(found):
    return [each.pod.metadata.name for each in found.ready]


def test_members_with_devices_count_as_placed():
    found, _ = assess(4, pods(4, bound=1), bound=1, allocated={"m01"})
    assert names(found) == ["m02", "m03"]
    assert (found.least, found.settled_nodes) == (2, ("n-m01", "n1"))


def test_a_gang_waits_for_one_member_unless_there_are_enough_without_it():
    found, looks = assess(4, pods(4), missing={"m01"})
    assert found.is_blocked
    assert looks == ["m00", "m01"]
    found, _ = assess(3, pods(4), missing={"m01"})
    assert not found.is_blocked
    assert names(found) == ["m00", "m02", "m03"]


def test_claims_that_come_one_after_the_other_cost_one_look_each():
    members, first, looks = pods(20), "", 0
    for generated in range(20):
        missing = {f"m{i:02}" for i in range(generated, 20)}
        found, looked = assess(20, members, missing=missing, first=first)
        first, looks = found.blocked[0].pod.key, looks + len(looked)
    assert looks <= 2 * 20
    found, _ = assess(20, members, first=first)
    assert names(found) == [pod.metadata.name for pod in members], "oldest first, whatever the order of the looks"


def test_gangs_that_ask_for_the_same_have_one_signature():
    def signature(*arguments, **options):
        return assess(*arguments, **options)[0].signature(Inventory()).digest

    assert signature(4, pods(4)) == signature(4, pods(4))
    assert signature(4, pods(4)) != signature(3, pods(4))
    assert signature(4, pods(4)) != signature(4, pods(5))
    assert signature(4, pods(4)) != signature(4, pods(4), allocated={"m00"})
