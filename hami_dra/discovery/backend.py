"""What every back end is: something that finds the cards of one vendor in this machine and tells how they are.

Called by the node driver, from a thread: every call may block for as long as the hardware takes, up to a limit of the back
end's own. Out: `Findings` and `Health`. One broken card never hides the others: it is left out, and a problem names it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from hami_dra.api.hardware import Card, Fault
from hami_dra.discovery.errors import Unreadable

LOST: Final = "lost"
"""Code of the fault of a card that was found before and answers no more."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What was found."""

    cards: tuple[Card, ...]
    """By index."""
    problems: tuple[str, ...] = ()
    """Sentences for people: what could not be read, and where."""


@dataclass(frozen=True, slots=True)
class Health:
    """How the cards are."""

    faults: Mapping[str, tuple[Fault, ...]] = field(default_factory=dict)
    """Uuid of every card that was ever discovered → what speaks against using it; empty = healthy."""
    problems: tuple[str, ...] = ()


class Backend(Protocol):
    """All methods raise DiscoveryError: ToolMissing, ToolFailed or Unreadable."""

    vendor: str
    """`Card.vendor` of what it finds."""
    tells_events: bool
    """`health` wakes up by itself when something happens; else it answers at once and is to be asked again."""

    def discover(self) -> Findings:
        """Reads the hardware afresh."""

    def health(self, patience: float = 0.0) -> Health:
        """How the discovered cards are. A back end that tells events waits up to `patience` seconds for news."""

    def close(self) -> None:
        """Lets go of the hardware. May be called twice."""


class PolledBackend:
    """A vendor whose hardware is read by asking a tool again and again. Implements Backend."""

    tells_events = False

    def __init__(self, vendor: str, read: Callable[[], Findings]) -> None:
        self.vendor = vendor
        self._read = read
        self._known: dict[str, Card] = {}

    def discover(self) -> Findings:
        findings = self._read()
        gone = self._missing(findings)
        self._known |= {card.uuid: card for card in findings.cards}
        return Findings(findings.cards, findings.problems + tuple(map(_gone, gone)))

    def health(self, patience: float = 0.0) -> Health:  # noqa: ARG002 (there is nothing to wait for)
        findings = self._read()
        faults = {card.uuid: card.faults for card in findings.cards if card.uuid in self._known}
        for card in self._missing(findings):
            faults[card.uuid] = (Fault(code=LOST, message=_gone(card)),)
        return Health(faults, findings.problems)

    def close(self) -> None:
        """Nothing is held."""

    def _missing(self, findings: Findings) -> list[Card]:
        there = {card.uuid for card in findings.cards}
        return [card for uuid, card in self._known.items() if uuid not in there]


def settled(tool: str, cards: Iterable[Card], problems: Iterable[str], *, none_is_fine: bool = False) -> Findings:
    """Cards by index, each index and uuid once: of two, the later one is left out and named.

    Raises Unreadable when nothing is left, unless the tool itself said that there is nothing (`none_is_fine`).
    """
    kept: dict[int, Card] = {}
    uuids: dict[str, int] = {}
    named = list(problems)
    for card in cards:
        if card.index in kept:
            named.append(f"{tool}: card {card.index} is listed twice; the second, {card.uuid}, is left out")
        elif card.uuid in uuids:
            both = f"{uuids[card.uuid]} and {card.index}"
            named.append(f"{tool}: cards {both} have one uuid, {card.uuid}; the second is left out")
        else:
            kept[card.index] = card
            uuids[card.uuid] = card.index
    if not kept and not none_is_fine:
        raise Unreadable("; ".join(named) or f"{tool}: expected cards, got none")
    return Findings(tuple(kept[index] for index in sorted(kept)), tuple(named))


def _gone(card: Card) -> str:
    return f"card {card.index} ({card.uuid}) was found before and is missing now"
