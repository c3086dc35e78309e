"""Objects that a tenant changes without end, thousands at once: gangs of one member, the keys of gangs, labels of namespaces.

An honest pod of another namespace waits no longer than without them, and of what is gone nothing is kept.
"""

import pytest

from controller.decide import decide
from hami_dra.api import kinds
from tests.property.test_nothing_kept import BOUNDED
from tests.support.census import census, grown
from tests.support.gang_objects import MIN_AVAILABLE_LABEL, NAME_LABEL, in_labelled_group
from tests.support.harness import claim, play, pod, template

EVIL = "evil"
MANY = 400
ROUNDS = 4
TICK = 0.05
"""How exactly a wait is seen."""


PACKAGES = ("controller.reconcile", "controller.gangs", "hami_dra.kube.reflector", "hami_dra.kube.store")
"""Not the tables of shapes in rules and inventory: they are bounded by number, not by what lives."""


def of_tenant(body):
    body["metadata"]["namespace"] = EVIL
    return body


async def wait_of_honest_pod(harness):
    """Seconds of the scene until it is bound; then it goes."""
    began = harness.clock.monotonic()
    await harness.add(kinds.POD, pod("honest", templates=["honest"]))
    await harness.bound("honest", seconds=2)
    waited = harness.clock.monotonic() - began
    await harness.delete_pod("honest")
    return waited


def gang_of_one(number, memory):
    """One that fits, one that fits on no node, one that fits on no device."""
    body = pod(f"e{number}", templates=[f"t{memory}"], cpu="64" if number % 3 else "10m")
    return of_tenant(in_labelled_group(body, f"g{number}", 1))


class Gangs:
    """Each pod a gang; then others, larger ones, impossible ones, one of all."""

    async def come(self, harness):
        for memory in (1, 40):
            if not await self._has(harness, memory):
                await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, of_tenant(template(f"t{memory}", memory)))
        await harness.add(kinds.POD, *(gang_of_one(number, 40 if number % 2 else 1) for number in range(MANY)))

    async def _has(self, harness, memory):
        found = await harness.cluster.list(kinds.RESOURCE_CLAIM_TEMPLATE)
        return any(each.metadata.name == f"t{memory}" for each in found.items)

    async def change(self, harness, turn):
        for number in range(MANY):
            group = [f"x{turn}-{number}", f"x{turn}-{number % 7}", "all", f"g{number}"][turn % 4]
            labels = {NAME_LABEL: group, MIN_AVAILABLE_LABEL: ["1", "2", "1000", "-1"][(turn + number) % 4]}
            await harness.cluster.patch(kinds.POD, f"e{number}", {"metadata": {"labels": labels}}, namespace=EVIL)

    async def go(self, harness):
        for number in range(MANY):
            await harness.cluster.delete(kinds.POD, f"e{number}", namespace=EVIL)


class Namespaces:
    """Terms about all namespaces, whose labels change."""

    async def come(self, harness):
        for number in range(MANY):
            await harness.add(
                kinds.NAMESPACE, {"metadata": {"name": f"ns{number}", "labels": {"a": str(number), "of": "tenant"}}}
            )
        for number in range(40):
            values = [str(value) for value in range(number, number + 30)]
            term = {
                "topologyKey": "kubernetes.io/hostname",
                "namespaceSelector": {"matchExpressions": [{"key": "a", "operator": "NotIn", "values": values}]},
                "labelSelector": {"matchLabels": {"x": str(number)}},
            }
            affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
            await harness.add(kinds.RESOURCE_CLAIM, of_tenant(claim(f"e{number}", 1)))
            cpu = "64" if number % 4 else "10m"
            await harness.add(
                kinds.POD, of_tenant(pod(f"e{number}", claims=[f"e{number}"], cpu=cpu, affinity=affinity))
            )

    async def change(self, harness, turn):
        for number in range(MANY):
            labels = {"a": str((number * 7 + turn) % 60), f"key-{turn}-{number}": "new"}
            await harness.cluster.patch(kinds.NAMESPACE, f"ns{number}", {"metadata": {"labels": labels}})

    async def go(self, harness):
        for number in range(40):
            await harness.cluster.delete(kinds.POD, f"e{number}", namespace=EVIL)
            await harness.cluster.delete(kinds.RESOURCE_CLAIM, f"e{number}", namespace=EVIL)
        for number in range(MANY):
            await harness.cluster.delete(kinds.NAMESPACE, f"ns{number}")


@pytest.mark.parametrize("attack", [Gangs(), Namespaces()], ids=["gangs", "namespaces"])
def test_an_honest_pod_does_not_notice_and_nothing_is_kept(attack):
    async def story(harness):
        await harness.add(kinds.NAMESPACE, {"metadata": {"name": EVIL}})
        await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template("honest", 1))
        await harness.sleep(10)
        waits = [await wait_of_honest_pod(harness) for _ in range(2)]
        sizes = []
        for _ in range(3):
            await attack.come(harness)
            for turn in range(ROUNDS):
                assert await wait_of_honest_pod(harness) <= waits[-1] + TICK
                await attack.change(harness, turn)
            assert await wait_of_honest_pod(harness) <= waits[-1] + TICK
            await harness.sleep(60)
            await attack.go(harness)
            await harness.sleep(1000)
            sizes.append(census(*PACKAGES))
        more = grown(sizes[0], sizes[2])
        assert {name: count for name, count in more.items() if name not in BOUNDED} == {}

    play(story, nodes=8, decide=decide, quiet_time=0.5, probe=False)
