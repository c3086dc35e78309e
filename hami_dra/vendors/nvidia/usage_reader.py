"""What containers use of shared NVIDIA cards, from HAMi-core's shared regions; and priorities
between them, which take effect through the same files.

Created by `PLUGIN.usage`, called by the node driver in a thread. Only containers whose usage file
is on the host (`--usage-cache host`) can be read. HAMi-core keeps a file that exists, and with it
every order, so orders are taken back from all files at the start and at the end of a driver.
"""

import os
import struct
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Final

from msgspec import Struct

from hami_dra.api.options import VendorSettings
from hami_dra.monitor.readings import Sample
from hami_dra.monitor.usage import MOST_SECONDS_AHEAD, SOURCE, ContainerUsage, GrantedContainer
from hami_dra.vendors.nvidia import priority
from hami_dra.vendors.nvidia.hami_core import CACHE, PRIORITY, containers_folder
from hami_dra.vendors.nvidia.options import PRIORITY_FEEDBACK
from hami_dra.vendors.nvidia.region_files import opened, own_files, own_folders, path_of, read_layout, read_part
from hami_dra.vendors.nvidia.shared_region import Counters, NotARegion, cards_of, counters_of, usages_of

_COUNTERS: Final = struct.Struct("=ii")
"""Utilization switch and recent kernel, as they follow each other in the file."""
_RECENT: Final = 2
"""What HAMi-core writes for a kernel; more would keep a container active for longer."""


class _Region(Struct, frozen=True):
    """One container's region, as it was read."""

    path: str
    usage: ContainerUsage
    tenant: priority.Tenant
    before: priority.Orders
    """What the file has."""


class RegionReader:
    """Implements `hami_dra.monitor.usage.UsageReader`. `now`: Unix time in seconds."""

    source = SOURCE

    def __init__(self, settings: VendorSettings, now: Callable[[], float]) -> None:
        self._parent = containers_folder(settings)
        self._feedback = settings[PRIORITY_FEEDBACK]
        self._now = now
        self._orders = Lock()
        self._closed = False

    def sample(self, containers: Sequence[GrantedContainer]) -> Sample[ContainerUsage]:
        regions: dict[str, _Region] = {}
        problems: list[str] = []
        for container in containers:
            path = path_of(container.env.get(CACHE, ""), container.mounts)
            if path is None:
                continue
            try:
                regions[container.view] = self._read(container, path)
            except FileNotFoundError:
                continue  # no program has called CUDA yet
            except (NotARegion, OSError) as error:
                problems.append(_problem(f"{container.label}: {path}", error))
        with self._orders:
            if self._feedback and not self._closed:
                problems += self._give_orders(regions, {each.view: each for each in containers})
        return Sample({view: each.usage for view, each in regions.items()}, tuple(problems))

    def own_folders(self) -> Sequence[str]:
        return own_folders(self._parent)

    def release(self) -> tuple[str, ...]:
        """Let all containers continue, with their limits. Returns problems."""
        problems = []
        for path in own_files(self._parent):
            try:
                _release(path)
            except (NotARegion, OSError) as error:
                problems.append(_problem(path, error))
        return tuple(problems)

    def close(self) -> None:
        """Release all containers: while no driver runs, nothing would revoke its orders."""
        with self._orders:
            self._closed = True
            self.release()

    def _read(self, container: GrantedContainer, path: str) -> _Region:
        with opened(path) as file:
            layout = read_layout(file)
            counters = counters_of(layout, read_part(file, layout.counters, layout.size - layout.counters))
            numbers = cards_of(layout, read_part(file, 0, layout.slots), container.cards)
            slots = read_part(file, layout.slots, counters.processes * layout.slot_size)
        last = counters.last_kernel
        active, recent = self._activity(counters)
        return _Region(
            path,
            ContainerUsage(
                cards=usages_of(layout, slots, numbers, container.cards),
                last_kernel=last if last is not None and 0 < last < self._now() + MOST_SECONDS_AHEAD else None,
            ),
            priority.Tenant(
                priority=_priority(container), cards=frozenset(container.cards), is_active=active, recent_kernel=recent
            ),
            priority.Orders(counters.recent_kernel, counters.utilization_switch),
        )

    def _activity(self, counters: Counters) -> tuple[bool, int]:
        """Return whether the container is active, and the recent kernel one round later.

        Version 0, which notes no times, sets `recent_kernel` at each launch in every container.
        """
        recent = counters.recent_kernel
        if counters.last_kernel is not None:
            return abs(self._now() - counters.last_kernel) <= priority.ACTIVE, recent
        aged = min(recent, _RECENT) - 1 if recent > 0 else recent
        return aged > 0, aged

    def _give_orders(self, regions: Mapping[str, _Region], containers: Mapping[str, GrantedContainer]) -> list[str]:
        """Write what priorities demand where it differs. Returns problems."""
        problems = []
        for view, order in priority.orders({view: each.tenant for view, each in regions.items()}).items():
            region = regions[view]
            if order == region.before:
                continue
            try:
                with opened(region.path, writable=True) as file:
                    _write(file, order)
            except (NotARegion, OSError) as error:
                problems.append(_problem(f"{containers[view].label}: {region.path}", error))
        return problems


def _write(file: int, order: priority.Orders) -> None:
    """Write the two counters, and nothing else. Raises OSError, NotARegion."""
    layout = read_layout(file)  # the file may be another one by now
    os.pwrite(file, _COUNTERS.pack(order.utilization_switch, order.recent_kernel), layout.utilization_switch)


def _release(path: str) -> None:
    """Take back the orders in a file. Raises OSError, NotARegion."""
    with opened(path, writable=True) as file:
        written = read_part(file, read_layout(file).utilization_switch, _COUNTERS.size)
        if len(written) < _COUNTERS.size:
            raise NotARegion("it was cut off while it was read")
        switch, recent = _COUNTERS.unpack(written)
        order = priority.neutral(recent)
        if order != priority.Orders(recent, switch):
            _write(file, order)


def _priority(container: GrantedContainer) -> int:
    try:
        return int(container.env.get(PRIORITY, priority.DEFAULT))
    except ValueError:
        return priority.DEFAULT


def _problem(where: str, error: Exception) -> str:
    why = error.strerror if isinstance(error, OSError) else str(error)
    return f"{where} tells nothing of what it uses: {why}"
