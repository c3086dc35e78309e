"""Random lives of Jobs with a gang: pods succeed, fail, are retried, deleted, and created again while old ones still end.

Whenever members are placed, as many run afterwards as must, those of their Job that ended well included; and with room for
them they are placed. A life that fails is played again by its seed: HAMI_DRA_RUNS=17 .venv/bin/pytest -q FILE
"""

import os
import random

import pytest

from hami_dra.api import kinds
from hami_dra.api.podstate import is_live, is_pending
from tests.support.examples import examples
from tests.support.gang_objects import in_labelled_group, in_pod_group, pod_group
from tests.support.harness import SPACE, play, pod, template
from tests.unit.reconcile.gang_stories import QUICK, WHOLE

ENDING = "example.com/still-ending"
LIVES = examples(30)
REST = 15.0
LEAST = 3


class Life:
    def __init__(self, harness, seed):
        self.harness = harness
        self.random = random.Random(seed)
        self.as_group = bool(seed % 2)
        self.number = 0
        self.job = ""

    async def run(self, steps):
        self.harness.start(**QUICK)
        await self.harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template("whole", WHOLE))
        if self.as_group:
            body = pod_group("train", LEAST)
            body["metadata"]["namespace"] = SPACE
            await self.harness.add(kinds.POD_GROUP, body)
        await self.begin()
        for _ in range(steps):
            before = {found.metadata.uid for found in await self.members() if found.spec.node_name}
            step = self.random.choice(
                [
                    self.begin,
                    self.succeed,
                    self.succeed,
                    self.fail,
                    self.retry,
                    self.delete_all,
                    self.let_go,
                    self.cordon,
                    self.single,
                ]
            )
            await step()
            await self.harness.sleep(REST)
            await self.judge(before, step.__name__)

    # --- the judge ----------------------------------------------------------------------------------------------------

    async def judge(self, before, step):
        members = await self.members()
        new = [found for found in members if found.spec.node_name and found.metadata.uid not in before]
        live = [found for found in members if is_live(found)]
        runs = [found for found in live if found.spec.node_name]
        ended = [
            found for found in members if found.status.phase == "Succeeded" and not found.metadata.deletion_timestamp
        ]
        owners = {job_of(found) for found in new}
        ours = [found for found in ended if {job_of(found)} == owners]
        if new:
            assert len(runs) + len(ours) >= LEAST, f"after {step}: {len(runs)} of {LEAST} run"
        waiting = [found for found in live if is_pending(found)]
        owners = {job_of(found) for found in waiting}
        ours = [found for found in ended if {job_of(found)} == owners]
        if waiting and len(runs) + len(waiting) + len(ours) >= LEAST:
            assert await self.free_cards() < len(waiting), f"after {step}: {len(waiting)} wait although there is room"

    async def members(self):
        return [found for found in await self.harness.pods() if found.metadata.name.startswith("m")]

    async def free_cards(self):
        nodes = (await self.harness.cluster.list(kinds.NODE)).items
        free = {(node.metadata.name, f"gpu-{i}") for node in nodes if not node.spec.unschedulable for i in range(2)}
        for held in await self.harness.claims():
            for result in held.status.allocation.devices.results if held.status.allocation else ():
                free.discard((result.pool, result.device))
        return len(free)

    # --- steps --------------------------------------------------------------------------------------------------------

    async def begin(self):
        """A new Job of that name: its pods come quickly one after the other, while old ones may still end."""
        if any(is_live(found) for found in await self.members()):
            await self.delete_all()
        self.number += 1
        name = f"job-{self.number}"
        await self.harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template(name, WHOLE))
        self.job = (await self.harness.cluster.get(kinds.RESOURCE_CLAIM_TEMPLATE, name, SPACE)).metadata.uid
        await self.create(self.random.choice([LEAST, LEAST, LEAST + 1, LEAST - 1]))

    async def create(self, count):
        for _ in range(count):
            self.number += 1
            body = pod(f"m{self.number}", templates=["whole"], gated=True)
            owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": self.job, "controller": True}
            body["metadata"] |= {"ownerReferences": [owner], "finalizers": [ENDING]}
            body = in_pod_group(body, "train") if self.as_group else in_labelled_group(body, "train", LEAST)
            await self.harness.add(kinds.POD, body)
            await self.harness.sleep(self.random.choice([0.0, 0.0, 0.2, 1.0]))

    async def finish(self, phase):
        runs = [found for found in await self.members() if found.spec.node_name and is_live(found)]
        for found in self.random.sample(runs, self.random.randint(0, len(runs))):
            patch = {"status": {"phase": phase}}
            await self.harness.cluster.patch(
                kinds.POD, found.metadata.name, patch, namespace=SPACE, subresource="status"
            )

    async def succeed(self):
        await self.finish("Succeeded")
        if self.random.random() < 0.5:
            await self.create(self.random.randint(1, 2))

    async def fail(self):
        await self.finish("Failed")
        await self.create(self.random.randint(0, 2))

    async def retry(self):
        await self.create(1)

    async def delete_all(self):
        """They end as long as their finalizer is there."""
        kept = self.random.random() < 0.3  # Jobs are kept with their finished pods
        for found in await self.members():
            if is_live(found) or not kept:
                await self.harness.delete_pod(found.metadata.name)

    async def let_go(self):
        for found in await self.members():
            if found.metadata.deletion_timestamp and self.random.random() < 0.7:
                patch = {"metadata": {"finalizers": None}}
                await self.harness.cluster.patch(kinds.POD, found.metadata.name, patch, namespace=SPACE)

    async def cordon(self):
        patch = {"spec": {"unschedulable": self.random.random() < 0.4}}
        await self.harness.patch_node(f"n{self.random.randrange(3)}", patch)

    async def single(self):
        singles = [found for found in await self.harness.pods() if found.metadata.name.startswith("s")]
        if len(singles) > 1:
            await self.harness.delete_pod(self.random.choice(singles).metadata.name)
        else:
            self.number += 1
            await self.harness.add(kinds.POD, pod(f"s{self.number}", templates=["whole"], gated=True))


def job_of(found):
    return found.metadata.owner_references[0].uid


@pytest.mark.parametrize("block", range(3))
def test_members_are_placed_as_many_as_must_run_or_not_at_all(block):
    seeds = [seed for seed in range(LIVES) if seed % 3 == block]
    if "HAMI_DRA_RUNS" in os.environ:
        seeds = [int(os.environ["HAMI_DRA_RUNS"])] if block == 0 else []
    for seed in seeds:
        try:
            play(lambda harness, seed=seed: Life(harness, seed).run(14), nodes=3, controller=False)
        except BaseException as error:
            error.add_note(f"HAMI_DRA_RUNS={seed}")
            raise
