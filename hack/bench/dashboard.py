"""What the dashboard costs in a cluster of 5,000 nodes and 20,000 pods, with 2,000 more that wait:
pages, updates, exports.

    python hack/bench/dashboard.py [--nodes 5000] [--waiting 2000]

For each: processor time of the thread, the longest piece in which the event loop did nothing else
(the controller decides in the same loop), and size. The cluster is that of scale.py, read by the
controller's own informers.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from aiohttp import web

from controller.dashboard.access import OpenAccess
from controller.dashboard.app import dashboard_app
from controller.dashboard.source import Source
from controller.reconcile.controller import Controller
from controller.reconcile.runtime import Informers, LoopClock
from controller.reconcile.runtime.settings import DriverSettings, Settings
from hack.bench.scale import Streams, claim_body, pod_body, write_cluster
from hami_dra.api import kinds
from hami_dra.kube.embedded import MemoryCluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PATHS = (
    "/", "/nodes", "/nodes?q=node-042", "/node?name=node-00042", "/device?id=nvidia.hami.io/node-00042/gpu-3",
    "/devices", "/devices?sort=memory&order=desc", "/devices?q=GPU-00042", "/pods", "/pods?sort=memory&order=desc", "/pods?q=node-042",
    "/claims", "/claims?sort=age", "/pending", "/decisions", "/quota", "/export/pods.csv", "/export/pods.csv?sort=memory",
    "/export/pending.json", "/export/nodes.csv", "/export/devices.csv", "/export/claims.csv", "/export/usage.csv",
)  # fmt: skip
ROUNDS = 5
CLIENT = """
import sys, urllib.error, urllib.request
for address in sys.stdin:
    try:
        with urllib.request.urlopen(address.strip()) as answer:
            print(len(answer.read()), flush=True)
    except urllib.error.HTTPError:
        print(0, flush=True)
"""
"""In a process of its own: reading an answer is not the dashboard's work."""


class Pieces:
    """Measures the longest processor time between two turns of the loop."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def run(self) -> None:
        last = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            self.longest = max(self.longest, now - last)
            last = now


def write_waiting(folder: Path, number: int) -> None:
    """Pods without a node, every other one in a gang of eight."""
    bodies = [pod_body(f"waits-{each:05}", "", f"waits-{each:05}") for each in range(number)]
    for each, body in enumerate(bodies):
        body["status"] = {"phase": "Pending"}
        if each % 2:
            group = "pod-group.scheduling.sigs.k8s.io"
            body["metadata"]["labels"] = {f"{group}/name": f"gang-{each // 16}", f"{group}/min-available": "8"}
    claims = [claim_body(body["metadata"]["name"], "", 0) | {"status": {}} for body in bodies]
    for kind, items in ((kinds.POD, bodies), (kinds.RESOURCE_CLAIM, claims)):
        names, path = {"kind": kind.name, "apiVersion": kind.api_version}, folder / kind.plural
        lines = (json.dumps({"type": "ADDED", "object": names | item}) + "\n" for item in items)
        path.write_text("".join(lines) + path.read_text())


@asynccontextmanager
async def controller(folder: Path) -> AsyncIterator[Controller]:
    """A controller that has read the cluster, and decides nothing."""
    made = Controller(MemoryCluster(), Settings(drivers=DriverSettings(managed=frozenset({"nvidia.hami.io"}))))
    clock = LoopClock()
    streams: Any = Streams(folder)
    informers = made.informers = Informers(streams, made.inventory, clock, None)
    running = asyncio.ensure_future(informers.run())
    await informers.wait_synced()
    for number, pod in enumerate(each for each in informers.pods.store if not each.spec.node_name):
        why = f"no node fits now: 4 devices with 40000 MiB are needed, and the best node has {number % 40}"
        made.decision_log.waiting(pod, why, passing=False, at=clock.wall())
    gc.collect()
    gc.freeze()
    yield made
    running.cancel()


async def size_of(client: Process, address: str) -> int:
    assert client.stdin is not None
    assert client.stdout is not None
    client.stdin.write(f"{address}\n".encode())
    return int(await client.stdout.readline())


async def measured(made: Controller) -> None:
    runner = web.AppRunner(dashboard_app(Source(made), OpenAccess()), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    root = f"http://127.0.0.1:{runner.addresses[0][1]}"
    client = await asyncio.create_subprocess_exec(sys.executable, "-c", CLIENT, stdin=PIPE, stdout=PIPE)
    await size_of(client, f"{root}/whatif")
    print(f"{'':44} {'CPU ms':>8} {'longest piece ms':>17} {'KiB':>8}")
    for path in PATHS:
        separator, number = "&" if "?" in path else "?", 0
        spent, longest = [], []
        for number in range(ROUNDS):  # an address that was not asked for before: nothing is kept for it
            before = time.thread_time()
            size = await size_of(client, f"{root}{path}{separator}round={number}")
            spent.append(time.thread_time() - before)
        for number in range(ROUNDS):
            pieces = Pieces()
            counting = asyncio.ensure_future(pieces.run())
            await size_of(client, f"{root}{path}{separator}round={ROUNDS + number}")
            counting.cancel()
            longest.append(pieces.longest)
        cpu, piece = sorted(spent)[ROUNDS // 2], sorted(longest)[ROUNDS // 2]
        print(f"{path:44} {1000 * cpu:8.1f} {1000 * piece:17.1f} {size / 1024:8.0f}", flush=True)
    client.terminate()
    await client.wait()
    await runner.cleanup()


async def run(folder: Path) -> None:
    async with controller(folder) as made:
        await measured(made)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--waiting", type=int, default=2_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_cluster(folder, options.nodes)
        write_waiting(folder, options.waiting)
        asyncio.run(run(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
