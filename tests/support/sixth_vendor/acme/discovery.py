"""Acme's cards, through `acme-smi`: one line `<index> <uuid> <MiB>` for each."""

from pathlib import Path

from hami_dra.api.hardware import Card
from hami_dra.discovery.backend import PolledBackend
from hami_dra.discovery.memory import CARDS_FILE, CardMemory, Listing
from hami_dra.discovery.tool import Tool

TOOL = Tool("acme-smi")


def backend(state_folder: Path | None) -> PolledBackend:
    """Make the back end that asks `acme-smi`."""
    memory = CardMemory(Card, state_folder and state_folder / CARDS_FILE)
    return PolledBackend("acme", lambda: Listing(cards(TOOL.run())), memory=memory)


def cards(text: str) -> tuple[Card, ...]:
    """Return one record for each line."""
    rows = [line.split() for line in text.splitlines()]
    return tuple(
        Card(vendor="acme", index=int(index), minor=int(index), uuid=uuid, product="Acme One", memory=int(memory) << 20)
        for index, uuid, memory in rows
    )
