"""Random lives of refused pods: whoever would fit is decided within a second of the change, and nothing else decides anybody.

The periodic review is off, so that it hides no missing hint. The oracle is `decide` itself, asked about every pod that waits
after every step. The seed of a life that fails is in the report.
"""

import random

import pytest

from controller.decide import Decision, decide
from hami_dra.api import kinds
from hami_dra.api.podstate import is_pending
from hami_dra.kube.protocol import NotFound
from tests.support.harness import DRIVER, SPACE, device_class, gpu_slice, node, play, pod, template

ZONE = "topology.kubernetes.io/zone"
SETTINGS = {"quiet_time": 0.0, "probe": False, "reconsider": 1e9}
SIZES = (4, 8, 16)
LIVES = 40
STEPS = 40
NODES = 4


def spread(app):
    return {
        "maxSkew": 1,
        "topologyKey": ZONE,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": app}},
    }


class Watched:
    """`decide`, which remembers what it was asked."""

    def __init__(self):
        self.count = 0
        self.asked = {}

    def __call__(self, inventory, request, options):
        self.count += 1
        answer = decide(inventory, request, options)
        self.asked[request.pod.metadata.uid] = (inventory, request, options)
        return answer


class Life:
    def __init__(self, harness, seed, watched):
        self.harness = harness
        self.random = random.Random(seed)
        self.watched = watched
        self.number = 0

    async def run(self):
        for size in SIZES:
            await self.harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template(f"t{size}", size))
        for number in range(3):
            await self.add_node(number)
        changes = [
            self.add_pod, self.add_pod, self.add_pod, self.delete_pod, self.finish_pod, self.relabel_pod, self.cordon, self.ready,
            self.taint, self.zone, self.allocatable, self.come_or_go, self.cards, self.bind_plain_pod, self.class_change,
        ]  # fmt: skip
        for _ in range(STEPS):
            step = self.random.choice(changes)
            await step()
            await self.harness.sleep(1.2)
            await self.check(step.__name__)
            if self.random.random() < 0.3:
                await self.nothing()

    async def check(self, step):
        """Nobody who waits would fit."""
        pods = {found.metadata.uid: found for found in await self.harness.pods()}
        queue = self.harness.controller.metrics.queue.queue
        for uid, (inventory, request, options) in self.watched.asked.items():
            found = pods.get(uid)
            if found is None or not is_pending(found) or found.key not in queue.keys_in("no_room"):
                continue
            answer = decide(inventory, request, options)
            fits = isinstance(answer, Decision) and inventory.rules.fits_in_any_order(found, answer.node)
            assert not fits, f"{found.key} fits on {answer.node} since {step}, and nobody looks at it"

    # --- what helps nobody ---------------------------------------------------------------------------------------------

    async def nothing(self):
        """Heartbeats, metadata, and pods of other namespaces that use nothing: no decision."""
        before = self.watched.count
        await self.random.choice([self.heartbeats, self.annotate, self.strangers])()
        await self.harness.sleep(1.2)
        assert self.watched.count == before

    async def heartbeats(self):
        for found in (await self.harness.cluster.list(kinds.NODE)).items:
            ready = next((each.status for each in found.status.conditions if each.type == "Ready"), "True")
            beat = f"2026-01-01T{self.random.randrange(24):02}:{self.random.randrange(60):02}:00Z"
            conditions = [{"type": kind, "status": ready, "lastHeartbeatTime": beat} for kind in ("Ready",)]
            await self.harness.patch_node(found.metadata.name, {"status": {"conditions": conditions}}, status=True)

    async def annotate(self):
        patch = {"metadata": {"annotations": {"example.com/x": str(self.random.random())}}}
        for found in (await self.harness.cluster.list(kinds.NODE)).items:
            await self.harness.patch_node(found.metadata.name, patch)
        for found in await self.harness.pods():
            await self.harness.cluster.patch(kinds.POD, found.metadata.name, patch, namespace=found.metadata.namespace)

    async def strangers(self):
        self.number += 1
        nodes = (await self.harness.cluster.list(kinds.NODE)).items
        if not nodes:
            return
        body = pod(f"stranger{self.number}", nodeName=nodes[0].metadata.name, cpu="0")
        body["metadata"] |= {"namespace": "other", "labels": {"app": self.random.choice("xy")}}
        await self.harness.add(kinds.POD, body)

    # --- what may help -------------------------------------------------------------------------------------------------

    async def add_pod(self):
        self.number += 1
        spec = {}
        app = self.random.choice("xy")
        if self.random.random() < 0.4:
            spec["topologySpreadConstraints"] = [spread(app)]
        if self.random.random() < 0.2:
            spec["nodeSelector"] = {ZONE: self.random.choice("ab")}
        if self.random.random() < 0.2:
            spec["tolerations"] = [{"key": "dedicated", "operator": "Exists"}]
        cpu = self.random.choice(["100m", "2", "5"])
        body = pod(f"p{self.number}", templates=[f"t{self.random.choice(SIZES)}"], cpu=cpu, **spec)
        body["metadata"]["labels"] = {"app": app}
        await self.harness.add(kinds.POD, body)

    async def bind_plain_pod(self):
        """A pod without claims, on some node: it uses CPU, and counts for the spread."""
        self.number += 1
        body = pod(f"q{self.number}", nodeName=f"n{self.random.randrange(NODES)}", cpu=self.random.choice(["0", "3"]))
        body["metadata"]["labels"] = {"app": self.random.choice("xy")}
        await self.harness.add(kinds.POD, body)

    async def mine(self):
        return [found for found in await self.harness.pods() if found.metadata.namespace == SPACE]

    async def some_pod(self):
        pods = await self.mine()
        return self.random.choice(pods) if pods else None

    async def delete_pod(self):
        if (found := await self.some_pod()) is not None:
            await self.harness.delete_pod(found.metadata.name)

    async def finish_pod(self):
        running = [found for found in await self.mine() if found.status.phase == "Running"]
        if running:
            name = self.random.choice(running).metadata.name
            patch = {"status": {"phase": "Succeeded"}}
            await self.harness.cluster.patch(kinds.POD, name, patch, namespace=SPACE, subresource="status")

    async def relabel_pod(self):
        if (found := await self.some_pod()) is not None:
            patch = {"metadata": {"labels": {"app": self.random.choice("xyz")}}}
            await self.harness.cluster.patch(kinds.POD, found.metadata.name, patch, namespace=SPACE)

    async def patch_some_node(self, patch, *, status=False):
        try:
            await self.harness.patch_node(f"n{self.random.randrange(NODES)}", patch, status=status)
        except NotFound:
            return

    async def cordon(self):
        await self.patch_some_node({"spec": {"unschedulable": self.random.random() < 0.3}})

    async def ready(self):
        status = self.random.choice(["True", "True", "False"])
        await self.patch_some_node({"status": {"conditions": [{"type": "Ready", "status": status}]}}, status=True)

    async def taint(self):
        taints = self.random.choice([[], [{"key": "dedicated", "effect": "NoSchedule"}]])
        await self.patch_some_node({"spec": {"taints": taints}})

    async def zone(self):
        await self.patch_some_node({"metadata": {"labels": {ZONE: self.random.choice("abc")}}})

    async def allocatable(self):
        await self.patch_some_node(
            {"status": {"allocatable": {"cpu": self.random.choice(["2", "6", "12"])}}}, status=True
        )

    async def add_node(self, number):
        name = f"n{number}"
        await self.harness.add(kinds.NODE, node(name, cpu="6", labels={ZONE: "ab"[number % 2]}))
        await self.harness.add(kinds.RESOURCE_SLICE, gpu_slice(name, cards=1))

    async def come_or_go(self):
        number = self.random.randrange(NODES)
        try:
            await self.harness.cluster.delete(kinds.NODE, f"n{number}")
        except NotFound:
            await self.add_node(number)
            return
        await self.harness.cluster.delete(kinds.RESOURCE_SLICE, f"n{number}-{DRIVER}")

    async def cards(self):
        """More or fewer cards on a node."""
        name = f"n{self.random.randrange(NODES)}"
        body = gpu_slice(name, cards=self.random.choice([1, 1, 2]))
        body["spec"]["pool"]["generation"] = 2
        try:
            await self.harness.cluster.patch(kinds.RESOURCE_SLICE, f"{name}-{DRIVER}", {"spec": body["spec"]})
        except NotFound:
            return

    async def class_change(self):
        spec = device_class("gpu")["spec"]
        if self.random.random() < 0.3:
            spec = {"selectors": [{"cel": {"expression": "false"}}]}
        await self.harness.cluster.patch(kinds.DEVICE_CLASS, "gpu", {"spec": spec})


@pytest.mark.parametrize("block", range(4))
def test_whoever_would_fit_is_decided_at_once_and_nobody_else_is_decided(block):
    for seed in range(block, LIVES, 4):
        watched = Watched()

        async def story(harness, seed=seed, watched=watched):
            await Life(harness, seed, watched).run()

        try:
            play(story, nodes=0, decide=watched, **SETTINGS)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


def test_reviews_are_all_that_happens_when_nothing_happens():
    watched = Watched()

    async def story(harness):
        life = Life(harness, 7, watched)
        await life.run()
        waiting = len(harness.controller.metrics.queue.queue.keys_in("no_room"))
        before = watched.count
        await harness.sleep(3_000)
        assert waiting
        assert watched.count - before <= 10 * waiting

    play(story, nodes=0, decide=watched, **SETTINGS | {"reconsider": 300.0})
