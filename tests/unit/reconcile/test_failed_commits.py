"""After a commit that failed, what counts is what the claims say, however long the API server was away."""

import asyncio

import pytest

from hami_dra.api import kinds
from hami_dra.kube.protocol import Invalid, Unavailable
from tests.support.harness import SPACE, play, pod, template
from tests.unit.reconcile.gang_stories import QUICK, gates, holders, member, nodes, prepare, until_holding

HOST = "kubernetes.io/hostname"


class Refusing:
    """Refuses the claim of m1 once; claims cannot be written or read for some seconds after that."""

    def __init__(self, inner, seconds):
        self._inner = inner
        self._seconds = seconds
        self._until = None

    def __getattr__(self, name):
        target = getattr(self._inner, name)
        if name not in ("patch", "get"):
            return target

        async def call(kind, about, *arguments, **options):
            now = asyncio.get_running_loop().time()
            if kind is kinds.RESOURCE_CLAIM and self._until is None and name == "patch" and about.startswith("m1-"):
                await asyncio.sleep(0.3)
                self._until = now + self._seconds
                raise Invalid("the claim is refused by a policy")
            if kind is kinds.RESOURCE_CLAIM and self._until is not None and now < self._until:
                raise Unavailable("the API server is away")
            return await target(kind, about, *arguments, **options)

        return call


@pytest.mark.parametrize("seconds", [3, 10, 30, 60])
@pytest.mark.parametrize("spread", [False, True])
@pytest.mark.parametrize("deleted", [False, True])
def test_a_gang_whose_commit_failed_in_an_outage_gives_its_devices_back(seconds, spread, deleted):
    async def story(harness):
        for name in ("n0", "n1"):
            await harness.patch_node(name, {"metadata": {"labels": {HOST: name}}})
        harness.start(through=Refusing(harness.cluster, seconds), gang_hold=20.0, **QUICK)
        constraint = {"maxSkew": 1, "topologyKey": HOST, "whenUnsatisfiable": "DoNotSchedule"}
        constraint["labelSelector"] = {"matchLabels": {"app": "x"}}
        members = [
            member(f"m{i}", least=2, **({"topologySpreadConstraints": [constraint]} if spread else {}))
            for i in range(2)
        ]
        for body in members:
            body["metadata"]["labels"]["app"] = "x"
        await prepare(harness, *members)
        await harness.sleep(1)
        if deleted:
            await harness.delete_pod("m1")
        await harness.add(kinds.POD, *(pod(f"victim{i}", templates=["whole"], gated=True) for i in range(2)))
        await harness.sleep(seconds + 40)
        found = await nodes(harness)
        if found["m0"]:  # it was placed as a whole, before the victims
            assert found["m1"]
            assert not deleted
        else:
            assert await holders(harness) == {"victim0", "victim1"}
            assert all(found[name] for name in ("victim0", "victim1"))
            assert not deleted or await gates(harness) == {"m0"}

    play(story, controller=False, node_options={"cards": 1})


def test_an_unbound_pod_counts_with_its_newest_labels():
    async def story(harness):
        for name in ("n0", "n1"):
            await harness.add_node(name, labels={HOST: name})
        await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template("t", 1))
        first = pod("a", templates=["t"], gated=True)
        first["metadata"]["labels"] = {"app": "y"}
        await harness.add(kinds.POD, first)
        await harness.sleep(8)
        await harness.cluster.patch(kinds.POD, "a", {"metadata": {"labels": {"app": "x"}}}, namespace=SPACE)
        term = {"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": "x"}}}
        apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
        await harness.add(kinds.POD, pod("b", templates=["t"], gated=True, affinity=apart))
        await harness.sleep(8)
        [one], [other] = await harness.claims_of("a"), await harness.claims_of("b")
        assert one.status.allocation.devices.results[0].pool != other.status.allocation.devices.results[0].pool

    play(story, nodes=0, scheduler=False, **QUICK)


def test_a_claim_that_is_being_deleted_is_given_back_when_its_pod_cannot_run():
    """The claim controller waits for the end of its reservation: the pod would keep the device for ever."""

    async def story(harness):
        await prepare(harness, member("m0", least=2), member("m1", least=2))
        await harness.sleep(3)
        assert await holders(harness) == {"m0", "m1"}
        [held] = await harness.claims_of("m0")
        await harness.cluster.delete(kinds.RESOURCE_CLAIM, held.metadata.name, namespace=SPACE)
        await harness.sleep(1)
        await harness.patch_node("n0", {"spec": {"unschedulable": True}})
        await harness.patch_node("n1", {"spec": {"unschedulable": True}})
        await harness.sleep(60)
        assert await holders(harness) == set()

    play(story, scheduler=False, gang_hold=20.0, **QUICK)


class GatesStay:
    """From the first write of a gate on, gates cannot be written until it is healed; nor can the kinds of `also`."""

    def __init__(self, inner, also):
        self._inner = inner
        self._also = also
        self.is_away = self.is_healed = False

    def heal(self):
        self.is_healed = True

    def __getattr__(self, name):
        target = getattr(self._inner, name)
        if name != "patch":
            return target

        async def call(kind, *arguments, **options):
            is_gate = kind is kinds.POD and "schedulingGates" in str(arguments)
            self.is_away |= is_gate
            if self.is_away and not self.is_healed and (is_gate or kind in self._also):
                raise Unavailable("the API server is away")
            return await target(kind, *arguments, **options)

        return call


@pytest.mark.parametrize("seconds", [3, 20, 70])
@pytest.mark.parametrize("again", ["never", "in the outage", "afterwards"])
@pytest.mark.parametrize("also", [(), (kinds.RESOURCE_CLAIM,)])
def test_a_gate_that_is_lifted_late_stays_if_the_gang_is_no_longer_complete(seconds, again, also):
    async def story(harness):
        away = GatesStay(harness.cluster, also)
        await prepare(harness, *(member(f"m{number}") for number in range(4)))
        harness.start(through=away, **QUICK)
        await harness.sleep(2)
        assert away.is_away
        await harness.delete_pod("m3")
        await harness.sleep(seconds / 2)
        if again == "in the outage":
            await harness.add(kinds.POD, member("m3"))
        await harness.sleep(seconds / 2)
        away.heal()
        if again == "in the outage":
            await harness.bound("m0", "m1", "m2", "m3", seconds=300)
            return
        await harness.sleep(250)
        assert not any((await nodes(harness)).values())
        assert await holders(harness) == set()
        assert await gates(harness) == {"m0", "m1", "m2"}
        if again == "afterwards":
            await harness.add(kinds.POD, member("m3"))
            await harness.bound("m0", "m1", "m2", "m3")

    play(story, controller=False)


def test_a_surplus_member_whose_claim_is_deleted_before_its_gate_is_lifted_gives_its_device_back():
    """Enough others run, so that the gang waits for nothing: only the member itself is in the way of its device."""

    async def story(harness):
        await prepare(harness, member("m0", least=2), member("m1", least=2))
        first = harness.start(**QUICK)
        await harness.bound("m0", "m1")
        await harness.stop(first)
        away = GatesStay(harness.cluster, ())
        second = harness.start(through=away, **QUICK)
        await harness.add(kinds.POD, member("m2", least=2))
        await until_holding(harness, "m0", "m1", "m2")
        await harness.stop(second)
        [held] = await harness.claims_of("m2")
        await harness.cluster.delete(kinds.RESOURCE_CLAIM, held.metadata.name, namespace=SPACE)
        harness.start(**QUICK, gang_hold=20.0)
        await until_holding(harness, "m0", "m1")

    play(story, controller=False)
