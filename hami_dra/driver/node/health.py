"""The health of devices as reported to kubelet, which writes it into the status of the pods that
use them.

Created by `service`, one per driver; implements `hami_dra.driver.kubelet.protocol.HealthSource`.
In: cards and the faults that count. Out: a verdict per published device; a partition is as healthy
as its card. A cordoned card is healthy.
"""

import asyncio
from collections.abc import Mapping, Sequence

from hami_dra.driver.kubelet.protocol import DeviceHealth, Verdict
from hami_dra.driver.node.damping import Counted
from hami_dra.driver.node.pool_content import uuid_of
from hami_dra.driver.slices import Pool


class DeviceHealths:
    def __init__(self) -> None:
        self._known: dict[str, DeviceHealth] = {}
        self._version = 0
        self._looked_at = -1
        self._news = asyncio.Event()

    def update(self, pool: Pool, faults: Mapping[str, Sequence[Counted]], problem: str) -> None:
        """Update the verdicts. `pool`: all devices; `problem`: why the hardware cannot be read now, or empty."""
        before, self._known = self._known, {}
        for device in pool.devices:
            name = str(device["name"])
            verdict, message = _judged(faults.get(uuid_of(device), ()), problem)
            self._known[name] = DeviceHealth(pool.name, name, verdict, message)
        if self._known != before:
            self._version += 1
            self._news.set()
            self._news = asyncio.Event()

    def current(self) -> Sequence[DeviceHealth]:
        self._looked_at = self._version
        return tuple(self._known.values())

    async def changed(self) -> None:
        if self._looked_at == self._version:
            await self._news.wait()


def _judged(faults: Sequence[Counted], problem: str) -> tuple[Verdict, str]:
    if faults:
        return Verdict.UNHEALTHY, "; ".join(f"{each.fault.code}: {each.fault.message}" for each in faults)
    if problem:
        return Verdict.UNKNOWN, problem
    return Verdict.HEALTHY, ""
