"""HAMi-core's shared region: the file in which the processes of one container count what they use.

Called by `usage_reader`. In: bytes of a file that the container can write. Out: numbers. Pure.

The layout is that of `shared_region_t` (HAMi-core src/multiprocess/multiprocess_memory_limit.h);
HAMi's monitor distinguishes versions 0 and 1 in the same way (HAMi pkg/monitor/nvidia/cudevshr.go),
by the size of the file and the major version. Offsets are those of the C structs on 64-bit Linux,
and tests compile the structs to hold them against these.

Nothing of the content is trusted: counts are clamped to what the file has room for, numbers that
cannot be are None, and texts are compared with those that are known, never passed on.
"""

import struct
from collections.abc import Collection, Mapping
from typing import Final

from msgspec import Struct

from hami_dra.monitor.usage import CardUsage

MAGIC: Final = 19920718
MOST_CARDS: Final = 16
MOST_PROCESSES: Final = 1024
_UUID_SIZE: Final = 96
_WORD: Final = 8
_HEADER: Final = struct.Struct("=iii")
"""Magic number, then major and minor version, which version 0 does not have."""
HEADER_SIZE: Final = _HEADER.size
_INT: Final = struct.Struct("=i")
_LONG: Final = struct.Struct("=q")
_COUNT: Final = struct.Struct("=Q")
_MOST_PERCENT: Final = 100
_ROUNDING: Final = 2
"""Percents of processes, each rounded, may add up to a little more than 100 (HAMi-core adds them)."""


class NotARegion(ValueError):
    """The file is no shared region of a known version; the message says why."""


class Layout(Struct, frozen=True, kw_only=True):
    """Offsets in bytes, from the start of the file; in a slot, from the start of the slot."""

    version: int
    size: int
    """Of the whole region; the file may be longer."""
    card_count: int
    uuids: int
    slots: int
    slot_size: int
    memory: int
    """In a slot: context, module, data, offset, total (8 bytes each) of each card."""
    memory_size: int
    utilization: int
    """In a slot: decoder, encoder, cores (8 bytes each) of each card."""
    utilization_size: int
    status: int
    """In a slot: 0 while it is unused."""
    counters: int
    """Four numbers of 4 bytes: processes, utilization switch, recent kernel, priority."""
    last_kernel: int | None

    @property
    def utilization_switch(self) -> int:
        return self.counters + _INT.size

    @property
    def recent_kernel(self) -> int:
        return self.counters + 2 * _INT.size


V0: Final = Layout(
    version=0, size=1_197_896, card_count=48, uuids=56, slots=1_848, slot_size=1_168, memory=8, memory_size=40,
    utilization=776, utilization_size=24, status=1_160, counters=1_197_880, last_kernel=None,
)  # fmt: skip
V1: Final = Layout(
    version=1, size=2_008_952, card_count=56, uuids=64, slots=1_856, slot_size=1_960, memory=8, memory_size=64,
    utilization=1_160, utilization_size=48, status=1_928, counters=2_008_896, last_kernel=2_008_912,
)  # fmt: skip


def layout_of(header: bytes, size: int) -> Layout:
    """Return the layout of a file. `header`: its first `HEADER_SIZE` bytes. Raises NotARegion."""
    if len(header) < HEADER_SIZE:
        raise NotARegion(f"it has {len(header)} bytes")
    magic, major, _minor = _HEADER.unpack(header)
    if magic != MAGIC:
        raise NotARegion("it does not begin as HAMi-core's files do")
    if V0.size <= size < V1.size:
        return V0
    if major == 1 and size >= V1.size:
        return V1
    raise NotARegion(f"no version of it is known that has {size} bytes and version {major}")


class Counters(Struct, frozen=True):
    """What the processes of a container and a monitor tell each other."""

    processes: int
    """Slots that may be in use; clamped."""
    utilization_switch: int
    recent_kernel: int
    last_kernel: int | None
    """Unix time as the file has it; None: version 0, or never."""


def counters_of(layout: Layout, tail: bytes) -> Counters:
    """Return the counters. `tail`: the region from `layout.counters` on. Raises NotARegion."""
    if len(tail) < layout.size - layout.counters:
        raise NotARegion("it was cut off while it was read")
    processes, switch, recent, _priority = struct.unpack_from("=iiii", tail)
    last = _LONG.unpack_from(tail, layout.last_kernel - layout.counters)[0] if layout.last_kernel is not None else 0
    return Counters(min(max(processes, 0), MOST_PROCESSES), switch, recent, last or None)


def cards_of(layout: Layout, head: bytes, known: Collection[str]) -> dict[str, int]:
    """Return uuid → number in the region, of known cards only.

    `head`: the region up to `layout.slots`. Raises NotARegion.
    """
    if len(head) < layout.slots:
        raise NotARegion("it was cut off while it was read")
    wanted = {uuid.encode(): uuid for uuid in known}
    (count,) = _COUNT.unpack_from(head, layout.card_count)
    found: dict[str, int] = {}
    for number in range(min(count, MOST_CARDS)):
        start = layout.uuids + number * _UUID_SIZE
        text = bytes(head[start : start + _UUID_SIZE]).partition(b"\0")[0]
        if text in wanted:
            found.setdefault(wanted[text], number)
    return found


def usages_of(
    layout: Layout, slots: bytes, numbers: Mapping[str, int], most: Mapping[str, int]
) -> dict[str, CardUsage]:
    """Return the sums over all processes, by uuid.

    `slots`: whole slots of processes; a last one that is cut off does not count. `numbers`: uuid →
    number in the region. `most`: uuid → bytes that can be in use at most.
    """
    used = [
        start
        for start in range(0, len(slots) - layout.slot_size + 1, layout.slot_size)
        if _INT.unpack_from(slots, start + layout.status)[0] != 0
    ]
    return {uuid: _usage(layout, slots, used, number, most[uuid]) for uuid, number in numbers.items()}


def _usage(layout: Layout, slots: bytes, used: Collection[int], number: int, most: int) -> CardUsage:
    memory = layout.memory + number * layout.memory_size
    busy = layout.utilization + number * layout.utilization_size + 2 * _WORD

    def total(offset: int) -> int:
        return sum(_COUNT.unpack_from(slots, start + offset)[0] for start in used)

    def possible(amount: int) -> int | None:
        return amount if amount <= most else None

    percent = total(busy)
    return CardUsage(
        memory_context=possible(total(memory)),
        memory_module=possible(total(memory + _WORD)),
        memory_buffer=possible(total(memory + 2 * _WORD)),
        memory_used=possible(total(memory + 4 * _WORD)),
        utilization=float(min(percent, _MOST_PERCENT)) if percent <= _ROUNDING * _MOST_PERCENT else None,
    )
