"""What a change would do, as plain values: the same for tables, the page and `-o json`.

Made by `controller.whatif.compare`. JSON has the field names in camelCase, every field always there.
"""

from controller.overview.model import NodeView, Packing, View


class Placement(View, frozen=True, kw_only=True):
    """A pod on a node, with the devices of its claims."""

    pod: str
    """`namespace/name`"""
    node: str
    devices: tuple[str, ...]
    """`driver/pool/device`, in the order of its claims."""
    running: bool
    """It is there now; else it would be placed like that next."""


class Move(View, frozen=True, kw_only=True):
    """A pod that would be elsewhere, or on other devices of its node. Nothing moves by itself: its pod would be made anew."""

    pod: str
    from_node: str
    from_devices: tuple[str, ...]
    to_node: str
    to_devices: tuple[str, ...]


class Unplaced(View, frozen=True, kw_only=True):
    """A pod without a place, after the change."""

    pod: str
    was_on: str
    """Where it is without the change; empty where it has no place anyway, or is new."""
    new: bool
    """It came with the change."""
    reasons: dict[str, int]
    """Reason code → cards or nodes refused."""
    message: str
    error: str
    """Not empty: nothing could be decided."""


class NodeChange(View, frozen=True, kw_only=True):
    """A node with cards. `None`: it is not there."""

    node: str
    before: NodeView | None
    after: NodeView | None
    pods_before: int
    """Pods that hold devices and are, or would be, on it."""
    pods_after: int


class PackingChange(View, frozen=True, kw_only=True):
    """The figures of one driver. `None`: it has no card then."""

    vendor: str
    driver: str
    before: Packing | None
    after: Packing | None


class Comparison(View, frozen=True, kw_only=True):
    """`before` is how things would go on without the change: pods that wait are placed in both."""

    before: tuple[Placement, ...]
    """Of pods with claims, by pod."""
    after: tuple[Placement, ...]
    moved: tuple[Move, ...]
    """By pod."""
    placed: tuple[Placement, ...]
    """Placed after the change only: new pods, and pods that have no place without it."""
    unplaced: tuple[Unplaced, ...]
    """All that stay without a place, in placing order."""
    gone: tuple[str, ...]
    """Pods of the nodes that are taken away that nobody would make anew elsewhere: of DaemonSets, and of the node itself."""
    cards_before: int
    cards_after: int
    """Cards that are published."""
    held_before: int
    held_after: int
    """Cards of which somebody holds something."""
    freed_cards: tuple[str, ...]
    """Held before and not after, and still there: `driver/pool/device`."""
    taken_cards: tuple[str, ...]
    """Held after and not before."""
    emptied_nodes: tuple[str, ...]
    """Still there, with cards held before and none after."""
    filled_nodes: tuple[str, ...]
    nodes: tuple[NodeChange, ...]
    vendors: tuple[PackingChange, ...]
    conclusion: str
    """One or two sentences in English."""
    notes: tuple[str, ...]
    """What was assumed, skipped or has no effect."""

    @property
    def lost(self) -> tuple[Unplaced, ...]:
        """Those that have a place, or came, and would have none."""
        return tuple(each for each in self.unplaced if each.was_on or each.new)
