"""Random lives of three namespaces that are owed devices, whose workloads make again what is evicted.

Judged whenever a pod is about to be evicted, from the objects of the cluster:

- it has a lower priority, or its namespace can spare it, it has run long enough, and it is of another namespace;
- it was never evicted for its own victim's sake in turn: no two pods evict each other.

In the end nothing flaps: for hours nobody is evicted any more and no reserved place is taken back, no plan is missed, and no
device is given twice. A place that is reserved for a namespace that is not owed it keeps nobody from what it is owed.
A life that fails is played again by its seed: `HAMI_DRA_LIVES=7 .venv/bin/pytest -q tests/property/test_reclaim_lives.py`.
"""

import asyncio
import os
import random
from collections import Counter
from contextlib import suppress
from unittest.mock import patch

import pytest

from controller.decide import decide
from controller.preemption import PreemptionPlan
from controller.preemption.tenants import seconds_of, started
from controller.reconcile.preemption import Evictor, Preemptor
from hami_dra.api import kinds, names
from hami_dra.api.podstate import is_live, is_pending, priority
from hami_dra.kube.protocol import NotFound, Protected
from tests.support.examples import SOAK
from tests.support.harness import device_class, play, pod, template
from tests.support.mortal import Mortal
from tests.support.quotas import guarantee

LIVES = range(300 if SOAK else 16)
OURS = "nvidia.hami.io"
MANAGED = {"managed": frozenset({OURS}), "own_drivers": frozenset({OURS})}
ON = {"quiet_time": 0.0, "probe": False, "decide": decide, "preemption": True, **MANAGED}
SPACES = ("a", "b", "c")
SIZES = (4, 8, 16)
STEPS = 40
LEAST = 300
QUIET = 2000.0
"""Seconds in which every pod becomes old enough to be reclaimed, and every unit is considered again."""
AT_ONCE = 10.0
"""Seconds after a change of pods or guarantees in which a plan may be older than it."""


class Life:
    def __init__(self, harness, seed):
        self.harness = harness
        self.dice = random.Random(seed)
        self.number = 0
        self.disturbed = 0.0
        """When a pod, a guarantee or the leader went last."""
        self.evicted_for = set()
        """(workload that was evicted, workload for which)"""
        self.units = {}
        self.problems = []
        self.wanted = {}
        """Workload → what its pod asks for, to be made again."""
        self.bodies = {}
        """The same, of workloads that are gone, too."""
        self.evictions = []
        self.checks = []
        self.levels = self.dice.choice([[0], [0], [0, 0, 5, 50]])
        self.settings = {**ON, "save_after": self.dice.choice([0.0, 60.0])}

    # --- steps --------------------------------------------------------------------------------------------------------

    async def furnish(self):
        await self.harness.add(kinds.DEVICE_CLASS, device_class("ours", OURS))
        for space in SPACES:
            for size in SIZES:
                for count in (1, 2):
                    made = template(f"t{size}x{count}", size, count=count, device_class="ours")
                    made["metadata"]["namespace"] = space
                    await self.harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, made)
            if self.dice.random() < 0.7:
                await self.owe(space)

    def start(self):
        self.mortal = Mortal(self.harness.cluster, 0, before=False)
        self.task = self.harness.start(through=self.mortal, **self.settings)

    async def add(self):
        for _ in range(self.dice.choice([1, 1, 3])):
            self.number += 1
            name, space = f"w{self.number}", self.dice.choice(SPACES)
            notes = {names.MIN_RUNTIME: self.dice.choice(["0s", "0s", "40s"])} if self.dice.random() < 0.75 else {}
            if self.dice.random() < 0.05:
                notes[names.PREEMPTIBLE] = "false"
            asked = f"t{self.dice.choice(SIZES)}x{self.dice.choice([1, 1, 2])}"
            level = self.dice.choice(self.levels)
            self.wanted[name] = self.bodies[name] = space, asked, level, notes
            await self.make(name)

    async def make(self, workload):
        self.number += 1
        space, asked, level, notes = self.wanted[workload]
        body = pod(
            f"{workload}-{self.number}", templates=[asked], gated=True, cpu="1m", priority=level, annotations=notes
        )
        body["metadata"]["namespace"] = space
        body["metadata"]["labels"] = {"workload": workload}
        await self.harness.add(kinds.POD, body)

    async def replace(self):
        """Do what workloads do."""
        while True:
            await self.harness.sleep(3)
            there = {each.metadata.labels.get("workload") for each in await self.harness.pods() if is_live(each)}
            for workload in [each for each in self.wanted if each not in there]:
                await self.make(workload)

    async def remove(self):
        if self.wanted:
            workload = self.dice.choice([*self.wanted])
            del self.wanted[workload]
            self.disturb()
            for each in await self.harness.pods():
                if each.metadata.labels.get("workload") == workload:
                    with suppress(NotFound):
                        await self.harness.cluster.delete(
                            kinds.POD, each.metadata.name, namespace=each.metadata.namespace
                        )

    async def owe(self, space=None):
        """Another guarantee, or none."""
        space = space or self.dice.choice(SPACES)
        self.disturb()
        with suppress(NotFound):
            await self.harness.cluster.delete(kinds.RESOURCE_QUOTA, "guarantee", namespace=space)
        amounts = {"nvidia.com/gpu": self.dice.randint(0, 4)}
        if self.dice.random() < 0.3:
            amounts["nvidia.com/gpumem"] = 4096 * self.dice.randint(0, 12)
        if self.dice.random() < 0.8:
            await self.harness.add(kinds.RESOURCE_QUOTA, guarantee(amounts, namespace=space))

    async def refuse(self):
        self.harness.cluster.fail_next(Protected("the budget allows none"), verb="evict")

    async def kill(self):
        self.disturb()
        self.mortal.at_write(self.mortal.writes + self.dice.randint(1, 5), before=self.dice.random() < 0.5)
        await self.add()
        await self.harness.sleep(self.dice.choice([1.0, 20.0]))
        self.mortal.at_write(0, before=False)
        if self.mortal.dead.is_set():
            await self.harness.stop(self.task)
            self.start()

    async def rest(self):
        await self.harness.sleep(self.dice.choice([20.0, 100.0, 310.0]))

    def disturb(self):
        self.disturbed = self.harness.clock.monotonic()

    # --- judgement ----------------------------------------------------------------------------------------------------

    async def used(self, space):
        """What the pods of a namespace have that do not terminate."""
        total = Counter()
        for each in (await self.harness.cluster.list(kinds.POD, namespace=space)).items:
            if each.spec.node_name and each.metadata.deletion_timestamp is None:
                asked = self.bodies[each.metadata.labels["workload"]][1]
                size, count = map(int, asked.removeprefix("t").split("x"))
                total.update({"limits.nvidia.com/gpu": count, "limits.nvidia.com/gpumem": 1024 * size * count})
        return total

    async def asks(self, hold, victim):
        """About to evict."""
        if victim.metadata.uid in hold.evicted:
            return
        unit, space = hold.pods[0], victim.metadata.namespace
        pair = victim.metadata.labels["workload"], unit.metadata.labels["workload"]
        if pair[::-1] in self.evicted_for and self.harness.clock.monotonic() > self.disturbed + QUIET:
            self.problems.append(f"{pair} evict each other")
        self.evicted_for.add(pair)
        is_lower = priority(victim) < priority(unit)
        if not is_lower and space == unit.metadata.namespace:
            self.problems.append(f"{victim.key} is evicted for {unit.key} of its own namespace")
        text = victim.metadata.annotations.get(names.MIN_RUNTIME, "0s" if is_lower else f"{LEAST}s")
        now = self.harness.clock.wall().timestamp()
        if now - started(victim, now) < seconds_of(text):
            self.problems.append(f"{victim.key} is evicted before its time")
        if victim.metadata.annotations.get(names.PREEMPTIBLE) == "false":
            self.problems.append(f"{victim.key} is not preemptible")
        if space == unit.metadata.namespace:
            self.disturb()
        elif self.harness.clock.monotonic() >= self.disturbed + AT_ONCE:
            self.checks.append(asyncio.create_task(self.check_spared(victim)))

    async def check_spared(self, victim):
        """Whether the namespace of the victim has its guarantee left, once all is bound that was decided by then."""
        await self.harness.sleep(AT_ONCE)
        if self.harness.clock.monotonic() < self.disturbed + 2 * AT_ONCE:
            return
        space = victim.metadata.namespace
        has = await self.used(space)
        for quota in (await self.harness.cluster.list(kinds.RESOURCE_QUOTA, namespace=space)).items:
            for key, most in quota.spec.hard.items():
                if has[key] < int(str(most)):
                    self.problems.append(f"{space} has {has[key]} of {key} left of {most} without {victim.key}")

    async def come_to_rest(self):
        evictions = []
        for _ in range(12):
            await self.harness.sleep(QUIET)
            evictions.append(len(self.evictions))
            if evictions[-1:] == evictions[-2:-1]:
                return
        self.problems.append(f"pods are evicted without end: {evictions}")

    async def judge(self):
        await self.harness.check_never_overcommitted()
        preemptor = self.harness.controller._term._preemptor
        self.problems += [f"a place is held for {hold.pods[0].key}" for hold in preemptor._holds if hold.slot is None]
        waiting = {each.metadata.uid for each in await self.harness.pods() if is_pending(each)}
        for unit in self.units.values():
            if unit.pod.metadata.uid in waiting:
                space = unit.pod.metadata.namespace
                reserved = [each for each in preemptor._holds if each.slot is not None]
                lost = [each for each in reserved if each.namespace != space and not preemptor._is_owed(each)]
                plan = preemptor._plan_without(lost, preemptor._preemption(space), unit.unit)
                if isinstance(plan, PreemptionPlan) and (plan.is_owed or not reserved):
                    self.problems.append(
                        f"{unit.pod.key} waits in spite of a plan without {[e.key for e in plan.victims]}"
                    )

    async def run(self):
        await self.furnish()
        self.start()
        workloads = asyncio.create_task(self.replace())
        steps = [(self.add, 12), (self.remove, 4), (self.owe, 4), (self.refuse, 2), (self.kill, 3), (self.rest, 8)]
        for _ in range(STEPS):
            (step,) = self.dice.choices([step for step, _ in steps], [weight for _, weight in steps])
            await step()
            await self.harness.sleep(self.dice.choice([0.0, 0.1, 2.0, 8.0]))
        await self.come_to_rest()
        await self.judge()
        workloads.cancel()
        assert not self.problems, self.problems


def live(seed):
    lives = []

    async def story(harness):
        lives.append(Life(harness, seed))
        await lives[0].run()

    evict, consider, give_up = Evictor._evict, Preemptor.consider, Preemptor._give_up

    def watched_give_up(preemptor, hold, why):
        if "is owed it" in why:
            lives[0].evictions.append(f"the place of {hold.pods[0].key}")
        give_up(preemptor, hold, why)

    async def watched_evict(evictor, hold, victim, together):
        await lives[0].asks(hold, victim)
        lives[0].evictions.append(victim.key)
        return await evict(evictor, hold, victim, together)

    def watched_consider(preemptor, unit, *about):
        lives[0].units[unit.key] = unit
        return consider(preemptor, unit, *about)

    options = {"nodes": 2, "graceful": True, "node_options": {"cards": 3, "driver": OURS}, "controller": False}
    with (
        patch.object(Evictor, "_evict", watched_evict),
        patch.object(Preemptor, "consider", watched_consider),
        patch.object(Preemptor, "_give_up", watched_give_up),
    ):
        play(story, **options)
    return lives[0]


@pytest.mark.parametrize("seed", [int(os.environ["HAMI_DRA_LIVES"])] if "HAMI_DRA_LIVES" in os.environ else LIVES)
@pytest.mark.timeout(600)
def test_namespaces_get_what_they_are_owed_and_nothing_flaps(seed):
    live(seed)
