"""Neuron devices that may work together: blocks of neighbours (HAMi D/awsneuron/device.go, graphSelect).

Called by the vendor. In: device numbers and the free ones, as bit masks by position. Out: the legal
blocks; for one device, or cores of one, the devices that leave the largest block to others. Pure.
The devices of a node count as one line, 0 to n-1, as in AWS' own scheduler.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final

from hami_dra.topology.subsets import bits, runs
from hami_dra.vendors.preferences import Preferences, card_lists
from hami_dra.vendors.protocol import CandidateSets, CandidateTier, CardState, DriverProfile, NodeView, Vendor

DRIVER = "neuron.hami.io"
USE_UUID = "aws.amazon.com/use-neuron-uuid"
NOUSE_UUID = "aws.amazon.com/nouse-neuron-uuid"

ALIGNED_SIZES: Final = frozenset({1, 4, 8, 16})
"""Blocks that Trainium's rows of four allow."""


def is_inferentia(instance_type: str, products: Sequence[str]) -> bool:
    """Decide by the instance type of the node (contains `inf`), or by the product names if the node has none."""
    if instance_type:
        return "inf" in instance_type.lower()
    return any("inf" in product.lower() for product in products)


def blocks(index: Sequence[int], free: int, count: int, *, aligned: bool) -> tuple[int, ...]:
    """Return masks of `count` free devices with consecutive numbers, lowest first.

    `index`: the number of each device, by position, ascending; `free`: the free ones, by position.
    `aligned` (Trainium): only 1, 4, 8 or 16 devices, beginning at a multiple of their count.
    """
    if aligned and count not in ALIGNED_SIZES:
        return ()
    found = []
    for start in range(len(index) - count + 1):
        mask = ((1 << count) - 1) << start
        neighbours = index[start + count - 1] - index[start] == count - 1
        if neighbours and free & mask == mask and not (aligned and index[start] % count):
            found.append(mask)
    return tuple(found)


@lru_cache(maxsize=4_096)
def block_sizes(index: tuple[int, ...], free: int, *, aligned: bool) -> tuple[int, ...]:
    """Return the sizes of the legal blocks of two and more free devices, largest first: the greater
    tuple is worth more to requests for several devices.

    Inferentia: the runs of neighbours. Trainium: every block of 16, 8 and 4, the small ones inside
    of large ones too, because each of them can be allocated.

    >>> block_sizes(tuple(range(12)), 0b0111_1110_0011, aligned=False)
    (6, 2)
    >>> block_sizes(tuple(range(16)), 0x7FFF, aligned=True)     # all but device 15
    (8, 4, 4, 4)
    """
    if aligned:
        sizes = sorted(ALIGNED_SIZES - {1}, reverse=True)
        return tuple(size for size in sizes for _ in blocks(index, free, size, aligned=True))
    lengths = map(len, runs(index[position] for position in bits(free)))
    return tuple(sorted((length for length in lengths if length > 1), reverse=True))


def singles(index: tuple[int, ...], eligible: int, idle: int, *, aligned: bool) -> Iterator[CandidateTier]:
    """Yield the devices for a request of one device, or of cores of one, best first.

    1. A device that is partly used, since it belongs to no block: the device policy chooses among
       such devices.
    2. Else the idle device that leaves the largest block. Of several such devices the outermost,
       seen from the last of the largest blocks: the last device, as HAMi walks from the end, and
       where nothing is left behind that block, the first one before it.

    A node is the better, the less of its largest block is lost; nodes that are equal in that and by
    the node policy, the less the other blocks lose.

    >>> idle = 0b0000_1111_0110            # 1, 2 and 4 to 7: device 1 leaves 4 to 7 whole
    >>> [tier.sets for tier in singles(tuple(range(12)), idle, idle, aligned=False)][:3]
    [(2,), (4,), (128,)]
    """
    if used := eligible & ~idle:
        yield CandidateTier(0.0, tuple(1 << position for position in bits(used)))
    before = block_sizes(index, idle, aligned=aligned)
    left = {
        position: block_sizes(index, idle & ~(1 << position), aligned=aligned) for position in bits(eligible & idle)
    }
    largest = max(before, default=0)
    last_block = blocks(index, idle, largest, aligned=aligned)[-1] if largest else 1
    begin = (last_block & -last_block).bit_length() - 1

    def preference(position: int) -> tuple[int, int]:
        return max(left[position], default=0), position if position >= begin else -1 - position

    for position in sorted(left, key=preference, reverse=True):
        after = left[position]
        lost = largest - max(after, default=0)
        tie = sum(size * size for size in after) - sum(size * size for size in before)
        yield CandidateTier(float(-lost), (1 << position,), tie=float(tie))


class Neuron(Vendor):
    """The rules of `neuron.hami.io`. Memory belongs to the cores, so only these are scored."""

    name = "neuron"
    profile = DriverProfile(driver=DRIVER, memory=None, cores="neuroncores")
    always_arranges = True  # blocks are for all requests
    annotations = frozenset({USE_UUID, NOUSE_UUID})

    def preferences(self, annotations: Mapping[str, str]) -> Preferences:
        return Preferences(card_lists(annotations, [USE_UUID], [NOUSE_UUID]))

    def ids(self, node: str, index: int) -> tuple[str, ...]:
        return (f"{node}-AWSNeuron-{index}",)

    def arrange(self, node_view: NodeView) -> CandidateSets | None:
        """Return the free blocks of neighbours, the first one first (as HAMi), for several devices;
        for one device those that others miss least.
        """
        layout = node_view.layout
        eligible = node_view.mask(CardState.ELIGIBLE)
        aligned = not is_inferentia(layout.instance_type, layout.product)
        if node_view.count == 1:
            return CandidateSets(singles(layout.index, eligible, node_view.mask(CardState.IDLE), aligned=aligned))
        found = blocks(layout.index, eligible, node_view.count, aligned=aligned)
        return CandidateSets([CandidateTier(0.0, (block,)) for block in found])
