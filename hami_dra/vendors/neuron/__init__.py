"""AWS Neuron: whole devices in contiguous blocks, or some of their cores."""

from collections.abc import Mapping, Sequence

from hami_dra.vendors.neuron.rules import blocks, is_inferentia
from hami_dra.vendors.preferences import Wish, card_lists
from hami_dra.vendors.protocol import Arrangement, Cell, DriverProfile, Scene, Tier, Vendor

DRIVER = "neuron.hami.io"
USE_UUID = "aws.amazon.com/use-neuron-uuid"
NOUSE_UUID = "aws.amazon.com/nouse-neuron-uuid"


class Neuron(Vendor):
    """The rules of `neuron.hami.io`. Memory belongs to the cores, so only these are scored."""

    name = "neuron"
    profile = DriverProfile(driver=DRIVER, memory=None, cores="neuroncores")
    annotations = frozenset({USE_UUID, NOUSE_UUID})

    def wish(self, annotations: Mapping[str, str]) -> Wish:
        return Wish(card_lists(annotations, [USE_UUID], [NOUSE_UUID]))

    def ids(self, node: str, index: int) -> tuple[str, ...]:
        return (f"{node}-AWSNeuron-{index}",)

    def arranges(self, wish: Wish, device_keys: Sequence[str]) -> bool:  # noqa: ARG002 (blocks are asked of everybody)
        return True

    def arrange(self, scene: Scene) -> Arrangement | None:
        """Several devices are a block of neighbours, the first that is free (as HAMi). One is any."""
        if scene.count == 1:
            return None
        layout = scene.layout
        found = blocks(
            layout.index,
            scene.mask(Cell.ELIGIBLE),
            scene.count,
            aligned=not is_inferentia(layout.instance_type, layout.product),
        )
        return Arrangement([Tier(0.0, (block,)) for block in found])
