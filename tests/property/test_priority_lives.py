"""Random lives of pods with priorities: nobody takes devices that a waiting pod of higher priority could have.

The oracle is `decide` itself: whenever a pod is placed, it is asked about each refused pod of higher priority, with all that
the controller has seen by then. So a device counts from the moment at which the controller hears that it is free. Big gangs that
were refused, and pods that wait for something else than room, are not asked about.
"""

from contextlib import suppress
from unittest.mock import patch

import pytest

from controller.decide import Decision, decide
from controller.reconcile.queueing.queue import Queue
from hami_dra.api import kinds
from hami_dra.api.podstate import is_pending
from hami_dra.kube.protocol import NotFound
from tests.property.test_reconcile_hints import ZONE, Life, Watched
from tests.support.examples import examples
from tests.support.harness import play, pod, template

LIVES = examples(8)
STEPS = 80
BLOCKS = 4
PAUSES = [0.0, 0.0, 0.001, 0.01, 0.03, 0.1, 0.5, 2.0, 30.0]
PRIORITIES = [-10, 0, 0, 0, 10, 1000]
SETTINGS = {"quiet_time": 0.0, "probe": False}


class Ranked(Life):
    """Pods of some priorities come and go, as fast as nodes, cards and claims do."""

    def __init__(self, harness, seed, watched):
        super().__init__(harness, seed, watched)
        self.placed = self.compared = 0
        self.inverted = []

    async def run(self):
        await self.harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, *(template(f"t{size}", size) for size in (1, 4, 8, 16)))
        for number in range(3):
            await self.add_node(number)
        changes = [
            *[self.add_pod] * 8, *[self.swap] * 8, *[self.come_and_go] * 3, *[self.end_pod] * 4,
            self.finish_pod, self.cordon, self.taint, self.zone, self.allocatable, self.come_or_go, self.cards,
        ]  # fmt: skip
        for _ in range(STEPS):
            await self.random.choice(changes)()
            await self.pause()
            assert not self.inverted, self.inverted

    async def pause(self):
        await self.harness.sleep(self.random.choice(PAUSES))

    async def add_pod(self):
        self.number += 1
        spec = {"priority": self.random.choice(PRIORITIES)}
        if self.random.random() < 0.2:
            spec["nodeSelector"] = {ZONE: self.random.choice("ab")}
        if self.random.random() < 0.2:
            spec["tolerations"] = [{"key": "dedicated", "operator": "Exists"}]
        sizes = [self.random.choice([4, 8, 16]) for _ in range(self.random.choice([1, 1, 1, 2]))]
        cpu = self.random.choice(["100m", "100m", "2"])
        gated = self.random.random() < 0.8
        body = pod(f"p{self.number}", templates=[f"t{size}" for size in sizes], cpu=cpu, gated=gated, **spec)
        await self.harness.add(kinds.POD, body)

    async def swap(self):
        """A pod ends, and another one is created a moment before or after its card is free."""
        await self.end_pod()
        await self.pause()
        await self.add_pod()

    async def end_pod(self):
        running = [found for found in await self.mine() if found.spec.node_name]
        if running:
            with suppress(NotFound):  # its node went
                await self.harness.delete_pod(self.random.choice(running).metadata.name)

    async def come_and_go(self):
        """Small claims, each of which is an event that may help those who wait."""
        for _ in range(self.random.randint(1, 10)):
            self.number += 1
            await self.harness.add(kinds.POD, pod(f"c{self.number}", templates=["t1"], gated=True))
            await self.harness.sleep(self.random.choice([0.0, 0.02, 0.1]))
            with suppress(NotFound):
                await self.harness.delete_pod(f"c{self.number}")

    def about_to_place(self, queue, key):
        """Ask about everybody of higher priority whom the queue knows as refused."""
        informers = self.harness.controller.informers
        taker = informers.pod(key)
        self.placed += 1
        for inventory, request, options in list(self.watched.asked.values()):
            waiting = informers.pod(request.pod.key)
            if waiting is None or waiting.metadata.uid != request.pod.metadata.uid or not is_pending(waiting):
                continue
            if waiting.spec.priority > taker.spec.priority and waiting.key in queue.keys_in("no_room"):
                self.compared += 1
                answer = decide(inventory, request, options)
                if isinstance(answer, Decision):
                    self.inverted.append(
                        f"{key} is placed, and {waiting.key} of higher priority would fit on {answer.node}"
                    )


@pytest.mark.parametrize("block", range(BLOCKS))
def test_nobody_takes_devices_that_a_waiting_pod_of_higher_priority_could_have(block):
    compared = 0
    for seed in range(block, LIVES, BLOCKS):
        watched = Watched()
        lives = []
        forward = Queue.placed

        def placed(queue, key, lives=lives, forward=forward):
            lives[0].about_to_place(queue, key)
            forward(queue, key)

        async def story(harness, seed=seed, watched=watched, lives=lives):
            lives.append(Ranked(harness, seed, watched))
            await lives[0].run()

        try:
            with patch.object(Queue, "placed", placed):
                play(story, nodes=0, decide=watched, **SETTINGS)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        compared += lives[0].compared
    assert compared > LIVES
