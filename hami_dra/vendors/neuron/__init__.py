"""AWS Neuron: whole devices in contiguous blocks, or some of their cores."""

from collections.abc import Mapping, Sequence

from hami_dra.vendors.neuron.rules import blocks, is_inferentia
from hami_dra.vendors.preferences import Preferences, card_lists
from hami_dra.vendors.protocol import CandidateSets, CandidateTier, CardState, DriverProfile, NodeView, Vendor

DRIVER = "neuron.hami.io"
USE_UUID = "aws.amazon.com/use-neuron-uuid"
NOUSE_UUID = "aws.amazon.com/nouse-neuron-uuid"


class Neuron(Vendor):
    """The rules of `neuron.hami.io`. Memory belongs to the cores, so only these are scored."""

    name = "neuron"
    profile = DriverProfile(driver=DRIVER, memory=None, cores="neuroncores")
    annotations = frozenset({USE_UUID, NOUSE_UUID})

    def preferences(self, annotations: Mapping[str, str]) -> Preferences:
        return Preferences(card_lists(annotations, [USE_UUID], [NOUSE_UUID]))

    def ids(self, node: str, index: int) -> tuple[str, ...]:
        return (f"{node}-AWSNeuron-{index}",)

    def arranges(self, preferences: Preferences, device_keys: Sequence[str]) -> bool:  # noqa: ARG002 (blocks are asked of everybody)
        return True

    def arrange(self, scene: NodeView) -> CandidateSets | None:
        """Several devices are a block of neighbours, the first that is free (as HAMi). One is any."""
        if scene.count == 1:
            return None
        layout = scene.layout
        found = blocks(
            layout.index,
            scene.mask(CardState.ELIGIBLE),
            scene.count,
            aligned=not is_inferentia(layout.instance_type, layout.product),
        )
        return CandidateSets([CandidateTier(0.0, (block,)) for block in found])
