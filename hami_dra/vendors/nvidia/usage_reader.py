"""What containers use of shared NVIDIA cards, from HAMi-core's shared regions; and priorities
between them, which take effect through the same files.

Created by `PLUGIN.usage`, called by the node driver in a thread. Only containers whose usage file
is on the host (`--usage-cache host`) can be read.
"""

import os
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import Final

from hami_dra.api.options import VendorSettings
from hami_dra.monitor.usage import MOST_SECONDS_AHEAD, SOURCE, ContainerUsage, GrantedContainer, UsageSample
from hami_dra.vendors.nvidia import priority
from hami_dra.vendors.nvidia.hami_core import CACHE, PRIORITY, containers_folder
from hami_dra.vendors.nvidia.options import PRIORITY_FEEDBACK
from hami_dra.vendors.nvidia.region_files import opened, path_of, read_layout, read_part, stale_folders
from hami_dra.vendors.nvidia.shared_region import NotARegion, cards_of, counters_of, usages_of

_STALE: Final = 3600.0
"""Seconds after which a folder without a claim is removed."""
_COUNTER: Final = struct.Struct("=i")


@dataclass(frozen=True, slots=True)
class _Region:
    """One container's region, as it was read."""

    path: str
    usage: ContainerUsage
    tenant: priority.Tenant


class RegionReader:
    """Implements `hami_dra.monitor.usage.UsageReader`. `now`: Unix time in seconds."""

    source = SOURCE

    def __init__(self, settings: VendorSettings, now: Callable[[], float]) -> None:
        self._parent = containers_folder(settings)
        self._feedback = settings[PRIORITY_FEEDBACK]
        self._now = now
        self._waiting: dict[str, str] = {}
        """Containers that wait for others: view → path."""
        self._orders = Lock()
        self._closed = False

    def sample(self, containers: Sequence[GrantedContainer]) -> UsageSample:
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
                problems.append(_problem(container, path, error))
        with self._orders:
            if self._feedback and not self._closed:
                problems += self._give_orders(regions, {each.view: each for each in containers})
        return UsageSample({view: each.usage for view, each in regions.items()}, tuple(problems))

    def stale_folders(self, used: Collection[str]) -> Sequence[str]:
        return stale_folders(self._parent, used, self._now() - _STALE)

    def close(self) -> None:
        """Let all tenants continue: while no driver runs, nothing would revoke its orders."""
        with self._orders:
            self._closed = True
        for path in self._waiting.values():
            with suppress(NotARegion, OSError), opened(path, writable=True) as file:
                layout = read_layout(file)
                (recent,) = _COUNTER.unpack(read_part(file, layout.recent_kernel, _COUNTER.size))
                if recent < 0:
                    os.pwrite(file, _COUNTER.pack(0), layout.recent_kernel)
        self._waiting.clear()

    def _read(self, container: GrantedContainer, path: str) -> _Region:
        with opened(path) as file:
            layout = read_layout(file)
            counters = counters_of(layout, read_part(file, layout.counters, layout.size - layout.counters))
            numbers = cards_of(layout, read_part(file, 0, layout.slots), container.cards)
            slots = read_part(file, layout.slots, counters.processes * layout.slot_size)
        last = counters.last_kernel
        return _Region(
            path,
            ContainerUsage(
                cards=usages_of(layout, slots, numbers, container.cards),
                last_kernel=last if last is not None and 0 < last < self._now() + MOST_SECONDS_AHEAD else None,
            ),
            priority.Tenant(
                priority=_priority(container),
                cards=frozenset(container.cards),
                recent_kernel=counters.recent_kernel,
                utilization_switch=counters.utilization_switch,
            ),
        )

    def _give_orders(self, regions: Mapping[str, _Region], containers: Mapping[str, GrantedContainer]) -> list[str]:
        """Write what priorities demand where it differs. Returns problems."""
        problems = []
        waiting: dict[str, str] = {}
        for view, order in priority.orders({view: each.tenant for view, each in regions.items()}).items():
            region = regions[view]
            if order.recent_kernel == priority.WAITING:
                waiting[view] = region.path
            try:
                _give(region, order)
            except (NotARegion, OSError) as error:
                problems.append(_problem(containers[view], region.path, error))
        self._waiting = waiting
        return problems


def _give(region: _Region, order: priority.Orders) -> None:
    """Write the counters that differ, and nothing else. Raises OSError, NotARegion."""
    recent = order.recent_kernel != region.tenant.recent_kernel
    switch = order.utilization_switch != region.tenant.utilization_switch
    if not recent and not switch:
        return
    with opened(region.path, writable=True) as file:
        layout = read_layout(file)  # the file may be another one by now
        if recent:
            os.pwrite(file, _COUNTER.pack(order.recent_kernel), layout.recent_kernel)
        if switch:
            os.pwrite(file, _COUNTER.pack(order.utilization_switch), layout.utilization_switch)


def _priority(container: GrantedContainer) -> int:
    try:
        return int(container.env.get(PRIORITY, priority.DEFAULT))
    except ValueError:
        return priority.DEFAULT


def _problem(container: GrantedContainer, path: str, error: Exception) -> str:
    why = error.strerror if isinstance(error, OSError) else str(error)
    return f"{container.label}: {path} tells nothing of what it uses: {why}"
