"""The decision whether a driver's devices must carry the fence taint in their slices.

Used by the fleet and by the node driver. In: a cluster, read by `refresh`. Out: yes or no, per
driver. It never writes.

The fence is a DeviceTaintRule of the controller wherever that API is served (by default from
Kubernetes 1.37). Elsewhere the taint is in the slices. After an upgrade it leaves the slices only
once the rule is in force: seen, and still present `QUIET` seconds later, since kube-scheduler may
see a rule later than this process.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final, Literal

from hami_dra.api import names
from hami_dra.api.flags import Option
from hami_dra.api.kinds import DEVICE_TAINT_RULE, DEVICE_TAINT_RULE_V1BETA2
from hami_dra.kube.backoff import Backoff
from hami_dra.kube.protocol import Cluster, ClusterError

log = logging.getLogger(__name__)

FenceMode = Literal["auto", "on", "off"]
"""`on`, `off`: the taint is in the slices, or is not, whatever the cluster supports (`off` for native mode)."""

FENCE: Final = Option("The fence taint in the slices: auto depends on what the cluster serves.")
QUIET: Final = 10.0


class Fence:
    def __init__(self, cluster: Cluster, mode: FenceMode = "auto", now: Callable[[], float] = time.monotonic) -> None:
        self.mode: FenceMode = mode
        self.is_served = False
        """Whether the cluster supports rules, as of the last `refresh`."""
        self._cluster = cluster
        self._now = now
        self._in_force_at: dict[str, float] = {}

    async def refresh(self) -> None:
        """Read the cluster. Raises ClusterError."""
        if self.mode != "auto":
            return
        served = [kind for kind in (DEVICE_TAINT_RULE, DEVICE_TAINT_RULE_V1BETA2) if await self._cluster.serves(kind)]
        self.is_served = bool(served)
        rules = (await self._cluster.list(served[0])).items if served else ()
        fenced = {
            rule.spec.device_selector.driver
            for rule in rules
            if rule.spec.taint.key == names.FENCE_TAINT
            and rule.spec.device_selector
            and rule.spec.device_selector.driver
        }
        in_force_at = self._now() + QUIET
        self._in_force_at = {driver: self._in_force_at.get(driver, in_force_at) for driver in fenced}

    async def refresh_until_it_succeeds(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        backoff = Backoff()
        while True:
            try:
                await self.refresh()
            except ClusterError as error:
                log.warning("fence: %s; trying again", error)
                await sleep(backoff.next())
            else:
                return

    def in_slices(self, driver: str, *, tainted: bool) -> bool:
        """Return whether the slices need the taint, as of the last `refresh`. `tainted`: they carry it now."""
        if self.mode != "auto":
            return self.mode == "on"
        if not self.is_served:
            return True
        return tainted and self._now() < self._in_force_at.get(driver, float("inf"))
