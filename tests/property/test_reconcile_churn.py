"""A random life of a cluster: at no moment is a device given away twice, and in the end everybody has a place.

The check reads the cluster's own objects after every write to a claim, never the controller's ledger.
"""

import asyncio
import random
from contextlib import aclosing

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from controller.decide import decide
from hami_dra.api import kinds, names
from hami_dra.cluster.lease import Timings
from hami_dra.cluster.protocol import Conflict, NotFound, Unavailable
from tests.support.mortal import Mortal
from tests.support.scene import claim, first_fit, play, pod, template

SETTINGS = {"quiet_time": 2.0, "probe": True, "lease": Timings()}
SIZES = (2, 4, 6)


class Life:
    """What happens to the cluster, one step after the other, all from one seed."""

    def __init__(self, scene, seed, decide):
        self.scene = scene
        self.random = random.Random(seed)
        self.decide = decide
        self.number = 0
        self.mortal = None
        self.task = None

    async def run(self, steps):
        scene = self.scene
        for size in SIZES:
            await scene.add(kinds.RESOURCE_CLAIM_TEMPLATE, template(f"t{size}", size))
        scene.cluster.hooks.append(self.watch_writes)
        self.start_controller()
        await scene.sleep(3)
        for _ in range(steps):
            step = self.random.choices(
                [self.add_pod, self.add_shared, self.delete_pod, self.cordon, self.not_ready, self.lose_fence,
                 self.trouble, self.lag, self.forget, self.kill, self.pause],
                weights=[30, 6, 14, 3, 3, 2, 10, 4, 3, 3, 10],
            )[0]  # fmt: skip
            await step()
            await self.check()
        await self.heal()

    # --- the check -----------------------------------------------------------------------------------------------------

    _checking = False
    _written = False

    async def watch_writes(self, request):
        """Before each request: was the write before it all right?"""
        if self._checking:
            return
        if self._written:
            self._written = False
            await self.check()
        self._written = request.is_write and request.kind is kinds.RESOURCE_CLAIM

    async def check(self):
        self._checking = True
        try:
            await self.scene.check_never_overcommitted()
        finally:
            self._checking = False

    # --- steps ---------------------------------------------------------------------------------------------------------

    async def add_pod(self):
        self.number += 1
        wanted = [f"t{self.random.choice(SIZES)}" for _ in range(self.random.choice([1, 1, 1, 2]))]
        annotations = {names.NODE_POLICY: self.random.choice(["binpack", "spread"])}
        gated = self.random.random() < 0.6
        cpu = self.random.choice(["100m", "1"])
        body = pod(f"p{self.number}", templates=wanted, gated=gated, annotations=annotations, cpu=cpu)
        await self.scene.add(kinds.POD, body)

    async def add_shared(self):
        self.number += 1
        name = f"s{self.number}"
        users = [pod(f"{name}-{user}", claims=[name], gated=self.random.random() < 0.5) for user in "ab"]
        objects = [
            (kinds.RESOURCE_CLAIM, claim(name, self.random.choice(SIZES))),
            *((kinds.POD, user) for user in users),
        ]
        self.random.shuffle(objects)
        for kind, body in objects:
            await self.scene.add(kind, body)
            if self.random.random() < 0.3:
                await self.scene.sleep(0.2)

    async def delete_pod(self):
        pods = await self.scene.pods()
        if pods:
            await self.delete(self.random.choice(pods).metadata.name)

    async def delete(self, name):
        try:
            await self.scene.delete_pod(name)
        except NotFound:
            return

    async def cordon(self):
        patch = {"spec": {"unschedulable": self.random.random() < 0.5}}
        await self.scene.patch_node(f"n{self.random.randrange(3)}", patch)

    async def not_ready(self):
        ready = self.random.choice(["True", "True", "False"])
        conditions = [{"type": "Ready", "status": ready}]
        await self.scene.patch_node(f"n{self.random.randrange(3)}", {"status": {"conditions": conditions}}, status=True)

    async def lose_fence(self):
        """Somebody deletes a rule, and may not want to wait until it is let go."""
        kind = kinds.DEVICE_TAINT_RULE
        rules = (await self.scene.cluster.list(kind)).items
        if not rules:
            return
        name = self.random.choice(rules).metadata.name
        impatient = self.random.random() < 0.5
        try:
            if impatient:
                await self.scene.cluster.patch(kind, name, {"metadata": {"finalizers": None}})
            await self.scene.cluster.delete(kind, name)
        except NotFound:
            return

    async def trouble(self):
        error = self.random.choice([Unavailable("away"), Conflict("changed")])
        applied = isinstance(error, Unavailable) and self.random.random() < 0.5
        kind = self.random.choice([kinds.RESOURCE_CLAIM, kinds.POD])
        times = self.random.randint(1, 3)
        self.troubled.fail_next(error, verb="patch", kind=kind, applied=applied, times=times)

    async def lag(self):
        """The controller's view stands still for a while."""
        self.troubled.flowing.clear()
        await self.scene.sleep(self.random.choice([0.1, 1.0, 3.0]))
        self.troubled.flowing.set()

    async def forget(self):
        self.scene.cluster.forget_history()
        self.scene.cluster.close_watches(Unavailable("connection lost"))

    async def kill(self):
        """At one of its next writes; then another one takes over."""
        self.mortal.at_write(self.mortal.writes + self.random.randint(1, 6), before=self.random.random() < 0.5)
        await self.scene.sleep(self.random.choice([0.5, 3.0]))
        if self.mortal.dead.is_set():
            await self.scene.stop(self.task)
            self.start_controller()

    async def pause(self):
        await self.scene.sleep(self.random.choice([0.01, 0.1, 0.5, 2.0, 20.0]))

    # --- actors --------------------------------------------------------------------------------------------------------

    def start_controller(self):
        self.troubled = Troubled(self.scene.cluster)
        self.mortal = Mortal(self.troubled, 0, before=False)
        self.task = self.scene.start(through=self.mortal, decide=self.decide, **SETTINGS)

    async def heal(self):
        """Everything works again and there is room for all that is left: they all run, and nothing is left over."""
        scene = self.scene
        await scene.stop(self.task)
        self.start_controller()
        for number in range(3):
            await scene.patch_node(f"n{number}", {"spec": {"unschedulable": False}})
            ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
            await scene.patch_node(f"n{number}", ready, status=True)
        pods = await scene.pods()
        self.random.shuffle(pods)
        kept = [found.metadata.name for found in pods[:3]]
        for found in pods[3:]:
            await self.delete(found.metadata.name)
        # a user's claim may have gone with its pod's partner: those that cannot run for lack of it go too
        claims = {held.metadata.name for held in await scene.claims()}
        for name in list(kept):
            wishes = (await scene.pod(name)).spec.resource_claims
            if any(wish.resource_claim_name and wish.resource_claim_name not in claims for wish in wishes):
                await self.delete(name)
                kept.remove(name)
        await scene.bound(*kept, seconds=1500)
        await scene.check_never_overcommitted()
        await scene.check_bound_pods_have_their_claims()
        await scene.sleep(100)
        await scene.check_nothing_leaked()
        for name in kept:
            await self.delete(name)
        await scene.sleep(100)
        for held in await scene.claims():
            assert held.status.allocation is None
            assert names.ALLOCATED_BY not in held.metadata.annotations


class Troubled:
    """Faults that only the controller meets: the control plane's own writes are not the subject."""

    def __init__(self, inner):
        self._inner = inner
        self._faults = []
        self.flowing = asyncio.Event()
        self.flowing.set()

    def fail_next(self, error, *, verb, kind, applied, times):
        self._faults += [(error, verb, kind, applied)] * times

    def __getattr__(self, name):
        target = getattr(self._inner, name)
        if name == "watch":
            return self._watch
        if name != "patch":
            return target

        async def patch(kind, *arguments, **options):
            for fault in self._faults:
                error, _, wanted, applied = fault
                if wanted is kind:
                    self._faults.remove(fault)
                    if applied:
                        await target(kind, *arguments, **options)
                    raise error
            return await target(kind, *arguments, **options)

        return patch

    async def _watch(self, *arguments, **options):
        async with aclosing(self._inner.watch(*arguments, **options)) as events:
            async for event in events:
                await self.flowing.wait()
                yield event


def live(seed, decide, steps=60):
    random.seed(seed)  # the jitter of back-offs

    async def story(scene):
        await Life(scene, seed, decide).run(steps)

    play(story, nodes=3, controller=False)


@settings(
    max_examples=30, deadline=None, phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck)
)
@given(st.integers(0, 2**32))
def test_never_over_committed_and_everybody_placed_in_the_end(seed):
    live(seed, first_fit)


@pytest.mark.parametrize("seed", range(8))
def test_the_same_with_the_real_decisions(seed):
    live(seed, decide)
