"""The annotation `hami.io/device-cordon` of a Node: cards taken out of service by an operator, by number or uuid.

Used by `service`. In: the annotation and the cards of the node. Out: uuids, and entries that match
no card. Pure.
"""

from collections.abc import Iterable

from msgspec import Struct

from hami_dra.api import names
from hami_dra.api.core import Node
from hami_dra.api.hardware import Card


class Cordon(Struct, frozen=True):
    uuids: frozenset[str] = frozenset()
    unknown: tuple[str, ...] = ()
    """Entries that match no card, as written."""


def cordon_of(node: Node, cards: Iterable[Card]) -> Cordon:
    """Return the cordoned cards of a node.

    A number is the one in the name of a published device, of any vendor: it stays with its card,
    while the index may change. Uuids are compared without regard to case.
    """
    text = node.metadata.annotations.get(names.DEVICE_CORDON, "")
    by_name: dict[str, set[str]] = {}
    for card in cards:
        for name in (str(card.name_number), card.uuid.lower()):
            by_name.setdefault(name, set()).add(card.uuid)
    entries = dict.fromkeys(entry.strip() for entry in text.split(",") if entry.strip())
    found: set[str] = set()
    for entry in entries:
        found |= by_name.get(entry.lower(), set())
    return Cordon(frozenset(found), tuple(entry for entry in entries if entry.lower() not in by_name))
