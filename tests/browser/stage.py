"""The real page on the real controller, on the memory cluster with a simulated fleet of all vendors: what browser tests look at.

`Stage(nodes)` runs all of it in a thread with an event loop of its own, so that tests may use playwright's plain functions;
`stage.do(coroutine)` runs something there and waits for it. `python -m tests.browser.stage --nodes 50` serves it until Ctrl-C.
"""

import argparse
import asyncio
import gc
import math
import sys
import threading
import time
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta

import msgspec

from controller.dashboard.history import History
from controller.dashboard.readings import Target
from controller.dashboard.serving import serving
from controller.dashboard.source import Source
from controller.reconcile.controller import Controller, Process
from controller.settings.controller import DashboardSettings as PageSettings
from controller.views.overview import CardTable, packing
from controller.webhook.admission import Admission
from controller.webhook.converted import LegacyConversion
from controller.webhook.memory_webhook import memory_webhook
from hami_dra.api import kinds, names
from hami_dra.api.config import FleetFile
from hami_dra.driver.fleet.run import Fleet
from hami_dra.kube.embedded import EmbeddedControlPlane
from hami_dra.kube.manifests import apply, shipped
from hami_dra.vendors.registry import VENDORS
from tests.support.controller_settings import controller_settings
from tests.support.driver_metrics import exposition
from tests.support.steered_cluster import SteeredCluster

MACHINES = (
    ("dgx-a100", "a100", 8),
    ("g5.12xlarge", "a10g", 12),
    ("v100-pairs-8", "v100", 4),
    ("c500-8", "c500", 8),
    ("p800-oam-8", "p800", 6),
    ("trn1.32xlarge", "trn1", 6),
    ("s60-8", "s60", 6),
)
"""Machine, name of its nodes, how many of fifty."""
ONE_VENDOR = (("dgx-h100", "h100", 25), ("g5.12xlarge", "a10g", 25))
"""As most clusters are."""
DRIVERS = frozenset(vendor.profile.driver for vendor in VENDORS)


def fleet(nodes, machines=MACHINES):
    groups = [
        {"machine": machine, "name": f"{name}-{{index:04}}", "count": max(1, nodes * share // 50)}
        for machine, name, share in machines
    ]
    groups[0]["count"] += nodes - sum(group["count"] for group in groups)
    return FleetFile.model_validate({"name": "stage", "nodes": groups})


class SimulatedDrivers:
    """Their metrics, without the drivers: but for the first node, whose driver does not answer."""

    def __init__(self, nodes, machines):
        self.machines = {}
        for group in fleet(nodes, machines).nodes:
            for index in range(group.count):
                node = group.name.format(index=index)
                self.machines[node] = group.machine

    def targets(self):
        return [Target(node, "") for node in self.machines]

    async def ask(self, target):
        if target.node == next(iter(self.machines)):
            raise ConnectionError("no driver here")
        return exposition(target.node, self.machines[target.node])


def pod(name, limits, *, namespace="team-a", annotations=None, labels=None, node_selector=None):
    """As users of HAMi write them; the webhook converts it."""
    return {
        "metadata": {"name": name, "namespace": namespace, "annotations": annotations or {}, "labels": labels or {}},
        "spec": {
            "nodeSelector": node_selector or {},
            "containers": [{"name": "main", "image": "image", "resources": {"limits": limits}}],
        },
    }


def number_of_pods(nodes):
    """About two for a node, as long as all of their decisions are kept."""
    return min(2 * nodes, 800)


def load(nodes, machines=MACHINES):
    """Pods of several namespaces on every vendor's cards, some that find no room, a gang that runs, and one of which a member is
    missing.
    """
    kinds_of_pods = (
        ("infer", "team-a", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 7500, "nvidia.com/gpucores": 30}),
        ("train", "team-b", {"nvidia.com/gpu": 4}),
        ("notebook", "research", {"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 40}),
        ("sgpu", "team-b", {"metax-tech.com/sgpu": 1, "metax-tech.com/vcore": 50, "metax-tech.com/vmemory": 16}),
        ("rank", "research", {"kunlunxin.com/xpu": 4}),
        ("serve", "team-a", {"aws.amazon.com/neuron": 4}),
        ("gcu", "team-b", {"enflame.com/gcu": 2}),
        ("batch", "research", {"nvidia.com/gpu": 2, "nvidia.com/gpumem": 12000}),
    )
    if machines is ONE_VENDOR:
        kinds_of_pods = [each for each in kinds_of_pods if "nvidia.com/gpu" in each[2]]
    for number in range(number_of_pods(nodes)):
        name, namespace, limits = kinds_of_pods[number % len(kinds_of_pods)]
        annotations = {names.NODE_POLICY: "spread"} if number % 3 == 0 else {}
        yield pod(f"{name}-{number:04}", limits, namespace=namespace, annotations=annotations)
    yield pod("too-large-0", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 900_000}, namespace="team-b")
    gang = {"pod-group.scheduling.sigs.k8s.io/name": "pretrain", "pod-group.scheduling.sigs.k8s.io/min-available": "4"}
    for number in range(3):
        yield pod(f"pretrain-{number}", {"nvidia.com/gpu": 8}, namespace="research", labels=gang)
    gang = {key: {"pretrain": "tuning", "4": "2"}[value] for key, value in gang.items()}
    for number in range(2):
        yield pod(f"tuning-{number}", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 4000}, labels=gang)
    yield pod(
        "too-many-0",
        {"nvidia.com/gpu": 12} if machines is ONE_VENDOR else {"metax-tech.com/gpu": 12},
        namespace="team-b",
    )
    yield pod("nowhere-0", {"nvidia.com/gpu": 1}, namespace="research", node_selector={"disk": "none-has-it"})


def past(controller):
    """Two hours before the stage began: each vendor's devices fill up to what they have now, and pods begin to wait."""
    history, now = History(), datetime.now(UTC)
    present = packing(CardTable(controller.inventory))
    for minute in range(120):
        grown = min(0.35 + 0.65 * minute / 120 + 0.06 * math.sin(minute / 9), 1.0)
        samples = [
            msgspec.structs.replace(
                each, free_capacity=each.usable_cards - grown * (each.usable_cards - each.free_capacity)
            )
            for each in present
        ]
        history.sample(samples, round(5 * minute / 120), now - timedelta(minutes=120 - minute))
    return history


QUOTAS = (
    ("team-a", "cards", {"limits.nvidia.com/gpu": "40", "limits.nvidia.com/gpumem": "400000"}),
    ("research", "cards", {"limits.nvidia.com/gpumem": "900000", "limits.kunlunxin.com/xpu": "64"}),
)


class Stage:
    def __init__(self, nodes=50, *, busy=True, machines=MACHINES):
        self.nodes = nodes
        self.machines = machines
        self.busy = busy
        self.url = ""
        self._started = threading.Event()
        self._problem = None
        self._thread = threading.Thread(target=self._run, name="stage", daemon=True)

    def __enter__(self):
        self._thread.start()
        self._started.wait()
        if self._problem is not None:
            raise self._problem
        return self

    def __exit__(self, *_):
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def do(self, coroutine, timeout=60):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout)

    def create(self, kind, body):
        return self.do(self.cluster.create(kind, body, namespace=body["metadata"].get("namespace", "")))

    def delete(self, kind, name, namespace=""):
        self.do(self.cluster.delete(kind, name, namespace=namespace))

    def _run(self):
        try:
            asyncio.run(self._serve())
        except BaseException as problem:  # noqa: BLE001 (shown by the test's thread)
            self._problem = problem
        finally:
            self._started.set()

    async def _serve(self):
        self.loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        cluster = self.cluster = SteeredCluster(history=200_000)
        cluster.admission.append(memory_webhook(Admission(cluster)))
        for name in ("default", names.SYSTEM_NAMESPACE, "team-a", "team-b", "research"):
            await cluster.create(kinds.NAMESPACE, {"metadata": {"name": name}})
        await apply(
            cluster, [raw for raw in shipped("deviceclasses") if raw["metadata"]["name"].endswith(names.DOMAIN)]
        )
        for namespace, name, hard in QUOTAS:
            body = {"metadata": {"name": name, "namespace": namespace}, "spec": {"hard": hard}}
            await cluster.create(kinds.RESOURCE_QUOTA, body)
        await Fleet(cluster, fleet(self.nodes, self.machines)).sync_once()
        synced = asyncio.Event()
        settings = controller_settings(
            managed=DRIVERS, own_drivers=DRIVERS, quiet_time=0.0, probe=False, leader_election=False, gate_patience=0.5
        )
        controller = self.controller = Controller(
            cluster, settings, conversion=LegacyConversion(), process=Process(on_synced=synced.set)
        )
        async with AsyncExitStack() as stack:
            control_plane = await stack.enter_async_context(EmbeddedControlPlane(cluster))
            running = asyncio.create_task(controller.run())
            stack.push_async_callback(_ended, running)
            await synced.wait()
            if self.busy:
                for body in load(self.nodes, self.machines):
                    await cluster.create(kinds.POD, body)
                await self._until(self._decided)
            gc.freeze()
            page = PageSettings(("127.0.0.1", 0), auth=False)
            port = await stack.enter_async_context(
                serving(
                    Source(controller),
                    cluster,
                    page,
                    meters=SimulatedDrivers(self.nodes, self.machines),
                    history=past(controller),
                )
            )
            self.url = f"http://127.0.0.1:{port}"
            self._started.set()
            await self._stop.wait()
            assert control_plane is not None

    def _decided(self):
        """Every pod has a node, but those that cannot have one."""
        pods = [pod for pod in self.controller.informers.pods.store if pod.spec.resource_claims]
        waiting = [pod for pod in pods if not pod.spec.node_name]
        return len(pods) >= number_of_pods(self.nodes) and all(
            self.controller.decision_log.of_pod(pod.key) is not None for pod in waiting
        )

    async def _until(self, condition, seconds=300.0):
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise TimeoutError("the fleet has not settled")
            await asyncio.sleep(0.1)


async def _ended(task):
    task.cancel()
    await asyncio.wait({task})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=50)
    parser.add_argument("--empty", action="store_true")
    parser.add_argument("--one-vendor", action="store_true")
    options = parser.parse_args()
    start = time.monotonic()
    machines = ONE_VENDOR if options.one_vendor else MACHINES
    with Stage(options.nodes, busy=not options.empty, machines=machines) as stage:
        sys.stdout.write(f"{stage.url} after {time.monotonic() - start:.1f} s\n")
        sys.stdout.flush()
        threading.Event().wait()


if __name__ == "__main__":
    main()
