"""The interface of every back end: it finds the cards of one vendor in this machine and reports their health.

Called by the node driver, from a thread: every call may block for as long as the hardware takes, up
to the back end's own limit. Out: `Findings` and `Health`. One broken card never hides the others: a
problem names it.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from hami_dra.api.hardware import Card, Fault
from hami_dra.discovery.matching import Trace, assigned, trace_of
from hami_dra.discovery.memory import LOST, CardMemory, Listing

__all__ = ["LOST", "Backend", "Findings", "Health", "Listing", "PolledBackend", "Trace"]


class Findings(Struct, frozen=True):
    """The result of a discovery."""

    cards: tuple[Card, ...]
    """By index: the present cards, followed by missing ones that were present before (`present` is
    False, fault `lost`).
    """
    problems: tuple[str, ...] = ()
    """Sentences for people: values that could not be read, and where."""


class Health(Struct, frozen=True):
    """The health of the cards."""

    faults: Mapping[str, tuple[Fault, ...]] = field(default_factory=dict)
    """Uuid of every card that was ever discovered → its faults; empty = healthy."""
    problems: tuple[str, ...] = ()
    outdated: bool = False
    """A new card, another number of a known one, or one that is back: `discover` would return another result now."""


class Backend(Protocol):
    """A back end. All methods raise DiscoveryError: ToolMissing, ToolFailed or Unreadable."""

    vendor: str
    """`Card.vendor` of its cards."""
    tells_events: bool
    """`health` waits for events; else it returns at once and has to be polled."""

    def discover(self) -> Findings:
        """Read the hardware again."""

    def health(self, patience: float = 0.0) -> Health:
        """Return the health of the discovered cards. A back end with events waits up to `patience` seconds for one."""

    def close(self) -> None:
        """Release the hardware. Idempotent."""


@dataclasses.dataclass(eq=False)
class PolledBackend:
    """A vendor whose hardware is read by polling a tool. Implements Backend."""

    vendor: str
    read: Callable[[], Listing]
    """Return the best listing that answers."""
    witnesses: Callable[[], Iterable[Trace]] = dataclasses.field(default=tuple, kw_only=True)
    """Return the content of all other listings; called before a card is called lost."""
    memory: CardMemory = dataclasses.field(default_factory=lambda: CardMemory(Card), kw_only=True)
    tells_events = False

    def discover(self) -> Findings:
        listing = self.read()
        if self.memory.new_in(listing):
            # a glitch in an output rarely occurs twice in the same way
            listing = self._agreed(listing, self.read())
        judged = self.memory.judge(listing, self.witnesses, confirmed=True)
        cards, problems = self.memory.update(judged)
        return Findings(cards, (*listing.problems, *problems))

    def health(self, patience: float = 0.0) -> Health:  # noqa: ARG002 (there is nothing to wait for)
        listing = self.read()
        judged = self.memory.judge(listing, self.witnesses)
        return Health(judged.faults, listing.problems, judged.outdated)

    def close(self) -> None:
        """Do nothing: no resource is held."""

    def _agreed(self, first: Listing, second: Listing) -> Listing:
        """Return the second reading without the new cards that are missing in the first one."""
        before = self.memory.new_in(first)
        new = self.memory.new_in(second)
        same = assigned([trace_of(card) for card in before], new)
        doubtful = [card for position, card in enumerate(new) if position not in same]
        kept = tuple(card for card in second.cards if card not in doubtful)
        problems = tuple(
            f"card {card.index} ({card.uuid}) is in one of two readings only; it is left out until two agree"
            for card in doubtful
        )
        return replace(
            second, cards=kept, seen=(*second.seen, *map(trace_of, doubtful)), problems=second.problems + problems
        )
