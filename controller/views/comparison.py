"""Plain values that describe the effects of a change, for tables, the dashboard and `-o json`.

Created by `controller.insight.whatif.compare`. JSON has the field names in camelCase, and every
field is always present.
"""

from collections.abc import Iterable

from controller.views import View
from controller.views.overview import NodeView, Packing, PlacedPod, driver_rank


class Placement(PlacedPod, frozen=True, kw_only=True):
    """A pod on a node, now or after the change."""

    running: bool
    """True: the pod is there now; False: it would be placed like this next."""


class Move(View, frozen=True, kw_only=True):
    """A pod that would be elsewhere. Nothing moves it automatically: it would have to be created again."""

    pod: str
    from_node: str
    from_devices: tuple[str, ...]
    to_node: str
    to_devices: tuple[str, ...]


class Unplaced(View, frozen=True, kw_only=True):
    """A pod that finds no node after the change."""

    pod: str
    was_on: str
    """Its node without the change; empty if it has none in either case, or is new."""
    new: bool
    """The change adds this pod."""
    reasons: dict[str, int]
    """Reason code → cards or nodes refused."""
    message: str
    error: str
    """Not empty: why nothing could be decided."""


class Eviction(View, frozen=True, kw_only=True):
    """A pod that would be evicted. If its controller creates it again it waits behind the preemptor."""

    pod: str
    node: str
    """Empty: it holds no devices."""
    preemptor: str


class NodeChange(View, frozen=True, kw_only=True):
    """A node with cards. None: it does not exist then."""

    node: str
    before: NodeView | None
    after: NodeView | None
    pods_before: int
    """Pods that hold devices and run, or would run, on it."""
    pods_after: int


class PackingChange(View, frozen=True, kw_only=True):
    """The figures of one driver. None: it has no card then."""

    vendor: str
    driver: str
    before: Packing | None
    after: Packing | None


def packing_changes(before: Iterable[Packing], after: Iterable[Packing]) -> tuple[PackingChange, ...]:
    """Return the figures of each driver on both sides, in the order of the vendors."""
    then, now = ({each.driver: each for each in side} for side in (before, after))
    return tuple(
        PackingChange(
            vendor=(then.get(each) or now[each]).vendor, driver=each, before=then.get(each), after=now.get(each)
        )
        for each in sorted(then.keys() | now.keys(), key=driver_rank)
    )


class Comparison(View, frozen=True, kw_only=True):
    """Effects of a change. `before`: the state reached without it; pending pods are placed in both."""

    before: tuple[Placement, ...]
    """Placements of pods with claims, by pod."""
    after: tuple[Placement, ...]
    moved: tuple[Move, ...]
    """By pod."""
    placed: tuple[Placement, ...]
    """Placed only after the change: new pods, and pods that find no node without it."""
    unplaced: tuple[Unplaced, ...]
    """All pods that find no node, in the order of placement."""
    gone: tuple[str, ...]
    """Pods of removed nodes that no controller would recreate elsewhere: those of DaemonSets, and static pods."""
    evicted: tuple[Eviction, ...]
    """By preemptor, the most important victim first."""
    cards_before: int
    cards_after: int
    """Number of published cards."""
    held_before: int
    held_after: int
    """Number of cards of which something is held."""
    freed_cards: tuple[str, ...]
    """Held before and not after, and still there: `driver/pool/device`."""
    taken_cards: tuple[str, ...]
    """Held after and not before."""
    emptied_nodes: tuple[str, ...]
    """Nodes that still exist, with cards held before and none after."""
    filled_nodes: tuple[str, ...]
    nodes: tuple[NodeChange, ...]
    vendors: tuple[PackingChange, ...]
    conclusion: str
    """One or two sentences in English."""
    notes: tuple[str, ...]
    """Assumptions, skipped objects, and options without effect."""

    @property
    def lost(self) -> tuple[Unplaced, ...]:
        """Return the pods that have a node now, or are new, and would have none."""
        return tuple(each for each in self.unplaced if each.was_on or each.new)
