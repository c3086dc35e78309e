"""The order of writes, and what happens when one fails, is refused, or gets no answer."""

import pytest

from hami_dra.api import kinds, names
from hami_dra.api.allocator import allocator_of
from hami_dra.api.resource import AllocationResult
from hami_dra.kube.protocol import Conflict, Forbidden, Invalid, NotFound, Unavailable
from tests.support.harness import SPACE, claim, play, pod, template

QUICK = {"quiet_time": 0.0, "probe": False}
CLAIM = kinds.RESOURCE_CLAIM


async def one_pod(harness, **options):
    await harness.add(CLAIM, claim("c"))
    await harness.add(kinds.POD, pod("p", claims=["c"], gated=True, **options))


async def check_all(harness):
    await harness.check_never_overcommitted()
    await harness.check_bound_pods_have_their_claims()
    await harness.check_nothing_leaked()


def recorded(harness):
    """Writes to claims and pods by the controller, in order; status updates of the control plane are not among them."""
    writes = []

    async def hook(request):
        if request.is_write and request.kind in (CLAIM, kinds.POD) and request.verb == "patch":
            if request.kind is kinds.POD and request.subresource:
                return
            writes.append((request.label, request.body))

    harness.cluster.hooks.append(hook)
    return writes


def test_the_finalizer_then_one_status_write_then_the_gate():
    async def story(harness):
        await one_pod(harness)
        writes = recorded(harness)
        harness.start(**QUICK)
        await harness.bound("p")
        protect, status, lift = writes
        assert protect[0] == "patch resourceclaims"
        assert protect[1]["metadata"]["finalizers"] == [names.DELETE_PROTECTION]
        assert protect[1]["metadata"]["resourceVersion"]
        assert status[0] == "patch resourceclaims/status"
        assert int(status[1]["metadata"]["resourceVersion"]) > int(protect[1]["metadata"]["resourceVersion"])
        assert set(status[1]["status"]) == {"allocation", "reservedFor"}
        allocation = status[1]["status"]["allocation"]
        assert allocation["allocationTimestamp"].startswith("2026-01-01T")
        assert allocator_of(AllocationResult.from_json(allocation)) == "hami-dra"
        [consumer] = status[1]["status"]["reservedFor"]
        assert consumer == {"resource": "pods", "name": "p", "uid": (await harness.pod("p")).metadata.uid}
        assert lift[0] == "patch pods"
        assert int(lift[1]["metadata"]["resourceVersion"]) > 0
        assert lift[1]["spec"] == {"schedulingGates": None}

    play(story, controller=False)


def test_a_claim_that_was_made_with_the_finalizer_costs_one_write():
    """As manifests/protect-policy.yaml gives it to generated claims."""

    async def story(harness):
        body = claim("c")
        body["metadata"] |= {"finalizers": [names.DELETE_PROTECTION]}
        await harness.add(CLAIM, body)
        await harness.add(kinds.POD, pod("p", claims=["c"]))
        writes = recorded(harness)
        harness.start(**QUICK)
        await harness.bound("p")
        assert [label for label, _ in writes] == ["patch resourceclaims/status"]

    play(story, controller=False)


def test_the_finalizers_of_others_stay():
    async def story(harness):
        body = claim("c")
        body["metadata"] |= {"finalizers": ["example.com/mine"], "annotations": {"a": "b"}}
        await harness.add(CLAIM, body)
        await harness.add(kinds.POD, pod("p", claims=["c"]))
        await harness.bound("p")
        found = await harness.claim("c")
        assert set(found.metadata.finalizers) == {"example.com/mine", names.DELETE_PROTECTION}
        assert found.metadata.annotations["a"] == "b"

    play(story, **QUICK)


@pytest.mark.parametrize("subresource", ["", "status"])
@pytest.mark.parametrize(
    ("error", "applied"),
    [(Unavailable("time out"), True), (Unavailable("time out"), False), (Conflict("changed"), False)],
)
def test_a_write_without_a_clear_answer_is_settled_by_reading(subresource, applied, error):
    async def story(harness):
        harness.cluster.fail_next(error, verb="patch", kind=CLAIM, subresource=subresource, applied=applied, times=2)
        await one_pod(harness)
        await harness.bound("p")
        await check_all(harness)
        assert harness.metric("hami_dra_commits_total", result="done") == 1
        assert harness.metric("hami_dra_commits_total", result="stale") == 0

    play(story, **QUICK)


def test_nothing_is_given_twice_while_a_write_is_unclear():
    async def story(harness):
        await harness.add(CLAIM, claim("a", 16), claim("b", 16))
        harness.cluster.fail_next(
            Unavailable("lost"), verb="patch", kind=CLAIM, name="a", subresource="status", applied=True
        )
        harness.cluster.fail_next(Unavailable("cannot be read"), verb="get", kind=CLAIM, name="a", times=5)
        await harness.add(kinds.POD, pod("a", claims=["a"]), pod("b", claims=["b"]))
        await harness.bound("a", seconds=60)
        await harness.sleep(10)
        assert not await harness.node_of("b")
        await check_all(harness)

    play(story, nodes=1, node_options={"cards": 1}, **QUICK)


@pytest.mark.parametrize("applied", [True, False])
def test_an_unclear_write_is_settled_however_long_the_claim_cannot_be_read(applied):
    """Until then its device is nobody else's, whether the write landed or not."""

    async def story(harness):
        await harness.add(CLAIM, claim("a", 16), claim("b", 16))
        harness.cluster.fail_next(
            Unavailable("lost"), verb="patch", kind=CLAIM, name="a", subresource="status", applied=applied
        )
        harness.cluster.fail_next(Unavailable("cannot be read"), verb="get", kind=CLAIM, name="a", times=40)
        harness.cluster.fail_next(Unavailable("away"), verb="patch", kind=CLAIM, name="a", subresource="", times=6)
        await harness.add(kinds.POD, pod("a", claims=["a"]), pod("b", claims=["b"]))
        for _ in range(100):
            await harness.sleep(10)
            await harness.check_never_overcommitted()
        assert [await harness.node_of("a"), await harness.node_of("b")].count("n0") == 1
        await check_all(harness)

    play(story, nodes=1, node_options={"cards": 1}, **QUICK)


def test_a_claim_that_can_be_neither_written_nor_read_gives_its_slot_back():
    async def story(harness):
        async def hook(request):
            if request.kind is CLAIM and request.name == "stubborn" and request.verb in {"get", "patch"}:
                raise Unavailable("failed calling webhook")

        await harness.add(CLAIM, claim("stubborn"), claim("willing"))
        harness.start(**QUICK, commits_at_once=1)
        harness.cluster.hooks.append(hook)
        await harness.add(kinds.POD, pod("p0", claims=["stubborn"]))
        await harness.sleep(1)
        await harness.add(kinds.POD, pod("p1", claims=["willing"]))
        await harness.bound("p1", seconds=60)

    play(story, controller=False)


def test_a_claim_that_somebody_changes_all_the_time_gives_its_slot_back():
    async def story(harness):
        async def hook(request):
            if request.kind is CLAIM and request.name == "restless" and request.verb == "patch":
                raise Conflict("the object has been modified")

        await harness.add(CLAIM, claim("restless"), claim("willing"))
        harness.start(**QUICK, commits_at_once=1)
        harness.cluster.hooks.append(hook)
        await harness.add(kinds.POD, pod("p0", claims=["restless"]))
        await harness.sleep(1)
        await harness.add(kinds.POD, pod("p1", claims=["willing"]))
        await harness.bound("p1", seconds=60)

    play(story, controller=False)


@pytest.mark.parametrize("error", [Invalid("no such request"), Forbidden("no right to resourceclaims/binding")])
def test_a_refused_write_is_told_and_tried_again_later(error):
    async def story(harness):
        harness.cluster.fail_next(error, verb="patch", kind=CLAIM, subresource="status")
        await one_pod(harness)
        await harness.sleep(5)
        [event] = await harness.events("BindingFailed")
        assert str(error) in event["note"]
        assert (await harness.claim("c")).status.allocation is None
        await harness.bound("p", seconds=120)

    play(story, **QUICK)


def test_a_change_of_the_claim_by_somebody_else_in_between_is_no_obstacle():
    async def story(harness):
        changes = 3

        async def meddle(request):
            nonlocal changes
            if (
                changes
                and request.kind is CLAIM
                and request.verb == "patch"
                and request.body.get("metadata", {}).get("uid")
            ):
                changes -= 1
                labels = {"metadata": {"labels": {"round": str(changes)}}}
                await harness.cluster.patch(CLAIM, "c", labels, namespace=SPACE)

        harness.cluster.hooks.append(meddle)
        await one_pod(harness)
        await harness.bound("p")
        assert (await harness.claim("c")).metadata.labels == {"round": "0"}
        await check_all(harness)

    play(story, **QUICK)


def test_a_claim_that_somebody_else_allocated_first_is_left_to_them():
    async def story(harness):
        done = False

        async def faster(request):
            nonlocal done
            if not done and request.kind is CLAIM and request.subresource == "status" and request.verb == "patch":
                done = True
                found = await harness.claim("c")
                theirs = {
                    "devices": {
                        "results": [{"request": "card", "driver": "x.example.com", "pool": "p", "device": "d"}]
                    },
                    "allocationTimestamp": "2026-01-01T00:00:00Z",
                }
                rv = {"resourceVersion": found.metadata.resource_version}
                patch = {"metadata": rv, "status": {"allocation": theirs}}
                await harness.cluster.patch(CLAIM, "c", patch, namespace=SPACE, subresource="status")

        harness.cluster.hooks.append(faster)
        await one_pod(harness)
        await harness.bound("p")
        assert (await harness.claim("c")).status.allocation.devices.results[0].driver == "x.example.com"
        assert harness.metric("hami_dra_commits_total", result="stale") == 1

    play(story, **QUICK)


def nominates(request):
    return (
        request.verb == "patch"
        and request.kind is kinds.POD
        and request.subresource == "status"
        and "nominatedNodeName" in request.body["status"]
    )


def committed(harness):
    async def done():
        return harness.metric("hami_dra_commits_total", result="done") == 1

    return harness.until(done)


def test_the_pod_is_told_its_node_and_need_not_be_read():
    async def story(harness):
        await one_pod(harness)
        await committed(harness)
        assert harness.cluster.requests["get pods"] == 0
        assert (await harness.pod("p")).status.nominated_node_name == "n0"

    play(story, scheduler=False, **QUICK)


@pytest.mark.parametrize("error", [Forbidden("no right to pods/status"), Unavailable("lost"), Invalid("no")])
def test_without_a_nomination_the_pod_is_just_read(error):
    async def story(harness):
        harness.cluster.fail_next(error, verb="patch", kind=kinds.POD, subresource="status")
        await one_pod(harness)
        await committed(harness)
        assert harness.cluster.requests["get pods"] == 1
        assert harness.metric("hami_dra_commits_total", result="stale") == 0

    play(story, scheduler=False, **QUICK)


def test_the_pod_is_looked_at_again_before_its_first_commit():
    async def story(harness):
        async def vanish(request):
            if nominates(request):
                harness.cluster.hooks.remove(vanish)
                await harness.delete_pod("p")

        harness.cluster.hooks.append(vanish)
        await one_pod(harness)
        await harness.sleep(5)
        found = await harness.claim("c")
        assert found.status.allocation is None
        await harness.add(kinds.POD, pod("next", claims=["c"]))
        await harness.bound("next")
        await check_all(harness)

    play(story, **QUICK)


def test_a_claim_that_is_being_deleted_is_never_written():
    async def story(harness):
        body = claim("c")
        body["metadata"]["finalizers"] = ["example.com/hold"]
        await harness.add(CLAIM, body)
        await harness.cluster.delete(CLAIM, "c", namespace=SPACE)
        await harness.add(kinds.POD, pod("p", claims=["c"]))
        await harness.sleep(30)
        found = await harness.claim("c")
        assert found.metadata.finalizers == ("example.com/hold",)
        assert found.status.allocation is None

    play(story, **QUICK)


def test_a_claim_deleted_between_the_two_writes_leaves_nothing():
    async def story(harness):
        async def vanish(request):
            if request.kind is CLAIM and request.subresource == "status" and request.verb == "patch":
                harness.cluster.hooks.remove(vanish)
                await harness.cluster.delete(CLAIM, "c", namespace=SPACE)

        harness.cluster.hooks.append(vanish)
        await one_pod(harness)
        await harness.sleep(10)
        with pytest.raises(NotFound):
            await harness.claim("c")
        # all of the card can be had by the next one: nothing stayed assumed
        await harness.add(CLAIM, claim("d", 16))
        await harness.add(kinds.POD, pod("q", claims=["d"]))
        await harness.bound("q")

    play(story, nodes=1, node_options={"cards": 1}, **QUICK)


def test_of_two_claims_both_are_written_or_none():
    async def story(harness):
        await harness.add(CLAIM, claim("a"), claim("b"))
        harness.cluster.fail_next(
            Invalid("not this one"), verb="patch", kind=CLAIM, name="b", subresource="status", times=1
        )
        await harness.add(kinds.POD, pod("p", claims=["a", "b"], gated=True))
        await harness.sleep(5)
        assert (await harness.claim("a")).status.allocation is None
        assert (await harness.claim("b")).status.allocation is None
        assert (await harness.claim("a")).status.reserved_for == ()
        await harness.bound("p", seconds=120)
        await check_all(harness)

    play(story, **QUICK)


def test_a_pod_that_changes_right_before_its_gate_is_lifted_is_read_again():
    async def story(harness):
        await one_pod(harness)
        changed = []

        async def hook(request):
            lifts = request.verb == "patch" and request.kind is kinds.POD and "spec" in request.body
            if lifts and not request.subresource and not changed:
                changed.append(True)
                await harness.cluster.patch(kinds.POD, "p", {"metadata": {"labels": {"x": "y"}}}, namespace=SPACE)

        harness.cluster.hooks.append(hook)
        harness.start(**QUICK)
        await harness.bound("p")
        assert changed
        assert (await harness.pod("p")).metadata.labels["x"] == "y"

    play(story, controller=False)


def test_a_gate_that_cannot_be_lifted_at_once_is_lifted_later():
    async def story(harness):
        harness.cluster.fail_next(Unavailable("no"), verb="patch", kind=kinds.POD, subresource="", times=3)
        await one_pod(harness)
        await harness.bound("p")

    play(story, **QUICK)


def test_watches_that_lag_do_not_make_it_decide_twice():
    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template("half", 8))
        await harness.add(kinds.POD, *(pod(f"p{number}", templates=["half"]) for number in range(4)))
        await harness.plane.settled()
        harness.cluster.pause_watches()
        harness.start(**QUICK)
        await harness.sleep(5)
        harness.cluster.resume_watches()
        await harness.bound(*(f"p{number}" for number in range(4)))
        await check_all(harness)
        assert harness.metric("hami_dra_commits_total", result="done") == 4

    play(story, nodes=1, controller=False)


def test_the_history_may_be_forgotten_and_the_server_restarted_at_any_time():
    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template("small", 2))
        names_of_pods = [f"p{number:02}" for number in range(12)]
        for number, name in enumerate(names_of_pods):
            await harness.add(kinds.POD, pod(name, templates=["small"], gated=True))
            if number % 3 == 0:
                harness.cluster.forget_history()
                harness.cluster.close_watches(Unavailable("connection lost"))
            await harness.sleep(0.3)
        await harness.bound(*names_of_pods)
        await check_all(harness)

    play(story, **QUICK)
