"""The part of a cluster that `hami-dra status` shows, as a document and as lines.

Used once for a state that was read, and again after each change by `--watch`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from controller.cli.errors import CommandError
from controller.cli.label_options import label_matcher
from controller.cli.tables import Line, TextLayout

if TYPE_CHECKING:
    from controller.cli.container_usage import UsedCard
    from controller.gangs import GangKey
    from controller.insight.simulation import PendingPods
    from controller.inventory import Inventory, QuotaLine
    from controller.views.overview import Overview, Reservation
    from hami_dra.api.core import Node, Pod
    from hami_dra.api.resource import ResourceClaim


class By(StrEnum):
    device = "device"
    node = "node"
    namespace = "namespace"


class Selection(Struct, frozen=True, kw_only=True):
    """The part of the cluster to show, as the options say."""

    by: By = By.device
    vendors: Sequence[str] = ()
    nodes: Sequence[str] = ()
    labels: str = ""
    """Of nodes; of pods with --pending."""
    namespace: str | None = None
    """Only cards of this namespace; None: all."""
    quota: bool = False
    listed: str | None = None
    """With --quota and --pending, the namespace that is listed; None: all."""

    def of(
        self,
        inventory: "Inventory",
        claims: "Iterable[ResourceClaim]",
        pods: "Iterable[Pod]",
        nodes: "Iterable[Node]",
        gang_of: "Callable[[Pod], GangKey | None]",
        *,
        held_places: "Iterable[Reservation]" = (),
    ) -> "StatusView":
        """Return the requested view. Raises CommandError if a named node or vendor does not exist."""
        from controller.views.overview import CardTable, by_card, namespaces, overview

        vendors = self._checked_vendors(inventory)
        chosen = self._chosen_nodes(nodes)
        table = CardTable(inventory)
        found = overview(
            inventory,
            claims,
            pods,
            nodes=chosen,
            vendors=vendors,
            table=table,
            gang_of=gang_of,
            held_places=held_places,
        )
        kept = tuple(each for each in found.reservations if self.namespace in {None, each.namespace})
        places = by_card(kept, table)
        self._check_nodes(inventory, {each.node for each in found.nodes})
        if (mine := self.namespace) is not None:
            cards = tuple(
                card
                for card in found.cards
                if card.id in places or any(each.namespace == mine for each in card.tenants)
            )
            on = {card.node for card in cards}
            found = replace(
                found,
                cards=cards,
                nodes=tuple(each for each in found.nodes if each.node in on),
                namespaces=tuple(each for each in namespaces(cards) if each.namespace == mine),
                reservations=kept,
            )
        if vendors is not None:
            found = replace(found, packing=tuple(each for each in found.packing if each.vendor in vendors))
        only = self.listed if self.quota else self.namespace
        lines = inventory.quotas.lines(None if only is None else [only], guarantees=True)
        return StatusView(self, found, lines, places)

    def _chosen_nodes(self, nodes: "Iterable[Node]") -> Collection[str] | None:
        """Return the nodes that are named or have the labels; None: all."""
        if not self.labels:
            return list(self.nodes) or None
        matches = label_matcher(self.labels)
        return [
            each.metadata.name
            for each in nodes
            if matches(each.metadata.labels) and (not self.nodes or each.metadata.name in self.nodes)
        ]

    def _check_nodes(self, inventory: "Inventory", found: Collection[str]) -> None:
        if self.labels:
            return
        for name in sorted(set(self.nodes) - set(found)):
            if inventory.nodes.index_of(name) >= 0:
                raise CommandError(f"--node {name}: it has no such devices: no driver's ResourceSlice names it")
            from hami_dra.api.similar_names import similar

            raise CommandError(f"--node {name}: there is no such node{similar(name, inventory.nodes.names)}")

    def _checked_vendors(self, inventory: "Inventory") -> set[str] | None:
        if not self.vendors:
            return None
        from controller.views.overview import CardTable, vendor_name

        table = CardTable(inventory)
        table.refresh()
        vendor_of = {table.drivers[number]: vendor_name(table.drivers[number]) for number in table.ordered_drivers()}
        there = dict.fromkeys(vendor_of.values())
        for name in self.vendors:
            if name not in there and name not in vendor_of:
                choices = ", ".join(there) or "none"
                raise CommandError(
                    f"--vendor {name}: no device of it is published; vendors with devices here: {choices}"
                )
        return {vendor_of.get(name, name) for name in self.vendors}


@dataclass(eq=False)
class StatusView:
    """The requested part of the cluster at one moment."""

    wanted: Selection
    overview: "Overview"
    quotas: "list[QuotaLine]"
    places: "Mapping[str, Sequence[Reservation]]"
    pending: "PendingPods | None" = None
    """With --pending."""
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    """The end of ages; of files, when they were taken."""
    used: "list[UsedCard] | None" = None
    """With --usage."""

    def document(self) -> dict[str, Any]:
        import msgspec

        document: dict[str, Any] = msgspec.to_builtins(self.overview, str_keys=True) | {"quotas": self.quotas}
        parts = {"pending": self.pending, "usage": self.used}
        return document | {name: part for name, part in parts.items() if part is not None}

    def names(self) -> list[str]:
        """Return what the rows are about, as `kind/name`."""
        if self.wanted.quota:
            return list(dict.fromkeys(f"resourcequota/{each.namespace}/{each.quota}" for each in self.quotas))
        if self.pending is not None:
            return [f"pod/{each.pod}" for each in self.pending.pods]
        match self.wanted.by:
            case By.device:
                return [card.id for card in self.overview.cards]
            case By.node:
                return [f"node/{each.node}" for each in self.overview.nodes]
            case By.namespace:
                return list(dict.fromkeys(f"namespace/{each.namespace}" for each in self.overview.namespaces))

    def lines(self, layout: TextLayout) -> list[Line]:
        from controller.cli import status_tables

        if self.wanted.quota:
            return status_tables.quotas(self.quotas, layout, self.wanted.listed)
        if self.pending is not None:
            return status_tables.pending(
                self.pending, self.overview.reservations, layout, namespace=self.wanted.listed, now=self.now
            )
        rows: Callable[[Overview, TextLayout], list[Line]] = {
            By.device: lambda seen, layout: status_tables.cards(seen, layout, self.places),
            By.node: status_tables.nodes,
            By.namespace: status_tables.namespaces,
        }[self.wanted.by]
        namespace, labels = self.wanted.namespace, self.wanted.labels
        if not self.overview.cards and namespace is not None:
            return [Line(f"no pod of namespace {namespace} holds a device; status without -n shows all devices")]
        if not self.overview.cards and labels:
            return [Line(f"no node with the labels {labels} has devices; status without -l shows all devices")]
        usage = [] if self.used is None else status_tables.usage(self.used, layout)
        return [*rows(self.overview, layout), *usage, *status_tables.summary(self.overview, layout)]
