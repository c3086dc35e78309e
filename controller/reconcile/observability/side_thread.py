"""The parts in the side thread: /healthz and /metrics, and the watchdog.

Created by the CLI (`SideServices`) and used by the controller. The lease is renewed there, too
(`hami_dra.kube.lease`).
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from msgspec import Struct

from controller.reconcile.runtime import Heartbeat, Watchdog
from hami_dra.api.errors import ConfigError
from hami_dra.httpserver import Rendered, serving
from hami_dra.kube.protocol import Cluster
from hami_dra.kube.side_thread import SideThread


class SideServices(Struct, frozen=True):
    """`cluster` belongs to the thread, a connection for the lease: close it there."""

    thread: SideThread
    cluster: Cluster
    end: Callable[[int], None] = os._exit
    """Ends the process immediately: the main thread is stuck, so no graceful exit is possible."""


@asynccontextmanager
async def watched(
    watchdog: Watchdog, heartbeat: Heartbeat, listen: tuple[str, int] | None, render: Callable[[], Awaitable[Rendered]]
) -> AsyncIterator[int | None]:
    """Run in the thread. Yields the port if there is one; `render` calls the main loop. Raises ConfigError."""
    async with AsyncExitStack() as stack:
        bound = None
        if listen is not None:
            server = serving(*listen, render=render, unready=lambda: heartbeat.unready, unhealthy=watchdog.unhealthy)
            try:
                bound = await stack.enter_async_context(server)
            except OSError as error:
                raise ConfigError(f"--host {listen[0]} --port {listen[1]}: {error.strerror or error}") from error
        task = asyncio.create_task(watchdog.run(), name="watchdog")
        try:
            yield bound
        finally:
            task.cancel()
            await asyncio.wait([task])
