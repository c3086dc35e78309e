"""Neuron devices that may work together: blocks of neighbours (HAMi D/awsneuron/device.go,
graphSelect).

Called by the vendor. In: device numbers and the free ones, as bit masks by position. Out: the legal
blocks. Pure. The devices of a node count as one line, 0 to n-1, as in AWS' own scheduler.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from hami_dra.vendors.preferences import Preferences, card_lists
from hami_dra.vendors.protocol import CandidateSets, CandidateTier, CardState, DriverProfile, NodeView, Vendor

DRIVER = "neuron.hami.io"
USE_UUID = "aws.amazon.com/use-neuron-uuid"
NOUSE_UUID = "aws.amazon.com/nouse-neuron-uuid"

ALIGNED_SIZES: Final = frozenset({1, 4, 8, 16})
"""Blocks that Trainium's rows of four allow."""


def is_inferentia(instance_type: str, products: Sequence[str]) -> bool:
    """Decide by the instance type of the node (contains `inf`), or by the product names if the node
    has none.
    """
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


class Neuron(Vendor):
    """The rules of `neuron.hami.io`. Memory belongs to the cores, so only these are scored."""

    name = "neuron"
    profile = DriverProfile(driver=DRIVER, memory=None, cores="neuroncores")
    annotations = frozenset({USE_UUID, NOUSE_UUID})

    def preferences(self, annotations: Mapping[str, str]) -> Preferences:
        return Preferences(card_lists(annotations, [USE_UUID], [NOUSE_UUID]))

    def ids(self, node: str, index: int) -> tuple[str, ...]:
        return (f"{node}-AWSNeuron-{index}",)

    def arranges(self, preferences: Preferences, device_keys: Sequence[str]) -> bool:  # noqa: ARG002 (blocks are for all requests)
        return True

    def arrange(self, node_view: NodeView) -> CandidateSets | None:
        """Return the first free block of neighbours (as HAMi) for several devices; any for one."""
        if node_view.count == 1:
            return None
        layout = node_view.layout
        found = blocks(
            layout.index,
            node_view.mask(CardState.ELIGIBLE),
            node_view.count,
            aligned=not is_inferentia(layout.instance_type, layout.product),
        )
        return CandidateSets([CandidateTier(0.0, (block,)) for block in found])
