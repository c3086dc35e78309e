"""A random life of gangs and single pods: at rest no gang runs in part, none holds devices that it does not use, and whoever can run does.

The steps are those of a cluster: pods come in any order and go, groups change, nodes fill up and go away, writes fail, and the
leader is killed. Between steps the cluster comes to rest, and is judged by its own objects. A life that fails is played again by
its seed::

    HAMI_DRA_GANGS=259 .venv/bin/pytest -q tests/property/test_gang_churn.py
"""

import os
import random
from collections import defaultdict
from typing import Final

import pytest

from controller.decide import decide
from hami_dra.api import kinds
from hami_dra.api.podstate import is_pending
from hami_dra.kube.protocol import Conflict, NotFound, Unavailable
from tests.property.test_reconcile_churn import Troubled
from tests.support.gang_objects import NAME_LABEL, in_labelled_group, in_pod_group, pod_group
from tests.support.harness import SPACE, play, pod, template
from tests.support.mortal import Mortal

SETTINGS = {"quiet_time": 0.0, "probe": False, "decide": decide, "gang_hold": 20.0}
REST: Final = 90.0
"""Seconds after which nothing is under way any more: undo, holds, pauses after failed commits."""
LIVES: Final = 400 if os.environ.get("HAMI_DRA_PROPERTIES") == "soak" else 16
FIRST: Final = random.randrange(2**32) if os.environ.get("HAMI_DRA_PROPERTIES") == "soak" else 0
BLOCKS: Final = 4
SIZES: Final = (4, 8, 16)


class Life:
    """What happens, one step after the other, all from one seed."""

    def __init__(self, harness, seed):
        self.harness = harness
        self.random = random.Random(seed)
        self.number = 0
        self.least = {}
        """Gang → minCount."""
        self.ran = set()
        """Gangs of which minCount members had devices at one moment, so that they may run: members may be lost later."""

    async def run(self, steps):
        for size in SIZES:
            await self.harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template(f"t{size}", size))
        self.harness.cluster.hooks.append(self.note_commits)
        self.start_controller()
        for _ in range(steps):
            for _ in range(self.random.randint(1, 4)):
                await self.random.choices(
                    [self.add_gang, self.add_single, self.delete_pod, self.make_again, self.cordon, self.trouble,
                     self.kill, self.change_group],
                    weights=[8, 3, 5, 4, 2, 4, 3, 2],
                )[0]()  # fmt: skip
                await self.harness.sleep(self.random.choice([0.0, 0.01, 0.3, 5.0]))
            self.troubled.forget_faults()
            await self.harness.sleep(REST)
            await self.judge()

    # --- the judge --------------------------------------------------------------------------------------------------------

    async def judge(self):
        harness = self.harness
        await harness.check_never_overcommitted()
        await harness.check_bound_pods_have_their_claims()
        await harness.check_nothing_leaked()
        holders = {
            user.uid for held in await harness.claims() if held.status.allocation for user in held.status.reserved_for
        }
        gangs = defaultdict(list)
        for found in await harness.pods():
            if name := gang_name(found):
                gangs[name].append(found)
            elif is_pending(found):
                assert found.metadata.uid not in holders, f"{found.key} holds devices and does not run"
        for name, members in gangs.items():
            for found in members:
                if is_pending(found):
                    assert found.metadata.uid not in holders, f"{found.key} of {name} holds devices and does not run"
                    assert not (found.status.nominated_node_name and found.spec.scheduling_gates), (
                        f"{found.key} of {name} keeps room on a node"
                    )
        await self.judge_parts(gangs)
        await self.judge_room()

    async def judge_parts(self, gangs):
        """No gang began to run in part."""
        for name, members in gangs.items():
            bound = sum(bool(found.spec.node_name) for found in members)
            assert name in self.ran or not bound, f"{name} runs with {bound} of {self.least[name]} members"

    async def note_commits(self, request):
        """When the first gate of a gang is lifted, enough members have their devices."""
        if request.label != "bind pods/binding":
            return
        held = {user.uid for c in await self.harness.claims() if c.status.allocation for user in c.status.reserved_for}
        gang = gang_name(await self.harness.pod(request.name))
        members = [found for found in await self.harness.pods() if gang_name(found) == gang]
        if gang and sum(found.metadata.uid in held for found in members) >= self.least[gang]:
            self.ran.add(gang)

    async def judge_room(self):
        """A single pod that fits on some node runs, whatever gangs wait before it."""
        free = await self.free_cards()
        for found in await self.harness.pods():
            if is_pending(found) and not gang_name(found):
                size = int(found.spec.resource_claims[0].resource_claim_template_name[1:])
                assert max(free.values(), default=0) < size, f"{found.key} waits for {size} GiB, {free} are free"

    async def free_cards(self):
        """By card on nodes that take pods: free GiB."""
        open_nodes = {
            node.metadata.name
            for node in (await self.harness.cluster.list(kinds.NODE)).items
            if not node.spec.unschedulable
        }
        free = {(node, f"gpu-{i}"): 16 for node in open_nodes for i in range(2)}
        for held in await self.harness.claims():
            for result in held.status.allocation.devices.results if held.status.allocation else ():
                if (result.pool, result.device) in free:
                    free[result.pool, result.device] -= int(str(result.consumed_capacity["memory"]).removesuffix("Gi"))
        return free

    # --- steps ------------------------------------------------------------------------------------------------------------

    async def add_gang(self):
        """Its members come in any order, sometimes not all, sometimes more than minCount."""
        self.number += 1
        name = f"g{self.number}"
        size = self.random.choice([2, 2, 3, 4, 6])
        least = self.least[name] = max(1, size - self.random.choice([0, 0, 0, 1]))
        members = [
            pod(f"{name}-{i}", templates=[f"t{self.random.choice(SIZES)}"], gated=self.random.random() < 0.95)
            for i in range(size - (self.random.random() < 0.15))
        ]
        self.random.shuffle(members)
        as_group = self.random.random() < 0.5
        group_at = self.random.randrange(len(members))
        for index, body in enumerate(members):
            if as_group and index == group_at:
                await self.add_group(name, least)
            await self.harness.add(
                kinds.POD, in_pod_group(body, name) if as_group else in_labelled_group(body, name, least)
            )
            if self.random.random() < 0.2:
                await self.harness.sleep(0.2)
        # what is not gated may be bound in part when a write fails: docs/gangs.md
        if not all("schedulingGates" in body["spec"] for body in members):
            self.ran.add(name)

    async def add_group(self, name, least):
        body = pod_group(name, least)
        body["metadata"]["namespace"] = SPACE
        await self.harness.add(kinds.POD_GROUP, body)

    async def add_single(self):
        self.number += 1
        size = self.random.choice(SIZES)
        await self.harness.add(kinds.POD, pod(f"s{self.number}", templates=[f"t{size}"], gated=True))

    async def delete_pod(self):
        if pods := await self.harness.pods():
            await self.delete(self.random.choice(pods).metadata.name)

    async def make_again(self):
        """One member of a gang is deleted and created again."""
        members = [found for found in await self.harness.pods() if gang_name(found)]
        if not members:
            return
        chosen = self.random.choice(members)
        name, gang = chosen.metadata.name, gang_name(chosen)
        size = chosen.spec.resource_claims[0].resource_claim_template_name
        body = pod(name, templates=[size], gated=True)
        await self.delete(name)
        if self.random.random() < 0.5:
            await self.harness.sleep(1)
        if await self.exists(name):
            return
        grouped = in_pod_group(body, gang)
        await self.harness.add(
            kinds.POD, grouped if chosen.spec.scheduling_group else in_labelled_group(body, gang, self.least[gang])
        )

    async def change_group(self):
        """minCount is lowered, or the group is created again."""
        groups = (await self.harness.cluster.list(kinds.POD_GROUP)).items
        if not groups:
            return
        name = self.random.choice(groups).metadata.name
        self.least[name] = max(1, self.least[name] - 1)
        await self.harness.cluster.delete(kinds.POD_GROUP, name, namespace=SPACE)
        await self.harness.sleep(self.random.choice([0.0, 0.5]))
        await self.add_group(name, self.least[name])

    async def delete(self, name):
        try:
            await self.harness.delete_pod(name)
        except NotFound:
            return

    async def exists(self, name):
        return any(found.metadata.name == name for found in await self.harness.pods())

    async def cordon(self):
        patch = {"spec": {"unschedulable": self.random.random() < 0.4}}
        await self.harness.patch_node(f"n{self.random.randrange(3)}", patch)

    async def trouble(self):
        error = self.random.choice([Unavailable("away"), Conflict("changed")])
        applied = isinstance(error, Unavailable) and self.random.random() < 0.5
        kind = self.random.choice([kinds.RESOURCE_CLAIM, kinds.POD])
        self.troubled.fail_next(error, verb="patch", kind=kind, applied=applied, times=self.random.randint(1, 3))

    async def kill(self):
        """At one of its next writes; then another one takes over."""
        self.mortal.at_write(self.mortal.writes + self.random.randint(1, 8), before=self.random.random() < 0.5)
        await self.add_gang()
        await self.harness.sleep(self.random.choice([0.5, 3.0]))
        self.mortal.at_write(0, before=False)
        if self.mortal.dead.is_set():
            await self.harness.stop(self.task)
            self.start_controller()

    def start_controller(self):
        self.troubled = Troubled(self.harness.cluster, None)
        self.mortal = Mortal(self.troubled, 0, before=False)
        self.task = self.harness.start(through=self.mortal, **SETTINGS)


def gang_name(found):
    group = found.spec.scheduling_group
    return group.pod_group_name if group is not None else found.metadata.labels.get(NAME_LABEL, "")


def live(seed, steps=8):
    random.seed(seed)

    async def story(harness):
        await Life(harness, seed).run(steps)

    play(story, nodes=3, controller=False)


@pytest.mark.parametrize("block", range(BLOCKS))
def test_at_rest_no_gang_runs_in_part_and_none_holds_what_it_does_not_use(block):
    seeds = [FIRST + number for number in range(LIVES) if number % BLOCKS == block]
    if "HAMI_DRA_GANGS" in os.environ:
        seeds = [int(os.environ["HAMI_DRA_GANGS"])] if block == 0 else []
    for seed in seeds:
        try:
            live(seed)
        except BaseException as error:
            error.add_note(f"HAMI_DRA_GANGS={seed}")
            raise
