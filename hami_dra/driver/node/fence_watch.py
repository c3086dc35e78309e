"""Follow the fence while the driver runs: after an upgrade the cluster may support
DeviceTaintRules, and then the taint leaves the slices.

Used by `service`. In: the cluster, polled (a watch on every node would cost more than the
information is worth). Out: whether the devices of a driver carry the fence taint, and `on_change`
after each poll. The rule itself is in `hami_dra.driver.fence`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from hami_dra.api.resource import ResourceSlice
from hami_dra.driver.fence import QUIET, Fence, FenceMode
from hami_dra.driver.taints import is_fenced
from hami_dra.kube.protocol import Cluster

log = logging.getLogger(__name__)

_SELDOM: Final = 300.0
"""Seconds between polls while nothing urgent depends on them."""


class FenceWatch:
    """Watch the fence: `refresh` before the first query, then `run` until cancelled.

    `published`: the slices of this node, as last seen.
    """

    def __init__(
        self,
        cluster: Cluster,
        mode: FenceMode,
        published: Callable[[], Iterable[ResourceSlice]],
        on_change: Callable[[], None],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self._fence = Fence(cluster, mode, now=lambda: asyncio.get_running_loop().time())
        self._published = published
        self._on_change = on_change
        self._sleep = sleep

    def in_slices(self, driver: str, published: Iterable[ResourceSlice]) -> bool:
        """Return whether the slices of a driver carry the taint. `published`: the slices of this driver."""
        return self._fence.in_slices(driver, tainted=is_fenced(published))

    async def refresh(self) -> None:
        """Read the fence; retry until it succeeds."""
        await self._fence.refresh_until_it_succeeds(self._sleep)

    async def run(self) -> None:
        """Poll the fence until cancelled. Returns at once if the operator has fixed the mode."""
        while self._fence.mode == "auto":
            awaited = self._fence.is_served and is_fenced(self._published())
            await self._sleep(QUIET if awaited else _SELDOM)
            await self.refresh()
            self._on_change()
