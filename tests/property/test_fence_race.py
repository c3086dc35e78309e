"""Whoever deletes the fence's rules, and at whatever moment: kube-scheduler never allocates, and no device is given twice.

kube-scheduler's own allocator is modelled as it is: its copies of rules and of claims lag, each by its own time, and what it decided it
writes a while later without looking at the rules again. All its delays together are shorter than the quiet time. It heeds a rule
that is being deleted as long as that is there (`tests/e2e/test_fence.py` shows that of the real one).
"""

import asyncio
import contextlib
from contextlib import aclosing
from dataclasses import dataclass

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from controller.reconcile.fence.rules import is_fence_taint, is_kept, is_proven
from hami_dra.api import kinds, names
from hami_dra.api.quantity import Quantity
from hami_dra.kube.protocol import ClusterError
from tests.support.harness import DRIVER, GIB, claim, play, pod
from tests.support.mortal import Mortal

RULE = kinds.DEVICE_TAINT_RULE
QUIET = 2.0
SIZE = 6
"""GiB: two fit on a card."""
PODS = 12
"""Half as many again as there is room for."""
STRIDE = 0.15
"""Seconds between two pods."""


@dataclass(frozen=True)
class Delays:
    """Seconds."""

    rules: float
    claims: float
    write: float


DELAYS = st.builds(Delays, *(st.sampled_from([0.0, 0.003, 0.6]) for _ in range(3)))  # their sum is below the quiet time


class Allocator:
    """kube-scheduler's, first fit. It lives only to find a gap in the fence."""

    def __init__(self, cluster, delays):
        self.cluster = cluster
        self.delays = delays
        self.rules = {}
        self.claims = {}
        self.devices = []
        self.done = 0
        self.tasks = []

    async def start(self):
        for item in (await self.cluster.list(kinds.RESOURCE_SLICE)).items:
            node = item.spec.node_name
            self.devices += [(node, item.spec.pool.name, device.name) for device in item.spec.devices]
        for kind, copy, lag in (
            (RULE, self.rules, self.delays.rules),
            (kinds.RESOURCE_CLAIM, self.claims, self.delays.claims),
        ):
            found = await self.cluster.list(kind)
            copy.update({item.key: item for item in found.items})
            self.tasks.append(asyncio.create_task(self.follow(kind, copy, lag, found.resource_version)))

    async def follow(self, kind, copy, lag, version):
        """Each event `lag` seconds late, in order."""
        now = asyncio.get_running_loop().time
        on_the_way = asyncio.Queue()
        self.tasks.append(asyncio.create_task(self.hear(on_the_way, copy)))
        async with aclosing(self.cluster.watch(kind, resource_version=version)) as events:
            async for event in events:
                on_the_way.put_nowait((now() + lag, event))

    async def hear(self, on_the_way, copy):
        while True:
            due, event = await on_the_way.get()
            await asyncio.sleep(due - asyncio.get_running_loop().time())
            if event.type == "DELETED":
                copy.pop(event.object.key, None)
            else:
                copy[event.object.key] = event.object
            self.schedule()

    def schedule(self):
        """On its copies alone; what it decides counts for it from then on."""
        if any(is_fence_taint(rule.spec.taint) for rule in self.rules.values()):
            return
        for key, wanted in list(self.claims.items()):
            if wanted.status.allocation is None and names.PROBE_LABEL not in wanted.metadata.labels:
                place = next((each for each in self.devices if self.used(each) + SIZE <= 16), None)
                if place is not None and key not in self.assumed():
                    self.tasks.append(asyncio.create_task(self.allocate(wanted, place), name=f"{key} {place}"))

    def assumed(self):
        return {task.get_name().split()[0] for task in self.tasks if not task.done()}

    def used(self, place):
        held = [
            result
            for each in self.claims.values()
            if each.status.allocation is not None
            for result in each.status.allocation.devices.results
            if (result.pool, result.device) == place[1:]
        ]
        memory = sum(Quantity.parse(str(result.consumed_capacity["memory"])).value() for result in held) // GIB
        return memory + SIZE * sum(task.get_name().endswith(f" {place}") for task in self.tasks if not task.done())

    async def allocate(self, wanted, place):
        await asyncio.sleep(self.delays.write)
        node, pool, device = place
        result = {
            "request": "card", "driver": DRIVER, "pool": pool, "device": device,
            "shareID": "11111111-2222-3333-4444-555555555555", "consumedCapacity": {"memory": f"{SIZE}Gi"},
        }  # fmt: skip
        pin = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
        allocation = {"devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": [pin]}}
        patch = {
            "metadata": {"resourceVersion": wanted.metadata.resource_version},
            "status": {"allocation": allocation},
        }
        with contextlib.suppress(ClusterError):
            await self.cluster.patch(
                kinds.RESOURCE_CLAIM, wanted.metadata.name, patch,
                namespace=wanted.metadata.namespace, subresource="status",
            )  # fmt: skip
            self.done += 1

    async def stop(self):
        for task in self.tasks:
            task.cancel()
        await asyncio.wait(self.tasks)
        for task in self.tasks:
            if not task.cancelled():
                task.result()


class Vandal:
    """Deletes rules right before the requests with the given numbers. Checks after each write to a claim."""

    def __init__(self, harness, moments):
        self.harness = harness
        self.moments = moments
        self.number = 0
        self.problem = ""
        self.busy = False
        self.written = False

    async def __call__(self, request):
        if self.busy:
            return
        self.busy = True
        try:
            if self.written and not self.problem:
                await self.check()
            self.written = request.is_write and request.kind is kinds.RESOURCE_CLAIM
            self.number += 1
            if (which := self.moments.get(self.number)) is not None:
                await self.delete(which)
        finally:
            self.busy = False

    async def check(self):
        try:
            await self.harness.check_never_overcommitted()
        except AssertionError as error:
            self.problem = str(error)  # not raised: the requester would only die of it

    async def delete(self, which):
        rules = [rule.metadata.name for rule in (await self.harness.cluster.list(RULE)).items]
        for name in rules if which == "all" else rules[which : which + 1]:
            await self.harness.cluster.delete(RULE, name)


@settings(
    max_examples=20, deadline=None, phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck)
)
@given(
    delays=DELAYS,
    moments=st.dictionaries(st.integers(1, 400), st.sampled_from(["all", 0, 1]), min_size=1, max_size=8),
    dies_at=st.none() | st.integers(1, 60),
    before=st.booleans(),
)
def test_nobody_but_the_controller_allocates_whenever_rules_are_deleted(delays, moments, dies_at, before):
    async def story(harness):
        mortal = Mortal(harness.cluster, 0, before=before)
        first = harness.start(through=mortal, quiet_time=QUIET)
        await harness.sleep(QUIET + 1)
        scheduler = Allocator(harness.cluster, delays)
        await scheduler.start()
        vandal = Vandal(harness, moments)
        harness.cluster.hooks.append(vandal)
        if dies_at is not None:
            mortal.at_write(mortal.writes + dies_at, before=before)
        for number in range(PODS):
            await harness.add(kinds.RESOURCE_CLAIM, claim(f"c{number}", SIZE))
            await harness.add(kinds.POD, pod(f"p{number}", claims=[f"c{number}"]))
            await harness.sleep(STRIDE)
        if mortal.dead.is_set():
            await harness.stop(first)
            harness.start(quiet_time=QUIET)

        async def as_many_as_fit():
            return sum(held.status.allocation is not None for held in await harness.claims()) == 8

        await harness.until(as_many_as_fit)
        await harness.sleep(3 * QUIET)
        if mortal.dead.is_set() and first in harness.controllers:
            await harness.stop(first)
            harness.start(quiet_time=QUIET)
        harness.cluster.hooks.remove(vandal)
        await harness.sleep(3 * QUIET)
        await vandal.check()
        assert vandal.problem == ""
        assert scheduler.done == 0
        [rule] = (await harness.cluster.list(RULE)).items
        assert (is_kept(rule, DRIVER), is_proven(rule)) == (True, True)
        await scheduler.stop()

    play(story, controller=False)


def test_the_model_finds_a_gap_where_there_is_one():
    """Without any rule it takes what it can get: or the property above would prove nothing."""

    async def story(harness):
        scheduler = Allocator(harness.cluster, Delays(0.0, 0.003, 0.6))
        await scheduler.start()
        for number in range(PODS):
            await harness.add(kinds.RESOURCE_CLAIM, claim(f"c{number}", SIZE))
        await harness.sleep(2)
        assert scheduler.done == 8
        await harness.check_never_overcommitted()
        await scheduler.stop()

    play(story, controller=False, scheduler=False)
