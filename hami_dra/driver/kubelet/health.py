"""The health of devices as streams to kubelet, both versions.

Created by `server`. kubelet keeps a verdict for 30 s and then calls it Unknown, so all of them are
sent repeatedly, and at once when one changes. Several watches may run at once: a restarted kubelet
opens a new one before the end of the old one is noticed.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, Final

import grpc.aio

from hami_dra.driver.kubelet.proto import (
    health_v1_pb2,
    health_v1_pb2_grpc,
    health_v1alpha1_pb2,
    health_v1alpha1_pb2_grpc,
)
from hami_dra.driver.kubelet.protocol import DeviceHealth, HealthSource, Verdict

log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]

AGAIN: Final = 5.0
"""Seconds between two messages when nothing changes. kubelet's limit is 30; but when one of two
instances of a driver goes, it forgets the verdicts of both until the next message.
"""
MESSAGE_MOST: Final = 1024
"""Bytes that kubelet keeps. It cuts there, even in the middle of a character."""
_NUMBERS: Final = {Verdict.UNKNOWN: 0, Verdict.HEALTHY: 1, Verdict.UNHEALTHY: 2}


class Bulletin:
    """Read the source for all streams, so that each of them sees a change. `run` until cancelled."""

    def __init__(self, source: HealthSource, *, again: float = AGAIN, wall: Callable[[], float] = time.time) -> None:
        self._source = source
        self._again = again
        self._wall = wall
        self._turn = asyncio.Condition()
        self._number = 0
        self._devices: tuple[DeviceHealth, ...] = ()
        self._seen_at = 0
        self._ended = False

    async def run(self) -> None:
        while True:
            try:
                await self._publish()
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._again):
                        await self._source.changed()
            except Exception:
                log.exception("the health of devices cannot be read: kubelet takes it for unknown after 30 s")
                await asyncio.sleep(self._again)

    async def end(self) -> None:
        async with self._turn:
            self._ended = True
            self._turn.notify_all()

    async def issues(self) -> AsyncIterator[tuple[tuple[DeviceHealth, ...], int]]:
        """Yield all devices and the Unix second of their check; the first time at once, then after each update."""
        read = 0
        while True:
            async with self._turn:
                await self._turn.wait_for(lambda: self._ended or self._number > read)  # noqa: B023 (called at once)
                if self._ended:
                    return
                read = self._number
                issue = self._devices, self._seen_at
            yield issue

    async def _publish(self) -> None:
        async with self._turn:
            self._devices = tuple(self._source.current())
            self._seen_at = int(self._wall())
            self._number += 1
            self._turn.notify_all()


HEALTH_VERSIONS: Final = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
"""Names sent to kubelet."""


def add_health(server: grpc.aio.Server, bulletin: Bulletin) -> None:
    health_v1_pb2_grpc.add_DRAResourceHealthServicer_to_server(_Health(bulletin, health_v1_pb2), server)
    health_v1alpha1_pb2_grpc.add_DRAResourceHealthServicer_to_server(_Health(bulletin, health_v1alpha1_pb2), server)


class _Health:
    """One version of the service: `messages` is its module; the versions do not differ otherwise."""

    def __init__(self, bulletin: Bulletin, messages: Any) -> None:
        self._bulletin = bulletin
        self._messages = messages

    async def NodeWatchResources(self, request: Any, context: Context) -> AsyncIterator[Any]:  # noqa: N802, ARG002 (gRPC's)
        async for devices, seen_at in self._bulletin.issues():
            yield self._messages.NodeWatchResourcesResponse(
                devices=[self._health(device, seen_at) for device in devices]
            )

    def _health(self, device: DeviceHealth, seen_at: int) -> Any:
        message = device.message
        if len(written := message.encode()) > MESSAGE_MOST:
            message = written[: MESSAGE_MOST - 3].decode(errors="ignore") + "..."
        return self._messages.DeviceHealth(
            device=self._messages.DeviceIdentifier(pool_name=device.pool, device_name=device.device),
            health=_NUMBERS[device.verdict],
            last_updated_time=seen_at,
            message=message,
        )
