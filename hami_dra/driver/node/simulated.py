"""A reference machine in place of hardware, whose faults are read from a file.

Created by the CLI for `--machine`, and by tests. Implements `hami_dra.discovery.backend.Backend`;
it reads only that file. One fault a line: the card's index or uuid, a code, and optionally a
message for people; `#` begins a comment:

    2 xid-79 GPU has fallen off the bus
    3 lost
"""

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from hami_dra.api.hardware import Card, Fault
from hami_dra.discovery.backend import LOST, Findings, Health
from hami_dra.discovery.errors import ToolFailed, shown


class _Reading(Struct, frozen=True):
    faults: dict[str, tuple[Fault, ...]]
    problems: tuple[str, ...]


class SimulatedBackend:
    """The cards of one vendor. `faults`: the file, which may be missing; it is read again at each call."""

    tells_events = False

    def __init__(self, vendor: str, cards: Sequence[Card], faults: Path | None = None) -> None:
        self.vendor = vendor
        self._cards = tuple(sorted(cards, key=lambda card: card.index))
        self._file = faults
        self._lost: frozenset[str] = frozenset()
        """Lost cards at the last discovery."""

    def discover(self) -> Findings:
        reading = self._read()
        self._lost = _lost(reading)
        cards = [
            replace(card, present=card.uuid not in self._lost, faults=reading.faults[card.uuid]) for card in self._cards
        ]
        return Findings(tuple(cards), reading.problems)

    def health(self, patience: float = 0.0) -> Health:  # noqa: ARG002 (there is nothing to wait for)
        reading = self._read()
        return Health(reading.faults, reading.problems, outdated=_lost(reading) != self._lost)

    def close(self) -> None:
        """Do nothing: no resource is held."""

    def _read(self) -> _Reading:
        faults: dict[str, list[Fault]] = {card.uuid: [] for card in self._cards}
        problems = []
        for number, line in enumerate(self._lines(), start=1):
            name, _, rest = line.partition("#")[0].strip().partition(" ")
            code, _, message = rest.strip().partition(" ")
            if not name:
                continue
            meant = [card.uuid for card in self._cards if name in (str(card.index), card.uuid)]
            if not meant or not code:
                problems.append(
                    f"{self._file}, line {number} {shown(line)}: expected a card of {self.vendor} and a code"
                )
            for uuid in meant if code else ():
                faults[uuid].append(Fault(code=code, message=message.strip() or f"simulated: {code}"))
        return _Reading({uuid: tuple(found) for uuid, found in faults.items()}, tuple(problems))

    def _lines(self) -> list[str]:
        if self._file is None:
            return []
        try:
            return self._file.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []
        except (OSError, UnicodeDecodeError) as error:
            raise ToolFailed(f"the file of simulated faults cannot be read: {error}") from error


def _lost(reading: _Reading) -> frozenset[str]:
    return frozenset(uuid for uuid, faults in reading.faults.items() if LOST in {fault.code for fault in faults})
