"""A random life of a cluster: at no moment is a device given away twice, and in the end every pod that can run has a place.

The check reads the cluster's own objects after every write to a claim, never the controller's ledger. In most lives the API
server takes up to two seconds for each write of the controller, so that much happens while one is under way. Nobody restarts
the controller before the end: what it has overlooked stays overlooked.

`make soak` plays 2,000 lives, others each time; a life that fails is played again by its seed::

    HAMI_DRA_LIFE=259 .venv/bin/pytest -q tests/property/test_reconcile_churn.py
"""

import asyncio
import os
import random
from contextlib import aclosing
from typing import Final

import pytest

from controller.decide import decide
from hami_dra.api import kinds, names
from hami_dra.kube.lease_timings import Timings
from hami_dra.kube.protocol import AlreadyExists, Conflict, NotFound, Unavailable
from tests.support.harness import claim, first_fit, play, pod, template
from tests.support.mortal import Mortal

SETTINGS = {"quiet_time": 2.0, "probe": True, "lease": Timings()}
SIZES = (2, 4, 6)
KEPT: Final = 6
OTHER_GATE: Final = {"name": "kueue.x-k8s.io/admission"}
LIVES: Final = 2_000 if os.environ.get("HAMI_DRA_PROPERTIES") == "soak" else 44
REAL: Final = 12
"""Lives with the real `decide`, besides."""
FIRST: Final = random.randrange(2**32) if os.environ.get("HAMI_DRA_PROPERTIES") == "soak" else 0
BLOCKS: Final = 11
"""So that several workers can share the lives."""


class Life:
    """What happens to the cluster, one step after the other, all from one seed."""

    def __init__(self, harness, seed, decide):
        self.harness = harness
        self.random = random.Random(seed)
        self.decide = decide
        self.slow = self.random.random() < 0.8
        self.number = 0
        self.bodies = {}
        """Of pods that are, or were, there: by name."""
        self.mortal = None
        self.task = None

    async def run(self, steps):
        harness = self.harness
        for size in SIZES:
            await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template(f"t{size}", size))
        harness.cluster.hooks.append(self.watch_writes)
        self.start_controller()
        await harness.sleep(3)
        for _ in range(steps):
            step = self.random.choices(
                [self.add_pod, self.add_shared, self.add_stranger, self.delete_pod, self.make_again, self.finish,
                 self.open_gate, self.cordon, self.not_ready, self.lose_fence, self.trouble, self.lag, self.forget,
                 self.kill, self.pause],
                weights=[26, 8, 3, 12, 6, 5, 2, 3, 3, 2, 10, 4, 3, 3, 10],
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
            await self.harness.check_never_overcommitted()
        finally:
            self._checking = False

    # --- steps ---------------------------------------------------------------------------------------------------------

    async def add_pod(self):
        self.number += 1
        wanted = [f"t{self.random.choice(SIZES)}" for _ in range(self.random.choice([1, 1, 1, 2]))]
        annotations = {names.NODE_POLICY: self.random.choice(["binpack", "spread"])}
        gated = self.random.random() < 0.6
        cpu = self.random.choice(["100m", "1"])
        await self.create(pod(f"p{self.number}", templates=wanted, gated=gated, annotations=annotations, cpu=cpu))

    async def add_shared(self):
        """Pods that share a claim; some of them can never run, which is nobody else's business."""
        self.number += 1
        name = f"s{self.number}"
        users = [
            pod(f"{name}-{user}", claims=[name], gated=self.random.random() < 0.5, **self.hopeless(0.15))
            for user in "abcd"[: self.random.choice([2, 2, 3, 4])]
        ]
        objects = [
            (kinds.RESOURCE_CLAIM, claim(name, self.random.choice(SIZES))),
            *((kinds.POD, user) for user in users),
        ]
        self.random.shuffle(objects)
        for kind, body in objects:
            if kind is kinds.POD:
                await self.create(body)
            else:
                await self.harness.add(kind, body)
            if self.random.random() < 0.3:
                await self.harness.sleep(0.2)

    async def add_stranger(self):
        """It waits for another gate or another scheduler, or for a node that is not there."""
        self.number += 1
        wanted = [f"t{self.random.choice(SIZES)}"]
        gated = self.random.random() < 0.6
        await self.create(pod(f"x{self.number}", templates=wanted, gated=gated, **self.hopeless(1.0)))

    def hopeless(self, share):
        """What keeps a pod from running, for this share of the pods."""
        if self.random.random() >= share:
            return {}
        return self.random.choice(
            [{"nodeSelector": {"no": "such"}}, {"schedulerName": "kueue"}, {"schedulingGates": [dict(OTHER_GATE)]}]
        )

    async def create(self, body):
        self.bodies[body["metadata"]["name"]] = body
        await self.harness.add(kinds.POD, body)

    async def make_again(self):
        """As a StatefulSet does: another pod of that name, at once or a little later."""
        pods = await self.harness.pods()
        if not pods:
            return
        name = self.random.choice(pods).metadata.name
        await self.delete(name)
        if self.random.random() < 0.3:
            await self.harness.sleep(self.random.choice([0.1, 1.0]))
        try:
            await self.create(self.bodies[name])
        except AlreadyExists:
            return

    async def finish(self):
        """Its containers end; the pod is kept, as those of a Job are."""
        running = [found for found in await self.harness.pods() if found.status.phase == "Running"]
        if running:
            name = self.random.choice(running).metadata.name
            patch = {"status": {"phase": self.random.choice(["Succeeded", "Failed"])}}
            await self.harness.cluster.patch(kinds.POD, name, patch, namespace="default", subresource="status")

    async def open_gate(self):
        """The other gate is lifted."""
        waiting = [found for found in await self.harness.pods() if has_other_gate(found)]
        if waiting:
            found = self.random.choice(waiting)
            gates = [{"name": gate.name} for gate in found.spec.scheduling_gates if gate.name == names.GATE]
            patch = {"spec": {"schedulingGates": gates or None}}
            await self.harness.cluster.patch(kinds.POD, found.metadata.name, patch, namespace="default")

    async def delete_pod(self):
        pods = await self.harness.pods()
        if pods:
            await self.delete(self.random.choice(pods).metadata.name)

    async def delete(self, name):
        try:
            await self.harness.delete_pod(name)
        except NotFound:
            return

    async def cordon(self):
        patch = {"spec": {"unschedulable": self.random.random() < 0.5}}
        await self.harness.patch_node(f"n{self.random.randrange(3)}", patch)

    async def not_ready(self):
        ready = self.random.choice(["True", "True", "False"])
        conditions = [{"type": "Ready", "status": ready}]
        await self.harness.patch_node(
            f"n{self.random.randrange(3)}", {"status": {"conditions": conditions}}, status=True
        )

    async def lose_fence(self):
        """Somebody deletes a rule, and may not want to wait until it is let go."""
        kind = kinds.DEVICE_TAINT_RULE
        rules = (await self.harness.cluster.list(kind)).items
        if not rules:
            return
        name = self.random.choice(rules).metadata.name
        impatient = self.random.random() < 0.5
        try:
            if impatient:
                await self.harness.cluster.patch(kind, name, {"metadata": {"finalizers": None}})
            await self.harness.cluster.delete(kind, name)
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
        await self.harness.sleep(self.random.choice([0.1, 1.0, 3.0]))
        self.troubled.flowing.set()

    async def forget(self):
        self.harness.cluster.forget_history()
        self.harness.cluster.close_watches(Unavailable("connection lost"))

    async def kill(self):
        """At one of its next writes; then another one takes over."""
        self.mortal.at_write(self.mortal.writes + self.random.randint(1, 6), before=self.random.random() < 0.5)
        await self.harness.sleep(self.random.choice([0.5, 3.0]))
        self.mortal.at_write(0, before=False)  # there is no such write: it lives on
        if self.mortal.dead.is_set():
            await self.harness.stop(self.task)
            self.start_controller()

    async def pause(self):
        await self.harness.sleep(self.random.choice([0.01, 0.1, 0.5, 2.0, 20.0]))

    # --- actors --------------------------------------------------------------------------------------------------------

    def start_controller(self):
        self.troubled = Troubled(self.harness.cluster, self.random if self.slow else None)
        self.mortal = Mortal(self.troubled, 0, before=False)
        self.task = self.harness.start(through=self.mortal, decide=self.decide, **SETTINGS)

    async def heal(self):
        """Everything works again and there is room for all that is left: they all run, and nothing is left over."""
        harness = self.harness
        self.troubled.forget_faults()
        for number in range(3):
            await harness.patch_node(f"n{number}", {"spec": {"unschedulable": False}})
            ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
            await harness.patch_node(f"n{number}", ready, status=True)
        pods = await harness.pods()
        self.random.shuffle(pods)
        kept = [found.metadata.name for found in pods[:KEPT]]
        for found in pods[KEPT:]:
            await self.delete(found.metadata.name)
        # a user's claim may have gone with its pod's partner: those that cannot run for lack of it go too
        claims = {held.metadata.name for held in await harness.claims()}
        for name in list(kept):
            references = (await harness.pod(name)).spec.resource_claims
            if any(
                reference.resource_claim_name and reference.resource_claim_name not in claims
                for reference in references
            ):
                await self.delete(name)
                kept.remove(name)
        able = [found.metadata.name for found in await harness.pods() if can_run(found)]
        await harness.bound(*able, seconds=1500)
        await harness.sleep(60)  # an undo that a binding was faster than is put right
        await harness.check_never_overcommitted()
        await harness.check_bound_pods_have_their_claims()
        await harness.sleep(100)
        await harness.check_nothing_leaked()
        for name in kept:
            await self.delete(name)
        await harness.sleep(100)
        for held in await harness.claims():
            assert held.status.allocation is None


class Troubled:
    """Faults that only the controller meets: the control plane's own writes are not the subject."""

    def __init__(self, inner, slow):
        """`slow`: source of the time that each answer takes, or None."""
        self._inner = inner
        self._slow = slow
        self._faults = []
        self.flowing = asyncio.Event()
        self.flowing.set()

    def fail_next(self, error, *, verb, kind, applied, times):
        self._faults += [(error, verb, kind, applied)] * times

    def forget_faults(self):
        self._faults.clear()
        self.flowing.set()

    async def _takes_time(self):
        if self._slow is not None:
            await asyncio.sleep(self._slow.uniform(0, 1))

    def __getattr__(self, name):
        target = getattr(self._inner, name)
        if name == "watch":
            return self._watch
        if name != "patch":
            return target

        async def patch(kind, *arguments, **options):
            await self._takes_time()
            try:
                return await now(kind, *arguments, **options)
            finally:
                await self._takes_time()

        async def now(kind, *arguments, **options):
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

    async def story(harness):
        await Life(harness, seed, decide).run(steps)

    play(story, nodes=3, controller=False)


def has_other_gate(found):
    return any(gate.name != names.GATE for gate in found.spec.scheduling_gates)


def can_run(found):
    """Nothing but the room keeps it from running; or it has run already."""
    return bool(found.spec.node_name) or not (
        has_other_gate(found) or found.spec.node_selector or found.spec.scheduler_name != "default-scheduler"
    )


def seeds(block, count):
    if "HAMI_DRA_LIFE" in os.environ:
        return [int(os.environ["HAMI_DRA_LIFE"])] if block == 0 else []
    return [FIRST + number for number in range(count) if number % BLOCKS == block]


def play_lives(numbers, decide):
    for seed in numbers:
        try:
            live(seed, decide)
        except BaseException as error:
            error.add_note(f"HAMI_DRA_LIFE={seed}")
            raise


@pytest.mark.parametrize("block", range(BLOCKS))
def test_never_over_committed_and_everybody_placed_in_the_end(block):
    play_lives(seeds(block, LIVES), first_fit)


@pytest.mark.parametrize("block", range(BLOCKS))
def test_the_same_with_the_real_decisions(block):
    play_lives(seeds(block, REAL), decide)
