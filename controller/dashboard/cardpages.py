"""Content of the pages about cards: overview, one node, one card. HTML: `templates/`.

Called by `pages` with the query of a request. In: the `Source`, a `CardTable` kept between calls,
the history, the drivers' readings. Out: contexts. Only reads; raises `NoSuchThing` for objects that
do not exist.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from controller.dashboard import drawing, fabric, trends, wording
from controller.dashboard.fleet import STATES, NodeRow, node_rows, product_rows
from controller.dashboard.history import History
from controller.dashboard.pacing import breath
from controller.dashboard.pending import grouped, largest_first, pending_pods
from controller.dashboard.readings import Readings
from controller.dashboard.reserved import reserved
from controller.dashboard.source import Source
from controller.dashboard.summary import allocated_share, summary
from controller.dashboard.tables import Context, PageTable, Query
from controller.inventory import DeviceId
from controller.views.columns import Row
from controller.views.overview import (
    Card,
    CardTable,
    Overview,
    Packing,
    Reservation,
    by_card,
    device_id,
    linked_sizes,
    overview,
    packing,
)
from hami_dra.api.resource import DeviceAttribute, ResourceClaim

NODES_ON_LEAF: Final = 24
FEW_NODES: Final = 12
"""Up to this many nodes, the overview shows their cards, beyond that one tile for each node."""
MOST_TILES: Final = 240
"""Tiles in the fleet drawing; on larger clusters a tile represents several nodes."""


class NoSuchThing(LookupError):
    """The object does not exist; the message names it."""


class Tile(Struct, frozen=True):
    """One node of the fleet drawing, or several in the order of their names."""

    first: str
    last: str
    nodes: int
    state: str
    cards: int
    held: int
    leaf: int
    fill: int
    """Held cards, in thousandths."""


class Machine(Struct, frozen=True):
    """One node with its cards."""

    row: NodeRow
    products: tuple[str, ...]
    islands: list[drawing.Island]
    tenants: list[drawing.Marker]
    """The markers on its cards, by letter."""


class CardPages:
    """`table`: of all pages. Refresh it, and read it before other tasks run: they refresh it, too."""

    def __init__(self, source: Source, history: History, readings: Readings) -> None:
        self.source = source
        self.table = CardTable(source.inventory)
        self._history = history
        self._readings = readings

    async def overview(self, query: Query) -> Context:
        self._readings.wanted()
        packed = packing(self.table)
        linked = linked_sizes(self.table)
        await breath()
        self.table.refresh()
        rows = node_rows(self.table)
        products = product_rows(self.table)
        await breath()
        waiting = await pending_pods(self.source)
        groups = largest_first(grouped(waiting))
        await breath()
        uses = self._readings.uses(self.source.inventory) if self._readings.on else {}
        now, everything = datetime.now(UTC), self.source.namespaces is None
        span = query.get("range", "")
        span = span if span in trends.SPANS else trends.SPAN
        kept = [each.reserved for each in waiting if each.reserved is not None]
        allocated = {wording.vendor(each.vendor): self._allocated(each, now) for each in packed}
        pending = [*self._history.pending(), (now, len(waiting))]
        return {
            "packing": packed,
            "linked": linked,
            "products": products,
            "summary": summary(packed, (len(waiting), min((each.since for each in waiting), default=""))),
            "state": self.source.state,
            "waiting": groups,
            "reserved": len({device for each in kept for device in each.devices}),
            "allocated": trends.chart(allocated, now, span=span, unit="%", top=100),
            "pending": trends.chart({"pending": pending}, now, span=span) if everything else None,
            "spans": {key: "" if key == trends.SPAN else key for key in trends.SPANS},
            "span": span,
            "tiles": tiles(rows),
            "machines": self.machines(rows, kept) if len(rows) <= FEW_NODES else None,
            "nodes": len(rows),
            "uses": uses,
            "has_readings": self._readings.on,
            "known": self._readings.known(row.name for row in rows),
            "states": {state: sum(row.state == state for row in rows) for state in STATES},
            "problems": dict(sorted(self.source.inventory.problems.items())[:20]) if everything else {},
        }

    def _allocated(self, each: Packing, now: datetime) -> list[tuple[datetime, float]]:
        """Return what was and is allocated, in percent: a trend ends with the figure of now."""
        past = [(sample.at, 100 * sample.allocated) for sample in self._history.of_driver(each.driver)]
        return [*past, (now, 100 * allocated_share(each))]

    def machines(self, rows: Sequence[NodeRow], kept: Iterable[Reservation]) -> list[Machine]:
        cards: dict[str, list[Card]] = {row.name: [] for row in rows}
        for card in self.cards_on(list(cards)).cards:
            if card.node in cards:
                cards[card.node].append(card)
        by_node: dict[str, list[drawing.DrawnCard]] = {}
        held = by_card(kept, self.table)
        for name, members in cards.items():
            marks = drawing.markers(members)  # letters begin with A on each node
            by_node[name] = [drawing.drawn(card, marks, held.get(card.id, ())) for card in members]
        return [
            Machine(
                row,
                tuple(sorted({each.card.product for each in by_node[row.name]})),
                drawing.islands(by_node[row.name]),
                drawing.markers_of(by_node[row.name]),
            )
            for row in rows
        ]

    def node(self, query: Query) -> Context:
        self._readings.wanted()
        name = query.get("name", "")
        seen = self.cards_on([name])
        cards = [card for card in seen.cards if card.node == name]
        if not cards:
            raise NoSuchThing(name)
        marks = drawing.markers(cards)
        kept = reserved(self.source)
        held = by_card(kept, self.table)
        vendors: dict[str, list[drawing.DrawnCard]] = {}
        for card in cards:
            vendors.setdefault(card.vendor, []).append(drawing.drawn(card, marks, held.get(card.id, ())))
        readings = self._readings
        roots = {card.id: self._pcie_root(card) for card in cards}
        return {
            "node": next(each for each in seen.nodes if each.node == name),
            "vendors": [
                {
                    "name": vendor,
                    "islands": drawing.islands(drawn),
                    "links": fabric.fabric(drawn),
                    "tree": fabric.pcie_tree(drawn, roots),
                    "cards": drawn,
                }
                for vendor, drawn in vendors.items()
            ],
            "size": fabric.SIZE,
            "devices": [
                {
                    "card": card,
                    "state": drawing.state_of(card),
                    "reading": readings.of(name, card.uuid) if readings.on else None,
                }
                for card in cards
            ],
            "has_readings": readings.on,
            "legend": _legend(cards, marks),
            "reserved": [each for each in kept if each.node == name],
        }

    def _pcie_root(self, card: Card) -> str:
        devices = self.source.inventory.devices
        row = devices.row_of(DeviceId(card.driver, card.pool, card.device))
        device = devices.device(row)
        return device.string_attribute(device.profile.pcie_root) if device.profile.pcie_root else ""

    def device(self, query: Query) -> Context:
        self._readings.wanted()
        key = query.get("id", "")
        row = self.source.inventory.devices.row_of(device_id(key))
        happenings = [each for each in self._history.of_card(key) if self._may_name(each.namespace)]
        if row < 0:
            raise NoSuchThing(key)
        published = self.source.inventory.devices.device(row)
        card = next((each for each in self.cards_on([self.table.node_name(row)]).cards if each.id == key), None)
        if card is None:
            raise NoSuchThing(key)  # for example a part of a card
        marks = drawing.markers([card])
        return {
            "card": card,
            "drawn": drawing.drawn(card, marks, by_card(reserved(self.source), self.table).get(card.id, ())),
            "marks": marks,
            "has_readings": self._readings.on,
            "reading": self._readings.of(card.node, card.uuid),
            "containers": [
                each for each in self._readings.containers(card.node, card.uuid) if self._may_name(each.namespace)
            ],
            "stays": drawing.tenant_segments(happenings),
            "since": self._history.since,
            "attributes": sorted(_attributes(published.spec.attributes)),
        }

    def cards_on(self, nodes: list[str]) -> Overview:
        """Return the cards on these nodes, with the tenants that the user may see."""
        claims = self._claims_on(nodes)
        pods = (pod for claim in claims if not claim.status.reserved_for for pod in self.source.pods_of(claim.key))
        found = overview(self.source.inventory, claims, pods, nodes=set(nodes), table=self.table, with_packing=False)
        if self.source.namespaces is None:
            return found
        cards = (
            replace(card, tenants=tuple(each for each in card.tenants if self._may_name(each.namespace)))
            for card in found.cards
        )
        return replace(found, cards=tuple(cards), namespaces=(), unpublished=(), vanished=(), problems={})

    def _may_name(self, namespace: str) -> bool:
        return self.source.namespaces is None or namespace in self.source.namespaces

    def _claims_on(self, nodes: Iterable[str]) -> list[ResourceClaim]:
        """Return the claims that hold something on these nodes."""
        inventory = self.source.inventory
        found: dict[str, ResourceClaim] = {}
        for name in nodes:
            for row in inventory.rows_on(name):
                for claim in self.source.claims_on(str(inventory.devices.device(row).id)):
                    found[claim.key] = claim
        return list(found.values())


class CardsTable(PageTable[Row]):
    """A table made of what the columns of cards have."""

    def __init__(self, cards: CardPages) -> None:
        super().__init__(cards.source)
        self._cards = cards
        self._table = cards.table


def tiles(rows: list[NodeRow]) -> list[Tile]:
    size = max(1, -(-len(rows) // MOST_TILES))
    found = []
    for start in range(0, len(rows), size):
        some = rows[start : start + size]
        cards, free = sum(row.cards for row in some), sum(row.free_cards for row in some)
        order = ("free", "partly", "unhealthy", "full")
        found.append(
            Tile(
                first=some[0].name,
                last=some[-1].name,
                nodes=len(some),
                state=min((row.state for row in some), key=order.index),
                cards=cards,
                held=sum(row.held_cards for row in some),
                leaf=start // NODES_ON_LEAF + 1,
                fill=1000 * (cards - free) // cards if cards else 0,
            )
        )
    return found


def _legend(cards: Iterable[Card], marks: Mapping[tuple[str, str], drawing.Marker]) -> list[Context]:
    """Return for each marker what its pod holds here, by letter."""
    held: dict[drawing.Marker, list[tuple[Card, Any]]] = {}
    for card in cards:
        for tenant in card.tenants:
            held.setdefault(marks[tenant.namespace, tenant.claim], []).append((card, tenant))
    return [
        {"marker": marker, "entries": entries, "claims": sorted({tenant.claim for _, tenant in entries})}
        for marker, entries in held.items()
    ]


def _attributes(attributes: Mapping[str, DeviceAttribute]) -> Iterator[tuple[str, object]]:
    """Yield names and values, but of lists."""
    for name, attribute in attributes.items():
        for value in (attribute.string, attribute.int_, attribute.bool_, attribute.version):
            if value is not None:
                yield name, value
