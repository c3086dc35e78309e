"""A driver from kubelet's side: one service socket, one registration socket.

Created by `driver.node`, one per driver. In: a Preparation and a HealthSource. Out: served sockets;
nothing here knows a vendor, CDI or a cluster.

Update without a gap: the new instance registers next to the old one under its own name, kubelet
sends its next calls to the one that registered last, and the old one finishes its pending calls,
removes its registration, and goes. In that order: kubelet breaks off an instance's pending calls
when it sees that the registration is gone, up to a second later, and makes calls until then.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

import grpc.aio

from hami_dra.driver.kubelet import sockets
from hami_dra.driver.kubelet.health import HEALTH_VERSIONS, Bulletin, add_health
from hami_dra.driver.kubelet.proto import registration_pb2_grpc
from hami_dra.driver.kubelet.protocol import HealthSource, Preparation
from hami_dra.driver.kubelet.service import DRA_VERSIONS, Calls, Registration, add_dra

log = logging.getLogger(__name__)

DRAIN_SECONDS: Final = 45.0
"""As long as kubelet waits for an answer."""
LINGER_SECONDS: Final = 2.0
"""From the end of the registration to that of the service: kubelet checks for removed registrations once a second."""


class KubeletPlugin:
    """Serve a driver: `start`, then `stop`.

    `folder`: the driver's own (`<root>/plugins/<driver>`); `registry`: `<root>/plugins_registry`.
    `instance`: uid of the driver's pod if two may serve at once; empty: there is one. `drain`,
    `linger`: seconds, as the constants. Raises SocketError.
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
        drain: float = DRAIN_SECONDS,
        linger: float = LINGER_SECONDS,
    ) -> None:
        self.registered = asyncio.Event()
        """kubelet knows the driver. Set again when a restarted kubelet calls; kubelet does not announce its end."""
        # kubelet works in another folder
        self.service_socket = sockets.service_socket(folder.absolute(), instance)
        self.registration_socket = sockets.registration_socket(registry.absolute(), driver, instance)
        self._drain = drain
        # without a successor it would only make the gap longer
        self._linger = linger if instance else 0.0
        self._driver = driver
        self._calls = Calls(preparation)
        self._bulletin = Bulletin(health)
        self._reading: asyncio.Task[None] | None = None
        self._service: grpc.aio.Server | None = None
        self._registration: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Serve the calls, then register with kubelet."""
        sockets.sweep(self.service_socket.parent, "dra-*.sock")
        sockets.sweep(self.registration_socket.parent, f"{self._driver}-*-reg.sock")
        self._service = await _serve(self.service_socket, self._add_service)
        self._reading = asyncio.create_task(self._bulletin.run(), name=f"{self._driver}: health")
        self._registration = await _serve(self.registration_socket, self._add_registration)
        log.info("%s: waiting for kubelet at %s", self._driver, self.registration_socket)

    def _add_service(self, server: grpc.aio.Server) -> None:
        add_dra(server, self._calls)
        add_health(server, self._bulletin)

    def _add_registration(self, server: grpc.aio.Server) -> None:
        served = Registration(self._driver, str(self.service_socket), DRA_VERSIONS + HEALTH_VERSIONS, self.registered)
        registration_pb2_grpc.add_RegistrationServicer_to_server(served, server)

    async def stop(self) -> None:
        """Let pending calls end, deregister, close; calls that arrive meanwhile are answered too.

        Idempotent; allowed at any time, also after a failed start. On cancellation it deregisters
        at once.
        """
        # sockets of other instances must not be removed
        registration, self._registration = self._registration, None
        service, self._service = self._service, None
        reading, self._reading = self._reading, None
        grace = 0.0
        try:
            if registration is not None:
                await self._calls.idle(self._drain)
                sockets.remove(self.registration_socket)
                if self.registered.is_set():
                    await asyncio.sleep(self._linger)
            grace = 1.0
        finally:
            self.registered.clear()
            # both remove their sockets at once: from then on another instance may use the names
            if registration is not None:
                await registration.stop(grace=0.0)
            await self._bulletin.end()
            if service is not None:
                await service.stop(grace)
            if reading is not None:
                reading.cancel()
                await asyncio.wait([reading])


async def _serve(path: Path, add: Callable[[grpc.aio.Server], None]) -> grpc.aio.Server:
    sockets.clear(path)
    server = grpc.aio.server()
    add(server)
    try:
        server.add_insecure_port(f"unix://{path}")
        await server.start()
        sockets.close_to_others(path)
    except (RuntimeError, OSError) as error:
        await server.stop(grace=None)
        raise sockets.SocketError(f"{path} cannot be served: {error}") from error
    return server
