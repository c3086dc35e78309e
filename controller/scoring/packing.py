"""The weights of the node policy `fair-share`. Pure."""

from msgspec import Struct


class Packing(Struct, frozen=True):
    """Defaults and formula: docs/packing.md."""

    theta: float = 0.65
    """A free card counts only while this fraction of its fair share of the node's CPU and memory is left."""
    left: float = 0.5
    """Cost of eight free cards of a node, in cards (`g`): the larger, the sooner nearly full nodes are filled up."""
    rare: float = 0.0
    """Cost of taking a card of the rarest type, in cards, if the commonest type would do."""
    large: float = 0.0
    """Cost of taking an endlessly large card, in cards, if the smallest that would do has next to no memory."""

    @property
    def minds_scarcity(self) -> bool:
        return self.rare > 0 or self.large > 0
