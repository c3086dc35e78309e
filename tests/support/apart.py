"""Controllers as in production, each with a main thread and a thread beside it, on a memory cluster in a thread of its own."""

import asyncio
import socket
import threading
import urllib.request
from contextlib import aclosing, suppress
from urllib.error import HTTPError

from controller.reconcile.controller import Controller, Process
from controller.reconcile.observability.side_thread import SideServices
from hami_dra.api import kinds, names
from hami_dra.kube.embedded import EmbeddedControlPlane
from hami_dra.kube.lease_timings import Timings
from hami_dra.kube.side_thread import SideThread
from tests.support.controller_settings import controller_settings
from tests.support.harness import DRIVER, SPACE, device_class, first_fit, gpu_slice, node
from tests.support.steered_cluster import SteeredCluster

TIMINGS = Timings(duration=3, renew_deadline=1.2, retry=0.2, write_timeout=1.0, clock_margin=0.5)


class Apart:
    """The `Cluster` protocol on a cluster that lives in another thread's loop. Cancelled watches end there too."""

    def __init__(self, thread, cluster):
        self._thread = thread
        self._cluster = cluster

    def __getattr__(self, name):
        target = getattr(self._cluster, name)

        async def call(*arguments, **options):
            return await self._thread.run(lambda: target(*arguments, **options))

        return call

    async def watch(self, kind, **options):
        here, events = asyncio.get_running_loop(), asyncio.Queue()

        async def pump():
            async with aclosing(self._cluster.watch(kind, **options)) as found:
                async for event in found:
                    here.call_soon_threadsafe(events.put_nowait, event)

        pumping = asyncio.create_task(self._thread.run(pump))
        try:
            while True:
                yield await events.get()
        finally:
            pumping.cancel()
            await asyncio.wait([pumping])


class Stage:
    """The API server, with a control plane and one node. `start()` adds a controller."""

    def __init__(self):
        self._thread = SideThread("api server")
        self._stop = None
        self.cluster = None
        self.replicas = []

    def __enter__(self):
        self._thread.__enter__()
        self._ready = threading.Event()
        self._task = asyncio.run_coroutine_threadsafe(self._serve(), self._thread._loop)
        assert self._ready.wait(10)
        return self

    async def _serve(self):
        self._stop = asyncio.Event()
        self.cluster = SteeredCluster()
        await self.cluster.create(kinds.NAMESPACE, {"metadata": {"name": SPACE}})
        await self.cluster.create(kinds.DEVICE_CLASS, device_class("gpu"))
        async with EmbeddedControlPlane(self.cluster):
            await self.cluster.create(kinds.NODE, node("n0"))
            await self.cluster.create(kinds.RESOURCE_SLICE, gpu_slice("n0"))
            self._ready.set()
            await self._stop.wait()

    def __exit__(self, *error):
        for replica in self.replicas:
            replica.stop()
        self._thread._loop.call_soon_threadsafe(self._stop.set)
        self._task.result(10)
        self._thread.__exit__(*error)

    def do(self, verb, *arguments, **options):
        """One request, from the test's own thread."""
        start = getattr(self.cluster, verb)
        return asyncio.run_coroutine_threadsafe(start(*arguments, **options), self._thread._loop).result(30)

    def add(self, kind, *bodies):
        for body in bodies:
            self.do("create", kind, body)

    def node_of(self, pod):
        return self.do("get", kinds.POD, pod, SPACE).spec.node_name

    def lease(self):
        return self.do("get", kinds.LEASE, names.CONTROLLER, names.SYSTEM_NAMESPACE)

    def events(self, reason):
        found = self.do("list", kinds.EVENT).items
        raws = [self.do("get_raw", kinds.EVENT, each.metadata.name, each.metadata.namespace) for each in found]
        return [raw for raw in raws if raw["reason"] == reason]

    def start(self, **options):
        replica = Replica(lambda: Apart(self._thread, self.cluster), **options)
        self.replicas.append(replica)
        return replica


class Replica:
    """One controller. `ended` is set in place of the process's end; the threads go on, and are a dead process's no more."""

    def __init__(self, connect, *, decide=first_fit, **settings):
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.ended = threading.Event()
        self.exit_code = None
        self.controller = None
        self._settings = controller_settings(
            **{
                "managed": frozenset({DRIVER}),
                "own_drivers": frozenset({DRIVER}),
                "quiet_time": 0.0,
                "probe": False,
                "lease": TIMINGS,
                **settings,
            }
        )
        self._connect = connect
        self._decide = decide
        self._loop = None
        self._task = None
        self._started = threading.Event()
        self._main = threading.Thread(target=self._run, name="main", daemon=True)
        self._main.start()
        assert self._started.wait(10)

    def _run(self):
        with suppress(asyncio.CancelledError):
            asyncio.run(self._serve())

    async def _serve(self):
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        with SideThread("lease and health") as thread:
            self.controller = Controller(
                self._connect(),
                self._settings,
                decide=self._decide,
                process=Process(
                    listen=("127.0.0.1", self.port), side=SideServices(thread, self._connect(), end=self._end)
                ),
            )
            self._started.set()
            await self.controller.run()

    def _end(self, code):
        self.exit_code = code
        self.ended.set()

    def stop(self):
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._main.join(20)
        assert not self._main.is_alive()

    def get(self, path):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    @property
    def leads(self):
        return self.controller.is_leading
