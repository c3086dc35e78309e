"""Random lives of clusters where pods of workloads move (`--defrag=execute`): who is evicted, and what is left.

Besides what is judged in `test_preemption_lives`:

- a pod moves only if it is labelled and not protected, has a controller and no named claim, and all before it have arrived;
- at rest nothing is held for a pod that moves, and for hours nobody is evicted any more;
- in lives without trouble every pod that replaces one fits where it was to go.

A life that fails is played again by its seed: `HAMI_DRA_LIVES=7 .venv/bin/pytest -q tests/property/test_defrag_lives.py`.
"""

import os
import random
from typing import Final
from unittest.mock import patch

import pytest

from controller.reconcile.preemption.defragmenter import Defragmenter
from hami_dra.api import kinds, names
from hami_dra.api.meta import controller_of
from hami_dra.api.podstate import is_bound, is_live
from tests.property.test_preemption_lives import Preempting, preempting_life
from tests.support.examples import SOAK
from tests.support.harness import SPACE, pod, template
from tests.support.lives import APPS

LIVES: Final = 300 if SOAK else 16
FIRST: Final = random.randrange(2**32) if SOAK else 0
BLOCKS: Final = 4
PAUSE: Final = 1_500.0
"""Seconds after which moves have been searched again."""
MOVABLE: Final = {names.MOVABLE: "true"}


class Moving(Preempting):
    """Workloads whose pods are in the way of large ones."""

    def __init__(self, harness, seed):
        super().__init__(harness, seed)
        self.options |= {"preemption": self.random.random() < 0.4, "defrag": True}
        self.options["save_after"] = self.random.choice([5.0, 20.0])
        self.moved = {}
        """UID of a pod that was to be evicted for a move → its place, and that of all after it."""

    def steps(self):
        kept = [(step, (weight + 2) // 3) for step, weight in super().steps()]
        return [
            *kept,
            (self.add_workload, 10),
            (self.scale, 5),
            (self.protect, 2),
            (self.large, 8),
            (self.scene, 12),
            (self.rest, 8),
        ]

    # --- steps --------------------------------------------------------------------------------------------------------

    async def furnish(self):
        await super().furnish()
        await self.harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template("large", 16, count=2))

    async def scene(self):
        """Half of each card is used by a workload, and a large pod comes."""
        for each in self.all(kinds.REPLICA_SET):
            await self.cluster.delete(kinds.REPLICA_SET, each.metadata.name, namespace=SPACE)
        for each in await self.harness.pods():
            if self.random.random() < 0.8:
                await self.harness.delete_pod(each.metadata.name)
        await self.harness.sleep(3.0)
        await self.add_workload()
        await self.harness.sleep(self.random.choice([3.0, 10.0]))
        for _ in range(self.random.choice([1, 1, 2])):
            await self.large()
        await self.harness.sleep(self.random.choice([6.0, 21.0, 22.0, 40.0]))

    async def add_workload(self):
        self.number += 1
        policy = {
            f"hami.io/{each}-scheduler-policy": self.random.choice(["spread", "spread", "spread", "binpack"])
            for each in ("node", "gpu")
        }
        notes = policy | {names.MIN_RUNTIME: self.random.choice(["0s", "0s", "5s", "40s"])}
        labels = {"app": self.random.choice(APPS)} | (MOVABLE if self.random.random() < 0.85 else {})
        spec = pod("any", gated=True, cpu="1m", templates=[f"t{self.random.choice([4, 8, 8])}"])["spec"]
        wanted = {"metadata": {"labels": labels, "annotations": notes}, "spec": spec}
        spec = {"replicas": self.random.choice([3, 4, 5, 6]), "template": wanted}
        await self.harness.add(
            kinds.REPLICA_SET, {"metadata": {"name": f"w{self.number}", "namespace": SPACE}, "spec": spec}
        )

    async def scale(self):
        if found := self.all(kinds.REPLICA_SET):
            name = self.random.choice(found).metadata.name
            replicas = self.random.choice([0, 0, 1, 2, 4])
            await self.cluster.patch(kinds.REPLICA_SET, name, {"spec": {"replicas": replicas}}, namespace=SPACE)

    async def protect(self):
        """A pod may not move any more."""
        found = await self.a_pod(lambda each: each.metadata.labels.get(names.MOVABLE) == "true" and is_live(each))
        change = self.random.choice([{"labels": {names.MOVABLE: None}}, {"annotations": {names.PREEMPTIBLE: "false"}}])
        await self.cluster.patch(kinds.POD, found.metadata.name, {"metadata": change}, namespace=SPACE)

    async def large(self):
        self.number += 1
        body = pod(f"l{self.number}", templates=[self.random.choice(["large", "large", "t16"])], gated=True, cpu="1m")
        await self.create(body)

    async def make_again(self):
        if any(each.metadata.name in self.bodies for each in await self.harness.pods()):
            while (found := await self.a_pod()).metadata.name not in self.bodies:
                pass
            with patch.object(self, "a_pod", lambda *_: _soon(found)):
                await super().make_again()

    # --- judgement ----------------------------------------------------------------------------------------------------

    def asks(self, evictor, hold, victim, together):
        if not hold.transfers:
            super().asks(evictor, hold, victim, together)
            return
        self.story.append(f"    {self.harness.clock.monotonic():.2f} moves: {victim.key} for {hold.pods[0].key}")
        self.moved[victim.metadata.uid] = victim
        known = self.stored(kinds.POD, victim.key)
        if known is None or known.metadata.uid != victim.metadata.uid or not self.calm:
            known = victim
        problems = {
            "is not labelled": known.metadata.labels.get(names.MOVABLE) != "true",
            "is protected": known.metadata.annotations.get(names.PREEMPTIBLE) == "false",
            "has no controller": not controller_of(known),
            "uses a named claim": any(each.resource_claim_name for each in known.spec.resource_claims),
        }
        self.problems += [f"{victim.key} moves although it {why}" for why, is_true in problems.items() if is_true]
        for before in hold.transfers:
            if before.pod is victim:
                break
            there = self.stored(kinds.POD, before.pod.key)
            if there is not None and there.metadata.uid == before.pod.metadata.uid and is_bound(there):
                self.problems.append(f"{victim.key} moves before {before.pod.key} has")

    def surprises(self, transfer, why):
        self.story.append(f"    {self.harness.clock.monotonic():.2f} surprise: {why}")
        if self.calm and "fit" in why:
            self.problems.append(f"{transfer.pod.key} has lost its place: {why}")

    async def come_to_rest(self):
        await super().come_to_rest()
        for _ in range(8):
            before = len(self.moved), len(self.evicted)
            await self.harness.sleep(PAUSE)
            if before == (len(self.moved), len(self.evicted)):
                return
        self.problems.append("pods are evicted without end")

    async def judge(self):
        term = self.harness.controller._term
        moves = term._preemptor._defragmenter
        if moves._transfers or moves._successors:
            self.problems.append(f"places are held for pods that move: {[*moves._transfers, *moves._successors]}")
        self.problems += [f"{uid} is assumed" for uid in term._assumed_pods._decided]
        await super().judge()


async def _soon(found):
    return found


@pytest.mark.parametrize("block", range(BLOCKS))
@pytest.mark.timeout(3600)
def test_only_pods_that_may_move_do_and_nothing_is_left_over(block):
    seeds = [FIRST + number for number in range(LIVES) if number % BLOCKS == block]
    if "HAMI_DRA_LIVES" in os.environ:
        seeds = [int(os.environ["HAMI_DRA_LIVES"])] if block == 0 else []
    for seed in seeds:
        try:
            moving_life(seed, steps=40 if SOAK or "HAMI_DRA_LIVES" in os.environ else 25)
        except BaseException as error:
            error.add_note(f"HAMI_DRA_LIVES={seed}")
            raise


def moving_life(seed, steps):
    lives = []

    class Known(Moving):
        def __init__(self, harness, seed):
            super().__init__(harness, seed)
            lives.append(self)

    surprise = Defragmenter._surprise

    def watched(moves, transfer, why):
        lives[0].surprises(transfer, why)
        surprise(moves, transfer, why)

    with patch.object(Defragmenter, "_surprise", watched):
        preempting_life(seed, steps, Known)
    return lives[0]
