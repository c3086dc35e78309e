"""What containers use of the cards that they share, and what containers that are gone have left.

Run by `service` for each driver whose vendor has a `UsageReader`. Every call that reads files runs
in a thread: a container can write to them, and must not hold up the driver.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from hami_dra.api.containers import MARKER
from hami_dra.driver.node.monitoring import Monitoring
from hami_dra.driver.node.threads import InThread
from hami_dra.driver.prepare import remove_tree
from hami_dra.kube.guard import LoopGuard
from hami_dra.monitor.usage import ContainerUsage, GrantedContainer, UsageReader

log = logging.getLogger(__name__)

EVERY: Final = 5.0
"""Seconds between two readings: priorities of containers need a short and fixed interval."""


@dataclass(eq=False)
class UsageWatch:
    """Watch the containers of one driver. `containers`: those to read now. `folders`: the paths of
    the folders of all prepared claims; None while these are not known, and nothing is removed.
    """

    vendor: str
    reader: UsageReader
    containers: Callable[[], Sequence[GrantedContainer]]
    folders: Callable[[], Awaitable[Collection[str] | None]]
    call: InThread
    monitoring: Monitoring[GrantedContainer, ContainerUsage] = field(init=False)

    def __post_init__(self) -> None:
        self.monitoring = Monitoring(self.vendor, self.reader, self.containers, EVERY, call=self.call)

    async def run(self, tidy_every: float, guard: LoopGuard) -> None:
        """Read, and every `tidy_every` seconds remove what is stale, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.monitoring.run())
            group.create_task(self._tidy(tidy_every, guard))

    async def _tidy(self, every: float, guard: LoopGuard) -> None:
        while True:
            with guard.each("stale folders of containers"):
                # listed before the claims, which then include every folder that was being made
                listed = await self.call(self.reader.own_folders)
                used = await self.folders() if listed else None
                for path in set(listed).difference(used) if used is not None else ():
                    with guard.each(path):
                        await self.call(partial(_remove, path))
                        log.info("%s: removed, as no prepared claim has it", path)
            await asyncio.sleep(every)


def _remove(path: str) -> None:
    """Remove a folder, then its marker. Raises OSError."""
    remove_tree(Path(path))
    Path(path + MARKER).unlink(missing_ok=True)
