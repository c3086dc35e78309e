"""Leaving: admission, gates, fence, probes, marks; running pods stay; to run it twice is fine."""

import asyncio

import pytest

from controller.reconcile.fence.rules import rule_body, rule_names
from controller.reconcile.repair.uninstall import Plan, RunsElsewhere, StillActing, Uninstaller
from hami_dra.api import kinds, names
from hami_dra.kube.embedded import default_kinds
from hami_dra.kube.lease_timings import Timings
from hami_dra.kube.protocol import Conflict, Forbidden, ServerVersion, Unavailable
from tests.support.harness import DRIVER, claim, gpu_slice, play, pod, template

ELECTED = {"quiet_time": 0.0, "probe": False, "leader_election": True, "lease": Timings()}


async def uninstall(harness, **plan):
    said = []
    await Uninstaller(harness.cluster, Plan(**plan), harness.clock, said.append).run()
    return said


async def admission(harness):
    ours = {names.MANAGED_BY_LABEL: names.MANAGED_BY}
    chart = {names.MANAGED_BY_LABEL: "Helm", names.PART_OF_LABEL: names.MANAGED_BY}
    await harness.add(kinds.MUTATING_POLICY, {"metadata": {"name": "a", "labels": ours}})
    await harness.add(kinds.MUTATING_POLICY_BINDING, {"metadata": {"name": names.GATE_POLICY}})
    await harness.add(
        kinds.VALIDATING_POLICY, {"metadata": {"name": "b", "labels": chart}}, {"metadata": {"name": "theirs"}}
    )
    await harness.add(kinds.MUTATING_WEBHOOK, {"metadata": {"name": names.WEBHOOK}})
    secret = {"name": names.WEBHOOK_SECRET, "namespace": names.SYSTEM_NAMESPACE}
    await harness.cluster.create(kinds.SECRET, {"metadata": secret}, namespace=names.SYSTEM_NAMESPACE)


async def check_nothing_of_ours_is_left(harness, *, policies=True):
    for kind in (
        kinds.MUTATING_POLICY,
        kinds.MUTATING_POLICY_BINDING,
        kinds.MUTATING_WEBHOOK,
        kinds.SECRET,
        kinds.DEVICE_TAINT_RULE,
    ):
        assert (await harness.cluster.list(kind)).items == (), kind.name
    others = ["theirs"] if policies else []
    assert [item.metadata.name for item in (await harness.cluster.list(kinds.VALIDATING_POLICY)).items] == others
    for found in await harness.pods():
        assert not found.spec.scheduling_gates


def test_everything_goes_in_order_and_running_pods_stay():
    async def story(harness):
        await admission(harness)
        await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template("small"))
        await harness.add(kinds.RESOURCE_CLAIM, claim("huge", 99))
        await harness.add(kinds.POD, pod("running", templates=["small"]), pod("waiting", claims=["huge"], gated=True))
        first = harness.start(**ELECTED)
        await harness.bound("running")
        order = []

        async def hook(request):
            if request.verb in ("delete", "patch") and request.kind is not kinds.LEASE:
                order.append(request.label)

        harness.cluster.hooks.append(hook)
        said = await uninstall(harness)
        await check_nothing_of_ours_is_left(harness)
        [held] = await harness.claims_of("running")
        assert held.status.allocation is not None
        assert held.metadata.finalizers == (names.DELETE_PROTECTION,)
        assert await harness.node_of("running")
        firsts = [order.index(label) for label in (
            "delete mutatingwebhookconfigurations", "patch pods", "delete devicetaintrules"
        )]  # fmt: skip
        assert firsts == sorted(firsts)
        assert any("stood down" in line for line in said)
        # the controller still runs, and restores nothing
        await harness.sleep(120)
        assert harness.metric("hami_dra_leader") == 0
        await check_nothing_of_ours_is_left(harness)
        # nor does one that is only restarted, until the mark is over
        await harness.stop(first)
        harness.start(**ELECTED)
        await harness.sleep(60)
        assert harness.metric("hami_dra_leader") == 0
        await harness.sleep(600)
        assert harness.metric("hami_dra_leader") == 1

    play(story, controller=False)


@pytest.mark.parametrize("trouble", [None, Conflict("changed"), Unavailable("away")], ids=["", "conflict", "away"])
def test_fence_rules_go_even_if_no_controller_is_there_to_let_them_go(trouble):
    async def story(harness):
        kind = kinds.DEVICE_TAINT_RULE
        old = rule_body("gpu.nvidia.com")
        del old["metadata"]["finalizers"]
        for body in (rule_body(DRIVER), rule_body(DRIVER, rule_names(DRIVER)[1]), old):
            await harness.cluster.create(kind, body)
        await harness.cluster.delete(kind, rule_names(DRIVER)[1])
        assert len((await harness.cluster.list(kind)).items) == 3
        if trouble is not None:
            harness.cluster.fail_next(trouble, verb="patch", kind=kind, times=2)
        said = await uninstall(harness)
        await check_nothing_of_ours_is_left(harness, policies=False)
        for name in (*rule_names(DRIVER), rule_names("gpu.nvidia.com")[0]):
            assert said.count(f"DeviceTaintRule {name} deleted") == 1

    play(story, controller=False)


def test_it_can_be_run_again_and_again_and_with_nothing_there():
    async def story(harness):
        await uninstall(harness)
        await admission(harness)
        await uninstall(harness)
        said = await uninstall(harness)
        await check_nothing_of_ours_is_left(harness)
        assert said == ["done: running pods keep their devices, pending claims are kube-scheduler's now"]

    play(story, controller=False)


def test_the_lease_of_a_dead_controller_is_waited_out_and_removed():
    async def story(harness):
        first = harness.start(**ELECTED)
        await harness.sleep(8)

        async def no_release(request):
            if request.kind is kinds.LEASE:
                await harness.sleep(1000)

        harness.cluster.hooks.append(no_release)
        await harness.stop(first)
        harness.cluster.hooks.clear()
        await uninstall(harness)
        assert (await harness.cluster.list(kinds.LEASE)).items == ()

    play(story, controller=False)


def test_a_mark_that_is_over_goes_with_the_lease():
    """It stays for its ten minutes; a controller that still ran then would have taken the lease again."""

    async def story(harness):
        first = harness.start(**ELECTED)
        await harness.sleep(8)
        await uninstall(harness)
        await harness.stop(first)
        await uninstall(harness)
        assert len((await harness.cluster.list(kinds.LEASE)).items) == 1
        await harness.sleep(601)
        await uninstall(harness)
        assert (await harness.cluster.list(kinds.LEASE)).items == ()

    play(story, controller=False)


def test_a_controller_that_does_not_listen_is_named():
    async def story(harness):
        lease = {"metadata": {"name": names.CONTROLLER, "namespace": names.SYSTEM_NAMESPACE}}
        spec = {"holderIdentity": "stubborn", "leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:00.000000Z"}
        await harness.add(kinds.LEASE, {**lease, "spec": spec})

        async def renew():
            number = 0
            while True:
                number += 1
                patch = {"spec": {"leaseTransitions": number}}
                await harness.cluster.patch(kinds.LEASE, names.CONTROLLER, patch, namespace=names.SYSTEM_NAMESPACE)
                await asyncio.sleep(2)

        renewing = asyncio.create_task(renew())
        with pytest.raises(StillActing, match=r"stubborn goes on .*: stop it first"):
            await uninstall(harness)
        renewing.cancel()

    play(story, controller=False)


def test_slices_that_carry_the_taint_themselves_are_named():
    async def story(harness):
        await harness.add(kinds.RESOURCE_SLICE, gpu_slice("n9", fenced=True))
        said = await uninstall(harness)
        assert any("slices of gpu.example.com still carry the taint" in line for line in said)

    version = ServerVersion(1, 36, "v1.36.4")
    play(story, controller=False, version=version, served=default_kinds(version))


def test_templates_of_the_webhook_go_unless_a_pod_still_needs_one():
    async def story(harness):
        labels = {names.MANAGED_BY_LABEL: names.MANAGED_BY, names.TEMPLATE_HASH_LABEL: "x"}
        for name in ("needed", "unused"):
            body = template(name)
            body["metadata"]["labels"] = labels
            await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, body)
        await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template("users"))

        async def stuck(request):
            if request.label == "create resourceclaims":
                await harness.sleep(1000)

        harness.cluster.hooks.append(stuck)
        await harness.add(kinds.POD, pod("p", templates=["needed"]))
        await uninstall(harness)
        left = (await harness.cluster.list(kinds.RESOURCE_CLAIM_TEMPLATE)).items
        assert {item.metadata.name for item in left} == {"needed", "users"}

    play(story, controller=False)


def written_by_uninstall(harness):
    """The labels of all writes from now on but the controller's renewals."""
    writes = []

    async def hook(request):
        if request.is_write and request.label != "patch leases":
            writes.append(request.label)

    harness.cluster.hooks.append(hook)
    return writes


@pytest.mark.parametrize("holder", ["one", ""], ids=["led", "between two leaders"])
def test_a_running_controller_in_another_namespace_keeps_its_protection(holder):
    async def story(harness):
        await admission(harness)
        lease = {"metadata": {"name": names.CONTROLLER, "namespace": "gpus"}, "spec": {"holderIdentity": holder}}
        await harness.cluster.create(kinds.LEASE, lease, namespace="gpus")
        writes = written_by_uninstall(harness)
        with pytest.raises(RunsElsewhere, match="hami-dra runs in namespace gpus: --install-namespace gpus"):
            await uninstall(harness)
        with pytest.raises(RunsElsewhere):
            await uninstall(harness, namespace="a-third-one")
        assert writes == []
        await uninstall(harness, namespace="gpus")
        assert (await harness.cluster.list(kinds.MUTATING_POLICY)).items == ()

    play(story, controller=False)


def test_the_lease_that_an_earlier_uninstall_left_elsewhere_stops_nobody():
    async def story(harness):
        await admission(harness)
        marked = {
            "name": names.CONTROLLER,
            "namespace": "old",
            "annotations": {names.LEAVING_UNTIL: "2026-01-01T00:00:00Z"},
        }
        await harness.cluster.create(kinds.LEASE, {"metadata": marked, "spec": {}}, namespace="old")
        await uninstall(harness)
        await check_nothing_of_ours_is_left(harness)

    play(story, controller=False)


LISTED = (
    "ResourceQuota",
    "Pod",
    "ResourceClaim",
    "DeviceTaintRule",
    "ResourceSlice",
    "MutatingAdmissionPolicy",
    "Lease",
)


@pytest.mark.parametrize(("kind", "after"), [*((kind, 0) for kind in LISTED), *((kind, 1) for kind in LISTED[:-1])])
def test_a_cluster_that_cannot_be_listed_stays_as_it_was_and_its_controller_goes_on(kind, after):
    """Before the stand-down (after 0 lists) and after it (1); leases are listed once."""

    async def story(harness):
        await admission(harness)
        await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template("small"))
        harness.start(**ELECTED)
        await harness.sleep(8)
        listed = 0

        async def forbid(request):
            nonlocal listed
            if request.verb == "list" and request.kind.name == kind and not request.label.startswith("watch"):
                listed += 1
                if listed > after:
                    raise Forbidden("no right")

        harness.cluster.hooks.append(forbid)
        with pytest.raises(Forbidden):
            await uninstall(harness)
        harness.cluster.hooks.clear()
        await harness.sleep(30)
        assert len((await harness.cluster.list(kinds.MUTATING_POLICY)).items) == 1
        [lease] = (await harness.cluster.list(kinds.LEASE)).items
        assert names.LEAVING_UNTIL not in lease.metadata.annotations
        assert harness.metric("hami_dra_leader") == 1
        await harness.add(kinds.POD, pod("next", templates=["small"]))
        await harness.bound("next")

    play(story, controller=False)


def test_a_controller_without_leader_election_pauses_too():
    async def story(harness):
        await admission(harness)
        await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template("small"))
        task = harness.start(**{**ELECTED, "leader_election": False})
        await harness.add(kinds.POD, pod("before", templates=["small"]))
        await harness.bound("before")
        await uninstall(harness)
        await check_nothing_of_ours_is_left(harness)
        assert (await harness.cluster.list(kinds.LEASE)).items == ()
        await harness.sleep(120)
        assert harness.metric("hami_dra_leader") == 0
        await check_nothing_of_ours_is_left(harness)
        await harness.sleep(600)
        assert harness.metric("hami_dra_leader") == 1
        await harness.stop(task)

    play(story, controller=False)


def test_gates_only_releases_the_pods_and_leaves_controller_fence_and_policies():
    async def story(harness):
        await admission(harness)
        await harness.add(kinds.MUTATING_POLICY, {"metadata": {"name": names.GATE_POLICY}})
        await harness.add(kinds.RESOURCE_CLAIM, claim("huge", 99))
        await harness.add(kinds.POD, pod("waiting", claims=["huge"], gated=True))
        harness.start(**{**ELECTED, "gate_patience": 10_000.0})
        await harness.sleep(8)
        rules = len((await harness.cluster.list(kinds.DEVICE_TAINT_RULE)).items)
        await uninstall(harness, gates_only=True)
        assert not any(found.spec.scheduling_gates for found in await harness.pods())
        assert [each.metadata.name for each in (await harness.cluster.list(kinds.MUTATING_POLICY)).items] == ["a"]
        assert (await harness.cluster.list(kinds.MUTATING_POLICY_BINDING)).items == ()
        assert len((await harness.cluster.list(kinds.VALIDATING_POLICY)).items) == 2
        assert len((await harness.cluster.list(kinds.DEVICE_TAINT_RULE)).items) == rules > 0
        await harness.sleep(60)
        assert harness.metric("hami_dra_leader") == 1

    play(story, controller=False)
