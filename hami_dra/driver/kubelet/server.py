"""A driver as kubelet sees it: one service socket, one registration socket.

Made by `driver.node`, one per driver. In: a Preparation and a HealthSource. Out: served sockets; nothing here knows a vendor, CDI or a cluster.

Update without a gap: the new instance registers beside the old one under a name of its own, kubelet sends its next calls to the one
that registered last, and the old one takes its registration away, finishes what it was asked, and goes.
"""

import asyncio
import logging
from pathlib import Path
from typing import Final

import grpc.aio

from hami_dra.driver.kubelet import sockets
from hami_dra.driver.kubelet.health import Bulletin, add_health
from hami_dra.driver.kubelet.proto import registration_pb2_grpc
from hami_dra.driver.kubelet.protocol import HealthSource, Preparation
from hami_dra.driver.kubelet.service import Calls, Registration, add_dra

log = logging.getLogger(__name__)

DRAIN_SECONDS: Final = 50.0
"""Longer than any call may take."""


class KubeletPlugin:
    """`start`, then `stop`. `folder`: the driver's own (`<root>/plugins/<driver>`); `registry`: `<root>/plugins_registry`.

    `instance`: uid of the driver's pod where two may serve at once; empty: there is one. Raises SocketError.
    """

    def __init__(
        self,
        driver: str,
        preparation: Preparation,
        health: HealthSource,
        *,
        folder: Path,
        registry: Path,
        instance: str = "",
    ) -> None:
        self.registered = asyncio.Event()
        """kubelet knows the driver. Set anew when a kubelet that restarted asks; kubelet does not tell when it goes."""
        self.service_socket = sockets.service_socket(folder, instance)
        self.registration_socket = sockets.registration_socket(registry, driver, instance)
        self._driver = driver
        self._calls = Calls(preparation)
        self._bulletin = Bulletin(health)
        self._reading: asyncio.Task[None] | None = None
        self._service: grpc.aio.Server | None = None
        self._registration: grpc.aio.Server | None = None

    async def start(self) -> None:
        """First what is to be called, then the invitation to call it."""
        sockets.sweep(self.service_socket.parent, "dra-*.sock")
        sockets.sweep(self.registration_socket.parent, f"{self._driver}-*-reg.sock")
        self._service = grpc.aio.server()
        versions = add_dra(self._service, self._calls) + add_health(self._service, self._bulletin)
        await _listen(self._service, self.service_socket)
        self._reading = asyncio.create_task(self._bulletin.run(), name=f"{self._driver}: health")
        self._reading.add_done_callback(_tell)
        self._registration = grpc.aio.server()
        registration_pb2_grpc.add_RegistrationServicer_to_server(
            Registration(self._driver, str(self.service_socket), versions, self.registered), self._registration
        )
        await _listen(self._registration, self.registration_socket)
        log.info("%s: waits for kubelet at %s", self._driver, self.registration_socket)

    async def stop(self) -> None:
        """Deregisters, lets calls under way end, closes. Can be called at any time, and again."""
        sockets.remove(self.registration_socket)
        self.registered.clear()
        registration, self._registration = self._registration, None
        if registration is not None:
            await registration.stop(grace=1.0)
        await self._bulletin.end()
        service, self._service = self._service, None
        if service is not None:
            await service.stop(grace=DRAIN_SECONDS)
            sockets.remove(self.service_socket)
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None


async def _listen(server: grpc.aio.Server, path: Path) -> None:
    sockets.clear(path)
    try:
        server.add_insecure_port(f"unix://{path}")
        await server.start()
    except (RuntimeError, OSError) as error:
        raise sockets.SocketError(f"{path} cannot be served: {error}") from error
    sockets.close_to_others(path)


def _tell(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("%s ended", task.get_name(), exc_info=task.exception())
